"""Addresses of a rendezvous."""

import pytest

from canopy.errors import InvalidDeployment
from canopy.verifier.tensor_parallel.rendezvous import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.1:9000", "10.0.0.1", 9000), ("node-0:1", "node-0", 1), ("[fd00::2]:7", "fd00::2", 7)],
)
def test_names_and_addresses_of_both_kinds_are_read(text, host, port):
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "::1:9000", "[::1]", "a:65536"])
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidDeployment, match="host:port"):
        Address.parse(text)
