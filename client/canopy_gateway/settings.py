"""Everything that can be set: its default, its option on the command line, and what it means."""

from dataclasses import dataclass, field
from typing import Any

from canopy_client.types import Tls
from canopy_gateway.tools.formats import FORMATS


def _setting(default: Any, option: str, text: str, is_secret: bool = False) -> Any:
    metadata = {"option": option, "help": text}
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass(frozen=True)
class GatewaySettings:
    """Of one gateway; limits refuse, they never drop."""

    server_url: str = _setting(
        "127.0.0.1:8001",
        "server",
        "The Triton server: host:port (gRPC), grpcs://, http:// or https://.",
    )
    model: str = _setting("canopy", "model", "The model's name on the server.")
    ca_file: str | None = _setting(
        None, "ca-file", "PEM file of who signed the server's certificate."
    )
    served_names: tuple[str, ...] = _setting(
        (), "served-name", "What clients call the model; repeatable. Default: as the server."
    )
    api_keys: tuple[str, ...] = _setting(
        (), "api-key", "Ask for one of these; repeatable. Better in the environment.", True
    )
    allowed_origins: tuple[str, ...] = _setting(
        (), "allow-origin", "Pages of this origin may ask (CORS); repeatable, * for any."
    )
    max_connections: int = _setting(1000, "max-connections", "Open connections; beyond, 503.")
    keep_alive_s: float = _setting(
        75.0,
        "keep-alive",
        "Seconds that an idle connection stays open; longer than a proxy in front keeps it.",
    )
    head_timeout_s: float = _setting(
        20.0, "head-timeout", "Seconds for the head of a request to arrive; then 408."
    )
    write_timeout_s: float = _setting(
        60.0, "write-timeout", "Seconds without a byte read after which a client is dropped."
    )
    drain_s: float = _setting(
        5.0,
        "drain",
        "Seconds after SIGTERM in which requests are still accepted while /health says 503.",
    )
    max_body_bytes: int = _setting(2 << 20, "max-body-bytes", "Larger requests get 413.")
    body_timeout_s: float = _setting(
        30.0, "body-timeout", "Seconds for a body to arrive whole; then 408."
    )
    max_prompt_bytes: int = _setting(1 << 20, "max-prompt-bytes", "Longer texts get 400.")
    allow_special_tokens: bool = _setting(
        False,
        "allow-special-tokens",
        "Special tokens within the messages of a chat count, so that they can forge turns.",
    )
    tool_call_parser: str = _setting(
        "auto",
        "tool-call-parser",
        "How the model writes tool calls: hermes (also Qwen), llama3, mistral or none. auto: as "
        "its chat template tells.",
    )
    reasoning_parser: str = _setting(
        "auto",
        "reasoning-parser",
        "think: what stands between <think> and </think> is reasoning; none: it is text. auto: as "
        "the model's chat template tells.",
    )
    max_concurrent: int = _setting(64, "max-concurrent", "Answers at once; beyond, 429.")
    max_concurrent_per_key: int | None = _setting(
        None, "max-concurrent-per-key", "Answers at once for one API key; beyond, 429."
    )
    max_choices: int = _setting(8, "max-choices", "Most answers of one request (n).")
    request_timeout_s: float = _setting(
        600.0, "request-timeout", "Seconds; a longer answer gets 504."
    )
    stream_start_s: float = _setting(
        0.5, "stream-start", "A stream's status line waits at most so many seconds for an error."
    )
    comment_interval_s: float = _setting(
        5.0, "comment-interval", "Seconds without text after which a stream gets a comment line."
    )
    retry_after_s: int = _setting(1, "retry-after", "Seconds that a refused client is to wait.")
    health_max_age_s: float = _setting(
        2.0, "health-max-age", "Seconds that a finding of /health may be told again."
    )
    health_timeout_s: float = _setting(
        10.0,
        "health-timeout",
        "Seconds without an answer of the server after which /health says 503.",
    )

    def __post_init__(self) -> None:
        choices = {
            "tool_call_parser": ("auto", "none", *FORMATS),
            "reasoning_parser": ("auto", "none", "think"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use; the first is the one that answers carry."""
        return self.served_names or (self.model,)

    @property
    def tls(self) -> Tls | None:
        """Towards the server."""
        return None if self.ca_file is None else Tls(ca_file=self.ca_file)
