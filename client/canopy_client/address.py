"""Where a server is and how to speak to it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

_SCHEMES = {
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
    "http": ("http", False),
    "https": ("http", True),
}


@dataclass(frozen=True)
class Address:
    """`target` is host:port."""

    protocol: str  # grpc | http
    target: str
    is_encrypted: bool


def parse_address(url: str) -> Address:
    """`host:port` and `grpc://` speak gRPC, `http://` HTTP; a final `s` encrypts.

    Raises ValueError for anything else.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Address("grpc", _checked(url), False)
    if scheme not in _SCHEMES:
        raise ValueError(f"{url}: an address starts with {', '.join(_SCHEMES)}, or is host:port")
    parts = urlsplit(url)
    if not parts.netloc or parts.path.strip("/") or parts.query:
        raise ValueError(f"{url}: after {scheme}:// comes host:port and nothing else")
    protocol, is_encrypted = _SCHEMES[scheme]
    return Address(protocol, _checked(parts.netloc), is_encrypted)


def _checked(target: str) -> str:
    if target.count(":") > 1 and "[" not in target:
        raise ValueError(f"{target}: an IPv6 address stands in brackets, as in [::1]:8001")
    return target
