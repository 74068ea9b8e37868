"""TLS and headers travel with every call, over both protocols."""

import ssl
import subprocess
from pathlib import Path

import pytest
from every_way import Asynchronous, Blocking

from canopy_client import NO_RETRY, ClientError, Tls

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate for `localhost`, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = (folder / "certificate.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


@pytest.fixture(params=["grpcs", "https"])
def encrypted(request, toy_server, certificate, free_port, relay):
    """The address of the toy server behind an encrypted port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2", "http/1.1"] if request.param == "grpcs" else ["http/1.1"])
    inner = toy_server.grpc_url if request.param == "grpcs" else toy_server.http_url
    with relay(free_port, inner.removeprefix("http://"), context=context):
        yield f"{request.param}://localhost:{free_port}"


@pytest.mark.parametrize("make", [Blocking, Asynchronous])
def test_an_encrypted_server_is_spoken_to_and_checked(encrypted, certificate, make):
    tls = Tls(ca_file=str(certificate[0]))
    assert make(encrypted, tls=tls).call("generate", "a secret").text == "a secret "
    with pytest.raises(ClientError):
        make(encrypted, retry=NO_RETRY, timeout_s=5.0).call("generate", "to a stranger")


@pytest.mark.parametrize("make", [Blocking, Asynchronous])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_headers_go_with_every_call(toy_server, make, protocol, free_port, relay):
    seen: list[bytes] = []
    inner = toy_server.grpc_url if protocol == "grpc" else toy_server.http_url
    with relay(free_port, inner.removeprefix("http://"), seen=seen):
        way = make(f"{protocol}://localhost:{free_port}", headers={"X-Team": "quokka"})
        assert way.call("generate", "hello").text == "hello "
    sent = b"".join(seen).lower()
    assert b"x-team" in sent
    assert b"quokka" in sent
