"""A client's way to the supervisor: found, started where there is none, found again after it was replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shellback.exec.core import answers
from shellback.exec.core.errors import InvalidCommand, SupervisorAbsent, SupervisorUnreachable
from shellback.exec.link import launch
from shellback.exec.link.connection import Connection, Lost
from shellback.exec.wire.protocol import VERSION, ExitRecord, Loss, Message, ProtocolError
from shellback.exec.wire.shapes import losses

log = logging.getLogger(__name__)

CONNECT_S: Final = 15.0
NO_ANSWER_S: Final = 30.0
_LOOK_S: Final = 0.5
_AWAY_S: Final = 2.0
"""What a supervisor may take to be replaced before the log says that it is missed, or one that talks nonsense."""
_HELLO_S: Final = 5.0


class Reaching:
    """Finds the supervisor of a state directory again whenever it is replaced, and asks it."""

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
        self.on_losses: Callable[[str, list[Loss]], None] | None = None
        self._folder = -1
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

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
            hello: Message = {"op": "hello", "version": VERSION, "watch": self.on_exit is not None}
            answer = await connection.ask(hello, _HELLO_S)
        except BaseException as error:
            connection.close()
            if isinstance(error, Lost) and connection.garbled:
                raise self._misunderstood(connection) from None
            raise
        if not answer["ok"]:
            connection.close()
            raise SupervisorUnreachable(
                f"the supervisor refuses: {answer['message']}; this program speaks version {VERSION}. "
                "Let what runs end (`shellback ps` of that version), then start the supervisor anew"
            )
        connection.info = answer
        if self._missed:
            self._missed = False
            log.warning("the supervisor in %s answers", self._home)
        return connection

    def _event(self, message: Message) -> None:
        name = message.get("session_id")
        if message["event"] == "losses" and self.on_losses is not None and isinstance(name, str):
            self.on_losses(name, losses(message.get("losses")))
        elif message["event"] == "exit" and self.on_exit is not None:
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
        limit_s = NO_ANSWER_S + longer_s
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
