"""Asks about hosts that are not listed, at receptions: the processes of this host that have the database.

While a person has yet to decide, the connection to a reception stays open. If that process ends, the question goes on
to the next one that answers; a new one rings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from shellback.exec.proxy.reach import Refused
from shellback.exec.wire import layout
from shellback.exec.wire.descriptors import short
from shellback.exec.wire.hosts import Entry, place
from shellback.exec.wire.ring import Ring

QUESTIONS: Final = 20
"""Hosts about which the connections of one conversation wait at a time."""
ANSWER_S: Final = 10.0
"""Within this time a reception says that it has the question; one that is stopped does not."""
AGAIN_S: Final = 5.0
"""The time until all are asked again, if none answered and no new one rings."""
_LINE_BYTES: Final = 1 << 14


@dataclass(eq=False, slots=True)
class _Question:
    """What a conversation asks; `clients` tell whether those who wait are still there, `session` is of the first."""

    scope: str
    host: str
    port: int
    session: str
    began: float = field(default_factory=time.monotonic)
    clients: list[Callable[[], bool]] = field(default_factory=list[Callable[[], bool]])
    request: str = ""
    """The id of the request that a person decides."""

    def line(self) -> bytes:
        waited_s = time.monotonic() - self.began
        facts = {"scope": self.scope, "host": self.host, "port": self.port, "session": self.session}
        return json.dumps({**facts, "waited_s": waited_s}).encode() + b"\n"


class Asking:
    """Within the block, asks at the receptions of a state directory; without one, nobody is asked."""

    def __init__(self, home: str | None) -> None:
        self._home = None if home is None else Path(home)
        self._open: dict[tuple[str, str, int], tuple[_Question, asyncio.Task[Entry]]] = {}
        self._rung = Ring()
        self._bell: socket.socket | None = None

    async def __aenter__(self) -> Self:
        if self._home is not None:
            directory = self._home / layout.BELLS
            directory.mkdir(mode=0o700, exist_ok=True)
            self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._name = directory / f"{layout.PROXIES}.{os.urandom(16).hex()}{layout.ONCE}"
            with short(directory) as folder:
                self._bell.bind(f"{folder}/{self._name.name}")
            asyncio.get_running_loop().add_reader(self._bell, self._ring, self._bell)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._bell)
            self._name.unlink(missing_ok=True)
            self._bell.close()

    async def allow(
        self, scope: str, wait_s: float, there: Callable[[], bool], session: str, host: str, port: int
    ) -> Entry:
        """Wait until a person, or a rule, has decided about a connection of `scope`; `there`: its client still waits.

        Connections to the same host and port share one question. Raises Refused, also after `wait_s` seconds.
        """
        key = scope, host, port
        question, task = self._open.get(key) or self._asked(key, session)
        question.clients.append(there)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(task)
        except TimeoutError:
            what = f"request {question.request} waits for a person" if question.request else "no worker answers"
            raise Refused(
                f"{place(host, port)} is not on the list, and nobody has decided about it within {wait_s:g} s ({what}):"
                " repeat this later"
            ) from None
        finally:
            question.clients.remove(there)
            if not question.clients:
                task.cancel()
                self._over(task)

    def _asked(self, key: tuple[str, str, int], session: str) -> tuple[_Question, asyncio.Task[Entry]]:
        if sum(scope == key[0] for scope, _, _ in self._open) >= QUESTIONS:
            raise Refused(
                f"{place(*key[1:])} is not on the list, and connections to {QUESTIONS} other hosts wait for a person"
                " already: repeat this later"
            )
        question = _Question(*key, session)
        task = asyncio.get_running_loop().create_task(self._decided(question))
        self._open[key] = question, task
        task.add_done_callback(self._over)
        return question, task

    def _over(self, task: asyncio.Task[Entry]) -> None:
        self._open = {key: one for key, one in self._open.items() if one[1] is not task}

    async def _decided(self, question: _Question) -> Entry:
        while True:
            rung = self._rung.next
            for name in self._receptions():
                # It has ended, or cannot answer: the next one finds the request.
                with contextlib.suppress(OSError, ValueError):
                    return await self._at(name, question)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await rung.wait()

    def _receptions(self) -> list[str]:
        with contextlib.suppress(OSError):
            found = [] if self._home is None else os.listdir(self._home / layout.RECEPTION)
            return [name for name in found if not name.startswith(".")]
        return []

    async def _at(self, name: str, question: _Question) -> Entry:
        assert self._home is not None
        with short(self._home / layout.RECEPTION) as folder:
            try:
                reader, writer = await asyncio.open_unix_connection(f"{folder}/{name}", limit=_LINE_BYTES)
            except ConnectionRefusedError:
                if name.endswith(layout.ONCE):
                    os.unlink(f"{folder}/{name}")
                raise
        try:
            while True:
                writer.write(question.line())
                async with asyncio.timeout(ANSWER_S):
                    said: dict[str, Any] = json.loads(await reader.readline())
                while waits := said.get("waits"):
                    question.request = waits
                    said = json.loads(await reader.readline())
                if "refused" in said:
                    raise Refused(said["refused"], by=said.get("by", ""))
                if "allowed" in said:
                    return Entry(said["allowed"], question.host, frozenset({question.port}))
                # It is decided. A yes that holds once is kept for the next connection if nobody waits any more.
                if not any(there() for there in question.clients):
                    raise Refused("the client has ended")
        finally:
            writer.close()

    def _ring(self, bell: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                bell.recv(1)
        self._rung.ring()
