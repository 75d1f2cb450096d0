"""Which hosts commands may reach: the entries of a list, and the one that a connection matches.

An entry is HOST, HOST:PORT or HOST:*, where HOST is a name, *.NAME for all names below it, an address, or * alone.
Without a port it means 80 and 443. An address never stands for a name, and a name never for an address.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from shellback.exec.wire.credentials import Credential

BYTES: Final = 12 * 1024
"""Of a list, as JSON: the keeper gets it in one message with what else it holds of an instance."""
USUAL: Final = frozenset({80, 443})
ASKS: Final = "ask about others"
"""What a list says to people where other hosts are asked about."""
_NAME_BYTES: Final = 253
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER: Final = re.compile(r"(?:\d+|0x[0-9a-f]*)")
_PORT: Final = re.compile(r"[1-9]\d{0,4}")


class Entry(NamedTuple):
    """One entry; without `ports`, all of them."""

    text: str
    host: str
    ports: frozenset[int]

    def matches(self, host: str, port: int) -> bool:
        """Whether it is about this host, as `canonical` writes it, and port."""
        if self.ports and port not in self.ports:
            return False
        if self.host == "*":
            return not is_address(host)
        return host == self.host or (self.host.startswith("*.") and host.endswith(self.host[1:]))

    def within(self, other: Entry) -> bool:
        """Whether each host of this entry is one of the other's, at one port at least."""
        if self.ports and other.ports and not self.ports & other.ports:
            return False
        return self.host == other.host or (self.host != "*" and other._replace(ports=frozenset()).matches(self.host, 0))


class Most(NamedTuple):
    """What the commands of a conversation may have: connections at once, and bytes each way in all; 0 is no limit."""

    connections: int = 512
    each_way: int = 0


class Hosts:
    """A list of entries, and ranges of private addresses that its names may have; as texts `words`, `ranges`.

    With `ask_s`, a connection to another host waits so many seconds for a person. `shown` has all of these, for people.
    `credentials` are put into requests to hosts of theirs.
    """

    def __init__(
        self,
        entries: Iterable[str],
        private: Iterable[str] = (),
        credentials: Iterable[Credential] = (),
        ask_s: float = 0.0,
    ) -> None:
        """Raises ValueError if one is wrong."""
        self.ask_s = ask_s
        self.most = Most()
        """What commands may have of these."""
        self.entries = tuple(map(entry, entries))
        self.private = tuple(map(addresses, private))
        self.words = tuple(one.text for one in self.entries)
        self.ranges = tuple(map(str, self.private))
        names = {one.host for one in self.entries}
        if "*" in names and len(names) > 1:
            raise ValueError("* stands beside others, which then mean nothing: leave it or them out")
        self.credentials = tuple(credentials)
        self._credited = [(entry(text), one) for one in self.credentials for text in one.hosts]
        if len(json.dumps([self.words, self.ranges, [one.to_wire() for one in self.credentials]])) > BYTES:
            raise ValueError(f"the list is longer than {BYTES} bytes: use wildcards, as in *.example.org")
        self.shown = (*self.words, *(f"private {one}" for one in self.ranges), *([ASKS] if ask_s else []))

    def allowing(self, host: str, port: int) -> Entry | None:
        """The first entry that allows a connection to this host, as `canonical` writes it."""
        return next((one for one in self.entries if one.matches(host, port)), None)

    def askable(self, host: str) -> bool:
        """Whether a person may be asked about this host: a name, or an address that a name could have."""
        return not is_address(host) or self.reachable(host, Entry("", "", frozenset()))

    def credential(self, host: str, port: int) -> Credential | None:
        """The credential of a host, as `canonical` writes it, and port; none at a port that only a person allowed."""
        if self.allowing(host, port) is None:
            return None
        return next((credential for one, credential in self._credited if one.matches(host, port)), None)

    def reachable(self, address: str, allowed: Entry) -> bool:
        """Whether a connection that `allowed` allows may go to this address: a public, named or private one."""
        found = ipaddress.ip_address(address)
        return str(found) == allowed.host or is_public(found) or any(found in one for one in self.private)


def entry(text: str) -> Entry:
    """Read an entry; raises ValueError with what is wrong and the remedy."""
    host, port = split(text, default="")
    if port not in {"", "*"}:
        number(port)
    ports = USUAL if not port else frozenset[int]() if port == "*" else frozenset({int(port)})
    if host == "*":
        return Entry(text, host, ports)
    if not host.startswith("*."):
        return Entry(text, canonical(host), ports)
    if is_address(name := canonical(host[2:])):
        raise ValueError(f"{text!r} can never match: name each address")
    return Entry(text, f"*.{name}", ports)


def split(text: str, *, default: str) -> tuple[str, str]:
    """Host and port of HOST:PORT, or of HOST, whose port is `default`; an IPv6 address is in brackets."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or rest[:1] not in {"", ":"} or ":" not in host:
            raise ValueError(f"{text!r} is no address: write it as in [2001:db8::1]:443")
        return host, rest[1:] if rest else default
    host, colon, port = text.partition(":")
    if colon and not port:
        raise ValueError(f"{text!r} has no port: write one, or no colon")
    if ":" in port or "/" in port:
        raise ValueError(f"{text!r} is no host and port: write an IPv6 address in brackets, a host without its scheme")
    return host, port if colon else default


def place(host: str, port: int) -> str:
    """The inverse of `split`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def number(port: str) -> int:
    """The port; raises ValueError if there is none of this number."""
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"{port!r} is no port: write a number from 1 to 65535")
    return int(port)


def canonical(host: str) -> str:
    """A name in lower case without its last dot, or an address in its usual form.

    Raises ValueError for anything else, such as an address in a form that only some programs read.
    """
    found = host.lower().removesuffix(".")
    if "%" not in found and is_address(found):
        address = ipaddress.ip_address(found)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            raise ValueError(f"{found!r} is another form of an address: write {address.ipv4_mapped}")
        return str(address)
    if len(found) > _NAME_BYTES or not _NAME.fullmatch(found) or _NUMBER.fullmatch(found.rpartition(".")[2]):
        raise ValueError(f"{host[:80]!r} is no name of a host: write it in ASCII, as in xn--bcher-kva.example")
    return found


def addresses(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A range of addresses; raises ValueError with what is wrong and the remedy."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no range of addresses ({error}): write it as in 10.1.0.0/16") from None


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_OTHER: Final = (
    # Behind which another address stands, or which are no host's.
    "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "192.88.99.0/24",
    # Of a cloud, for its own machines.
    "168.63.129.16/32",
)  # fmt: skip
_REFUSED: Final = tuple(map(ipaddress.ip_network, _OTHER))
_GLOBAL: Final = ipaddress.ip_network("2000::/3")
"""What has been given to hosts of the internet, of all IPv6 addresses; source: RFC 4291, 2.4, and IANA's registries."""


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is the address of one host of the internet, without another address behind it."""
    assigned = address.version == 4 or address in _GLOBAL
    return assigned and address.is_global and not address.is_multicast and not any(address in one for one in _REFUSED)
