"""What becomes of sessions when a worker, the supervisor, the store or the machine goes away."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core import limits as bounds
from shellback.exec.core.errors import LimitReached, SupervisorUnreachable
from shellback.exec.core.identity import session_id as session_id_of
from shellback.exec.core.model import (
    CallOrigin,
    Delivery,
    Evidence,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.sessions import Sessions
from shellback.exec.link.client import SupervisorClient
from tests.execs import (
    GATE,
    Told,
    end_all,
    end_of,
    granted,
    launch,
    let_go,
    origin,
    places,
    printed,
    run,
    spec,
    unstarted_engine,
)
from tests.supervisors import answered, kill, raising

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


class SlowStore(MemorySessionStore):
    """A store that takes its time for an end."""

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        for _ in range(100):
            await asyncio.sleep(0)
        return await super().finish(session_id, end, told_inline=told_inline)


async def claimed(engine: Engine, command: str, **changes: Any) -> tuple[Session, CallOrigin]:
    """A session whose worker died right after the claim."""
    made, who = spec(engine, command, background=True), origin()
    session = engine._session(granted(engine, made), who, Delivery.CALLBACK)  # pyright: ignore[reportPrivateUsage]
    return await engine.store.claim(replace(session, **changes)), who


async def test_a_process_outlives_its_worker_and_the_next_one_is_told_once(tmp_path: Path) -> None:
    workspace, home = places(tmp_path)
    told = Told()
    store = MemorySessionStore(sink=told)
    async with unstarted_engine(workspace, home, store) as first:
        ended = await launch(first, "exit 8")
        session = await launch(first, "read -r _; exit 9", keep_stdin_open=True)
        await first.wait(ended.id, up_to=60)
    async with unstarted_engine(workspace, home, store) as second:
        await Sessions(second, "talk").write(session.id, b"\n", origin(), tool="process_write")
        after = await second.wait(session.id, up_to=60)
    assert end_of(after).exit_code == 9
    assert [one.id for one in told.sessions] == [ended.id, session.id]


async def test_an_end_that_nobody_heard_is_recorded_when_the_next_start_returns(tmp_path: Path) -> None:
    workspace, home = places(tmp_path)
    told = Told()
    store = SlowStore(sink=told)
    async with unstarted_engine(workspace, home, store) as first:
        session = await launch(first, f"{GATE}; exit 9")
    let_go(first)
    client = SupervisorClient(home, idle_s=0.5)
    await answered(client.list, lambda found: found[1])  # nobody listens, that is the point
    await client.close()
    assert told.sessions == []
    async with unstarted_engine(workspace, home, store) as second:
        after = await second.registry.get(session.id)
    assert end_of(after).exit_code == 9
    assert [one.id for one in told.sessions] == [session.id]


async def test_without_supervisor_and_keeper_the_status_is_the_kernels_or_lost_and_never_invented(
    engine: Engine, told: Told, tmp_path: Path
) -> None:
    """Kernels from 6.15 tell the status of a process that is nobody's child of ours; others leave none."""
    session = await launch(engine, "echo up; sleep 1; exit 11")
    await printed(engine, session.id, "up")
    client = SupervisorClient(tmp_path / "home")
    info = await client.connect()
    kill(info["keeper_pid"])
    kill(info["pid"])
    await client.close()
    ended = await engine.wait(session.id, up_to=60)
    end = end_of(ended)
    assert (end.state, end.exit_code, end.signal, end.evidence) in {
        (SessionState.EXITED, 11, None, None),
        (SessionState.LOST, None, None, Evidence.SUPERVISOR_KILLED),
    }
    assert [one.id for one in told.sessions] == [session.id]


