"""Jinja with bounded work and memory: a template comes from whoever made the model.

What a render does is counted in steps: items of loops, calls and look-ups of attributes. Values
that a template makes are measured where they could grow from one to the next: results of
operators, filters and calls, and whatever is assigned. So neither a long chat nor a hostile
template holds up the server. Beyond a limit the render ends with a TemplateError.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
MAX_LENGTH = 1 << 24  # characters of a string, items of a list, also of what is rendered
_ITEMS_PER_STEP = 64  # read or copied by one filter, slice or operator
_SIZED = (str, list, tuple, dict, range)
_LONG_NUMBER = re.compile(r"\d{7,}")  # a width in a format

# Of the present render, in a list so that it can grow; none while a template is compiled.
_steps: ContextVar[list[int] | None] = ContextVar("steps", default=None)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates are rendered by `render_bounded`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, filters: dict[str, Callable[..., Any]], **options: Any) -> None:
        """filters: beside those of jinja, or instead."""
        super().__init__(**options)
        own = self.filters | filters
        self.filters = {name: _measured(function) for name, function in own.items()}
        self.filters |= {"_counted": _counted, "_checked": _checked}

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Has every loop counted and every assigned value checked."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(jinja2.nodes.For)):
            loop.iter = _filtered(loop.iter, "_counted")  # type: ignore[arg-type]
        for assignment in list(template.find_all(jinja2.nodes.Assign)):
            assignment.node = _filtered(assignment.node, "_checked")  # type: ignore[arg-type]
        for block in list(template.find_all(jinja2.nodes.AssignBlock)):
            block.filter = _filtered(block.filter, "_checked")
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Before it is made, the length of a repetition is known, and that of a power."""
        if operator == "*" and isinstance(left, int) ^ isinstance(right, int):
            many, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(many, str | list | tuple):
                _check_length(len(many) * times)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_length(left.bit_length() * right)
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
            _check_numbers(right if isinstance(right, tuple) else (right,))
        return _checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Widths and counts are checked before the call, the result after it."""
        _check_numbers((*args, *kwargs.values()))
        return _checked(super().call(context, called, *args, **kwargs))

    def getattr(self, value: Any, attribute: str) -> Any:
        """One step."""
        _count()
        return super().getattr(value, attribute)

    def getitem(self, value: Any, argument: Any) -> Any:
        """One step, and more for a long slice."""
        found = super().getitem(value, argument)
        return _checked(found)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Of the method `format` of a string."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_widths(value.__self__)
        return wrapped


def render_bounded(template: jinja2.Template, values: dict[str, Any]) -> str:
    """Render. Raises jinja2.TemplateError, also beyond the limits, and whatever a template may."""
    token = _steps.set([0])
    try:
        pieces, length = [], 0
        for piece in template.generate(**values):
            length += len(piece)
            _check_length(length)
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _steps.reset(token)


def _filtered(node: jinja2.nodes.Expr | None, name: str) -> jinja2.nodes.Filter:
    line = 0 if node is None else node.lineno
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=line)


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its arguments and its result checked; how jinja passes context stays."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        for value in args:
            _checked(value)
        if function.__name__ == "do_format":
            _check_widths(str(args[0]))
        return _checked(function(*args, **kwargs))

    checked.__dict__.update(getattr(function, "__dict__", {}))
    return checked


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _count()
        yield item


def _checked(value: Any) -> Any:
    length = len(value) if isinstance(value, _SIZED) else 0
    _check_length(length)
    _count(1 + length // _ITEMS_PER_STEP)
    return value


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) is int:
            _check_length(abs(value))


def _check_widths(text: str) -> None:
    if _LONG_NUMBER.search(text):
        raise jinja2.TemplateError("a width in its format is too large")


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise jinja2.TemplateError(f"it makes values of more than {MAX_LENGTH} characters or items")


def _count(num: int = 1) -> None:
    steps = _steps.get()
    if steps is None:
        return
    steps[0] += num
    if steps[0] > MAX_STEPS:
        raise jinja2.TemplateError(f"it takes more than {MAX_STEPS} steps")
