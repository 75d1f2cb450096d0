"""The connections of a worker of many hosts: one to each host that trusts this machine, as long as it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from shellback.exec.core.threads import cancelled
from shellback.storage import members
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.tables import conversations
from shellback.work.elsewhere import certificates
from shellback.work.elsewhere.lines import Fit, Message
from shellback.work.elsewhere.link import HostLink
from shellback.work.errors import HostUnreachable
from shellback.work.turn.hearing import HostLost

log = logging.getLogger(__name__)

Change = Callable[[], Awaitable[object]]

LOOK_S: Final = 5.0
"""The time between two looks which hosts trust this machine."""


@dataclass(eq=False, repr=False)
class HostLinks:
    """A link to each host that this machine has joined.

    `reached` is called with a link when its host answers, and `given_up` with the id of a host when it does not any
    more, or trusts this machine no more.
    """

    database: Database
    home: Path
    fit: Fit
    reached: Callable[[HostLink], Awaitable[object]]
    given_up: Callable[[str], Awaitable[object]]
    _links: dict[str, HostLink] = field(init=False, default_factory=dict[str, HostLink])
    _left: set[str] = field(init=False, default_factory=set[str])
    """Hosts that trusted this machine before: their items may still be on the way here."""
    _changes: asyncio.Queue[Change] = field(init=False, default_factory=asyncio.Queue["Change"])
    _tasks: list[asyncio.Task[None]] = field(init=False, default_factory=list[asyncio.Task[None]])

    def __contains__(self, host_id: object) -> bool:
        """Whether this machine has joined a host, which may be away, or had joined it."""
        return host_id in self._links or host_id in self._left

    def __iter__(self) -> Iterator[HostLink]:
        return iter(tuple(self._links.values()))

    async def start(self) -> None:
        """Connect from now on to all hosts that this machine has joined."""
        await self._look()
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._tell())]

    async def stop(self) -> None:
        """Close all connections."""
        tasks, self._tasks = self._tasks, []
        await cancelled(tasks)
        self._left |= self._links.keys()
        for link in self:
            await link.stop()
        self._links.clear()

    def at(self, host_id: str) -> HostLink:
        """The link to a host.

        Raises:
            HostLost: This machine has not joined it, or was revoked.
        """
        if (found := self._links.get(host_id)) is None:
            raise HostLost(f"this machine has no connection to host {host_id[:12]}")
        return found

    async def of(self, conversation_id: str) -> HostLink:
        """The link to the host of a conversation.

        Raises:
            HostLost: As `at` does.
        """
        return self.at(await self.database.read(_host_of, conversation_id))

    def told(self, host_id: str) -> Message | None:
        """What a host has told of itself; None if it was never reached."""
        link = self._links.get(host_id)
        return None if link is None else link.host or None

    def noted(self) -> None:
        """Tell those who read events that there are new ones, at every host; from any thread."""
        for link in self:
            link.noted()

    async def _follow(self) -> None:
        while True:
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except (StorageError, OSError) as error:  # connections stay
                log.info("which hosts trust this machine was not looked up: %s", error)
                await self.database.pause(LOOK_S, since=began)

    async def _look(self) -> None:
        certificate = (await asyncio.to_thread(certificates.of_machine, self.home))[1]
        found = await self.database.read(members.hosts_of, certificates.fingerprint_of(certificate))
        for host_id in found - self._links.keys():
            link = HostLink(self.database, host_id, self.home, self.fit, hands_on=True)
            link.reached = partial(self._changes.put_nowait, partial(self.reached, link))
            link.gone = partial(self._note_gone, host_id)
            self._links[host_id] = link
            link.begin()
        for host_id in self._links.keys() - found:
            self._left.add(host_id)
            link = self._links.pop(host_id)
            link.give_up(HostUnreachable(f"host {host_id[:12]} trusts this machine no more"))
            await link.stop()
        if self._changes.empty():
            for link in self:
                if link.connected:  # once more, in case it could not be done before
                    self._changes.put_nowait(partial(self.reached, link))

    def _note_gone(self, host_id: str, _why: str = "") -> None:
        self._changes.put_nowait(partial(self.given_up, host_id))

    async def _tell(self) -> None:
        """Tell of changes one after the other, in the order in which they came."""
        while True:
            tell = await self._changes.get()
            try:
                await tell()
            except Exception:
                log.exception("turns of a host are not taken, or still taken")


def _host_of(conn: sa.Connection, conversation_id: str) -> str:
    found = conn.execute(sa.select(conversations.c.host_id).where(conversations.c.id == conversation_id)).scalar()
    return str(found or "")
