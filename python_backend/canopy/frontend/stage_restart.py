"""Loading a stage again through the server's own repository API.

Neither of the nearer ways will do, for a load takes seconds. `pb_utils.load_model` holds up every
response and BLS call of the stub that calls it, and the server's HTTP port holds up every stream
that shares the thread of the request. Over gRPC only status calls wait.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy.addresses import grpc_url
from canopy.config import ServerConfig
from canopy.errors import StageFailed

logger = logging.getLogger(__name__)

_UNLOAD_TIMEOUT_S = 10.0
_GONE_TIMEOUT_S = 10.0  # for the old instance to end, which holds its memory until then
_POLL_S = 0.05
_LOAD_TIMEOUT_S = 600.0  # a large target comes from a slow disk
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # the server is on this machine


def restart_stage(server: ServerConfig, model_name: str) -> None:
    """Unload and load a stage whose process died (explicit model control).

    The server never restarts a dead model process by itself. The old instance is gone before the
    new one loads, for a device seldom holds two targets. Raises StageFailed.
    """
    with grpc.insecure_channel(grpc_url(server), options=_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        unload = service_pb2.RepositoryModelUnloadRequest(model_name=model_name)
        load = service_pb2.RepositoryModelLoadRequest(model_name=model_name)
        try:
            stub.RepositoryModelUnload(unload, timeout=_UNLOAD_TIMEOUT_S)
            _wait_until_gone(model_name)
            stub.RepositoryModelLoad(load, timeout=_LOAD_TIMEOUT_S)
        except grpc.RpcError as error:
            raise StageFailed(model_name, f"cannot be loaded again: {error.details()}") from error


def _wait_until_gone(model_name: str) -> None:
    """Unloading is only begun when its call returns, and may never end: a request that was under
    way when its process died keeps the model UNLOADING. What counts is the process, and one that
    hangs is killed.
    """
    deadline = time.monotonic() + _GONE_TIMEOUT_S
    while processes := list(_processes_of(model_name)):
        if time.monotonic() > deadline:
            logger.warning("%s does not end: its old process is killed", model_name)
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return
        time.sleep(_POLL_S)


def _processes_of(model_name: str) -> Iterator[int]:
    """Those that the server, this process' parent, has for a model; ended ones do not count."""
    model_file = f"/{model_name}/1/model.py".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getppid() and model_file in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:
            continue  # it went meanwhile
