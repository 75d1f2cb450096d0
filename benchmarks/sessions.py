"""Persistent shells: what a command in one costs beside the same shell without us, and whether each is told exactly."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, bare_true, ms
from benchmarks.rig import CONVERSATION, Ground, Rig, ground, rig
from shellback.exec.core.identity import a_call
from shellback.exec.persistent import SHELL_COMMAND, PersistentShells, shell_command
from shellback.exec.persistent.marks import found_in
from shellback.exec.persistent.payload import Bounds, Frame, payload, trigger
from shellback.exec.policy.commands import proposal_for
from shellback.exec.policy.policy import grant_by_operator
from shellback.exec.supervisor.process import pty

COMMAND: Final = "echo $X"
PRINTS: Final = "some text"
EXACT: Final = 100
_READ: Final = 65536
_ON_ITS_TERMINAL: Final = ("setsid", "--ctty", "--wait")


class Bare:
    """Bash on a terminal of its own, given the same two texts for each command; nobody else is in between."""

    def __init__(self, argv: tuple[str, ...], alike: Mapping[str, Any], root: str) -> None:
        self._terminal = pty.open_pty(24, 80)
        slave = self._terminal.slave
        # The user is set by the kernel before what is executed makes the terminal its own.
        self._process = subprocess.Popen([*_ON_ITS_TERMINAL, *argv], stdin=slave, stdout=slave, stderr=slave, **alike)
        self._bounds = Bounds(roots=(root,), back=root)
        self._numbers = itertools.count(1)
        self._seen = b""
        self._wanted = b""
        self._came: asyncio.Future[bytes] | None = None
        asyncio.get_running_loop().add_reader(self._terminal.master, self._readable)

    async def command(self, text: str) -> bytes:
        """Run a command; what it printed."""
        ready, start, end = (f"{next(self._numbers):032x}" for _ in range(3))
        frame = Frame(ready=ready, start=start, end=end, prompt=f"{0:032x}")
        self._seen = b""
        await self._exchange(trigger(ready), f"\x1b]7770;R;{ready};".encode())
        (asked,) = (mark for mark in found_in(self._seen) if mark.name == ready)
        what = payload(text, frame, self._bounds, status=0, options=asked.options, library=asked.library)
        await self._exchange(what, f"\x1b]7770;E;{end};".encode())
        return self._seen.split(start.encode() + b"\a", 1)[1].split(b"\x1b", 1)[0]

    async def _exchange(self, data: bytes, wanted: bytes) -> None:
        self._wanted, self._came = wanted, asyncio.get_running_loop().create_future()
        os.write(self._terminal.master, data)
        await asyncio.wait_for(self._came, 30)

    def _readable(self) -> None:
        self._seen += os.read(self._terminal.master, _READ)
        at = self._seen.find(self._wanted) if self._wanted else -1
        if self._came is not None and not self._came.done() and at >= 0 and b"\a" in self._seen[at:]:
            self._came.set_result(self._seen)

    def close(self) -> None:
        """End it."""
        asyncio.get_running_loop().remove_reader(self._terminal.master)
        os.close(self._terminal.slave)
        os.close(self._terminal.master)
        self._process.wait(10)


def execs(options: Options) -> Mapping[str, Reading]:
    from shellback.storage import schema
    from shellback.storage.db import Database
    from shellback.storage.sessions import SqlSessionStore

    async def measure(light: Ground, durable: Ground) -> Mapping[str, Reading]:
        url = f"sqlite:///{durable.home / 'shellback.db'}"
        schema.migrate(url)
        database = Database(url)
        try:
            async with (
                rig(light) as without,
                rig(durable, SqlSessionStore(database)) as stored,
                _shell(without) as ours,
                _shell(stored) as theirs,
            ):
                bare = await _bare(without)
                try:
                    return await _compared(ours, theirs, bare, options)
                finally:
                    bare.close()
        finally:
            database.close()

    return asyncio.run(measure(ground(options.directory), ground(options.directory)))


class Shell:
    """A persistent shell through us; `exact` counts commands of which output and status were told exactly."""

    def __init__(self, shells: PersistentShells, session_id: str) -> None:
        self._shells = shells
        self._id = session_id
        self.exact = 0

    async def set(self) -> None:
        """Set the variable that `COMMAND` prints."""
        await self._shells.exec(self._id, f"X='{PRINTS}'", a_call(CONVERSATION))

    async def command(self) -> float:
        """Seconds of one command."""
        call = a_call(CONVERSATION)
        began = time.perf_counter()
        done = await self._shells.exec(self._id, COMMAND, call)
        took = time.perf_counter() - began
        self.exact += (done.output, done.exit_code) == (f"{PRINTS}\n", 0)
        return took

    async def exactly(self) -> int:
        """How many of `EXACT` commands are told exactly."""
        self.exact = 0
        for _ in range(EXACT):
            await self.command()
        return self.exact


@contextlib.asynccontextmanager
async def _shell(made: Rig) -> AsyncGenerator[Shell]:
    shells = PersistentShells(made.engine)
    spec = shell_command(workspace=made.engine.workspace, limits=made.engine.limits)
    grant = grant_by_operator(proposal_for(spec, made.engine.backend), "benchmark")
    session = (await shells.start(grant, a_call(CONVERSATION))).session
    shell = Shell(shells, session.id)
    await shell.set()
    try:
        yield shell
    finally:
        await shells.expiry.stop()
        await made.engine.supervised.port.signal(session.id, signal.SIGHUP)


async def _compared(light: Shell, durable: Shell, bare: Bare, options: Options) -> Mapping[str, Reading]:
    async def alone() -> float:
        began = time.perf_counter()
        printed = await bare.command(COMMAND)
        took = time.perf_counter() - began
        if printed != f"{PRINTS}\r\n".encode():
            raise RuntimeError(f"the bare shell prints {printed!r}")
        return took

    await bare.command(f"X='{PRINTS}'")
    ours, stored, theirs, floor = await alternate(options.samples(), light.command, durable.command, alone, bare_true)
    note = f"asyncio runs `true` in {ms(floor):.2f} ms"
    of_light = Reading(measured=ms(ours), baseline=ms(theirs), floor=ms(floor), note=note)
    return {
        "shell exec": of_light,
        "shell exec +": of_light,
        "shell exec durable": Reading(measured=ms(stored), baseline=ms(ours), floor=ms(floor)),
        "shell exact": Reading(measured=min(await light.exactly(), await durable.exactly())),
    }


async def _bare(made: Rig) -> Bare:
    argv, alike = await made.alike(SHELL_COMMAND)
    alike = {**alike, "start_new_session": False}
    del alike["stdin"]
    return Bare(argv, alike, str(made.engine.workspace))


BENCHES: Final = (
    Bench(
        name="shell exec",
        figures=(
            Figure(
                name="shell exec",
                says=f"`{COMMAND}` in a persistent shell, engine alone; beside a bare bash given the same texts",
                limit=2.0,
                scaled=True,
            ),
            Figure(
                name="shell exec +",
                says="the same, what is above the bare bash",
                compare="difference",
                limit=0.9,
                scaled=True,
            ),
            Figure(
                name="shell exec durable",
                says="the same with its calls in SQLite; beside the engine alone",
                limit=3.5,
                scaled=True,
            ),
            Figure(
                name="shell exact",
                says=f"of {EXACT} commands in each, output and status told exactly; the lower count",
                unit="",
                limit=EXACT,
                at_least=True,
            ),
        ),
        run=execs,
    ),
)
