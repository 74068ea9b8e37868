"""Which variants of the Triton-language kernels a run would compile, told without a GPU.

In the interpreter nothing is compiled. Here its launches are noted, not run, each with what
Triton's compiler keys a variant by: constants, options, types, and of pointers and whole numbers
whether they are multiples of 16, of numbers also whether they are 1.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kernel_interpreter  # noqa: F401  before Triton is imported
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

Variant = tuple[Any, ...]


@contextmanager
def recorded_variants() -> Iterator[set[Variant]]:
    """The variants launched within; the launches themselves do nothing."""
    variants: set[Variant] = set()
    interpret = InterpretedFunction.run

    def run(self: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        variants.add(_variant(self, args, options))

    InterpretedFunction.run = run
    try:
        yield variants
    finally:
        InterpretedFunction.run = interpret


def _variant(kernel: InterpretedFunction, args: tuple[Any, ...], options: dict) -> Variant:
    parameters = inspect.signature(kernel.fn).parameters
    named = {name: options[name] for name in options if name in parameters}
    named |= dict(zip(parameters, args, strict=False))
    fixed = kernel.kwargs.get("do_not_specialize") or ()
    compile_options = tuple(sorted((k, v) for k, v in options.items() if k not in parameters))
    keys = [
        ("constant", named[name])
        if parameter.annotation in (tl.constexpr, "tl.constexpr")
        else _key(named[name], name not in fixed)
        for name, parameter in parameters.items()
    ]
    return (kernel.fn.__name__, compile_options, *keys)


def _key(value: Any, is_special: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_key(item, True) for item in value)  # whatever is said of the tuple
    if isinstance(value, torch.Tensor):
        is_aligned = value.device.type == "meta" or value.data_ptr() % 16 == 0
        return str(value.dtype), is_special and is_aligned
    if isinstance(value, int):
        width = "i32" if -(2**31) <= value < 2**31 else "i64"
        return width, is_special and (1 if value == 1 else value % 16 == 0)
    return type(value).__name__
