"""The worker's side of the socket: one connection, any number of requests under way, exits as they come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from app.exec.errors import (
    ExecError,
    InputUnknown,
    InvalidCommand,
    LimitReached,
    PtyError,
    SessionNotFound,
    SpawnFailed,
    SupervisorUnreachable,
    TaskCompleted,
)
from app.exec.supervisor import launch
from app.exec.supervisor.protocol import (
    MAX_ANSWER,
    VERSION,
    Decoder,
    ExitRecord,
    Message,
    ProtocolError,
    Refused,
    StartRequest,
    encode,
)

CONNECT_S: Final = 15.0
_ATTEMPTS: Final = 8
_NO_ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer:
    """What became of a start.

    `already`: the session was started before; `status` says how it is. `start_failed`: the kernel
    refused to execute it; `record` has the errno. `refused`: nothing was begun; `code` is one of
    boot_id, keeper_dead, stopping, descriptors, disk, stdin, bad_request, os_error.
    """

    outcome: Literal["started", "already", "abandoned", "start_failed", "refused"]
    pid: int | None = None
    starttime: int | None = None
    started_at: float | None = None
    status: Message | None = None
    record: ExitRecord | None = None
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Killed:
    """What a kill left: nothing, or the pids that are still there."""

    killed: bool
    survivors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """How much of a write the command has taken; `closed` means that nobody reads any more."""

    accepted: int
    total: int
    eof: bool
    closed: bool


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """The connection went before the answer came."""


class _Connection(asyncio.Protocol):
    def __init__(self, on_event: Callable[[Message], None], on_lost: Callable[[_Connection], None]) -> None:
        self._decoder = Decoder(MAX_ANSWER)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._on_event = on_event
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self.info: Message = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except ProtocolError:
            self.close()
            return
        for message in messages:
            if "event" in message:
                self._on_event(message)
                continue
            future = self._waiting.pop(message.get("id") or 0, None)
            if future is not None and not future.done():
                future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_Lost())
        self._on_lost(self)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, message: Message) -> Message:
        if self._transport is None:
            raise _Lost
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(encode({**message, "id": number}))
        try:
            return await future
        finally:
            self._waiting.pop(number, None)


class SupervisorClient:
    """Speaks to the supervisor of a state directory, starting it where there is none.

    `on_exit(record)` is called on the event loop for every exit that is not acknowledged, again
    after each reconnection: it must bear repeats. `on_reconnect()` is called when the supervisor
    or its connection was replaced. A call survives the supervisor's death; it never acts twice.
    """

    def __init__(
        self,
        home: Path,
        *,
        spawn: bool = True,
        crash_dir: str | None = None,
        idle_s: float = 60.0,
        on_exit: Callable[[ExitRecord], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._home = home
        self._spawn = spawn
        self._crash_dir = crash_dir
        self._idle_s = idle_s
        self.on_exit = on_exit
        self.on_reconnect = on_reconnect
        self._folder = -1
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    # -- connection ------------------------------------------------------------------------------

    async def connect(self) -> Message:
        """Connect, start the supervisor if need be, and return what it says of itself.

        Keys: version, pid, boot_id, instance, keeper (alive), keeper_pid, live, unacknowledged.

        Raises:
            SupervisorUnreachable: It neither answers nor can be started.
        """
        return (await self._connected()).info

    async def _connected(self) -> _Connection:
        connection = self._connection
        if connection is not None and connection.open:
            return connection
        if self._closed:
            raise SupervisorUnreachable("this client has been closed")
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.open:
                connection = await self._open()
                self._connection = connection
            return connection

    async def _open(self) -> _Connection:
        if self._folder < 0:
            self._folder = launch.folder(self._home)
        until = time.monotonic() + CONNECT_S
        while True:
            with contextlib.suppress(OSError, _Lost, TimeoutError):
                return await self._greet()
            if time.monotonic() > until:
                raise SupervisorUnreachable(f"no supervisor answers in {self._home} within {CONNECT_S:.0f} s")
            if not self._spawn:
                raise SupervisorUnreachable(f"no supervisor runs in {self._home}")
            await asyncio.to_thread(launch.ensure, self._home, self._folder, self._crash_dir, self._idle_s)

    async def _greet(self) -> _Connection:
        socket = launch.connect(self._folder)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(
                lambda: _Connection(self._event, self._lost), sock=socket
            )
        except BaseException:
            socket.close()
            raise
        try:
            hello: Message = {"op": "hello", "version": VERSION, "watch": self.on_exit is not None}
            answer = await asyncio.wait_for(connection.ask(hello), 5.0)
        except BaseException:
            connection.close()
            raise
        if not answer["ok"]:
            connection.close()
            raise SupervisorUnreachable(f"the supervisor refuses: {answer['message']}")
        connection.info = answer
        return connection

    def _event(self, message: Message) -> None:
        if self.on_exit is not None and message["event"] == "exit":
            self.on_exit(cast("ExitRecord", message["record"]))

    def _lost(self, connection: _Connection) -> None:
        if connection is self._connection and not self._closed:
            self._connection = None
            if self._again is None or self._again.done():
                self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        wait = 0.0
        while not self._closed:
            try:
                await self._connected()
            except SupervisorUnreachable:
                wait = min(5.0, wait * 2 + 0.1)
                await asyncio.sleep(wait)
            else:
                if self.on_reconnect is not None:
                    self.on_reconnect()
                return

    async def close(self) -> None:
        """Leave; commands and supervisor go on. Repeating it changes nothing."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._again
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            await asyncio.sleep(0)
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    async def _ask(self, message: Message, *, limit_s: float = _NO_ANSWER_S) -> Message:
        """Ask until answered; only for what may be asked again."""
        for _ in range(_ATTEMPTS):
            connection = await self._connected()
            try:
                return await asyncio.wait_for(connection.ask(message), limit_s)
            except _Lost:
                continue
            except TimeoutError:
                raise SupervisorUnreachable(f"the supervisor has not answered for {limit_s:.0f} s") from None
        raise SupervisorUnreachable("the supervisor ends again and again; its log is in the state directory")

    async def _act(self, message: Message, *, limit_s: float = _NO_ANSWER_S) -> Message:
        return _checked(await self._ask(message, limit_s=limit_s), message)

    # -- requests --------------------------------------------------------------------------------

    async def info(self) -> Message:
        """What the supervisor says of itself now; the keys of `connect`."""
        return await self._act({"op": "info"})

    async def start(self, request: StartRequest) -> StartAnswer:
        """Start a command, at most once however often the same session id is asked for.

        Cancelling leaves it started or not; the same call later says which.

        Raises:
            SupervisorUnreachable: It is not known whether the command was started; `status` will tell.
        """
        message = {"op": "start", **request.to_wire()}
        for _ in range(_ATTEMPTS):
            connection = await self._connected()
            try:
                answer = await asyncio.wait_for(connection.ask(message), _NO_ANSWER_S)
            except _Lost:
                status = await self.status(request.session_id)
                if status["state"] != "unknown":
                    return _known(status)
            except TimeoutError:
                break
            else:
                return _started(answer)
        raise SupervisorUnreachable("the supervisor does not answer a start")

    async def status(self, session_id: str) -> Message:
        """State of a session: `unknown`, `abandoned`, `running` (pid, started_at, ...) or an end with `record`."""
        return await self._act({"op": "status", "session_id": session_id})

    async def list(self) -> list[Message]:
        """Sessions that run, each as `status` has it."""
        return cast("list[Message]", (await self._act({"op": "list"}))["sessions"])

    async def unacknowledged(self) -> list[ExitRecord]:
        """Exit records nobody has acknowledged."""
        return cast("list[ExitRecord]", (await self._act({"op": "list"}))["ended"])

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> Killed:
        """End the whole tree: SIGTERM, `grace_s` seconds, SIGKILL, until nothing is found twice.

        An ended session's survivors are ended too. Cancelling leaves the kill going on.

        Raises:
            SessionNotFound: No such session.
        """
        message: Message = {"op": "kill", "session_id": session_id, "grace_s": grace_s, "ended_by": ended_by}
        answer = await self._act(message, limit_s=grace_s + _NO_ANSWER_S)
        return Killed(answer["killed"], tuple(answer["survivors"]))

    async def write(self, session_id: str, data: bytes, *, eof: bool = False, key: str = "") -> Written:
        """Write to the command's input, at most once for a key; waits a second at most for a full one.

        Raises:
            InputUnknown: The supervisor died meanwhile: not known whether the input arrived.
            TaskCompleted: The session has ended.
            SessionNotFound: No such session.
            InvalidCommand: The session has no open input.
        """
        text = base64.b64encode(data).decode()
        message: Message = {"op": "write", "session_id": session_id, "data": text, "eof": eof, "key": key}
        connection = await self._connected()
        try:
            answer = await asyncio.wait_for(connection.ask(message), _NO_ANSWER_S)
        except (_Lost, TimeoutError):
            again = await self._same(connection) if key else None
            if again is None:
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
            try:
                answer = await asyncio.wait_for(again.ask(message), _NO_ANSWER_S)
            except (_Lost, TimeoutError):
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
        answer = _checked(answer, message)
        return Written(answer["accepted"], answer["total"], answer["eof"], answer["closed"])

    async def _same(self, connection: _Connection) -> _Connection | None:
        """A new connection to the same process, which remembers the keys it has served."""
        try:
            again = await self._connected()
        except SupervisorUnreachable:
            return None
        return again if again.info["instance"] == connection.info["instance"] else None

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        """Set the size of the session's terminal.

        Raises:
            PtyError: It has none.
            TaskCompleted: The session has ended.
        """
        await self._act({"op": "resize", "session_id": session_id, "rows": rows, "cols": cols})

    async def ack(self, session_id: str) -> bool:
        """Say that the exit is recorded elsewhere, so that it is not told again; False if it was not due."""
        return bool((await self._act({"op": "ack", "session_id": session_id}))["acknowledged"])

    async def abandon(self, session_id: str) -> Message:
        """Make sure that this session never starts; returns its status, `abandoned` if that worked."""
        return cast("Message", (await self._act({"op": "abandon", "session_id": session_id}))["status"])

    async def stop(self) -> int:
        """Have supervisor and keeper end as soon as no session is left; returns how many there are."""
        return int((await self._act({"op": "stop"}))["live"])


