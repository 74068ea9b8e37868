"""Rank 0's decoder and cache, inside the verifier, and how the target of a deployment is loaded."""

from pathlib import Path

import torch

from canopy.config import TargetConfig
from canopy.cpus import usable_cpus
from canopy.kv_cache.float_cache import KVCache
from canopy.model_store.folders import model_folder
from canopy.models.config import ModelConfig
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.llama.float_decoder import FloatDecoder, build_float_decoder
from canopy.models.llama.weights import load_weights
from canopy.models.step_batch import AuxHiddenStates, StepBatch
from canopy.verifier.tensor_parallel.commands import Operation, arrays_of
from canopy.verifier.tensor_parallel.layers import parallel_parts_of
from canopy.verifier.tensor_parallel.rank_group import LocalWorkers, RankGroup, heartbeat
from canopy.verifier.tensor_parallel.rendezvous import (
    LOOPBACK,
    Address,
    connect,
    host_store,
    publish,
    wait_for_ranks,
)
from canopy.verifier.tensor_parallel.sharding import Shard

WORKER_MODULE = "canopy.verifier.tensor_parallel.worker"


class ShardedCache:
    """Rank 0's share of the keys and values; what moves here moves on every rank."""

    def __init__(self, local: KVCache, group: RankGroup) -> None:
        self.local = local
        self.block_size = local.block_size
        self._team = group

    @property
    def device(self) -> torch.device:
        return self.local.device

    def move(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """As `KVCache.move`. Raises StageFailed when a rank is lost."""
        if sources.numel():
            moves = torch.atleast_2d(sources), torch.atleast_2d(destinations)
            arrays = [*moves, torch.tensor([len(moves[0])])]
            self._team.run(Operation.MOVE, arrays, lambda: self.local.move(*moves))


class ShardedDecoder:
    """A decoder whose other ranks work elsewhere; it has one cache at a time, the newest."""

    def __init__(self, config: ModelConfig, local: FloatDecoder, group: RankGroup) -> None:
        self.config = config
        self.group = group
        self._local = local
        self._cache: ShardedCache | None = None

    def new_cache(self, num_blocks: int, block_size: int) -> ShardedCache:
        """An empty KV cache on every rank, in place of the last. Raises StageFailed."""
        self._cache = None
        local = self.group.run(
            Operation.NEW_CACHE,
            [torch.tensor([num_blocks, block_size])],
            lambda: self._local.new_cache(num_blocks, block_size),
        )
        self._cache = ShardedCache(local, self.group)
        return self._cache

    def forward(
        self,
        batch: StepBatch,
        cache: ShardedCache,
        aux_hidden_states: AuxHiddenStates | None = None,
    ) -> torch.Tensor:
        """As `FloatDecoder.forward`: float32 [L, V]. Raises StageFailed when a rank is lost."""
        if cache is not self._cache:
            raise ValueError("another cache has taken this one's place")
        return self.group.run(
            Operation.STEP,
            arrays_of(batch),
            lambda: self._local.forward(batch, cache.local, aux_hidden_states),
        )

    def confirm(self) -> None:
        """As `Decoder.confirm`: every rank has done its part and says so.

        A collective that is aborted on a GPU leaves garbage behind and raises nothing, and the
        host reads on; what it has read counts for nothing if a rank was lost meanwhile.
        """
        self.group.run(Operation.PULSE, (), lambda: heartbeat(self._local.device))


def num_threads(target: TargetConfig) -> int:
    """Of each rank on this machine."""
    if target.num_threads:
        return target.num_threads
    cores = usable_cpus()
    return cores if target.rendezvous else max(1, cores // target.tensor_parallel_size)


def load_target(target: TargetConfig) -> Decoder:
    """The decoder of a deployment's target, sharded where that says so.

    Raises InvalidDeployment, and StageFailed when the other ranks cannot be had.
    """
    if target.tensor_parallel_size == 1:
        folder = model_folder(target.model)
        return load_decoder(folder, target.dtype, target.device, target.batch_invariant)
    return load_sharded(target)


def load_shard(folder: str | Path, shard: Shard, dtype: str, device: str) -> FloatDecoder:
    """One rank's decoder; its forward is a collective work. Raises InvalidDeployment."""
    weights = shard.cut(load_weights(folder, shard.config))
    return build_float_decoder(shard.local_config, weights, dtype, device, parallel_parts_of(shard))


def load_sharded(target: TargetConfig, worker_module: str = WORKER_MODULE) -> ShardedDecoder:
    """Rank 0's decoder, once all ranks have theirs. Raises as `load_target` does."""
    num_ranks = target.tensor_parallel_size
    folder = model_folder(target.model)
    config = ModelConfig.from_folder(folder)
    shard = Shard(config, 0, num_ranks)
    is_local = not target.rendezvous
    address = Address(LOOPBACK, 0) if is_local else Address.parse(target.rendezvous)
    store = host_store(address)
    publish(store, target)
    workers = LocalWorkers()
    try:
        if is_local:
            _start_workers(workers, target, store.port, worker_module)
        local = load_shard(folder, shard, target.dtype, target.device)
        wait_for_ranks(store, num_ranks, config, workers.check)
        connect(store, address, 0, num_ranks, target)
    except BaseException:
        workers.kill()
        raise
    return ShardedDecoder(config, local, RankGroup(workers, store))


def _start_workers(
    workers: LocalWorkers, target: TargetConfig, port: int, worker_module: str
) -> None:
    for rank in range(1, target.tensor_parallel_size):
        arguments = {
            "--rendezvous": f"{LOOPBACK}:{port}",
            "--rank": rank,
            "--num-ranks": target.tensor_parallel_size,
            "--device": "cpu" if target.device == "cpu" else f"cuda:{rank}",
            "--num-threads": num_threads(target),
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        workers.start(rank, [*flat, "--with-parent"], worker_module)
