"""Where an HTTP tool may connect to: how a URL is read, which host it names, and which addresses that host may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from codec.vocabulary import TrustZone

__all__ = ["Destination", "DestinationError", "address_allowed", "read_url", "zone_of_host"]

_PORTS: Final = {"http": 80, "https": 443}
_MAX_URL: Final = 8_192
#: What two parsers of URLs read differently is refused, not guessed: white space, controls, backslashes, non-ASCII.
_URL: Final = re.compile(r"[!#-\[\]^_a-z|~]+")
_NETLOC: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f]*:[0-9a-f:.]{1,45})\]|(?P<name>[a-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?"
)
_PRIVATE_ZONES: Final = (TrustZone.LOCAL, TrustZone.PRIVATE_HOSTED)
_PRIVATE: Final = tuple(
    ip_network(block)
    for block in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "::1/128",
        "fc00::/7",
    )
)


class DestinationError(Exception):
    """A URL or an address is refused. `problem` is a stable phrase without any part of either."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What a URL names. `host` is lower-case, an IPv6 address without brackets; `literal` when it is an address."""

    scheme: str
    host: str
    port: int
    literal: bool

    @property
    def netloc(self) -> str:
        """The value of the Host header: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str) -> Destination:
    """Read a URL strictly. Errors: `DestinationError` for everything but plain http and https without user names."""
    if len(url) > _MAX_URL or _URL.fullmatch(url) is None:
        raise DestinationError("the url is not plain")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DestinationError("the url cannot be read") from None
    if parts.scheme not in _PORTS:
        raise DestinationError("the url is neither http nor https")
    if "@" in parts.netloc:
        raise DestinationError("the url holds a user name")
    found = _NETLOC.fullmatch(parts.netloc.lower())
    if found is None or (found["address"] is not None and _address(found["address"]) is None):
        raise DestinationError("the url names no host")
    port = _PORTS[parts.scheme] if found["port"] is None else int(found["port"])
    if not 0 < port < 65_536:
        raise DestinationError("the url names no port")
    host = found["address"] or found["name"]
    return Destination(scheme=parts.scheme, host=host, port=port, literal=_address(host) is not None)


def zone_of_host(destination: Destination, egress: Mapping[str, TrustZone]) -> TrustZone | None:
    """Give the zone of the record for this host; None when there is none.

    Shape: records are compared exactly, in lower case. One with the port comes before one without, which stands for
    every port; an IPv6 address may stand in brackets.
    """
    known = {host.lower(): zone for host, zone in egress.items()}
    hosts = (f"[{destination.host}]", destination.host) if ":" in destination.host else (destination.host,)
    for spelled in (f"{hosts[0]}:{destination.port}", *hosts):
        if spelled in known:
            return known[spelled]
    return None


def address_allowed(destination: Destination, address: str, zone: TrustZone) -> bool:
    """Tell whether a listed host may be reached at this address.

    An address that is listed itself is the operator's word. `localhost` is this machine, and nothing else. Any other
    name is somebody else's to point where they like: it may lead into a private network only when its zone says that
    it stands there, and never to addresses that are not one machine's (link-local, multicast, reserved) or that hide
    another address (mapped, translated, tunnelled).
    """
    found = _address(address)
    if found is None:
        return False
    if destination.literal:
        return found == _address(destination.host)
    if destination.host == "localhost":
        return found.is_loopback
    if any(found in block for block in _PRIVATE):
        return zone in _PRIVATE_ZONES
    return _is_public(found)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return True
    hidden = (address.ipv4_mapped, address.sixtofour, address.teredo)
    return hidden == (None, None, None) and not address.is_site_local


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
