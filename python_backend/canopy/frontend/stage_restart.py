"""Loading a stage again through the server's own repository API.

Neither of the nearer ways will do, for a load takes seconds. `pb_utils.load_model` holds up every
response and BLS call of the stub that calls it, and the server's HTTP port holds up every stream
that shares the thread of the request. Over gRPC only status calls wait.
"""

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy.addresses import grpc_url
from canopy.config import ServerConfig
from canopy.errors import StageFailed

_UNLOAD_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 600.0  # a large target comes from a slow disk
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # the server is on this machine


def restart_stage(server: ServerConfig, model_name: str) -> None:
    """Unload and load a stage whose process died (explicit model control).

    The server never restarts a dead model process by itself. Raises StageFailed.
    """
    with grpc.insecure_channel(grpc_url(server), options=_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        unload = service_pb2.RepositoryModelUnloadRequest(model_name=model_name)
        load = service_pb2.RepositoryModelLoadRequest(model_name=model_name)
        try:
            stub.RepositoryModelUnload(unload, timeout=_UNLOAD_TIMEOUT_S)
            stub.RepositoryModelLoad(load, timeout=_LOAD_TIMEOUT_S)
        except grpc.RpcError as error:
            raise StageFailed(model_name, f"cannot be loaded again: {error.details()}") from error
