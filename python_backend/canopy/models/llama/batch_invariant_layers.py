"""Layers by kernels whose results for a row do not depend on the other rows."""

import torch

from canopy.models.llama.layers import Linear, RMSNorm
from canopy_kernels.dense.batch_invariant_linear import batch_invariant_linear
from canopy_kernels.dense.rms_norm import rms_norm


class BatchInvariantLinear(Linear):
    """As Linear."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, in] to [T, out]."""
        return batch_invariant_linear(rows, self.weight, self.bias)


class BatchInvariantRMSNorm(RMSNorm):
    """As RMSNorm."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape and dtype as x."""
        width = x.shape[-1]
        rows = x.contiguous().view(-1, width)
        return rms_norm(rows, self.weight.view(-1, width), self.eps).view(x.shape)
