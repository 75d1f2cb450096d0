"""What tests of persistent shells share: one that runs, and calls on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.answers import Look
from shellback.exec.core.errors import TaskCompleted
from shellback.exec.core.model import CallOrigin, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.log.output import OutputLog
from shellback.exec.persistent import Executed, PersistentShells, Read, shell_command
from tests.execs import granted, origin, running_engine
from tests.supervisors import SOON


class Shell:
    """A shell, as the code of a tool has it: every call is a call of its own."""

    def __init__(self, engine: Engine, shells: PersistentShells, session: Session, output: str) -> None:
        self.engine = engine
        self.shells = shells
        self.session = session
        self.id = session.id
        self.output = output

    async def exec(self, command: str, *, call: CallOrigin | None = None, **more: Any) -> Executed:
        return await self.shells.exec(self.id, command, call or origin(), **more)

    async def says(self, command: str) -> str:
        """What a command prints that ends by itself, with success."""
        done = await self.exec(command)
        assert (done.exit_code, done.timed_out, done.waiting, done.alive) == (0, False, False, True), done
        return done.output

    async def write(self, text: str) -> None:
        await self.shells.write(self.id, text.encode(), origin())

    async def read(self, **more: Any) -> Read:
        return await self.shells.read(self.id, origin(), **more)

    async def read_until(self, text: str) -> Read:
        """Read until this has been printed; returns all of it."""
        whole = ""
        async with asyncio.timeout(SOON):
            while True:
                found = await self.read()
                whole += found.output
                if text in whole:
                    return replace(found, output=whole)
                await self._grown()

    async def at_rest(self) -> Read:
        """Read until no command runs any more."""
        async with asyncio.timeout(SOON):
            while True:
                found = await self.read()
                if not found.running:
                    return found
                await self._grown()

    async def _grown(self) -> None:
        await Follower(self.engine, self.session).grown(self.log.size(), timeout_s=0.1)

    async def look(self) -> Look | None:
        return await self.engine.supervised.port.look(self.id)

    @property
    def log(self) -> OutputLog:
        return self.engine.output(self.session)


async def started(engine: Engine, shells: PersistentShells, call: CallOrigin | None = None, **more: Any) -> Shell:
    """Start a shell."""
    spec = shell_command(workspace=engine.workspace, limits=engine.limits, **more)
    begun = await shells.start(granted(engine, spec), call or origin())
    return Shell(engine, shells, begun.session, begun.output)


@asynccontextmanager
async def a_shell(tmp_path: Path, *, idle_s: float = 1800.0, **more: Any) -> AsyncGenerator[Shell]:
    """A shell of an engine of its own."""
    async with running_engine(tmp_path) as engine:
        shells = PersistentShells(engine, idle_s=idle_s)
        try:
            yield await started(engine, shells, **more)
        finally:
            await shells.expiry.stop()
            await hung_up(engine)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncGenerator[Shell]:
    async with a_shell(tmp_path) as made:
        yield made


async def hung_up(engine: Engine) -> None:
    """End all that runs as a terminal that is closed does: a shell on one ignores to be told to terminate."""
    for session in await engine.store.list(live=True):
        with suppress(TaskCompleted):
            await engine.supervised.port.signal(session.id, signal.SIGHUP)
            await engine.wait(session.id, up_to=SOON)
