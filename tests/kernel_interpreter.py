"""Without a GPU, Triton-language kernels run in Triton's interpreter, in a fixed order of sums.

The interpreter leaves its sums to numpy, whose BLAS rounds by shape, position and CPU. Here they
are trees of halves, as on a GPU: a sum is a function of its terms alone.

Triton asks the environment at its import, so this comes before anything that imports Triton.
"""

import os

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sum_by_halves(terms: np.ndarray, axis: int) -> np.ndarray:
    """The sum along `axis`, whose length is a power of two, as every block's in Triton."""
    terms = np.moveaxis(terms, axis, 0)
    while (half := len(terms) // 2) > 0:
        terms = terms[:half] + terms[half:]
    return terms[0]


if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, TensorHandle

    def dot(builder, left, right, added, *_):
        """Also of bfloat16, which the interpreter holds as its bits and would multiply as such."""

        def widened(operand) -> np.ndarray:
            if operand.dtype.scalar == tl.bfloat16:
                operand = builder.cast_impl(operand, tl.float32)
            return operand.data.astype(added.data.dtype)

        products = widened(left)[..., :, :, None] * widened(right)[..., None, :, :]
        return TensorHandle(sum_by_halves(products, -2) + added.data, added.dtype.scalar)

    def reduced_sum(reduction, block):
        axis, data = reduction.axis, block.handle.data
        total = sum_by_halves(data.reshape(-1) if axis is None else data, axis or 0)
        if reduction.keep_dims:
            total = total.reshape([1] * data.ndim) if axis is None else np.expand_dims(total, axis)
        return reduction.to_tensor(total, block.dtype)

    InterpreterBuilder.create_dot = dot
    ReduceOps.sum = reduced_sum