async def test_ends_of_other_sessions_do_not_wait_for_one_that_fails(tmp_path: Path) -> None:
    store = MemorySessionStore()
    async with unstarted_engine(*places(tmp_path), store) as engine:
        stuck = await launch(engine, "read -r _; exit 1", keep_stdin_open=True)
        finish, gate = store.finish, asyncio.Event()

        async def slow(session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
            if session_id == stuck.id:
                await gate.wait()
            return await finish(session_id, end, told_inline=told_inline)

        store.finish = slow
        await Sessions(engine, "talk").write(stuck.id, b"\n", origin(), tool="process_write")
        assert (await run(engine, "exit 2")).session.end is not None
        assert (await engine.registry.get(stuck.id)).live
        gate.set()
        assert (await engine.wait(stuck.id, up_to=60)).end is not None


@pytest.mark.parametrize("only_the_supervisor_knows", [False, True])
async def test_an_abandoned_session_is_lost_and_never_starts(
    engine: Engine, told: Told, only_the_supervisor_knows: bool
) -> None:
    session, who = await claimed(engine, "touch ran")
    for _ in range(2):
        await (engine.supervised if only_the_supervisor_knows else engine).abandon(session.id)
    made = spec(engine, "touch ran", background=True)
    again = await engine.launch(granted(engine, made), who)
    assert (again.state, end_of(again).evidence) == (SessionState.LOST, Evidence.NEVER_STARTED)
    assert not (engine.workspace / "ran").exists()
    assert len(told.sessions) == 1


@pytest.mark.parametrize("later_s", [bounds.FRESH_S + 1, -1.0])
async def test_what_was_given_up_while_its_worker_was_frozen_is_not_started(tmp_path: Path, later_s: float) -> None:
    shift = 0.0
    end = SessionEnd(state=SessionState.LOST, evidence=Evidence.HOST_UNREACHABLE, ended_at=1.0)

    class Frozen(MemorySessionStore):
        async def claim(self, session: Session, **more: Any) -> Session:
            nonlocal shift
            made = await super().claim(session, **more)
            await self.finish(made.id, end)
            shift = later_s
            return made

    async with unstarted_engine(*places(tmp_path), Frozen(), clock=lambda: time.time() + shift) as engine:
        session = await launch(engine, "touch ran")
        assert session.end == end
        assert await engine.supervised.status(session.id) is None


async def test_abandoning_what_has_started_lets_it_run(engine: Engine) -> None:
    made, who = spec(engine, f"{GATE}; exit 3", background=True), origin()
    session = engine._session(granted(engine, made), who, Delivery.CALLBACK)  # pyright: ignore[reportPrivateUsage]
    await engine.store.claim(session)
    await engine.supervised.start(session, made, await engine.backend.plan(made, session.conversation_id))
    await engine.abandon(session.id)
    assert (await engine.registry.get(session.id)).state is SessionState.RUNNING
    let_go(engine)
    ended = await engine.wait(session.id, up_to=60)
    assert end_of(ended).exit_code == 3


async def test_a_start_whose_record_was_cut_off_is_recorded_by_reconciling(tmp_path: Path) -> None:
    store = MemorySessionStore()
    async with unstarted_engine(*places(tmp_path), store) as engine:
        started = store.started

        store.started = raising(ConnectionError("the database is away"))
        made, who = spec(engine, "sleep 100", background=True), origin()
        with pytest.raises(ConnectionError):
            await engine.launch(granted(engine, made), who)
        store.started = started
        assert (await engine.registry.get(session_id_of(who))).state is SessionState.CLAIMED
        await engine.reconcile()
        assert (await engine.registry.get(session_id_of(who))).state is SessionState.RUNNING
        await end_all(engine)


@pytest.mark.parametrize(
    ("state", "boot", "evidence"),
    [
        (SessionState.CLAIMED, {"boot_id": "another"}, Evidence.NEVER_STARTED),
        (SessionState.RUNNING, {"boot_id": "another"}, Evidence.MACHINE_REBOOTED),
        (SessionState.RUNNING, {}, Evidence.RECORD_UNREADABLE),
    ],
)
async def test_sessions_that_nobody_knows_are_lost_by_rule(
    engine: Engine, told: Told, state: SessionState, boot: dict[str, str], evidence: Evidence
) -> None:
    session, _ = await claimed(engine, "true", state=state, **boot)
    await engine.reconcile()
    after = await engine.registry.get(session.id)
    assert (after.state, end_of(after).evidence) == (SessionState.LOST, evidence)
    assert [one.id for one in told.sessions] == [session.id]


@pytest.mark.parametrize("error", [LimitReached("64 containers"), SupervisorUnreachable("away")])
async def test_a_session_that_cannot_be_asked_about_keeps_no_other_from_being_compared(
    engine: Engine, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await claimed(engine, "true", boot_id="another", created_at=1.0)
    second, _ = await claimed(engine, "true", boot_id="another", created_at=2.0)
    status = engine.supervised.status

    async def asked(session_id: SessionId) -> Any:
        if session_id == first.id:
            raise error
        return await status(session_id)

    monkeypatch.setattr(engine.supervised, "status", asked)
    await engine.reconcile()
    ends = [(await engine.registry.get(one.id)).end for one in (first, second)]
    assert [end and end.evidence for end in ends] == [None, Evidence.NEVER_STARTED]


async def test_sessions_of_another_host_are_left_alone(tmp_path: Path) -> None:
    async with unstarted_engine(*places(tmp_path)) as engine:
        session, _ = await claimed(engine, "true", state=SessionState.RUNNING, host_id="another")
        await engine.reconcile()
        assert (await engine.store.get(session.id)) == session


async def test_starting_and_stopping_twice_is_fine(tmp_path: Path) -> None:
    engine = unstarted_engine(*places(tmp_path))
    await engine.stop()
    await engine.start()
    await engine.start()
    assert engine.started
    await engine.stop()
    await engine.stop()
    assert not engine.started


async def test_input_whose_outcome_was_not_recorded_is_recalled_and_not_written_twice(engine: Engine) -> None:
    """The worker died between the write and its record; the supervisor, which lives, remembers the call."""
    session = await launch(engine, "cat", keep_stdin_open=True)
    call = origin()
    record, store = engine.store.end_call, engine.store

    store.end_call = raising(ConnectionError("the worker is gone"))
    with pytest.raises(ConnectionError):
        await Sessions(engine, "talk").write(session.id, b"once\n", call, tool="process_write")
    store.end_call = record
    assert await Sessions(engine, "talk").write(session.id, b"once\n", call, tool="process_write") == 5
    await printed(engine, session.id, "once")
    await Sessions(engine, "talk").write(session.id, b"", origin(), tool="process_write", eof=True)
    ended = await engine.wait(session.id, up_to=60)
    assert end_of(ended).bytes_total == 5
