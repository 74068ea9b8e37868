"""A trained drafter as ONNX graphs, float32 or with int8 weights, beside its other files."""

import tempfile
import warnings
from pathlib import Path

import torch

from canopy.models.block_drafter.network import BlockDrafter, BlockDrafterConfig
from canopy.models.block_drafter.runner import (
    BLOCK_GRAPH,
    CONTEXT_GRAPH,
    BlockGraph,
    BlockInputs,
    BlockRows,
    ContextGraph,
)

_OPSET = 17


def export_drafter(drafter: BlockDrafter, folder: Path, is_int8: bool = True) -> None:
    """Write both graphs; batch and context length stay open.

    int8: the block's matrix products, weights per output channel, activations as they come.
    Weights take 7 of the 8 bits: CPUs without VNNI add two products of uint8 and int8 in 16 bits,
    and would cut off larger ones. The context stays float32: taps hold channels that are far
    larger than all others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drafter = drafter.cpu().eval()
    config = drafter.config
    _write_context(drafter, config, folder / CONTEXT_GRAPH)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / BLOCK_GRAPH if is_int8 else folder / BLOCK_GRAPH
        _write_block(drafter, config, path)
        if is_int8:
            _quantize(path, folder / BLOCK_GRAPH)


def _write_context(drafter: BlockDrafter, config: BlockDrafterConfig, path: Path) -> None:
    example = torch.randn(3, config.hidden_states_size), torch.arange(3)
    names = ["hidden_states", "positions"]
    outputs = ["vectors", "key_values"]
    _export(ContextGraph(drafter), example, path, names, outputs, {n: {0: "n"} for n in names})


def _write_block(drafter: BlockDrafter, config: BlockDrafterConfig, path: Path) -> None:
    shape = (2, 5, config.num_layers, 2, config.num_kv_heads, config.head_dim)
    size = config.hidden_size
    example = (
        torch.randn(2, size),
        torch.randn(2, size),
        torch.tensor([7, 9]),
        torch.randn(shape),
        torch.tensor([3, 5]),
        torch.randn(2, config.block_size, size),
        torch.tensor([0, 2]),
    )
    names = list(BlockInputs._fields)
    axes = {name: {0: "batch"} for name in names}
    axes["key_values"][1] = "context"
    _export(BlockGraph(drafter), example, path, names, list(BlockRows._fields), axes)


def _export(
    graph: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing exporter needs no further package
        torch.onnx.export(
            graph.eval(),
            example,
            str(path),
            dynamo=False,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=_OPSET,
        )


def _quantize(source: Path, destination: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source, destination, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
    )
