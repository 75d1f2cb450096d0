"""The worker's side of the socket: one connection, any number of requests under way, exits as they come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from app.exec.errors import (
    InputUnknown,
    InvalidCommand,
    SupervisorAbsent,
    SupervisorUnreachable,
)
from app.exec.supervisor import answers, launch
from app.exec.supervisor.answers import Killed, StartAnswer, Written
from app.exec.supervisor.connection import Connection, Lost
from app.exec.supervisor.protocol import (
    OLDEST,
    SANDBOXES_SINCE,
    VERSION,
    ExitRecord,
    Message,
    ProtocolError,
    StartRequest,
)

log = logging.getLogger(__name__)

__all__ = ["Killed", "StartAnswer", "SupervisorClient", "Written"]

CONNECT_S: Final = 15.0
_LOOK_S: Final = 0.5
_AWAY_S: Final = 2.0
"""What a supervisor may take to be replaced before the log says that it is missed, or one that talks nonsense."""
_HELLO_S: Final = 5.0
_NO_ANSWER_S: Final = 30.0
_REPLACED_S: Final = 2.0
"""How long a start waits for a supervisor that is to be replaced to go; one that still has commands stays."""


class SupervisorClient:
    """Speaks to the supervisor of a state directory, starting it where there is none.

    `on_exit(record)` is called on the event loop for every exit that is not acknowledged, again
    after each reconnection: it must bear repeats. `on_reconnect()` is called when the supervisor
    or its connection was replaced. A call survives the supervisor's death; it never acts twice.

    Without `spawn` it starts none, and waits up to `wait_s` seconds for one that somebody else starts.
    """

    _enough: tuple[type[Exception], ...] = ()  # after these nobody looks for it before a request

    def __init__(
        self,
        home: Path,
        *,
        spawn: bool = True,
        wait_s: float = 0.0,
        crash_dir: str | None = None,
        idle_s: float = 60.0,
        on_exit: Callable[[ExitRecord], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._home = home
        self._no_answer = answers.SILENT.format(home=home)
        self._spawn = spawn
        self._wait_s = wait_s
        self._missed = False
        self._crash_dir = crash_dir
        self._idle_s = idle_s
        self.on_exit = on_exit
        self.on_reconnect = on_reconnect
        self._folder = -1
        self._connection: Connection | None = None
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

    async def _connected(self) -> Connection:
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

    async def _open(self) -> Connection:
        if self._folder >= 0 and not os.fstat(self._folder).st_nlink:
            # The state directory was removed; what has its name now is another one.
            os.close(self._folder)
            self._folder = -1
        if self._folder < 0:
            self._folder = launch.folder(self._home)
        began = time.monotonic()
        while True:
            try:
                return await self._greet()
            except (OSError, Lost) as error:
                silent = isinstance(error, TimeoutError)
            waited = time.monotonic() - began
            if not self._spawn:
                if silent and waited > self._wait_s:
                    raise SupervisorUnreachable(self._no_answer)
                await self._await_another(waited)
                continue
            if waited > CONNECT_S:
                none = f"no supervisor answers in {self._home} within {CONNECT_S:.0f} s"
                raise SupervisorUnreachable(self._no_answer if silent else none)
            await self._start_one()

    async def _start_one(self) -> None:
        try:
            await asyncio.to_thread(launch.ensure, self._home, self._folder, self._crash_dir, self._idle_s)
        except OSError as error:
            raise SupervisorUnreachable(f"no supervisor can be started: {error.strerror}") from error

    async def _await_another(self, waited: float) -> None:
        if not self._wait_s:
            raise SupervisorAbsent(f"no supervisor runs in {self._home}")
        why = f"no supervisor answers in {self._home}, and with SUPERVISOR=external a worker starts none"
        todo = "start one there, as the same user: `shellback supervisor`, or its service"
        if waited > self._wait_s:
            raise SupervisorUnreachable(f"{why} (waited {self._wait_s:.0f} s): {todo}")
        if waited > _AWAY_S and not self._missed:
            self._missed = True
            log.warning("%s: waiting for it; %s", why, todo)
        # A socket that does not exist yet tells nobody when it does.
        await asyncio.sleep(min(_LOOK_S, 0.01 + waited / 4))

    async def _greet(self) -> Connection:
        socket = launch.connect(self._folder)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(lambda: Connection(self._event, self._lost), sock=socket)
        except BaseException:
            socket.close()
            raise
        try:
            # The oldest we speak: a supervisor of an older build, which has to serve us, refuses what is above its own.
            hello: Message = {"op": "hello", "version": OLDEST, "watch": self.on_exit is not None}
            answer = await connection.ask(hello, _HELLO_S)
        except BaseException as error:
            connection.close()
            if isinstance(error, Lost) and connection.garbled:
                raise self._misunderstood(connection) from None
            raise
        if not answer["ok"]:
            connection.close()
            raise SupervisorUnreachable(
                f"the supervisor refuses: {answer['message']}; this program speaks versions {OLDEST} to {VERSION}. "
                "Let what runs end (`shellback ps` of that version), then start the supervisor anew"
            )
        connection.info = answer
        if self._missed:
            self._missed = False
            log.warning("the supervisor in %s answers", self._home)
        return connection

    def _event(self, message: Message) -> None:
        if self.on_exit is None or message["event"] != "exit":
            return
        for record in answers.named([message.get("record")]):
            self.on_exit(record)

    def _lost(self, connection: Connection) -> None:
        if connection.garbled:
            log.error("%s", self._misunderstood(connection))
        if connection is self._connection and not self._closed:
            self._connection = None
            if self._again is None or self._again.done():
                again = self._reconnect(_AWAY_S if connection.garbled else 0.0)
                self._again = asyncio.get_running_loop().create_task(again)

    def _misunderstood(self, connection: Connection) -> SupervisorUnreachable:
        return SupervisorUnreachable(answers.MISUNDERSTOOD.format(home=self._home, said=connection.garbled))

    def _silent(self, connection: Connection) -> SupervisorUnreachable:
        return SupervisorUnreachable(f"{self._no_answer} (process {connection.info.get('pid')})")

    async def _reconnect(self, wait: float) -> None:
        while not self._closed:
            await asyncio.sleep(wait)
            try:
                await self._connected()
            except self._enough:
                return
            except SupervisorUnreachable:
                wait = min(5.0, wait * 2 + 0.1)
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

    async def _ask(self, message: Message, *, longer_s: float = 0.0) -> Message:
        """Ask until answered; only for what may be asked again."""
        limit_s = _NO_ANSWER_S + longer_s
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            connection = await self._connected()
            try:
                return await connection.ask(message, limit_s)
            except Lost:
                if connection.garbled:
                    raise self._misunderstood(connection) from None
            except TimeoutError:
                raise self._silent(connection) from None
            except ProtocolError as error:
                raise InvalidCommand(str(error)) from None
        raise SupervisorUnreachable("the supervisor ends again and again; its log is in the state directory")

    async def _act(self, message: Message, *, longer_s: float = 0.0) -> Message:
        return answers.checked(await self._ask(message, longer_s=longer_s), message)

    # -- requests --------------------------------------------------------------------------------

    async def info(self) -> Message:
        """What the supervisor says of itself now; the keys of `connect`."""
        return await self._act({"op": "info"})

    async def start(self, request: StartRequest, *, home: Path | None = None) -> StartAnswer:
        """Start a command, at most once however often the same session id is asked for; there is no other `home`.

        Cancelling leaves it started or not; the same call later says which.

        Raises:
            SupervisorUnreachable: It is not known whether the command was started; `status` will tell.
        """
        assert home is None or home == self._home
        message = {"op": "start", **request.to_wire()}
        until = time.monotonic() + _NO_ANSWER_S
        while time.monotonic() < until:
            connection = await self._connected()
            held = request.sandbox is not None or request.fence is not None
            if held and connection.info["version"] < SANDBOXES_SINCE:
                return answers.TOO_OLD
            try:
                answer = await connection.ask(message, _NO_ANSWER_S)
            except Lost:
                if connection.garbled:
                    raise self._misunderstood(connection) from None
                status = await self.status(request.session_id)
                if status["state"] != "unknown":
                    return answers.known(status)
            except TimeoutError:
                raise self._silent(connection) from None
            except ProtocolError as error:
                return StartAnswer(outcome="refused", code="bad_request", message=str(error))
            else:
                leaving = not answer["ok"] and answer["error"] in {"keeper_dead", "stopping"}
                # It has begun nothing, and makes room for a new pair as soon as nothing runs.
                if not (leaving and await connection.gone_within(_REPLACED_S)):
                    return answers.started(answer)
        raise SupervisorUnreachable("the supervisor does not answer a start")

    async def status(self, session_id: str) -> Message:
        """State of a session: `unknown`, `abandoned`, `running` (pid, started_at, ...) or an end with `record`."""
        return await self._act({"op": "status", "session_id": session_id})

    async def list(self) -> list[Message]:
        """Sessions that run, each as `status` has it."""
        return cast("list[Message]", (await self._act({"op": "list"}))["sessions"])

    async def unacknowledged(self) -> list[ExitRecord]:
        """Exit records nobody has acknowledged."""
        return answers.named((await self._act({"op": "list"}))["ended"])

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> Killed:
        """End the whole tree: SIGTERM, `grace_s` seconds, SIGKILL, until nothing is found twice.

        An ended session's survivors are ended too. Cancelling leaves the kill going on.

        Raises:
            SessionNotFound: No such session.
        """
        message: Message = {"op": "kill", "session_id": session_id, "grace_s": grace_s, "ended_by": ended_by}
        answer = await self._act(message, longer_s=grace_s)
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
            answer = await connection.ask(message, _NO_ANSWER_S)
        except (Lost, TimeoutError):
            again = await self._same(connection) if key else None
            if again is None:
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
            try:
                answer = await again.ask(message, _NO_ANSWER_S)
            except (Lost, TimeoutError):
                raise InputUnknown("the supervisor went away: not known whether the input arrived") from None
        except ProtocolError as error:
            raise InvalidCommand(str(error)) from None
        answer = answers.checked(answer, message)
        return Written(answer["accepted"], answer["total"], answer["eof"], answer["closed"])

    async def written(self, session_id: str, key: str) -> Written | None:
        """What the write with this key did, None if this supervisor has served none. Writes nothing.

        Raises:
            TaskCompleted: The session has ended.
            SessionNotFound: No such session.
        """
        message: Message = {"op": "write", "session_id": session_id, "data": "", "key": key, "again": True}
        answer = await self._ask(message)
        if not answer["ok"] and answer["error"] == "not_known":
            return None
        answer = answers.checked(answer, message)
        return Written(answer["accepted"], answer["total"], answer["eof"], answer["closed"])

    async def _same(self, connection: Connection) -> Connection | None:
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

    async def signal(self, session_id: str, number: int) -> None:
        """Send a signal to every process of the session's tree; where the answer is lost, it may have been sent.

        Raises:
            TaskCompleted: The session has ended; nothing was signalled.
            SupervisorUnreachable: It does not answer, or is of an older version that knows no signals.
        """
        message: Message = {"op": "signal", "session_id": session_id, "number": number}
        connection = await self._connected()
        try:
            answers.checked(await connection.ask(message, _NO_ANSWER_S), message)
        except (Lost, TimeoutError):
            raise SupervisorUnreachable("the supervisor went away: not known whether the signal was sent") from None

    async def ack(self, session_id: str) -> bool:
        """Say that the exit is recorded elsewhere, so that it is not told again; False if it was not due."""
        return bool((await self._act({"op": "ack", "session_id": session_id}))["acknowledged"])

    async def abandon(self, session_id: str) -> Message:
        """Make sure that this session never starts; returns its status, `abandoned` if that worked."""
        return cast("Message", (await self._act({"op": "abandon", "session_id": session_id}))["status"])

    async def stop(self) -> int:
        """Have supervisor and keeper end as soon as no session is left; returns how many there are."""
        return int((await self._act({"op": "stop"}))["live"])
