from collections.abc import Iterator

import openai
import pytest
from served import gateway
from tiny_model import write_tiny_model
from toy_service import write_toy_repository

from canopy.config import CacheConfig, Deployment, ServerConfig, TargetConfig
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports
from canopy_gateway import GatewaySettings

MAX_CONTEXT = 32768


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny random model behind the whole pipeline, for answers long enough to be stopped."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_context=MAX_CONTEXT)
    deployment = Deployment(
        target=TargetConfig(model=str(model), dtype="int8"),  # whose text is exact
        cache=CacheConfig(num_tokens=2 * MAX_CONTEXT),
    )
    folder = tmp_path_factory.mktemp("triton")
    with ServerProcess(with_free_ports(deployment), folder) as process:
        yield process


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that streams the words of its prompt, where the text does not matter."""
    folder = tmp_path_factory.mktemp("toy")
    repository = write_toy_repository(folder / "models")
    with ServerProcess(with_free_ports(Deployment()), folder / "run", repository) as process:
        yield process


@pytest.fixture(scope="session")
def server(triton: ServerProcess) -> ServerConfig:
    """Where its ports are."""
    return triton.server


@pytest.fixture(scope="session")
def url(triton: ServerProcess) -> Iterator[str]:
    """A gateway with every default."""
    with gateway(GatewaySettings(server_url=triton.grpc_url)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which tries once."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
