"""Connections to listed hosts: allowed by name, resolved here, and made to an address that was checked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from shellback.exec.proxy.sides import Side, connected
from shellback.exec.wire.hosts import Entry, Hosts, canonical, is_address, number

RESOLVE_S: Final = 10.0
CONNECT_S: Final = 10.0
_ADDRESSES: Final = 4
_LOOKUPS: Final = 4

Resolve = Callable[[str], Awaitable[list[str]]]
Allow = Callable[[str, int], Awaitable[Entry]]
"""Decides about a host, as `canonical` writes it, and port that are not listed; raises Refused."""
Deny = Callable[[str, int], None]
"""Raises Refused for a host, as `canonical` writes it, and port that a rule denies, listed or not."""


class Refused(Exception):
    """Raised for a connection that is not made, with the reason. `unreachable`: it was allowed; `by` denied it."""

    def __init__(self, why: str, *, unreachable: bool = False, by: str = "") -> None:
        super().__init__(why)
        self.unreachable = unreachable
        self.by = by


class Goal(NamedTuple):
    """A host, as `canonical` writes it, and port that an entry allows."""

    host: str
    port: int
    by: Entry


class Reached(NamedTuple):
    address: str
    side: Side


async def goal(hosts: Hosts, host: str, port: str, allow: Allow | None = None, deny: Deny | None = None) -> Goal:
    """The goal of a connection that is asked for.

    Raises Refused if `deny` does, or if neither the list nor `allow` allows it.
    """
    try:
        name, to = canonical(host), number(port)
    except ValueError as error:
        raise Refused(str(error)) from None
    if deny is not None:
        deny(name, to)
    by = hosts.allowing(name, to)
    if by is None:
        if allow is None or not hosts.askable(name):
            raise Refused(f"{name}:{to} is not on the list of hosts that commands may reach")
        by = await allow(name, to)
    return Goal(name, to, by)


async def reach(hosts: Hosts, to: Goal, resolve: Resolve) -> Reached:
    """Connect to the goal, at an address that it may have; raises Refused."""
    found = [to.host] if is_address(to.host) else await _resolved(to.host, resolve)
    open_to = [address for address in found if hosts.reachable(address, to.by)]
    if not open_to:
        raise Refused(f"{to.host} has no public address, but {', '.join(found[:_ADDRESSES])}")
    why = ""
    for address in open_to[:_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_S):
                return Reached(address, await connected(address, to.port))
        except (OSError, TimeoutError) as error:
            why = f"{address}: {getattr(error, 'strerror', None) or 'no answer'}"
    raise Refused(f"{to.host}:{to.port} cannot be reached ({why})", unreachable=True)


async def _resolved(host: str, resolve: Resolve) -> list[str]:
    try:
        async with asyncio.timeout(RESOLVE_S):
            return await resolve(host)
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        raise Refused(f"{host} cannot be resolved ({why})", unreachable=True) from None


class Lookups:
    """Resolves names as this machine does, for one instance: a few at a time, because a slow one keeps its thread."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LOOKUPS)

    async def resolve(self, host: str) -> list[str]:
        """The addresses of a name; raises OSError if it has none."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        asked = asyncio.ensure_future(loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        asked.add_done_callback(lambda _: self._free.release())
        # Whoever gives up does not free the thread.
        found = await asyncio.shield(asked)
        return list(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in found))
