"""How ranks find each other: through torch's TCPStore, which rank 0 hosts.

    rank 0                                  every other rank
    host the store, write the target   ->   read it, load its shard
    wait for all reports               <-   report the model it loaded, or why it could not
    write "go"                         ->   both: init_process_group

What crosses the network is JSON and tensors, never pickles; it is neither encrypted nor
authenticated, so ranks on other machines belong on a network of their own.
"""

import fcntl
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from canopy.config import TargetConfig
from canopy.errors import InvalidDeployment, StageFailed
from canopy.models.config import ModelConfig

LOAD_TIMEOUT_S = 600.0
BIND_TIMEOUT_S = 30.0  # an old verifier may still hold the port
JOIN_TIMEOUT_S = 60.0
POLL_S = 0.02
LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_IPV6_INTERFACES = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Address:
    """Where rank 0 hosts the store; port 0 is any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "Address":
        """Of host:port, an IPv6 address in brackets. Raises InvalidDeployment."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^][:]+)):(\d{1,5})", text)
        if not match or int(match[3]) > 65535:
            raise InvalidDeployment(f"a rendezvous is host:port or [IPv6]:port, not {text!r}")
        return Address(match[1] or match[2], int(match[3]))


def host_store(address: Address) -> dist.TCPStore:
    """Rank 0's end. Raises StageFailed when the address cannot be had."""
    deadline = time.monotonic() + BIND_TIMEOUT_S
    while True:
        try:
            return dist.TCPStore(address.host, address.port, is_master=True, wait_for_workers=False)
        except dist.DistError as error:
            if time.monotonic() > deadline:
                raise StageFailed("verifier", f"cannot listen at {address}: {error}") from error
            time.sleep(0.5)


def join_store(address: Address) -> dist.TCPStore:
    """Any other rank's end. Raises dist.DistError when nobody hosts it in time."""
    timeout = timedelta(seconds=JOIN_TIMEOUT_S)
    return dist.TCPStore(address.host, address.port, is_master=False, timeout=timeout)


# Rank 0's side


def publish(store: dist.Store, target: TargetConfig) -> None:
    """Tell the others what to load."""
    store.set("target", json.dumps(asdict(target)))


def wait_for_ranks(
    store: dist.Store, num_ranks: int, config: ModelConfig, check: Callable[[], None]
) -> None:
    """Return when all have loaded `config`; `check` raises when waiting has become useless.

    Raises InvalidDeployment for a rank that loaded another model or could not load its own.
    """
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    for rank in range(1, num_ranks):
        while not store.check([_report_key(rank)]):
            check()
            if time.monotonic() > deadline:
                raise StageFailed("verifier", f"rank {rank} did not join in {LOAD_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        report = json.loads(store.get(_report_key(rank)))
        if report["error"]:
            raise InvalidDeployment(f"rank {rank}: {report['error']}")
        if report["model"] != _described(config):
            raise InvalidDeployment(f"rank {rank} loaded another model: {report['model']}")


# The others' side


def read_published(store: dist.Store) -> TargetConfig:
    """What rank 0 wants loaded. Raises StageFailed when the ranks are at work already."""
    store.wait(["target"], timedelta(seconds=JOIN_TIMEOUT_S))
    if store.check(["go"]):
        raise StageFailed("verifier", "the ranks are at work already")
    return TargetConfig(**json.loads(store.get("target")))


def report(store: dist.Store, rank: int, config: ModelConfig | None, error: str = "") -> None:
    """Tell rank 0 how loading went."""
    model = _described(config) if config else None
    store.set(_report_key(rank), json.dumps({"error": error, "model": model}))


def _report_key(rank: int) -> str:
    return f"rank {rank}"


def _described(config: ModelConfig) -> dict[str, Any]:
    """As JSON gives it back."""
    described: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return described


# Both


def connect(
    store: dist.Store, address: Address, rank: int, num_ranks: int, target: TargetConfig
) -> None:
    """Become a member of torch's default process group; rank 0 calls when all have reported."""
    if rank == 0:
        store.set("go", "")
    else:
        store.wait(["go"], timedelta(seconds=LOAD_TIMEOUT_S))
    interface = _interface_towards(address.host)
    for library in ("GLOO", "NCCL"):  # their own choice is the address of the host's name
        if interface:
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    dist.init_process_group(
        "gloo" if target.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=target.worker_timeout_s),
    )


def _interface_towards(host: str) -> str | None:
    """The network interface whose address this machine uses to speak to a host."""
    family, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        mine = socket.inet_pton(family, probe.getsockname()[0])
        names = [name for _, name in socket.if_nameindex()]
        if family == socket.AF_INET6:
            known = _ipv6_addresses()
            return next((name for name in names if mine in known.get(name, ())), None)
        return next((name for name in names if _ipv4_address(probe, name) == mine), None)


def _ipv4_address(probe: socket.socket, interface: str) -> bytes | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
    except OSError:
        return None


def _ipv6_addresses() -> dict[str, set[bytes]]:
    """By interface."""
    found: dict[str, set[bytes]] = {}
    for line in _IPV6_INTERFACES.read_text(encoding="utf-8").splitlines():
        address, *_, name = line.split()
        found.setdefault(name, set()).add(bytes.fromhex(address))
    return found
