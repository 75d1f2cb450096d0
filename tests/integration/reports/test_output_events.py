"""Notices of output and ends: from real processes, joined and bounded, and as notes in the event table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.reports import output_events as module
from shellback.exec.reports.output_events import OutputEvent, OutputFeed, output_events
from shellback.storage.db import Database
from shellback.storage.tables import events
from shellback.work.queue import stream
from shellback.work.turn import telling
from shellback.work.turn.telling import note_output
from tests import supervisors
from tests.execs import GATE, launch, let_go, origin, run, spec
from tests.execs import granted as grant
from tests.supervisors import SOON, raising

pytestmark = pytest.mark.anyio


async def until(feed: OutputFeed, kind: str) -> list[OutputEvent]:
    """All notices up to the first of this kind."""
    found: list[OutputEvent] = []
    async with asyncio.timeout(SOON):
        while not any(one.kind == kind for one in found):
            found += await feed.new()
    return found


async def test_a_process_tells_how_much_it_printed_on_which_stream_and_how_it_exited(engine: Engine) -> None:
    async with OutputFeed(engine, "talk") as feed:
        session = await launch(engine, f"printf 12345; printf 123 >&2; {GATE}; exit 4", separate_stderr=True)
        seen: list[OutputEvent] = []
        async with asyncio.timeout(SOON):
            while {one.stream for one in seen} != {"stdout", "stderr"}:
                seen += await feed.new()
        assert sorted(one.message for one in seen) == [
            f"process {session.id}: 3 bytes stderr",
            f"process {session.id}: 5 bytes stdout",
        ]
        assert {one.label for one in seen} == {f"process:{session.id}"}
        let_go(engine)
        (exit_,) = await until(feed, "exit")
        assert exit_.message == f"process {session.id} exited with code 4"
        assert (exit_.exit_code, exit_.signal) == (4, None)


async def test_the_iterator_follows_what_runs_already_from_now_on_and_only_its_conversation(engine: Engine) -> None:
    session = await launch(engine, f"echo before; {GATE}; echo after")
    await supervisors.until(engine.output(session).size)
    other = spec(engine, "echo theirs", background=True)
    feed = output_events(engine, "talk")
    first = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    theirs = await engine.launch(grant(engine, other), origin("another"))
    await engine.wait(theirs.id, up_to=SOON)
    let_go(engine)
    async with asyncio.timeout(SOON):
        event = await first
        assert (event.session_id, event.bytes, event.total) == (session.id, 6, 13)
        assert (await anext(feed)).kind == "exit"
    await feed.aclose()


async def test_foreground_commands_tell_nothing_until_they_are_handed_over(engine: Engine) -> None:
    async with OutputFeed(engine) as feed:
        await run(engine, "echo quick")
        outcome = await run(engine, f"echo slow; {GATE}", yield_after=0.2)
        assert outcome.handed_over
        let_go(engine)
        told = await until(feed, "exit")
        assert {one.session_id for one in told} == {outcome.session.id}
        assert sum(one.bytes for one in told) == 5


async def test_a_database_that_is_away_for_a_while_costs_neither_a_process_nor_a_listener(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, failed = Follower.grown, list[int]()

    async def away(*args: Any, **more: Any) -> Any:
        if not failed:
            failed.append(1)
            raise OSError("away")
        return await grown(*args, **more)

    monkeypatch.setattr(Follower, "grown", away)
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    before = set(engine.registry.listeners)
    async with OutputFeed(engine, "talk") as feed:
        session = await launch(engine, "printf 12345")
        told = await until(feed, "exit")
    with monkeypatch.context() as gone:
        gone.setattr(engine.store, "list", raising(OSError("away")))
        with pytest.raises(OSError, match="away"):
            await OutputFeed(engine).__aenter__()
    assert engine.registry.listeners == before
    assert [one.message for one in told] == [
        f"process {session.id}: 5 bytes stdout",
        f"process {session.id} exited with code 0",
    ]


async def test_what_nobody_takes_is_joined_and_beyond_a_bound_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with OutputFeed(engine, rest_s=0.01) as feed:
        session = await launch(engine, "for i in $(seq 300); do echo $i; sleep 0.001; done")
        await engine.wait(session.id, up_to=SOON)
        told = await until(feed, "exit")
        assert len(told) <= 4
        assert sum(one.bytes for one in told) == len("".join(f"{number}\n" for number in range(1, 301)))
        monkeypatch.setattr(module, "WAITING", 1)
        session = await launch(engine, "echo x")
        await engine.wait(session.id, up_to=SOON)
        await supervisors.until(lambda: all(task.get_name() != f"notices {session.id}" for task in asyncio.all_tasks()))
        dropped = await until(feed, "dropped")
        assert [one.kind for one in dropped] == ["output", "dropped"]
        assert dropped[-1].message == "1 notices were dropped"


async def test_a_note_takes_the_place_of_the_last_one_and_has_a_higher_number(
    engine: Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "EVERY_S", 0.02)
    notes = asyncio.create_task(note_output(database, engine))
    session = await launch(engine, f"printf one; {GATE}; printf more")
    first = await _noted(database, 3)
    let_go(engine)
    second = await _noted(database, 7)
    notes.cancel()
    await asyncio.gather(notes, return_exceptions=True)
    assert second.id > first.id
    assert second.payload == {
        "session_id": session.id,
        "label": f"process:{session.id}",
        "stream": "stdout",
        "bytes": 4,
        "total": 7,
        "text": f"process {session.id}: 4 bytes stdout, 7 in all",
    }
    assert database.read_now(stream.after, "talk", 0) == [second]
    assert (
        database.read_now(lambda conn: conn.execute(sa.select(sa.func.count()).select_from(events)).scalar_one()) == 1
    )


async def _noted(database: Database, total: int) -> stream.Event:
    async def look() -> list[stream.Event]:
        return [one for one in await database.read(stream.after, "talk", 0) if one.payload["total"] == total]

    return (await supervisors.answered(look))[0]
