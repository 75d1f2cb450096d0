"""Sends notices from the worker, without delaying its turns."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NoReturn, Protocol

import httpx2

from shellback.exec.wire import linux
from shellback.storage.db import Database
from shellback.work.notices import notices
from shellback.work.notices.notices import DELAYS_S, SILENT, Due, Outbox

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
AT_ONCE: Final = 4
LEASE_S: Final = 30.0
"""How long a dead worker keeps a notice, beyond the timeout of an attempt."""
IDLE_S: Final = 15.0
"""The longest time between two looks at the table."""
REAP_S: Final = 2.0
ORPHAN_S: Final = 15.0
"""After this time `timeout`, if installed, kills a command whose worker was killed."""


class NotSent(Exception):
    """Raised when an attempt failed. The message is for the log and holds no secret."""


class Target(Protocol):
    """The destination of notices. `send` delivers one or raises `NotSent`; a cancellation leaves nothing behind."""

    async def send(self, payload: dict[str, Any]) -> None: ...


_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Webhook:
    """POSTs JSON to a URL. Any 2xx is a success; redirects are not followed, and no body is read."""

    url: str

    async def send(self, payload: dict[str, Any]) -> None:
        """Deliver one notice; NotSent without a connection, or for another status."""
        # In a thread: reading the certificates takes tens of milliseconds and would block turns.
        trusted = await asyncio.to_thread(_trusted)
        try:
            async with (
                httpx2.AsyncClient(verify=trusted, follow_redirects=False, timeout=TIMEOUT_S) as client,
                client.stream("POST", self.url, content=_encoded(payload), headers=_JSON) as response,
            ):
                status = response.status_code
        except httpx2.HTTPError as error:
            # Without its text, which may quote the URL with a key.
            raise NotSent(f"no answer ({type(error).__name__})") from None
        except (httpx2.InvalidURL, ValueError, OSError) as error:
            raise NotSent(f"cannot be sent ({type(error).__name__})") from None
        if not 200 <= status < 300:
            raise NotSent(f"status {status}" + (", and redirects are not followed" if 300 <= status < 400 else ""))


@dataclass(frozen=True, slots=True)
class Command:
    """Runs a program without a shell, the notice as JSON on its standard input. Exit code 0 is a success."""

    argv: Sequence[str]
    environ: Mapping[str, str]

    async def send(self, payload: dict[str, Any]) -> None:
        """Deliver one notice. Cancelling kills the program and what it started in its group.

        Raises:
            NotSent: It could not be started, or ended with something else than 0.
        """
        # A file in memory, not a pipe: we never wait for the program to read it.
        stdin = os.memfd_create("notice", os.MFD_CLOEXEC)
        try:
            linux.write_all(stdin, _encoded(payload))
            os.lseek(stdin, 0, os.SEEK_SET)
            process = subprocess.Popen(  # noqa: ASYNC220 - returns at once; the operator's own words
                self._bounded(),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(self.environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotSent(f"{self.argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}") from None
        finally:
            os.close(stdin)
        pidfd = os.pidfd_open(process.pid)
        try:
            await _readable(pidfd)
        finally:
            if process.poll() is None:
                # The child is not reaped, so its pid and process group cannot have been reused.
                os.killpg(process.pid, signal.SIGKILL)  # noqa: TID251 - see above
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(_readable(pidfd), REAP_S)
                process.poll()
            os.close(pidfd)
        if process.returncode != 0:
            raise NotSent(f"{self.argv[0]} ended with {process.returncode}")

    def _bounded(self) -> list[str]:
        program = shutil.which(self.argv[0], path=self.environ.get("PATH"))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "no such program, or not one that may be run")
        timeout = shutil.which("timeout")
        bounds = [timeout, "-s", "KILL", f"{ORPHAN_S:g}"] if timeout else []
        return [*bounds, program, *self.argv[1:]]


@cache
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def _encoded(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload).encode()


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(fd, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(fd)


@dataclass(eq=False, repr=False)
class Notifier:
    """Takes due notices and sends them, a few at a time; failed ones are tried again later.

    Several workers share the rows. If a worker dies after sending and before recording that, the notice is sent twice.
    """

    database: Database
    target: Target
    hide: Callable[[str], str] = str
    """Takes secrets out of a text; it may block."""
    timeout_s: float = TIMEOUT_S
    delays_s: tuple[float, ...] = DELAYS_S
    _bell: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def ring(self) -> None:
        """Look at the table now; call it from the loop's thread."""
        self._bell.set()

    async def run(self) -> NoReturn:
        """Send due notices forever. After a cancellation the next worker sends unfinished ones again."""
        while True:
            self._bell.clear()
            began = time.monotonic()
            try:
                taken = await self.database.write(notices.take, limit=AT_ONCE, lease_s=self.timeout_s + LEASE_S)
                # `return_exceptions`: an error of one must not abandon the others.
                done = await asyncio.gather(*map(self._send, taken), return_exceptions=True)
                for error in filter(None, done):
                    log.warning("the result of a notice was not recorded, so it is sent again: %s", error)
                wait_s = 0.0 if len(taken) == AT_ONCE else await self.database.read(notices.next_due)
            except Exception as error:  # noqa: BLE001 - the rows are kept
                log.warning("notices wait: %s", error)
                await self.database.pause(IDLE_S, since=began)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), IDLE_S if wait_s is None else min(IDLE_S, wait_s))

    async def _send(self, notice: Due) -> None:
        about = {"conversation": notice.conversation_id, "notice": notice.id}
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.target.send(await asyncio.to_thread(_told, notice.payload, self.hide))
        except TimeoutError:
            error = f"no answer within {self.timeout_s:g} s"
        except NotSent as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - one notice must not keep the others from being sent
            error = type(failure).__name__
        else:
            await self.database.write(notices.sent, notice)
            return
        if await self.database.write(notices.failed, notice, error, self.delays_s):
            log.warning("a notice of kind %s was not sent: %s; it is tried again", notice.kind, error, extra=about)
        else:
            log.error("a notice of kind %s is given up: %s", notice.kind, error, extra=about)


def _told(payload: dict[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    """A notice as it is sent: cut after secrets were hidden, which nobody would find any more in what was cut."""
    told: dict[str, Any] = _without_secrets(payload, hide)
    text = str(told.get("text", ""))
    return told | {"text": text[: notices.TEXT_CHARS] + "…"} if len(text) > notices.TEXT_CHARS else told


def _without_secrets(value: Any, hide: Callable[[str], str]) -> Any:
    match value:
        case str():
            return hide(value)
        case dict():
            return {name: _without_secrets(one, hide) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_without_secrets(one, hide) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def notifying(
    database: Database,
    url: str | None,
    command: Sequence[str],
    env: Mapping[str, str],
    host: str,
    hide: Callable[[str], str],
    console: str = "",
) -> tuple[Outbox, tuple[Notifier, ...]]:
    """The outbox of this host, and its notifier if a URL or command is configured."""
    target = Webhook(url) if url else Command(command, env) if command else None
    if target is None:
        return SILENT, ()
    notifier = Notifier(database, target, hide)
    return Outbox(host=host, on=True, console=console, ring=notifier.ring), (notifier,)
