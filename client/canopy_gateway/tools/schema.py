"""Tools as OpenAI's clients declare them, and JSON schemas of calls to them."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from canopy_gateway.strict import Strict, Text

_ANYTHING = {"type": "object"}
_LOCAL = "#/$defs/"


class FunctionDeclaration(Strict):
    """What a model is told of a function."""

    name: Text = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: dict(_ANYTHING))
    strict: bool | None = None  # arguments follow the schema wherever a call is enforced


class Tool(Strict):
    """A function that a model may call."""

    type: Literal["function"]
    function: FunctionDeclaration

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class FunctionName(Strict):
    """One of the tools."""

    name: Text


class NamedTool(Strict):
    """tool_choice of one function."""

    type: Literal["function"] = "function"
    function: FunctionName

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        """{"type": "function", "name": ...}, as the newer API has it, too."""
        if isinstance(given, dict) and "name" in given and "function" not in given:
            return {"type": given.get("type", "function"), "function": {"name": given["name"]}}
        return given


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def schema_of_arguments(tool: Tool) -> dict[str, Any]:
    """Of a tool's arguments; none that it does not declare, unless it says that it takes any."""
    closed: dict[str, Any] = _closed(tool.function.parameters)
    return closed


def schema_of_calls(tools: Sequence[Tool], max_calls: int | None) -> dict[str, Any]:
    """Of a list of one call or more, each {"name", "parameters"}."""
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools):
        arguments = schema_of_arguments(tool)
        parameters = _with_own_definitions(arguments, f"{index}.", definitions)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    return schema | ({"$defs": definitions} if definitions else {})


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict)
    is_open = "additionalProperties" in schema or "patternProperties" in schema
    return closed | {"additionalProperties": False} if is_object and not is_open else closed


def _with_own_definitions(schema: Any, prefix: str, definitions: dict[str, Any]) -> Any:
    """A schema whose `$defs` went to `definitions`, under names that no other schema has."""
    if isinstance(schema, list):
        return [_with_own_definitions(item, prefix, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, value in schema.items():
        if key == "$defs" and isinstance(value, dict):
            for name, definition in value.items():
                own = _with_own_definitions(definition, prefix, definitions)
                definitions[prefix + name] = own
        elif key == "$ref" and isinstance(value, str) and value.startswith(_LOCAL):
            moved[key] = _LOCAL + prefix + value.removeprefix(_LOCAL)
        else:
            moved[key] = _with_own_definitions(value, prefix, definitions)
    return moved
