"""The ops of canopy_kernels and their alternatives as calls on the same inputs.

Attention's dense rivals are given the keys and values of all sequences side by side for nothing,
but for `gather`, which takes them out of the paged cache as a server without such a kernel must.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from bench.gpu.kernel_cases import AttentionInputs, LinearCase, MoveCase, SamplingCase
from canopy_kernels.attention.batch_invariant_attention import batch_invariant_attention
from canopy_kernels.attention.paged_kv import commit_kv, commit_kv_reference
from canopy_kernels.attention.tree_attention import tree_attention
from canopy_kernels.dense.batch_invariant_linear import batch_invariant_linear
from canopy_kernels.sampling.coupled_argmax import coupled_argmax
from canopy_kernels.sampling.filters import row_thresholds

Call = Callable[[], torch.Tensor]
OURS = "canopy"
INVARIANT = "canopy, shape-invariant"


def attention_calls(inputs: AttentionInputs) -> dict[str, Call]:
    """Each gives [T, H, D]."""
    case = inputs.case
    query = inputs.query.view(case.num_sequences, case.num_rows, case.num_heads, case.head_dim)
    query = query.transpose(1, 2).contiguous()  # [S, H, rows, D]
    mask, slots = inputs.mask(), inputs.path_slots()

    def dense() -> tuple[torch.Tensor, torch.Tensor]:
        """[S, KVH, context + rows, D] each."""
        both = (inputs.keys[slots], inputs.values[slots])
        return both[0].transpose(1, 2), both[1].transpose(1, 2)

    def attend(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=inputs.scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(inputs.query.shape)

    keys, values = (part.contiguous() for part in dense())
    return {
        OURS: lambda: tree_attention(
            inputs.query, inputs.keys, inputs.values, inputs.rows, inputs.scale
        ),
        INVARIANT: lambda: batch_invariant_attention(
            inputs.query, inputs.keys, inputs.values, inputs.rows, inputs.scale
        ),
        "sdpa with a mask": lambda: attend(keys, values),
        "gather, then sdpa": lambda: attend(*dense()),
        "flex attention": _flex_call(inputs, query, keys, values),
    }


def _flex_call(
    inputs: AttentionInputs, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> Call:
    """Compiled on CUDA; its mask of blocks is made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = inputs.mask()
    blocks = create_block_mask(
        lambda batch, head, row, column: mask[row, column],
        B=None,
        H=None,
        Q_LEN=mask.shape[0],
        KV_LEN=mask.shape[1],
        device=str(mask.device),
    )
    torch.compiler.reset()  # every shape is compiled anew, however many came before
    attend = torch.compile(flex_attention) if inputs.query.is_cuda else flex_attention

    def call() -> torch.Tensor:
        out = attend(query, keys, values, block_mask=blocks, scale=inputs.scale, enable_gqa=True)
        return out.transpose(1, 2).reshape(inputs.query.shape)

    return call


def move_calls(case: MoveCase, dtype: torch.dtype, device: str) -> dict[str, Call]:
    """Each moves every second slot of a sequence's scratch into place, and gives the keys."""
    room = 2 * case.num_moves
    shape = (case.num_layers, case.num_sequences * room, case.num_kv_heads, case.head_dim)
    keys, values = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    firsts = torch.arange(case.num_sequences, device=device).unsqueeze(1) * room
    destinations = firsts + torch.arange(case.num_moves, device=device)
    sources = firsts + 2 * torch.arange(case.num_moves, device=device)

    def moved_by(move: Callable[..., None]) -> Call:
        own = keys.clone(), values.clone()

        def call() -> torch.Tensor:
            move(*own, sources, destinations)
            return own[0]

        return call

    return {OURS: moved_by(commit_kv), "indexing": moved_by(commit_kv_reference)}


def sampling_calls(case: SamplingCase, dtype: torch.dtype, device: str) -> dict[str, Call]:
    """Each gives a token of every row; the rival's noise is torch's own."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (case.num_rows, case.vocab_size)
    logits = torch.randn(shape, generator=generator, device=device).to(dtype)
    temperatures = torch.full((case.num_rows,), 0.7, device=device)
    seeds = torch.arange(case.num_rows, device=device)

    def softmax_and_draw() -> torch.Tensor:
        probs = torch.softmax(logits.float() / 0.7, dim=1)
        return torch.multinomial(probs, 1, generator=generator)[:, 0]

    return {
        OURS: lambda: coupled_argmax(logits, row_thresholds(logits, temperatures), seeds, seeds),
        "softmax and multinomial": softmax_and_draw,
    }


def linear_calls(case: LinearCase, dtype: torch.dtype, device: str) -> dict[str, Call]:
    """Each gives [T, N]; ours is the one of `target.batch_invariant`, whose cost this shows."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    rows, weight = random(case.num_rows, case.inner), random(case.num_outs, case.inner)
    return {
        OURS: lambda: batch_invariant_linear(rows, weight),
        "torch.matmul": lambda: F.linear(rows, weight),
    }
