"""What tests of the exec engine share: a real supervisor, a workspace that commands may write, granted calls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.host import HostBackend
from shellback.exec.core.base import Backend
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CallOrigin, CommandSpec, EndedBy, Session, SessionEnd, SessionState
from shellback.exec.core.ports import ExitSink, SessionStore
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import Outcome
from shellback.exec.link.client import SupervisorClient
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.policy import Grant, grant_by_operator
from tests import sandboxes
from tests.supervisors import answered

KIND = "host"
"""The backend of engines that tests make; `each_backend` runs a test once with each."""


def backend_of(kind: str, workspace: Path) -> Backend:
    """A backend of this kind, whose commands may write the workspace."""
    return BubblewrapBackend(workspace) if kind == "bubblewrap" else HostBackend(workspace)


@pytest.fixture(params=["host", "bubblewrap"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of all engines of the test, which runs once on each; skipped where one cannot be had."""
    if request.param == "bubblewrap":
        sandboxes.needed()
    monkeypatch.setattr("tests.execs.KIND", request.param)
    return request.param


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of the test run commands in bubblewrap; skipped where that cannot be had."""
    sandboxes.needed()
    monkeypatch.setattr("tests.execs.KIND", "bubblewrap")


class Told(ExitSink):
    """A sink that remembers whose end it was told."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def ended(self, tx: object, session: Session) -> None:
        self.sessions.append(session)


def origin(conversation_id: str = "talk", **more: Any) -> CallOrigin:
    """A call that nobody has made yet."""
    return CallOrigin(
        conversation_id=conversation_id,
        response_run_id=uuid.uuid4().hex,
        response_timestamp="2026-01-02T03:04:05.000000+00:00",
        call_index=0,
        tool_call_id="call_1",
        **more,
    )


def places(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace that the user who runs commands may write, and a state directory."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return sandboxes.a_workspace(), home


def unstarted_engine(workspace: Path, home: Path, store: SessionStore | None = None, **more: Any) -> Engine:
    """An engine whose supervisor leaves soon after the last session."""
    return Engine(
        store or MemorySessionStore(),
        SupervisorClient(home, idle_s=0.5),
        backend_of(KIND, workspace),
        home=home,
        **more,
    )


@asynccontextmanager
async def running_engine(
    tmp_path: Path, *, sink: ExitSink | None = None, limits: Limits | None = None
) -> AsyncGenerator[Engine]:
    """A started engine over memory; every process it started is gone at the end."""
    workspace, home = places(tmp_path)
    engine = unstarted_engine(workspace, home, MemorySessionStore(sink=sink), limits=limits)
    async with engine:
        try:
            yield engine
        finally:
            await end_all(engine)


@pytest.fixture
def told() -> Told:
    """What was told of the ends of the sessions of `engine`."""
    return Told()


@pytest.fixture
async def engine(tmp_path: Path, told: Told) -> AsyncGenerator[Engine]:
    async with running_engine(tmp_path, sink=told) as made:
        yield made


async def printed(engine: Engine, session_id: str, text: str, *, err: bool = False) -> None:
    """Wait until the process has printed `text`; a log has nobody to notify us."""
    session = await engine.registry.get(session_id)
    await answered(engine.output(session, err=err).ends, lambda ends: text in ends.text)


GATE = "until [ -e go ]; do sleep 0.02; done"
"""How a command waits in the workspace for `let_go`."""


def let_go(engine: Engine) -> None:
    (engine.workspace / "go").touch()


async def running(engine: Engine) -> list[Session]:
    """Wait until something runs; returns it."""

    async def look() -> list[Session]:
        return [one for one in await engine.store.list(live=True) if one.state is SessionState.RUNNING]

    return await answered(look)


def end_of(session: Session) -> SessionEnd:
    """How a session that has ended did."""
    assert session.end is not None
    return session.end


async def end_all(engine: Engine) -> None:
    """End what still runs, so that the supervisor can leave."""
    sessions = Sessions(engine, None)
    for session in await engine.store.list(live=True):
        await sessions.end(session, by=EndedBy.SHUTDOWN)


def spec(engine: Engine, command: str, **more: Any) -> CommandSpec:
    beside = {name: more.pop(name) for name in ("separate_stderr", "log_bytes") if name in more}
    made = command_spec(command=command, workspace=engine.workspace, limits=engine.limits, **more)
    return replace(made, **beside)


def granted(engine: Engine, made: CommandSpec) -> Grant:
    return grant_by_operator(proposal_for(made, engine.backend), "test")


async def run(engine: Engine, command: str, *, yield_after: float | None = None, **more: Any) -> Outcome:
    made = spec(engine, command, **more)
    return await engine.run(granted(engine, made), origin(), yield_after=yield_after)


async def launch(engine: Engine, command: str, *, shows: str = "", **more: Any) -> Session:
    """Start a command in the background, and wait until it `shows` this."""
    asked = more.pop("origin", None) or origin()
    made = spec(engine, command, background=True, **more)
    session = await engine.launch(granted(engine, made), asked)
    if shows:
        await printed(engine, session.id, shows)
    return session
