"""The inputs of a request as they came."""

from dataclasses import dataclass, field
from typing import Any

from canopy.errors import InvalidRequest


@dataclass(frozen=True)
class ClientRequest:
    """The inputs of the entry model, as they came; None = not sent."""

    text_input: bytes | None = None
    messages: bytes | None = None
    stream: bool = False
    exclude_input_in_output: bool | None = None
    sampling_parameters: bytes | None = None
    request_parameters: dict[str, Any] = field(default_factory=dict)
    timeout_us: int = 0
    needs_logprobs: bool = False  # an output that is made of them was asked for

    @property
    def num_bytes(self) -> int:
        """Of everything that has to be parsed."""
        return sum(map(len, filter(None, self._texts.values())))

    @property
    def _texts(self) -> dict[str, bytes | None]:
        return {
            "text_input": self.text_input,
            "messages": self.messages,
            "sampling_parameters": self.sampling_parameters,
        }

    def check_sizes(self, max_bytes: int) -> None:
        """Raises InvalidRequest for an input of more bytes."""
        for name, text in self._texts.items():
            if text is not None and len(text) > max_bytes:
                raise InvalidRequest(
                    f"{name} has {len(text)} bytes, at most {max_bytes} are accepted"
                )
