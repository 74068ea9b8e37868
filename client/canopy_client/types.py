"""What callers give and get: options, pieces of an answer, whole answers, facts about a server."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

Messages = str | Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int]  # a text, or its tokens
# Of one token: by token id its own logprob, rank, decoded_token and bytes, then those of the
# likeliest tokens in its place.
Logprobs = Mapping[str, Mapping[str, Any]]


class SamplingOptions(TypedDict, total=False):
    """How to sample, and how to speculate; what is left out is the server's default."""

    temperature: float  # 0 = greedy
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]  # token id -> what is added to its logit
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    logprobs: int  # likeliest tokens told with each token of the answer; 0: its own logprob alone
    prompt_logprobs: int  # the same with each token of the prompt
    return_token_ids: bool
    echo: bool  # the answer begins with the prompt
    tools: Sequence[Mapping[str, Any]]  # told to the chat template, as OpenAI declares them
    chat_template_kwargs: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool  # the answer goes on where the last message ends
    structured_outputs: Mapping[str, Any]  # one of json, json_object, regex, choice, grammar
    seed: int
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    speculation: str  # "off" or a policy's name
    node_budget: int
    acceptance: str
    allow_special_tokens: bool  # False: those within messages are text
    trace: bool  # every chunk tells the rounds since the last one


@dataclass(frozen=True)
class Chunk:
    """One piece of a streamed answer."""

    text: str
    num_tokens: int
    num_input_tokens: int
    finish_reason: str | None  # with the last piece: "stop" or "length"
    speculation: dict[str, Any] | None  # with the last piece
    is_last: bool
    rounds: Sequence[dict[str, Any]] = ()  # with `trace`: each round's draft tree and its fate
    token_ids: Sequence[int] = ()  # with `return_token_ids`
    logprobs: Sequence[Logprobs] = ()  # with `logprobs`, one a token
    prompt_logprobs: Sequence[Logprobs] = ()  # with the first piece; the first one's is None


@dataclass(frozen=True)
class Completion:
    """A whole answer. Counts are 0 and the report is empty where the server does not tell them."""

    text: str
    finish_reason: str
    num_input_tokens: int
    num_output_tokens: int
    speculation: dict[str, Any]
    token_ids: Sequence[int] = ()
    logprobs: Sequence[Logprobs] = ()
    prompt_logprobs: Sequence[Logprobs] = ()


@dataclass(frozen=True)
class Health:
    """What a probe found; a model that answers for itself says more than whether it answers.

    alive: leave it running. ready: send requests here. Every other status than "ready" comes with
    a reason: "busy" (its queue is full), "loading" or "silent" (a stage of it), "stopping",
    "broken".
    """

    server_version: str
    latency_ms: float  # of the answer to the probe
    is_alive: bool = True
    is_ready: bool = True
    status: str = "ready"
    reason: str = ""
    num_running: int = 0
    num_waiting: int = 0
    stages: Mapping[str, str] = field(default_factory=dict)  # ready, loading or silent


@dataclass(frozen=True)
class ModelInfo:
    """One model as the server describes it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ModelState:
    """One line of the server's list of models; `state` is READY where it can be asked."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class Tls:
    """PEM files for an encrypted connection; without `ca_file` the system's authorities count."""

    ca_file: str | None = None
    certificate_file: str | None = None  # of this client, where the server asks for one
    key_file: str | None = None


@dataclass(frozen=True)
class Retry:
    """How often an unavailable server is asked again before anything of the answer came."""

    num_retries: int = 2
    first_wait_s: float = 0.25
    growth: float = 2.0
    max_wait_s: float = 5.0

    def waits(self) -> Iterator[float]:
        """The pause before each further attempt."""
        for index in range(self.num_retries):
            yield min(self.first_wait_s * self.growth**index, self.max_wait_s)


NO_RETRY = Retry(num_retries=0)
