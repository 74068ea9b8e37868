"""A rank other than 0: loads its shard, then does what rank 0 tells until it is sent home.

    python -m canopy.verifier.tensor_parallel.worker \
        --rendezvous HOST:PORT --rank R --num-ranks N [--with-parent]

One process serves one life of the group. It exits with 1 when rank 0 or the group is lost.
"""

import argparse
import os
import sys
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

from canopy.config import TargetConfig
from canopy.cpus import usable_cpus
from canopy.errors import CanopyError, InvalidDeployment
from canopy.kv_cache.float_cache import KVCache
from canopy.model_store.folders import model_folder
from canopy.models.config import ModelConfig
from canopy.models.llama.float_decoder import FloatDecoder
from canopy.verifier.tensor_parallel.commands import Operation, batch_of, receive
from canopy.verifier.tensor_parallel.decoder import load_shard
from canopy.verifier.tensor_parallel.rank_group import heartbeat
from canopy.verifier.tensor_parallel.rendezvous import (
    Address,
    connect,
    join_store,
    read_published,
    report,
)
from canopy.verifier.tensor_parallel.sharding import Shard


@torch.inference_mode()  # as rank 0
def worker_loop(decoder: FloatDecoder) -> KVCache | None:
    """Do every operation until STOP; returns the last cache. Raises RuntimeError for a lost one."""
    cache: KVCache | None = None
    while True:
        operation, arrays = receive()
        if operation is Operation.STOP:
            return cache
        if operation is Operation.PULSE:
            heartbeat(decoder.device)
        elif operation is Operation.NEW_CACHE:
            num_blocks, block_size = arrays[0].tolist()
            cache = None  # frees the old one first
            cache = decoder.new_cache(num_blocks, block_size)
        elif operation is Operation.STEP and cache:
            decoder.forward(batch_of(arrays, decoder.device), cache)
        elif operation is Operation.MOVE and cache:
            *moves, num_sequences = arrays
            cache.move(*(slots.view(int(num_sequences), -1).to(decoder.device) for slots in moves))


def serve_rank(arguments: argparse.Namespace) -> KVCache | None:
    """Join, load, follow. Raises what ended it."""
    address, rank, num_ranks = arguments.rendezvous, arguments.rank, arguments.num_ranks
    store = join_store(address)
    target = read_published(store)
    torch.set_num_threads(arguments.num_threads or target.num_threads or usable_cpus())
    try:
        config, decoder = _load(arguments, target)
    except CanopyError as error:
        report(store, rank, None, str(error))
        raise
    report(store, rank, config)
    connect(store, address, rank, num_ranks, target)
    cache = worker_loop(decoder)
    dist.destroy_process_group()
    return cache


def _load(arguments: argparse.Namespace, target: TargetConfig) -> tuple[ModelConfig, FloatDecoder]:
    """The whole model's configuration, and this rank's decoder."""
    folder = model_folder(arguments.model or target.model)
    config = ModelConfig.from_folder(folder)
    shard = Shard(config, arguments.rank, arguments.num_ranks)
    device = arguments.device or target.device
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    return config, load_shard(folder, shard, target.dtype, device)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m canopy.verifier.tensor_parallel.worker")
    parser.add_argument("--rendezvous", type=_address, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    parser.add_argument("--model", default="", help="where this machine has the target's folder")
    parser.add_argument("--device", default="", help='this rank\'s own, as in "cuda:1"')
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--with-parent", action="store_true", help="end when stdin does")
    return parser.parse_args(arguments)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except InvalidDeployment as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def end_with_parent() -> None:
    """Exit as soon as the other end of standard input is closed, even within a collective."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Serve one life of the group."""
    arguments = parse()
    if arguments.with_parent:
        end_with_parent()
    try:
        serve_rank(arguments)
    except (CanopyError, RuntimeError) as error:
        print(f"canopy worker: rank {arguments.rank}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
