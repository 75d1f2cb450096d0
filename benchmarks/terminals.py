"""Terminals: how soon a key that is pressed has its echo in the log, and 10 MB of output without losing a byte."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import pty
import time
import tty
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms
from benchmarks.rig import CONVERSATION, Rig, ground, rig
from shellback.exec.core.model import CallOrigin, Session
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.terminals.keys import Typing
from shellback.exec.terminals.screen import Screens

BYTES: Final = 10_000_000
ECHO: Final = 'import os, tty; tty.setraw(0); os.write(1, b"ready")\nwhile data := os.read(0, 4096): os.write(1, data)'
WAIT_S: Final = 30.0
_numbers = itertools.count(1)


def keystroke(options: Options) -> Mapping[str, Reading]:
    """From the call until the echo of a program in raw mode is in the log, beside a terminal of our own."""
    return asyncio.run(_keystroke(options))


async def _keystroke(options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    (where.workspace / "echo.py").write_text(ECHO)
    async with rig(where) as made:
        session = await made.launch("exec python3 echo.py", pty=True)
        with _bare(where.workspace / "echo.py") as bare:
            ours, plain = await alternate(options.samples(200), await _pressed(made, session), bare)
    return {"keystroke to log": Reading(measured=ms(ours), baseline=ms(plain))}


async def _pressed(made: Rig, session: Session) -> Callable[[], Awaitable[float]]:
    sessions, screens = Sessions(made.engine, None), Screens(made.engine)
    follower, log = Follower(made.engine, session), made.engine.output(session)
    await follower.grown(len(b"ready") - 1, timeout_s=WAIT_S)

    async def press() -> float:
        size = log.size()
        began = time.perf_counter()
        sent = Typing(keys=["Up"]).sent(await screens.modes(session))
        await sessions.write(session.id, sent, _origin(), tool="process_send_keys")
        grown = await follower.grown(size, timeout_s=WAIT_S)
        took = time.perf_counter() - began
        if grown.size != size + len(sent):
            raise RuntimeError(f"the echo of {sent!r} is {grown.size - size} bytes")
        return took

    return press


@contextlib.contextmanager
def _bare(program: Path) -> Generator[Callable[[], Awaitable[float]]]:
    pid, master = pty.fork()
    if pid == 0:
        os.execv("/usr/bin/python3", ["python3", str(program)])
    os.read(master, 64)

    async def press() -> float:
        began = time.perf_counter()
        os.write(master, b"\x1b[A")
        os.read(master, 64)
        return time.perf_counter() - began

    try:
        yield press
    finally:
        os.close(master)
        os.waitpid(pid, 0)


def bulk(options: Options) -> Mapping[str, Reading]:
    """10 MB of all bytes there are through a terminal: none lost, and what the worker needs meanwhile."""
    return asyncio.run(_bulk(options))


async def _bulk(options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    given = os.urandom(BYTES)
    (where.workspace / "given").write_bytes(given)
    async with rig(where) as made:
        await _printed(made, "head -c 1000000 given")
        before = _resident()
        began = time.perf_counter()
        session = await made.launch("stty raw -echo; cat given", pty=True)
        highest = 0
        follower, size = Follower(made.engine, session), 0
        while not (grown := await follower.grown(size, rest_s=0.05, timeout_s=WAIT_S)).ended:
            size = grown.size
            highest = max(highest, _resident())
        took = time.perf_counter() - began
        digest = hashlib.sha256((where.home / "sessions" / session.id / "log").read_bytes()).digest()
    exact = digest == hashlib.sha256(given).digest()
    plain = await asyncio.to_thread(_read_bare, where.workspace / "given")
    return {
        "10 MB through a terminal": Reading(measured=ms(took), baseline=ms(plain)),
        "10 MB through a terminal: exact": Reading(measured=float(exact)),
        "10 MB through a terminal: memory": Reading(measured=max(0, highest - before) / 1e6),
    }


async def _printed(made: Rig, command: str) -> None:
    session = await made.launch(f"stty raw -echo; {command}", pty=True)
    await made.engine.wait(session.id, up_to=WAIT_S)


def _read_bare(given: Path) -> float:
    began = time.perf_counter()
    pid, master = pty.fork()
    if pid == 0:
        tty.setraw(1)
        os.execv("/bin/cat", ["cat", str(given)])
    read = 0
    with contextlib.suppress(OSError):  # how the end of a terminal reads
        while data := os.read(master, 65536):
            read += len(data)
    os.waitpid(pid, 0)
    os.close(master)
    if read != BYTES:
        raise RuntimeError(f"not {BYTES} bytes but {read}")
    return time.perf_counter() - began


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _origin() -> CallOrigin:
    number = next(_numbers)
    return CallOrigin(
        conversation_id=CONVERSATION,
        response_run_id=f"keys-{number}",
        response_timestamp="2026-01-02T03:04:05.000000+00:00",
        call_index=0,
        tool_call_id=f"call_{number}",
    )


BENCHES: Final = (
    Bench(
        name="keystroke",
        run=keystroke,
        figures=(
            Figure(
                name="keystroke to log",
                says="a key to a program in raw mode, until its echo is in the log; beside a bare terminal",
                limit=5.0,
            ),
        ),
    ),
    Bench(
        name="terminal output",
        run=bulk,
        figures=(
            Figure(name="10 MB through a terminal", says="until the end is known; beside a bare terminal"),
            Figure(
                name="10 MB through a terminal: exact",
                says="whether every byte is in the log, in order",
                unit="",
                limit=1.0,
                at_least=True,
            ),
            Figure(
                name="10 MB through a terminal: memory",
                says="how much larger the worker is meanwhile",
                unit="MB",
                limit=4.0,
            ),
        ),
    ),
)
