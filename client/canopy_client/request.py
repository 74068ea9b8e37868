"""What is asked, before any transport: a model's inputs by name, as the vLLM backend names them."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from canopy_client.errors import InvalidRequest
from canopy_client.types import Messages, ModelInfo, Prompt

MODEL = "canopy"
_OPTIONAL_INPUTS = (
    "stream",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


@dataclass(frozen=True)
class Request:
    """Inputs of one request; every input holds one element."""

    model: str
    inputs: Mapping[str, str | bool]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def expects_reason(self) -> bool:
        """Whether the last piece of the answer says how it ended."""
        return bool(self.inputs.get("return_finish_reason"))


def generation(
    model: str, prompt: Prompt | None, messages: Messages | None, options: Mapping[str, Any]
) -> Request:
    """A streamed request for a continuation of a prompt, or for the next turn of a chat."""
    inputs: dict[str, str | bool] = {}
    parameters = dict(options)
    if isinstance(prompt, str):
        inputs["text_input"] = prompt
    elif prompt is not None:
        parameters["prompt_token_ids"] = list(prompt)
    if parameters.pop("return_token_ids", False):
        inputs["return_token_ids"] = True
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if messages is not None:
        inputs["messages"] = json.dumps(list(messages))
    if parameters:
        inputs["sampling_parameters"] = json.dumps(parameters)
    return Request(model, inputs | dict.fromkeys(_OPTIONAL_INPUTS, True))


def control(model: str, operation: Mapping[str, Any]) -> Request:
    """A message to the service itself, such as {"op": "cancel", "request_id": ...}."""
    return Request(model, {"control": json.dumps(dict(operation))})


def supported_by(request: Request, model: ModelInfo) -> Request:
    """The request without what it merely wishes for and the model does not take.

    Raises InvalidRequest when the model does not take what the request is about.
    """
    missing = set(request.inputs) - set(model.inputs)
    needed = missing - set(_OPTIONAL_INPUTS)
    if needed:
        raise InvalidRequest(f"the model {model.name} takes no {', '.join(sorted(needed))}")
    kept = {name: value for name, value in request.inputs.items() if name not in missing}
    return Request(request.model, kept, request.id)


def probe(model: ModelInfo) -> Request:
    """The cheapest request that a model must be able to answer."""
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
    if "speculation" in model.outputs:
        options["speculation"] = "off"
    return generation(model.name, "a", None, options)
