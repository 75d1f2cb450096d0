"""Terminals in the console: a key until its echo is on the page, and what many viewers cost the worker."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms
from benchmarks.rig import Ground, Rig, ground, rig
from benchmarks.terminals import ECHO
from shellback.exec.core.model import Session

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

VIEWERS: Final = 50
MB: Final = 1_000_000
PACE_S: Final = 0.1
PASSWORD: Final = "a password of the benchmark"
PROGRAM: Final = str(Path(sys.executable).with_name("shellback"))
LOOK: Final = """
import selectors, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
request = sys.stdin.buffer.read()
waiting = selectors.DefaultSelector()
for _ in range(count):
    made = socket.create_connection((host, port))
    made.sendall(request)
    waiting.register(made, selectors.EVENT_READ)
print("ready", flush=True)
read = 0
while True:
    for key, _ in waiting.select():
        read += len(key.fileobj.recv(1 << 16))
"""
"""A program that shows a stream to nobody, many times."""


@dataclass(frozen=True, slots=True)
class Browser:
    """A person who is logged in."""

    base: str
    cookie: str

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=60)

    @property
    def headers(self) -> dict[str, str]:
        return {"cookie": self.cookie, "origin": self.base, "content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, slots=True)
class Console:
    """A server and a person at its console; `pid` is the server's."""

    where: Ground
    place: Place
    environ: Mapping[str, str]
    browser: Browser
    pid: int


@contextlib.contextmanager
def console(options: Options, argv: Sequence[str] = (PROGRAM,), **environ: str) -> Generator[Console]:
    """A state directory with a server, which these words start, and no worker."""
    from shellback.settings import Settings, plain_environment
    from shellback.storage import accounts
    from shellback.wiring import wiring

    where = ground(options.directory)
    environ = {
        **plain_environment(), "SHELLBACK_HOME": str(where.home), "WORKSPACE_ROOT": str(where.workspace),
        "MODEL": "offline", "BACKEND": "host", "LOG_LEVEL": "ERROR", **environ,
    }  # fmt: skip
    with wiring.place(Settings.load(environ)) as place:
        link = place.database.write_now(accounts.add, "bench", role="operator", owner="benchmark")
        with _serving([*argv, "serve", "--port", "0"], environ, where.root) as (base, pid):
            yield Console(where, place, environ, _entered(base, link), pid)


@contextlib.asynccontextmanager
async def _console(options: Options) -> AsyncGenerator[tuple[Rig, Browser, Mapping[str, str]]]:
    """A worker's engine, a server beside it, a person at its console, and the environment of both."""
    from shellback.storage.sessions import SqlSessionStore

    with console(options) as on:
        store = SqlSessionStore(on.place.database)
        async with rig(on.where, store, host_id=on.place.host_id) as made:
            yield made, on.browser, on.environ


