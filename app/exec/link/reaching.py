"""Reaches the supervisor: finds it, starts it if there is none, and finds its successor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from shellback.exec.core import answers
from shellback.exec.core.errors import InvalidCommand, SupervisorAbsent, SupervisorUnreachable
from shellback.exec.link import launch
from shellback.exec.wire.protocol import (
    MAX_ANSWER,
    MAX_FRAME,
    VERSION,
    Decoder,
    ExitRecord,
    Loss,
    Message,
    ProtocolError,
    encode,
    losses,
)

log = logging.getLogger(__name__)

CONNECT_S: Final = 15.0
NO_ANSWER_S: Final = 30.0
_LOOK_S: Final = 0.5
_AWAY_S: Final = 2.0
"""How long a replacement may take before a warning is logged; pause after an answer that is not understood."""
_HELLO_S: Final = 5.0


class Lost(Exception):
    """Raised when the connection ends before the answer."""


class Connection(asyncio.Protocol):
    """One connection of a client: numbered requests, and events."""

    def __init__(self, on_event: Callable[[Message], None], on_lost: Callable[[Connection], None]) -> None:
        self._decoder = Decoder(MAX_ANSWER)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._on_event = on_event
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self.info: Message = {}
        self.garbled = ""
        """The message that we do not understand; the connection is then closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except ProtocolError as error:
            self.garbled = str(error)
            self.close()

    def _take(self, message: Message) -> None:
        if "event" in message:
            self._on_event(message)
            return
        number, ok = message.get("id"), message.get("ok")
        if not isinstance(number, int) or not isinstance(ok, bool):
            said = message.get("message")
            raise ProtocolError(str(said)[:200] if said else "an answer to no request")
        if not ok and not (isinstance(message.get("error"), str) and isinstance(message.get("message"), str)):
            raise ProtocolError("a refusal without a reason")
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._gone.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Lost())
        self._on_lost(self)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def gone_within(self, seconds: float) -> bool:
        """Wait for the end of the connection; whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def ask(self, message: Message, limit_s: float, *, withdraws: bool = False) -> Message:
        """The answer to a request; with `withdraws`, cancelling withdraws the request.

        Raises Lost if the connection ends first, TimeoutError after `limit_s` seconds, and ProtocolError if the request
        is too long; then it was not sent.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Lost
        number = next(self._numbers)
        frame = encode({**message, "id": number})
        if len(frame) > MAX_FRAME:
            raise ProtocolError(f"a request of {len(frame)} bytes; the limit is {MAX_FRAME}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        self._waiting[number] = future
        transport.write(frame)
        # Not `asyncio.timeout`: it would take a third of the time of a request.
        timer = loop.call_later(limit_s, _late, future)
        try:
            return await future
        except asyncio.CancelledError:
            if withdraws and self.open:
                transport.write(encode({"op": "withdraw", "id": next(self._numbers), "of": number}))
            raise
        finally:
            timer.cancel()
            self._waiting.pop(number, None)


def _late(future: asyncio.Future[Message]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class Reaching:
    """Sends requests to the supervisor of a state directory, and finds it again when it is replaced."""

    _enough: tuple[type[Exception], ...] = ()  # after these, no reconnection before a request

    def __init__(
        self,
        home: Path,
        *,
        spawn: bool = True,
        wait_s: float = 0.0,
        crash_dir: str | None = None,
        idle_s: float = 60.0,
        lends: Mapping[str, str] | None = None,
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
        self._lends = dict(lends or {})
        self.on_exit = on_exit
        self.on_reconnect = on_reconnect
        self.on_losses: Callable[[str, list[Loss]], None] | None = None
        self._folder = -1
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    async def connect(self) -> Message:
        """Connect, starting the supervisor if needed; its facts about itself.

        Keys: version, pid, boot_id, instance, keeper (alive), keeper_pid, live, unacknowledged. Raises
        SupervisorUnreachable if it neither answers nor can be started.
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
            # The state directory was removed; a new one may have its name.
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
        # There is no notification for a socket that does not exist yet.
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
            if answer["ok"] and self._lends:
                # To each supervisor anew: nobody else keeps them.
                lent = await connection.ask({"op": "lend", "values": self._lends}, _HELLO_S)
                answer = answer if lent["ok"] else lent
        except BaseException as error:
            connection.close()
            if isinstance(error, Lost) and connection.garbled:
                raise self._misunderstood(connection) from None
            raise
        if not answer["ok"]:
            connection.close()
            raise SupervisorUnreachable(
                f"the supervisor refuses: {answer['message']}; this program speaks version {VERSION}. "
                "Let its commands end (`shellback ps` of that version), then restart the supervisor"
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
        """Disconnect; commands and supervisor go on. Repeating it changes nothing."""
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

    async def _once(
        self, connection: Connection, message: Message, limit_s: float, *, withdraws: bool = False
    ) -> Message | None:
        """The answer to a request; None if the connection ended first."""
        try:
            return await connection.ask(message, limit_s, withdraws=withdraws)
        except Lost:
            if connection.garbled:
                raise self._misunderstood(connection) from None
            return None
        except TimeoutError:
            raise SupervisorUnreachable(f"{self._no_answer} (process {connection.info.get('pid')})") from None

    async def _ask(self, message: Message, *, longer_s: float = 0.0) -> Message:
        """Repeat a request until it is answered; only for requests that may be repeated."""
        limit_s = NO_ANSWER_S + longer_s
        until = time.monotonic() + limit_s
        try:
            while time.monotonic() < until:
                if (answer := await self._once(await self._connected(), message, limit_s)) is not None:
                    return answer
        except ProtocolError as error:
            raise InvalidCommand(str(error)) from None
        raise SupervisorUnreachable("the supervisor keeps ending: read supervisor/supervisor.log in its home")

    async def _act(self, message: Message, *, longer_s: float = 0.0) -> Message:
        return answers.checked(await self._ask(message, longer_s=longer_s), message)