def _started(answer: Message) -> StartAnswer:
    if not answer["ok"]:
        return StartAnswer(outcome="refused", code=answer["error"], message=answer["message"])
    fields: dict[str, Any] = {name: answer[name] for name in StartAnswer.__slots__ if name in answer}
    return StartAnswer(**fields)


def _known(status: Message) -> StartAnswer:
    match status["state"]:
        case "abandoned":
            return StartAnswer(outcome="abandoned", status=status)
        case "start_failed":
            return StartAnswer(outcome="start_failed", record=status["record"])
        case _:
            return StartAnswer(outcome="already", status=status)


def _checked(answer: Message, message: Message) -> Message:
    if answer["ok"]:
        return answer
    refusal = Refused(answer["error"], answer["message"])
    raise _error(refusal, str(message.get("session_id", ""))) from refusal


def _error(refusal: Refused, session_id: str) -> ExecError:
    text = str(refusal)
    match refusal.code:
        case "not_found":
            return SessionNotFound(session_id)
        case "ended":
            return TaskCompleted(session_id, "it is over")
        case "descriptors" | "busy":
            return LimitReached(text)
        case "no_pty":
            return PtyError(text)
        case "no_stdin" | "bad_request":
            return InvalidCommand(text)
        case "unknown_op" | "unsupported_version" | "malformed":
            return SupervisorUnreachable(text)
        case _:
            return SpawnFailed(text)
