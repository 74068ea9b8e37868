"""Which runner a block drafter gets."""

from pathlib import Path

from canopy.models.block_drafter.int8_runner import Int8BlockRunner
from canopy.models.block_drafter.network import BlockDrafter
from canopy.models.block_drafter.runner import (
    BLOCK_GRAPH,
    BlockRunner,
    OnnxBlockRunner,
    TorchBlockRunner,
)


def runner_for(drafter: BlockDrafter, folder: Path, device: str, num_threads: int) -> BlockRunner:
    """On the CPU its graphs where the folder has them, int8 kernels otherwise; elsewhere torch.

    Raises InvalidDeployment for graphs that onnxruntime cannot load.
    """
    if device != "cpu":
        return TorchBlockRunner(drafter, device)
    if (folder / BLOCK_GRAPH).is_file():
        return OnnxBlockRunner(folder, num_threads)
    runner = Int8BlockRunner(drafter, num_threads)
    runner.warm_up()
    return runner
