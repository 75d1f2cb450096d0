"""What of a request goes on to a server: the proxy writes each anew from what it has read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from shellback.exec.proxy.reach import Goal, Refused
from shellback.exec.wire.hosts import canonical, split

HEAD_S: Final = 20.0
HEAD_BYTES: Final = 1 << 16
PORTS: Final = {"https": 443, "http": 80}
HOPS: Final = frozenset({b"connection", b"keep-alive", b"host", b"te", b"trailer", b"upgrade", b"expect"})
"""Headers for the next program only, or that are written anew."""
_FRAMES: Final = frozenset({b"content-length", b"transfer-encoding"})

Headers = list[tuple[bytes, bytes]]


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that the server gets, without Host and Connection."""
    given, dropped = list(headers), set(HOPS)
    for key, value in given:
        if key == b"connection":
            dropped |= {name.strip().lower() for name in value.split(b",")} - _FRAMES
        elif key == b"transfer-encoding":
            # With both, servers disagree about where the request ends.
            dropped.add(b"content-length")
    # Some servers take an underscore for a dash.
    dropped |= {key for key, _ in given if key not in _FRAMES and key.replace(b"_", b"-") in _FRAMES}
    return [(key, value) for key, value in given if key not in dropped and not key.startswith(b"proxy-")]


def place_of(to: Goal, scheme: str) -> tuple[bytes, bytes]:
    """The header Host for this goal."""
    host = f"[{to.host}]" if ":" in to.host else to.host
    return b"Host", (host if to.port == PORTS[scheme] else f"{host}:{to.port}").encode()


def same(named: bytes, to: Goal) -> None:
    """Check that a request in a tunnel names its host; raises Refused."""
    with contextlib.suppress(ValueError):
        if canonical(split(named.decode("ascii"), default="")[0]) == to.host:
            return
    raise Refused(f"the request in the tunnel names {named[:80].decode('latin-1')!r}, not {to.host}")


def path_inside(target: bytes, host: bytes, to: Goal) -> bytes:
    """The path of a request in a tunnel, whose `host` has to be that of the tunnel; raises Refused."""
    same(host, to)
    if not target.startswith((b"/", b"*")):
        raise Refused(f"the request in the tunnel to {to.host} names {target[:80].decode('latin-1')!r}")
    return target


def host_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The value of Host, b"" for none."""
    return next((value for key, value in headers if key == b"host"), b"")


def explained(refusal: Refused) -> tuple[str, bytes]:
    """What a client is told of a refusal, as reason and as body."""
    text = "".join(char if " " <= char <= "~" else "?" for char in str(refusal))
    return text, f"Shellback: {text}\n".encode()
