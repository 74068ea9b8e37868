"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from typing import Any

from pydantic import Field, model_validator

from canopy_gateway.messages import ChatMessage
from canopy_gateway.strict import Integer, Strict, Text
from canopy_gateway.tools.schema import Tool


class TokenizeRequest(Strict):
    """A prompt or a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: list[ChatMessage] = Field(default_factory=list)
    add_special_tokens: bool = True  # around a prompt
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[Tool] = Field(default_factory=list)
    return_token_strs: bool = False  # as the vocabulary spells them

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("send either prompt or messages")
        return self

    def arguments(self, allow_special_tokens: bool) -> dict[str, Any]:
        """Of `AsyncClient.tokenize`. allow_special_tokens: within messages, as of a chat."""
        if self.prompt is not None:
            return {"prompt": self.prompt, "add_special_tokens": self.add_special_tokens}
        return {
            "messages": [message.for_server() for message in self.messages],
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "chat_template_kwargs": self.chat_template_kwargs,
            "tools": [tool.for_template() for tool in self.tools],
            "allow_special_tokens": allow_special_tokens,
        }


class DetokenizeRequest(Strict):
    """Token ids."""

    model: Text | None = None
    tokens: list[Integer]
