"""The doorbell: it tells workers in other processes that an item was enqueued.

On one host it is a datagram to a socket in the state directory, to one worker at random; a worker whose slots are taken
sends it on to the next. From another host it is a NOTIFY of Postgres to one process of the host, which sends the
datagram. The process that listens for workers elsewhere is asked as a worker without slots, and tells them. It rings
after the commit; an item whose ring is lost, by a crash or at a process that is paused, is found within 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy as sa

from shellback.exec.core.threads import cancelled
from shellback.exec.wire import layout
from shellback.exec.wire.bells import knock, knock_one, prefix
from shellback.exec.wire.descriptors import short
from shellback.storage.db import CONNECTING, Database
from shellback.storage.url import normalised, shown
from shellback.work.queue.queues import CHANNEL, EVERYWHERE, queues_of

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

EVENTS: Final = "events"
"""The name under which readers of events hear of new ones. Nothing is ever enqueued on it."""
RETRY_S: Final = 5.0


Ring = Callable[[], bool | None]
"""What to call at a ring; False: it has no use for it, so another worker of the host is to hear it."""
Bells = Mapping[str, Ring]
"""What to call when its name is rung."""


class Notifications:
    """Rings bells of this host at notifications of Postgres, by one connection for all processes of the host.

    It is there while a process has bells; when its process ends, another one of the host listens within `RETRY_S`.
    `direct_url` is where it listens, if a pooler is between `database` and Postgres.
    """

    def __init__(self, home: Path, host_id: str, database: Database, direct_url: str = "") -> None:
        self._home = home
        self._host_id = host_id
        self._database = database
        self._direct_url = direct_url
        self._rung: list[Bells] = []
        self._rings = False
        self._task: asyncio.Task[None] | None = None

    def ring(self, bells: Bells) -> None:
        """Ring these from now on, until `leave`; each once at first, when they are rung here or by another process."""
        self._rung.append(bells)
        if self._task is None:
            self._task = asyncio.create_task(self._stand_by())
        elif self._rings:
            _all_of(bells)

    async def leave(self, bells: Bells) -> None:
        """Ring these no more; the last ones close the connection."""
        self._rung = [one for one in self._rung if one is not bells]
        if not self._rung and self._task is not None:
            task, self._task = self._task, None
            await cancelled([task])

    async def _stand_by(self) -> None:
        lock = os.open(self._home / layout.LISTENING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(lock):
                if not self._rings:
                    self._heard_from_now_on()
                await asyncio.sleep(RETRY_S)
            self._rings = False
            await self._listen()
        finally:
            self._rings = False
            os.close(lock)

    def _heard_from_now_on(self) -> None:
        self._rings = True
        for bells in self._rung:
            _all_of(bells)  # items may have come before

    async def _listen(self) -> None:
        import psycopg  # not for SQLite

        url = normalised(self._direct_url) if self._direct_url else self._database.url
        # Not as text: libpq would refuse a password with a space, and quote it in the error.
        options = cast("dict[str, Any]", url.get_dialect()().create_connect_args(url)[1]) | CONNECTING
        told = False
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(autocommit=True, **options)
                async with connection:
                    if not self._direct_url and await _pooled(connection):
                        return _tell_of_the_pooler(shown(url))
                    await connection.execute(f"LISTEN {CHANNEL}")
                    told = False
                    self._rings = True
                    knock(self._home / layout.BELLS)  # all of this host: items may have come before
                    async for note in connection.notifies():
                        self._pass_on(note.payload)
            except psycopg.Error as error:
                if not told:
                    log.warning("items that other hosts enqueue wait for the next look: no notifications: %s", error)
                told = True
            finally:
                self._rings = False
            await asyncio.sleep(RETRY_S)

    def _pass_on(self, name: str) -> None:
        """Ring at this host what another one rang."""
        _, _, host_id = name.partition(".")
        if host_id not in {"", self._host_id} and self._host_id != EVERYWHERE:
            return
        knocks = knock_one if name in queues_of(host_id) else knock
        knocks(self._home / layout.BELLS, name)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _all_of(bells: Bells) -> None:
    for ring in bells.values():
        ring()


class Doorbell:
    """Rings the workers of a host; in a worker it also answers, by ringing the bells of its queues.

    It hears of other hosts by `notifications`, which the doorbells of a process share.
    """

    def __init__(
        self, home: Path, host_id: str, database: Database, notifications: Notifications | None = None
    ) -> None:
        self._directory = home / layout.BELLS
        self._host_id = host_id
        self._database = database
        self._notifications = notifications or Notifications(home, host_id, database)
        self._sockets: list[socket.socket] = []
        self._bells: Bells | None = None

    def ring(self, host_id: str, queue: str, *, every: bool = False) -> None:
        """Tell a worker of `host_id` that an item is on `queue`, or `every` one; called after the commit.

        It never raises, and blocks for at most one statement on Postgres. What is no queue is told to all who listen.
        """
        if self._host_id in {host_id, EVERYWHERE}:
            one = not every and queue in queues_of(host_id)
            if knock_one(self._directory, queue) if one else self.ring_here(queue):
                return
        if self._database.dialect != "sqlite":
            try:
                self._database.write_now(_notify, queue)
            except Exception as error:  # noqa: BLE001 - the next look finds the item
                log.warning("host %s was not notified of a new item; its next look finds the item: %s", host_id, error)

    def ring_all(self, queue: str) -> None:
        """Tell all hosts; else as `ring`."""
        self.ring_here(queue)
        self.ring("*", queue)

    def ring_here(self, queue: str) -> bool:
        """Tell all who listen to this name on this host; never raises. Whether somebody heard it."""
        return knock(self._directory, queue)

    def answer(self, queue: str) -> None:
        """Do what a ring at `queue` does in this process."""
        if self._bells is not None and queue in self._bells:
            self._bells[queue]()

    def ring_another(self, queue: str, executor_id: str) -> None:
        """Tell another worker of this host than this one; each whose slots are taken tells the next, until all know."""
        knock_one(self._directory, queue, behind=_socket(queue, executor_id))

    async def read(self, reader: str, ring: Ring, name: str = EVENTS) -> None:
        """Call `ring` whenever a process of this host rings `name`, until `close`; by default, if it added events."""
        self._answer_at(name, _listener(self._directory, name, reader, once=True), ring)

    async def listen(self, executor_id: str, bells: Bells, *, once: bool = False) -> None:
        """Call `bells[queue]` at each ring, until `close`; `executor_id` is of this worker.

        With `once` nobody will listen under this id again, so a ring removes what a crash has left of it.
        """
        for queue, ring in bells.items():
            self._answer_at(queue, _listener(self._directory, queue, executor_id, once=once), ring)
        if self._database.dialect != "sqlite":
            self._bells = bells
            self._notifications.ring(bells)

    def _answer_at(self, name: str, listener: socket.socket, ring: Ring) -> None:
        self._sockets.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._answer, name, listener, ring)

    def _answer(self, name: str, listener: socket.socket, ring: Ring) -> None:
        others: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                others += listener.recv(1)
        if others and ring() is False and any(others):
            ours = Path(listener.getsockname()).name
            knock_one(self._directory, name, behind=ours, others=max(others) - 1)

    async def close(self) -> None:
        """Answer no more."""
        if self._bells is not None:
            bells, self._bells = self._bells, None
            await self._notifications.leave(bells)
        while self._sockets:
            listener = self._sockets.pop()
            asyncio.get_running_loop().remove_reader(listener)
            (self._directory / Path(listener.getsockname()).name).unlink(missing_ok=True)
            listener.close()


async def _pooled(connection: psycopg.AsyncConnection) -> bool:
    """Whether a pooler stands before Postgres: it shows clients another process than the one that serves them."""
    found = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return found != (connection.info.backend_pid,)


@functools.cache  # once in a process, which may have several doorbells
def _tell_of_the_pooler(url: str) -> None:
    log.warning("%s is a pooler and DATABASE_DIRECT_URL is not set: items of other hosts wait for the next look", url)


def _notify(conn: sa.Connection, queue: str) -> None:
    # No item depends on it, so nothing waits for its record to be durable.
    conn.exec_driver_sql("SET LOCAL synchronous_commit = off")
    conn.execute(sa.select(sa.func.pg_notify(CHANNEL, queue)))


def _socket(queue: str, executor_id: str) -> str:
    return prefix(queue) + hashlib.sha256(executor_id.encode()).hexdigest()[:32]


def _listener(directory: Path, queue: str, executor_id: str, *, once: bool) -> socket.socket:
    directory.mkdir(mode=0o700, exist_ok=True)
    name = _socket(queue, executor_id) + (layout.ONCE if once else "")
    (directory / name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    with short(directory) as folder:
        listener.bind(f"{folder}/{name}")
    return listener
