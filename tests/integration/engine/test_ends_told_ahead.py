"""The end of a command is told to the call that waits for it before it is recorded, and kept only after that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.engine import ends
from shellback.exec.engine.engine import Engine
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseLocked
from shellback.storage.sessions import SqlSessionStore
from tests.execs import Told, places, run, unstarted_engine

pytestmark = pytest.mark.anyio


class Held(SqlSessionStore):
    """Records no end until it is let go; the first attempt fails as often as it is told."""

    failures = 0

    def __init__(self, database: Database, sink: Told | None = None) -> None:
        super().__init__(database, sink)
        self.let_go = asyncio.Event()

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        await self.let_go.wait()
        if self.failures:
            self.failures -= 1
            raise DatabaseLocked("busy")
        return await super().finish(session_id, end, told_inline=told_inline)


@pytest.fixture
async def held(database: Database, told: Told) -> Held:
    return Held(database, sink=told)


@pytest.fixture
async def engine(tmp_path: Path, held: Held) -> AsyncGenerator[Engine]:
    async with unstarted_engine(*places(tmp_path), held) as made:
        yield made
        held.let_go.set()


async def row(engine: Engine, session: Session) -> tuple[SessionState, Delivery]:
    found = await engine.store.get(session.id)
    assert found is not None
    return found.state, found.delivery


async def test_a_call_is_told_an_end_that_is_not_recorded_yet(engine: Engine, held: Held) -> None:
    session = (await run(engine, "exit 3")).session
    assert session.end is not None
    assert (session.end.exit_code, session.delivery, session.started_at) == (3, Delivery.SETTLED, session.end.began_at)
    assert await row(engine, session) == (SessionState.CLAIMED, Delivery.INLINE)
    assert (await engine.registry.get(session.id)).end == session.end, "who asks in this process is told, too"
    recorded = asyncio.ensure_future(engine.recorded(session.conversation_id))
    assert not (await asyncio.wait((recorded,), timeout=0.05))[0]
    await engine.recorded("another")
    held.let_go.set()
    await recorded
    assert await row(engine, session) == (SessionState.EXITED, Delivery.SETTLED)


async def test_an_end_that_was_told_is_recorded_as_told_however_often_it_is_tried(
    engine: Engine, held: Held, told: Told
) -> None:
    held.failures = 2
    session = (await run(engine, "exit 3")).session
    held.let_go.set()
    await engine.recorded(session.conversation_id)
    assert await row(engine, session) == (SessionState.EXITED, Delivery.SETTLED)
    assert told.sessions == []


async def test_an_engine_that_stops_records_what_it_has_told(engine: Engine, held: Held) -> None:
    session = (await run(engine, "exit 3")).session
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    held.let_go.set()
    await stopping
    assert await row(engine, session) == (SessionState.EXITED, Delivery.SETTLED)


async def test_what_was_told_is_not_kept_where_it_cannot_be_recorded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "FLUSH_S", 0.01)
    session = (await run(engine, "exit 3")).session
    recorded = asyncio.ensure_future(engine.recorded(session.conversation_id))
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(asyncio.CancelledError):
        await recorded


async def test_only_so_many_ends_are_told_ahead(engine: Engine, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "BEHIND", 1)
    await run(engine, "exit 3")
    second = asyncio.ensure_future(run(engine, "exit 4"))
    assert not (await asyncio.wait((second,), timeout=0.3))[0]
    held.let_go.set()
    assert await row(engine, (await second).session) == (SessionState.EXITED, Delivery.SETTLED)


async def test_an_end_that_was_told_and_not_recorded_is_found_by_the_next_start(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the exit record, and a repeat of the call is told it."""
    held = Held(database)
    where = places(tmp_path)
    monkeypatch.setattr(ends, "FLUSH_S", 0.01)
    async with unstarted_engine(*where, held) as engine:
        session = (await run(engine, "exit 3")).session
        assert await row(engine, session) == (SessionState.CLAIMED, Delivery.INLINE)
    async with unstarted_engine(*where, SqlSessionStore(database)) as again:
        assert await row(again, session) == (SessionState.EXITED, Delivery.INLINE)
        repeated = await again.resumed(await again.registry.get(session.id))
        assert (repeated.session.end, repeated.handed_over) == (session.end, False)
        assert await row(again, session) == (SessionState.EXITED, Delivery.SETTLED)
