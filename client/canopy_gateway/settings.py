"""Everything that can be set, and its default."""

from dataclasses import dataclass, field

from canopy_client.types import Tls


@dataclass(frozen=True)
class GatewaySettings:
    """Of one gateway; limits refuse, they never drop."""

    server_url: str = "127.0.0.1:8001"  # grpc(s):// or http(s):// before it chooses the protocol
    model: str = "canopy"  # its name on the Triton server
    served_names: tuple[str, ...] = ()  # what clients call it; (): as the server does
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # (): anyone may ask
    max_body_bytes: int = 2 << 20
    body_timeout_s: float = 30.0  # for a request to arrive whole
    max_prompt_bytes: int = 1 << 20
    max_concurrent: int = 64  # answers under way, over all requests
    max_choices: int = 8  # answers of one request
    request_timeout_s: float = 600.0
    retry_after_s: int = 1  # what a refused client is told to wait
    health_max_age_s: float = 2.0  # a finding may be told again this long
    health_timeout_s: float = 10.0
    tls: Tls = Tls()  # towards the server

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use; the first is the one that answers carry."""
        return self.served_names or (self.model,)
