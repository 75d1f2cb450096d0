"""Messages between keeper and supervisor, with descriptors, over one sequenced-packet socket.

To the keeper: `hold` (session, names of the attached descriptors, notes), `drop` (session, names, or all), `answer`
(session, answers to terminal queries), `forget` (numbers of wait statuses), `ping`. From the keeper: `ended`, `pong`,
and the orders of the service manager: `end` and `retire`.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire.protocol import Message

MAX_MESSAGE: Final = 1 << 15
MAX_FDS: Final = 8
_BATCH: Final = 500
_PING_S: Final = 2.0


@dataclass(slots=True)
class Held:
    """What the keeper holds for one session: descriptors by name, and the supervisor's notes."""

    fds: dict[str, int] = field(default_factory=dict[str, int])
    noted: str = "{}"
    """The notes as JSON, which takes a third of the memory; only a next supervisor reads them."""
    answered: int = 0
    """The offset in the output up to which terminal queries have been answered."""

    @property
    def notes(self) -> Message:
        return cast("Message", json.loads(self.noted))


@dataclass(frozen=True, slots=True)
class Dead:
    """A process that the keeper reaped; `code` and `status` are as waitid gave them.

    `known` is the last tick at which the pid certainly belonged to it.
    """

    number: int
    pid: int
    start: int
    sid: int
    code: int
    status: int
    known: int


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ends


def hold(session: str, names: list[str], notes: Message) -> Message:
    """The message that has the keeper hold the attached descriptors of a session under `names`, and its `notes`."""
    return {"op": "hold", "session": session, "names": names, "notes": json.dumps(notes, separators=(",", ":"))}


def send(link: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Send one message; the receiver gets it and the descriptors even if we end at once."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE:
        # Cut off, it would end the receiver.
        raise OSError(errno.EMSGSIZE, f"a message of {len(data)} bytes for the keeper")
    if fds:
        socket.send_fds(link, [data], fds)
    else:
        link.send(data)


def receive(link: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message, or None when the other side has gone; raises BlockingIOError if there is none now."""
    try:
        data, fds, _, _ = socket.recv_fds(link, MAX_MESSAGE, MAX_FDS)
    except ConnectionResetError:
        # The other side ended with unread data. This error comes once; what it sent can still be read.
        data, fds, _, _ = socket.recv_fds(link, MAX_MESSAGE, MAX_FDS)
    for fd in fds:
        # Held descriptors must not be inherited by commands of a later supervisor.
        os.set_inheritable(fd, False)
    return (cast("Message", json.loads(data)), fds) if data else None


@dataclass(slots=True)
class Legacy:
    """What the keeper gives to a starting supervisor: a line to the keeper, and what the last supervisor left."""

    keeper: int
    line: socket.socket
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    dead: list[Dead] = field(default_factory=list[Dead])
    failures: int = 0
    """How many supervisors before this one failed shortly after one another."""


class Line:
    """The supervisor's end of the line to its keeper; `pid` is None once the keeper has ended."""

    def __init__(self, loop: Loop, legacy: Legacy, ended: Callable[[Dead], None], gone: Callable[[], None]) -> None:
        self.pid: int | None = legacy.keeper
        proc = procfs.read(legacy.keeper)
        self.start = proc.start if proc is not None else 0
        self._loop = loop
        self._socket = legacy.line
        self._ended = ended
        self._gone = gone
        self._asked: deque[Callable[[], None]] = deque()
        self._unsent: deque[Message] = deque()
        self.ordered: Callable[[str], None] = lambda _order: None
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), self._ready, IN)

    @classmethod
    def to_nobody(cls, loop: Loop) -> Line:
        """A line without a keeper: nothing is held after our end."""
        theirs, ours = pair()
        theirs.close()
        made = cls(loop, Legacy(keeper=os.getpid(), line=ours), lambda _dead: None, lambda: None)
        made._lose()
        return made

    def send(self, message: Message, fds: list[int]) -> None:
        """Send now, unless there is no keeper; raises TimeoutError if the keeper does not read."""
        if self.pid is None:
            return
        try:
            send(self._socket, message, fds)
        except BlockingIOError:
            self._socket.settimeout(1.0)
            try:
                send(self._socket, message, fds)
            finally:
                self._socket.setblocking(False)
        except ConnectionError:
            self._lose()

    def send_soon(self, message: Message) -> None:
        """Send now, or when the keeper reads again; messages keep their order."""
        if self.pid is None:
            return
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._send_unsent()

    def _send_unsent(self) -> None:
        try:
            while self._unsent and self.pid is not None:
                send(self._socket, self._unsent[0])
                self._unsent.popleft()
        except ConnectionError:
            self._lose()
        except OSError:
            self._loop.after(0.01, self._send_unsent)

    def drop(self, session_id: str, names: list[str] | None = None) -> None:
        """Have the keeper close these descriptors of a session; without `names`, all of them."""
        self.send_soon({"op": "drop", "session": session_id, "names": names})

    def forget(self, dead: list[Dead]) -> None:
        """Have the keeper forget wait statuses that are recorded or not needed."""
        for first in range(0, len(dead), _BATCH):
            self.send_soon({"op": "forget", "numbers": [one.number for one in dead[first : first + _BATCH]]})

    def catch_up(self) -> list[Dead]:
        """Ends that the keeper has seen and not told yet; blocks for 2 s at most."""
        dead: list[Dead] = []
        self.send_soon({"op": "ping"})
        self._socket.settimeout(_PING_S)
        try:
            while self.pid is not None:
                got = receive(self._socket)
                if got is None:
                    self._lose()
                elif got[0]["op"] == "pong":
                    break
                elif got[0]["op"] == "ended":
                    dead.append(Dead(**got[0]["dead"]))
                else:
                    self._order_later(got[0]["op"])
        except TimeoutError:
            pass
        finally:
            self._socket.setblocking(False)
        return dead

    def when_told(self, then: Callable[[], None]) -> None:
        """Call `then` once the keeper has told everything that it has reaped so far, or has ended."""
        if self.pid is None:
            then()
            return
        self._asked.append(then)
        self.send_soon({"op": "ping"})

    def _ready(self, _events: int) -> None:
        while self.pid is not None:
            try:
                got = receive(self._socket)
            except BlockingIOError:
                return
            if got is None:
                self._lose()
            elif got[0]["op"] == "ended":
                self._ended(Dead(**got[0]["dead"]))
            elif got[0]["op"] != "pong":
                self._order_later(got[0]["op"])
            elif self._asked:
                self._asked.popleft()()

    def _order_later(self, order: str) -> None:
        # During recovery `ordered` is not set yet.
        self._loop.after(0.0, lambda: self.ordered(order))

    def _lose(self) -> None:
        if self.pid is not None:
            self.pid = None
            self._loop.forget(self._socket.fileno())
            self._unsent.clear()
            self._gone()
            while self._asked:
                self._asked.popleft()()
