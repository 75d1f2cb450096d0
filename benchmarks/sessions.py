"""Persistent shells: what a command in one costs beside the same shell without us, and whether each is told exactly."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms
from benchmarks.rig import CONVERSATION, Ground, Rig, ground, rig
from shellback.exec.core.identity import a_call
from shellback.exec.persistent import SHELL_COMMAND, PersistentShells, shell_command
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
        await self._exchange(payload(text, frame, self._bounds, status=0, options=""), f"\x1b]7770;E;{end};".encode())
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
    async def measure(where: Ground) -> Mapping[str, Reading]:
        async with rig(where) as made:
            shells = PersistentShells(made.engine)
            spec = shell_command(workspace=made.engine.workspace, limits=made.engine.limits)
            grant = grant_by_operator(proposal_for(spec, made.engine.backend), "benchmark")
            shell = (await shells.start(grant, a_call(CONVERSATION))).session
            bare = await _bare(made)
            try:
                return await _compared(shells, shell.id, bare, options)
            finally:
                bare.close()
                await shells.expiry.stop()
                await made.engine.supervised.port.signal(shell.id, signal.SIGHUP)

    return asyncio.run(measure(ground(options.directory)))


async def _compared(shells: PersistentShells, shell: str, bare: Bare, options: Options) -> Mapping[str, Reading]:
    exact = 0

    async def through_us() -> float:
        nonlocal exact
        call = a_call(CONVERSATION)
        began = time.perf_counter()
        done = await shells.exec(shell, COMMAND, call)
        took = time.perf_counter() - began
        exact += (done.output, done.exit_code) == (f"{PRINTS}\n", 0)
        return took

    async def alone() -> float:
        began = time.perf_counter()
        printed = await bare.command(COMMAND)
        took = time.perf_counter() - began
        if printed != f"{PRINTS}\r\n".encode():
            raise RuntimeError(f"the bare shell prints {printed!r}")
        return took

    await shells.exec(shell, f"X='{PRINTS}'", a_call(CONVERSATION))
    await bare.command(f"X='{PRINTS}'")
    ours, theirs = await alternate(options.samples(), through_us, alone)
    exact = 0
    for _ in range(EXACT):
        await through_us()
    return {
        "shell exec": Reading(measured=ms(ours), baseline=ms(theirs)),
        "shell exact": Reading(measured=exact),
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
                says=f"`{COMMAND}` in a persistent shell beside a bare bash on a terminal given the same texts",
                compare="difference",
                limit=1.0,
            ),
            Figure(
                name="shell exact",
                says=f"of {EXACT} commands in it, output and status told exactly",
                unit="",
                limit=EXACT,
                at_least=True,
            ),
        ),
        run=execs,
    ),
)
