"""What a decoder does, and which one a deployment gets."""

from pathlib import Path
from typing import Any, Protocol

import torch

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.llama.float_decoder import DEFAULT_BACKEND, SHAPE_INVARIANT, load_float_decoder
from canopy.models.quantized.decoder import QuantizedDecoder
from canopy.models.quantized.formats import FORMATS
from canopy.models.quantized.weights import load_quantized_weights
from canopy.models.step_batch import AuxHiddenStates, StepBatch


class Cache(Protocol):
    """Keys and values of every layer by slot; each decoder makes its own kind."""

    block_size: int

    @property
    def device(self) -> torch.device: ...

    def move(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copy slots to other slots in all layers.

        int64 [P] of one sequence, or [S, P] with -1 in both where a sequence has fewer. The
        sources of a sequence are read before its destinations, all distinct, are written, so the
        two sets may overlap; slots of different sequences are disjoint.
        """
        ...


class Decoder(Protocol):
    """Computes steps; keeps no sequence."""

    config: ModelConfig

    def new_cache(self, num_blocks: int, block_size: int) -> Cache:
        """An empty KV cache of this model's shape. Raises InvalidDeployment."""
        ...

    def forward(
        self, batch: StepBatch, cache: Any, aux_hidden_states: AuxHiddenStates | None = None
    ) -> torch.Tensor:
        """Compute every row, writing its keys and values to its slot of one of its own caches.

        Fills `aux_hidden_states`, where given. Returns the logits of `batch.logit_rows`,
        float32 [L, V]; they last until the next forward.
        """
        ...

    def confirm(self) -> None:
        """Return once all that was asked is done, and done right, wherever it runs.

        Results of a forward may be read before, but used only after it. Raises StageFailed.
        """
        ...


def load_decoder(
    folder: str | Path, dtype: str, device: str, is_shape_invariant: bool = False
) -> Decoder:
    """Load a Hugging Face folder. dtype: one of `canopy.config.DTYPES`; device: "cpu" or "cuda".

    is_shape_invariant: a row's logits are the same to the bit in any tree and batch, at a price;
    with quantized weights they are so in any case. A quantized decoder keeps as many threads as
    torch has at this moment. Raises InvalidDeployment for what the folder lacks or what no decoder
    here can compute.
    """
    config = ModelConfig.from_folder(folder)
    weight_format = FORMATS.get(dtype)
    if weight_format is None:
        backend = SHAPE_INVARIANT if is_shape_invariant else DEFAULT_BACKEND
        return load_float_decoder(folder, config, dtype, device, backend)
    if device != "cpu":
        raise InvalidDeployment(f"{dtype} is computed on the CPU only")
    embedding, weights = load_quantized_weights(folder, config, weight_format)
    decoder = QuantizedDecoder(config, embedding, weights, torch.get_num_threads())
    decoder.warm_up()
    return decoder