@contextlib.contextmanager
def _serving(argv: Sequence[str], environ: Mapping[str, str], root: Path) -> Generator[tuple[str, int]]:
    server = subprocess.Popen(argv, env=environ, cwd=root, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        yield next(line.split()[1] for line in server.stderr if line.startswith("ready ")), server.pid
    finally:
        server.terminate()
        server.communicate(timeout=30)


def _entered(base: str, link: str) -> Browser:
    guest = Browser(base, "")
    with contextlib.closing(guest.connection()) as web:
        fields = {"password": PASSWORD, "again": PASSWORD, "csrf": ""}
        web.request("POST", f"/console/first/{link}", urlencode(fields), guest.headers)
        answer = web.getresponse()
        cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        if answer.status != 303 or not cookie:
            raise RuntimeError(f"the login was refused: {answer.status} {answer.read()[:500]!r}")
    return Browser(base, cookie)


class _Page:
    """The page of one terminal, with the keyboard."""

    def __init__(self, browser: Browser, session: Session) -> None:
        self._browser, self._at = browser, f"/console/processes/{session.id}/terminal"
        self._web, self._stream = browser.connection(), browser.connection()
        self._web.request("GET", self._at, headers=browser.headers)
        found = re.search(r'data-csrf="([0-9a-f]+)"', self._web.getresponse().read().decode())
        assert found is not None
        self._stream.request("GET", f"{self._at}/output", headers=browser.headers)
        self._events = self._stream.getresponse()
        hello = re.search(rb'"viewer": "([^"]+)"', self._until(b'"viewer"'))
        assert hello is not None
        self._fields = {"csrf": found[1], "viewer": hello[1].decode()}
        self._until(b"ready")
        self._send("keyboard", take="yes")
        self._until(b'"mine": true')

    def press(self) -> float:
        """Type a letter; seconds until its echo is here."""
        began = time.perf_counter()
        self._ask("keys", data="x")
        self._until(b'{"text": "x"}')
        took = time.perf_counter() - began
        self._web.getresponse().read()
        return took

    def close(self) -> None:
        self._stream.close()
        self._web.close()

    def _ask(self, to: str, **fields: str) -> None:
        self._web.request("POST", f"{self._at}/{to}", urlencode(self._fields | fields), self._browser.headers)

    def _send(self, to: str, **fields: str) -> None:
        self._ask(to, **fields)
        answer = self._web.getresponse()
        if answer.status != 204:
            raise RuntimeError(f"{to}: {answer.status} {answer.read()[:500]!r}")
        answer.read()

    def _until(self, text: bytes) -> bytes:
        while text not in (line := self._events.readline()):
            if not line:
                raise RuntimeError(f"the page ended before {text!r}")
        return line


@contextlib.contextmanager
def _attached(session: Session, environ: Mapping[str, str], root: Path) -> Generator[Callable[[], Awaitable[float]]]:
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(root)
        os.execve(PROGRAM, [PROGRAM, "attach", session.id], {**environ, "TERM": "xterm"})
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def until(*texts: bytes) -> None:
        seen = b""
        while not all(text in seen for text in texts):
            seen += os.read(master, 65536)

    def press() -> float:
        began = time.perf_counter()
        os.write(master, b"x")
        until(b"x")
        return time.perf_counter() - began

    try:
        until(b"ready", b"\x1b[2m")
        yield lambda: asyncio.to_thread(press)
    finally:
        os.close(master)
        os.waitpid(pid, 0)


def keystroke(options: Options) -> Mapping[str, Reading]:
    """From a key until its echo is on the page, against `shellback attach`."""
    return asyncio.run(_keystroke(options))


async def _keystroke(options: Options) -> Mapping[str, Reading]:
    async with _console(options) as (made, browser, environ):
        (made.where.workspace / "echo.py").write_text(ECHO)
        ours, theirs = [await made.launch("exec python3 echo.py", pty=True) for _ in range(2)]
        page = await asyncio.to_thread(_Page, browser, ours)
        with contextlib.closing(page), _attached(theirs, environ, made.where.root) as attached:
            shown, plain = await alternate(options.samples(100), lambda: asyncio.to_thread(page.press), attached)
    return {"keystroke to console": Reading(measured=ms(shown), baseline=ms(plain))}


def viewers(options: Options) -> Mapping[str, Reading]:
    """Foreground commands of a worker while a terminal prints 10 MB a second: 50 pages show it, or none."""
    return asyncio.run(_viewers(options))


async def _viewers(options: Options) -> Mapping[str, Reading]:
    taken: dict[int, list[float]] = {0: [], VIEWERS: []}
    async with _console(options) as (made, browser, _):
        line = b"2026-11-22 12:00:00.000 INFO handled path=/items/42 status=200\n"
        (made.where.workspace / "block").write_bytes(line * int(10 * MB * PACE_S // len(line)))
        printing = await made.launch(f"while :; do sleep {PACE_S} & cat block; wait; done", pty=True)
        # In this order nobody profits from what the machine does meanwhile.
        for count in (0, VIEWERS, VIEWERS, 0):
            with looking(browser, f"/console/processes/{printing.id}/terminal/output", count):
                for number in range(-3, options.samples() // 2):
                    began = time.perf_counter()
                    await made.run("true")
                    if number >= 0:
                        taken[count].append(time.perf_counter() - began)
    alone, watched = (statistics.median(taken[count]) for count in (0, VIEWERS))
    return {"command beside 50 viewers": Reading(measured=ms(watched), baseline=ms(alone))}


@contextlib.contextmanager
def looking(browser: Browser, at: str, count: int) -> Generator[None]:
    """So many open streams of this path, which a process of its own reads."""
    base = urlsplit(browser.base)
    request = f"GET {at} HTTP/1.1\r\nHost: {base.netloc}\r\nCookie: {browser.cookie}\r\n\r\n"
    argv = [sys.executable, "-c", LOOK, str(base.hostname), str(base.port), str(count)]
    looking = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert looking.stdin is not None
        assert looking.stdout is not None
        looking.stdin.write(request.encode())
        looking.stdin.close()
        looking.stdout.readline()
        yield
    finally:
        looking.kill()
        looking.wait()
        if looking.stdout is not None:
            looking.stdout.close()


BENCHES: Final = (
    Bench(
        name="keystroke in the console",
        run=keystroke,
        figures=(
            Figure(
                name="keystroke to console",
                says="from a key until its echo is on a page of the console, against `shellback attach`",
                compare="difference",
                limit=30.0,
            ),
        ),
    ),
    Bench(
        name="viewers",
        run=viewers,
        figures=(
            Figure(
                name="command beside 50 viewers",
                says="a foreground command while a terminal prints 10 MB a second to 50 pages, against none",
                compare="ratio",
                limit=1.05,
            ),
        ),
    ),
)
