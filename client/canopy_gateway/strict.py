"""JSON objects as they are read: types as JSON has them, no unknown fields, null as absent."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from canopy_gateway.neutral import without_null


class Strict(BaseModel):
    """Base of everything that a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return without_null(given)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# JSON has one kind of number, so 8.0 is an integer too.
Integer = Annotated[int, BeforeValidator(_whole)]


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair; no text can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair stands alone: send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
