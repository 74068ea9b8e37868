"""A float decoder whose steps are padded to a few sizes, each captured once as a CUDA graph.

    forward:  pad on the host -> one copy into the size's inputs -> replay -> logits [:L]

Inputs, logits and tapped states lie in memory that stays where it is; all sizes share it, as they
share the memory of what is computed in between, so another size costs little more than its graph.
All graphs are captured when the cache is made, whose addresses they hold. A step beyond the
largest size, as of a long prompt, is computed as it is.
"""

import logging
from collections.abc import Callable, Iterable

import numpy as np
import torch

from canopy.kv_cache.float_cache import KVCache
from canopy.models.llama.buckets import Bucket, Buckets
from canopy.models.llama.float_decoder import FloatDecoder
from canopy.models.step_batch import AuxHiddenStates, StepBatch
from canopy_kernels.host_to_device import packed, views

logger = logging.getLogger(__name__)

Step = Callable[[], None]
Capture = Callable[[Step], Step]  # makes of a step one that does the same to the same memory


class CudaGraphs:
    """Captures steps; their graphs share memory, so they run one at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run the step once, which compiles its kernels, then capture it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph.replay


class GraphDecoder:
    """`models.decoder.Decoder`; it has one cache at a time, the newest.

    Logits are overwritten by the next forward. They are those of the decoder within up to
    rounding: its matrix products may be summed in another order at another number of rows.
    """

    def __init__(
        self,
        decoder: FloatDecoder,
        max_rows: int,
        max_sequences: int,
        aux_hidden_state_layers: tuple[int, ...] = (),
        new_capture: Callable[[], Capture] = CudaGraphs,
    ) -> None:
        """max_rows and max_sequences: of a step that is replayed. aux_hidden_state_layers: as in
        AuxHiddenStates."""
        self.config = decoder.config
        self._decoder = decoder
        self._limits = max_rows, max_sequences
        self._new_capture = new_capture
        self._replays: dict[Bucket, Step] = {}
        device, config = decoder.device, decoder.config
        self._logits = torch.empty((max_rows, config.vocab_size), device=device)
        states = torch.empty(
            (max_rows, len(aux_hidden_state_layers), config.hidden_size), device=device
        )
        self._aux_layers = AuxHiddenStates(aux_hidden_state_layers, states)
        self._inputs = torch.empty(0)
        self._cache: KVCache | None = None

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """An empty KV cache of this model's shape, and the graphs over it."""
        self._replays.clear()
        self._cache = None
        self._cache = self._decoder.new_cache(num_blocks, block_size)
        max_rows, max_sequences = self._limits
        longest = self.config.max_position_embeddings + max_rows
        self._buckets = Buckets(max_rows, max_sequences, min(num_blocks, -(-longest // block_size)))
        largest = Bucket(max_rows, 2 ** (max_sequences - 1).bit_length())
        size = packed(self._buckets.empty(largest).arrays, "cpu").shape
        self._inputs = torch.zeros(size, dtype=torch.uint8, device=self._decoder.device)
        self._capture_all(self._new_capture())
        return self._cache

    def _capture_all(self, capture: Capture) -> None:
        """The largest first: the smaller ones find room in its memory."""
        buckets = self._buckets.all
        for done, bucket in enumerate(buckets):
            if done % 16 == 0:
                logger.info("capturing steps: %d of %d", done, len(buckets))
            self._replays[bucket] = capture(self._step_of(bucket))
        logger.info("captured %d steps", len(buckets))

    def _step_of(self, bucket: Bucket) -> Step:
        """The forward of one size, from its inputs to the logits and states."""
        empty = self._buckets.empty(bucket)
        self._send(empty.arrays)
        inputs = StepBatch(*views(self._inputs, empty.arrays))
        num_rows = bucket.num_rows
        aux_hidden_states = AuxHiddenStates(
            self._aux_layers.layers, self._aux_layers.states[:num_rows]
        )
        cache = self._cache
        assert cache is not None

        def step() -> None:
            self._logits[:num_rows] = self._decoder.forward(inputs, cache, aux_hidden_states)

        return step

    def _send(self, arrays: Iterable[np.ndarray]) -> None:
        buffer = packed(arrays, self._decoder.device)
        self._inputs[: len(buffer)].copy_(buffer, non_blocking=True)

    def forward(
        self, batch: StepBatch, cache: KVCache, aux_hidden_states: AuxHiddenStates | None = None
    ) -> torch.Tensor:
        """As `FloatDecoder.forward`, of a batch on the CPU."""
        if cache is not self._cache:
            raise ValueError("another cache has taken this one's place")
        bucket = self._buckets.bucket_of(batch)
        if bucket is None or (
            aux_hidden_states and aux_hidden_states.layers != self._aux_layers.layers
        ):
            return self._decoder.forward(batch, cache, aux_hidden_states)
        self._send(self._buckets.pad(batch, bucket).arrays)
        self._replays[bucket]()
        if aux_hidden_states:
            aux_hidden_states.states.copy_(self._aux_layers.states[: len(aux_hidden_states.states)])
        return self._logits[: len(batch.logit_rows)]

    def confirm(self) -> None:
        """As `FloatDecoder.confirm`."""
        self._decoder.confirm()
