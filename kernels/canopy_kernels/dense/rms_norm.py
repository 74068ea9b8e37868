"""The root-mean-square norm of each row, one program a row.

    out[r, i] = x[r, i] / sqrt(mean over i of x[r, i]^2 + eps) * weight[r mod W, i]

    x, out    [R, D], contiguous     float32, bfloat16 or float16
    weight    [W, D], contiguous     the same dtype; W = 1, or a weight for each head

All in float32, rounded once before the weight and once after, as the layers of published models
do. A row's result is the same to the bit wherever it stands; no rows give no rows.
Tolerance against the reference: 1e-6 for float32, two roundings for 16-bit types.
"""

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The op by torch."""
    normed = F.rms_norm(x.float(), x.shape[1:], eps=eps).to(x.dtype)
    return (normed.view(-1, *weight.shape) * weight).view(x.shape)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[R, D] of the module docstring."""
    num_rows, width = x.shape
    assert x.is_contiguous()
    assert weight.is_contiguous()
    assert weight.shape[1] == width
    assert num_rows % len(weight) == 0
    out = torch.empty_like(x)
    if num_rows > 0:
        _rms_norm_kernel[(num_rows,)](
            (x, weight, out), len(weight), width, eps, triton.next_power_of_2(width)
        )
    return out


@triton.jit
def _rms_norm_kernel(
    tensors,  # x [R, D], weight [W, D], out [R, D]
    num_weights,
    width,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    within = columns < width
    x = tl.load(tensors[0] + row * width + columns, within, 0.0).to(tl.float32)
    weight = tl.load(tensors[1] + row % num_weights * width + columns, within, 0.0)

    kind: tl.constexpr = tensors[2].dtype.element_ty
    mean = tl.sum(x * x, 0) / width
    normed = (x * (1.0 / tl.sqrt_rn(mean + eps))).to(kind)
    out = (normed.to(tl.float32) * weight.to(tl.float32)).to(kind)

    tl.store(tensors[2] + row * width + columns, out, within)
