"""The program of the proxy: it accepts in the network namespaces of sandboxes, and connects from its own.

The supervisor passes each listener with its list over a socket. Once the socket closes, the proxy accepts nothing more,
and ends with its last connection, so the next supervisor's proxy goes on with the same listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import select
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shellback.exec.proxy.asking import Asking
from shellback.exec.proxy.carried import Carried
from shellback.exec.proxy.denied import Denied
from shellback.exec.proxy.journal import Journal, Record
from shellback.exec.proxy.reach import Lookups, Refused
from shellback.exec.proxy.sides import Side
from shellback.exec.proxy.visit import Facts, Visit
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import Credential
from shellback.exec.wire.hosts import Hosts, Most
from shellback.exec.wire.sandbox import PROXY_CONTROL, PROXY_MESSAGE

if TYPE_CHECKING:
    from shellback.exec.proxy.injecting import Injector

_OWN_FILES: Final = 256
_FILES: Final = 8
"""Of a connection: two sockets, a pipe for each way, its record, and the count of its conversation."""
_THREADS: Final = 64
_LOG_BYTES: Final = 16 << 20
"""No file of ours grows beyond this; records stay far below it."""


@dataclass(eq=False, slots=True)
class Served:
    """One instance: its listener, its list, and its connections."""

    listener: socket.socket
    hosts: Hosts
    scope: str
    key: str
    most: Most
    lookups: Lookups = field(default_factory=Lookups)
    visits: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


CONNECTIONS: Final = "NETWORK_CONNECTIONS"
EACH_WAY: Final = "NETWORK_BYTES"


class Account:
    """Notes a connection of `scope` in the journal, which it enters when it begins or ends."""

    def __init__(self, journal: Journal, scope: str, carried: Carried) -> None:
        self._journal = journal
        self._carried = carried
        self._scope = scope
        self._began = time.monotonic()
        self._known = {"id": os.urandom(8).hex(), "at": round(time.time(), 3), "scope": scope}
        self._record: Record | None = None
        self._entered = False

    def begin(self, facts: Facts) -> None:
        """Enter it."""
        self._entered = True
        self._record = self._journal.begin(self._scope, self._known | facts.known())
        if self._record is None:
            self._journal.sum_up(self._scope, facts.up, facts.down, 1)

    def count(self, up: int, down: int) -> None:
        """Count bytes of it."""
        self._carried.add(up, down)
        if self._record is None:
            self._journal.sum_up(self._scope, up, down)
        else:
            with contextlib.suppress(OSError):
                self._record.add(up, down)

    def end(self, facts: Facts) -> None:
        """Note its end."""
        if not self._entered:
            self.begin(facts)
        if self._record is not None:
            seconds = round(time.monotonic() - self._began, 3)
            self._journal.end(self._record, self._known | facts.known() | {"seconds": seconds})


class Proxy:
    """`room`: so many connections it has at a time, of all instances; what comes then waits to be accepted.

    `home` is the state directory; without one it puts no credentials into requests.
    """

    def __init__(self, home: str | None, asking: Asking, denied: Denied, journal: Journal, room: int) -> None:
        self._home = home
        self._journal = journal
        self._asking = asking
        self._denied = denied
        self._room = room
        self._served: dict[str, Served] = {}
        self._all: set[asyncio.Task[None]] = set()

    async def obey(self, control: socket.socket) -> None:
        """Serve what the supervisor passes until it closes the socket and the last connection has ended."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(control, self._told, control, over)
        await over
        loop.remove_reader(control)
        while self._served:
            served = self._served.popitem()[1]
            # The next supervisor may have another listener, which has none of those that wait at this one.
            while self._accept(served):
                pass
            self._end(served, cut=False)
        while self._all:
            await asyncio.wait(self._all)

    def _told(self, control: socket.socket, over: asyncio.Future[None]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(control, PROXY_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            over.set_result(None)
            return
        message = json.loads(data)
        if message["op"] == "lend":
            if self._injector is not None:
                self._injector.lend(message["name"], message["value"])
            return
        key = message["key"]
        if (former := self._served.pop(key, None)) is not None:
            self._end(former, cut=message["op"] == "drop")
        if message["op"] == "serve":
            (fd,) = fds
            # A supervisor of an older version does not name all of these.
            credentials = map(Credential.from_wire, message.get("credentials", ()))
            hosts = Hosts(message["hosts"], message["private"], credentials, message.get("ask_s", 0.0))
            self._served[key] = served = Served(
                socket.socket(fileno=fd),
                hosts,
                message["scope"],
                key,
                Most(message.get("connections", Most().connections), message.get("each_way", 0)),
            )
            served.listener.setblocking(False)
            self._listen(served)

    def _end(self, served: Served, *, cut: bool) -> None:
        asyncio.get_running_loop().remove_reader(served.listener)
        served.listener.close()
        # No process is in the instance any more.
        for visit in served.visits if cut else ():
            visit.cancel()

    def _listen(self, served: Served) -> None:
        asyncio.get_running_loop().add_reader(served.listener, self._accept, served)

    def _accept(self, served: Served) -> bool:
        """Accept one that waits, if one does: another look, which mostly finds nothing, would hold it up."""
        loop = asyncio.get_running_loop()
        if len(self._all) >= self._room:
            for one in self._served.values():
                loop.remove_reader(one.listener)
            return False
        try:
            accepted, _ = served.listener.accept()
        except OSError:
            return False
        # At once, so that the end of the supervisor finds each connection waiting, or with a task.
        task = loop.create_task(self._serve(served, accepted, full=self._full(served)))
        served.visits.add(task)
        self._all.add(task)
        task.add_done_callback(served.visits.discard)
        task.add_done_callback(self._gone)
        return True

    def _full(self, served: Served) -> bool:
        same = (one for one in self._served.values() if one.scope == served.scope)
        return 0 < served.most.connections <= sum(len(one.visits) for one in same)

    def _gone(self, task: asyncio.Task[None]) -> None:
        if len(self._all) >= self._room:
            for one in self._served.values():
                self._listen(one)
        self._all.discard(task)

    async def _serve(self, served: Served, accepted: socket.socket, *, full: bool) -> None:
        carried = Carried(self._home, served.scope, served.most.each_way)
        account = Account(self._journal, served.scope, carried)
        limit, why = "", ""
        if full:
            limit, why = CONNECTIONS, f"of this conversation {served.most.connections} connections are open already"
        elif carried.spent:
            limit, why = EACH_WAY, carried.why
        hosts, allow, inject = served.hosts, None, None
        if hosts.ask_s:
            allow = partial(self._asking.allow, served.scope, hosts.ask_s, partial(_there, accepted))
        if hosts.credentials and self._injector is not None:
            inject = partial(self._injector.serve, served.key)
        deny = partial(self._denied.check, served.scope)
        accepted.setblocking(False)
        with Side(accepted) as client:
            visit = Visit(hosts, served.lookups.resolve, client, account.begin, allow, inject, deny)
            visit.facts.limit = limit

            def count(up: int, down: int) -> None:
                account.count(up, down)
                if carried.spent and not visit.facts.limit:
                    visit.facts.limit = EACH_WAY
                    raise Refused(carried.why)

            visit.facts.counted = count
            try:
                await visit.serve(why and f"{why} ({limit})", 503 if full else 403)
            finally:
                if visit.facts.host or visit.facts.refused:
                    account.end(visit.facts)
                carried.close()
            await client.leave()

    @cached_property
    def _injector(self) -> Injector | None:
        # They load cryptography, which takes more memory than all the rest.
        from shellback.exec.proxy.authority import Authority
        from shellback.exec.proxy.injecting import Injector, Lent

        return None if self._home is None else Injector(Authority(Path(self._home, layout.AUTHORITY)), Lent())


def _there(accepted: socket.socket) -> bool:
    """Whether the client at the other end has not ended."""
    look = select.poll()
    look.register(accepted, select.POLLRDHUP)
    return not look.poll(0)


async def _run(control: socket.socket, home: str | None, rules: str | None, room: int) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "names"))
    async with Asking(home) as asking:
        with Journal(home) as journal:
            await Proxy(home, asking, Denied(rules), journal, room).obey(control)


def main() -> None:
    """Run the proxy; its arguments are its state directory, and the one whose rules deny hosts, each "" for none."""
    control = socket.socket(fileno=PROXY_CONTROL)
    control.setblocking(False)
    os.set_inheritable(PROXY_CONTROL, False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, _LOG_BYTES))
    room = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_FILES) // _FILES)
    # A supervisor of an older version names one directory, or none.
    words = [word or None for word in sys.argv[1:]] or [None]
    with asyncio.Runner() as runner:
        runner.run(_run(control, words[0], words[-1], room))
