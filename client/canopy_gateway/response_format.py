"""OpenAI's response_format, and what it means to the server."""

from typing import Any, Literal

from pydantic import Field, model_validator

from canopy_gateway.strict import Strict, Text


class JsonSchema(Strict):
    """What OpenAI wraps a JSON schema in; it is always enforced."""

    name: Text = ""
    description: Text = ""
    strict: bool = True
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    """Of an answer: any text, a JSON object, or what a JSON schema admits."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_one_is_meant(self) -> "ResponseFormat":
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError('json_schema goes with type = "json_schema"')
        return self

    def structured_outputs(self) -> dict[str, Any] | None:
        """The parameter of the server."""
        if self.json_schema is not None:
            return {"json": self.json_schema.json_schema}
        return {"json_object": True} if self.type == "json_object" else None
