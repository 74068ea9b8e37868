"""Without a GPU, Triton-language kernels run in Triton's interpreter.

Triton asks the environment at its import, so this comes before anything that imports Triton.
"""

import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def multiply_any_dtype(builder, left, right, *arguments):
        """The interpreter holds bfloat16 as its bits, and would multiply those."""

        def widen(operand):
            is_bfloat16 = operand.dtype.scalar == tl.bfloat16
            return builder.cast_impl(operand, tl.float32) if is_bfloat16 else operand

        return multiply(builder, widen(left), widen(right), *arguments)

    InterpreterBuilder.create_dot = multiply_any_dtype
