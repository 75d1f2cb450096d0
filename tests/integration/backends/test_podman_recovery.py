"""What becomes of sessions when their container, its supervisor or keeper, a worker or a record goes away."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable

import pytest

from shellback.exec.backends.podman import Podman
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import Evidence, SessionState
from shellback.exec.log.placements import Placements
from shellback.exec.wire import layout
from tests.execs import end_of, granted, launch, origin, printed, run, spec
from tests.podmans import Pod, in_pod, pod, podman
from tests.supervisors import kill, raising, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
SOON_S = 90.0


async def by_podman(made: Pod) -> None:
    await asyncio.to_thread(podman, "kill", made.home.name)


async def by_its_keeper(made: Pod) -> None:
    kill(made.pids()[1])


async def by_removal(made: Pod) -> None:
    await asyncio.to_thread(podman, "rm", "--force", "--time", "0", made.home.name)


@pytest.mark.parametrize("die", [by_podman, by_its_keeper, by_removal])
async def test_a_container_that_dies_takes_its_commands_with_it_and_each_is_told_once(
    die: Callable[[Pod], asyncio.Future[None]],
) -> None:
    async with in_pod() as (made, engine):
        behind = await launch(engine, "echo up; sleep 300")
        before = asyncio.create_task(run(engine, "echo up >> flag; sleep 300", timeout=60.0))
        await printed(engine, behind.id, "up")
        await until((made.workspace / "flag").exists)
        await die(made)
        told = end_of(await engine.wait(behind.id, up_to=SOON_S))
        waited = await asyncio.wait_for(before, SOON_S)
        for end in (told, end_of(waited.session)):
            assert (end.state, end.evidence) == (SessionState.LOST, Evidence.CONTAINER_RESTARTED)
            assert (end.exit_code, end.signal) == (None, None)
        assert not waited.handed_over
        again = await run(engine, "cat flag; exit 4")
        assert (end_of(again.session).exit_code, again.output.text) == (4, "up\n")
        assert [one.id for one in made.told.sessions] == [behind.id]
        await engine.reconcile()
        assert [one.id for one in made.told.sessions] == [behind.id]
        assert len(Placements(made.state).homes()) == 1


async def test_commands_outlive_the_supervisor_in_their_container_and_the_exit_code_is_the_kernels() -> None:
    async with in_pod() as (made, engine):
        session = await launch(engine, "echo up; until [ -e go ]; do sleep 0.02; done; exit 11", shows="up")
        _, keeper = made.pids()
        for _ in range(5):
            kill(made.pids()[0])
            assert (await run(engine, "echo again")).output.text == "again\n"
        await run(engine, "touch go")
        assert end_of(await engine.wait(session.id, up_to=SOON_S)).exit_code == 11
        assert made.pids()[1] == keeper
        assert [one.id for one in made.told.sessions] == [session.id]


async def test_a_worker_that_starts_hears_of_what_ended_and_of_what_died_while_it_was_away() -> None:
    async with pod() as made:
        async with made.engine() as first:
            ends = await launch(first, "until [ -e go ]; do sleep 0.02; done; exit 9")
            dies = await launch(first, "echo up; sleep 300", shows="up")
        (made.workspace / "go").touch()
        record = made.home / layout.SESSIONS / ends.id / layout.EXIT
        await until(record.exists)
        await by_podman(made)
        async with made.engine() as second:
            told = end_of(await second.wait(ends.id, up_to=SOON_S))
            lost = end_of(await second.wait(dies.id, up_to=SOON_S))
        assert told.exit_code == 9
        assert (lost.state, lost.evidence) == (SessionState.LOST, Evidence.CONTAINER_RESTARTED)
        assert sorted(one.id for one in made.told.sessions) == sorted([ends.id, dies.id])
        assert not (made.state / layout.SUPERVISOR / layout.SOCKET).exists(), "no supervisor of the host was needed"


async def test_records_that_were_removed_with_the_container_make_no_number() -> None:
    async with in_pod() as (made, engine):
        session = await launch(engine, "echo up; sleep 300", shows="up")
        home = made.home
        await by_removal(made)
        # The engine notices meanwhile, and takes away what is in its way.
        shutil.rmtree(home, ignore_errors=True)
        await engine.reconcile()
        end = end_of(await engine.wait(session.id, up_to=SOON_S))
        assert (end.state, end.exit_code) == (SessionState.LOST, None)
        assert end.evidence in {Evidence.RECORD_UNREADABLE, Evidence.CONTAINER_RESTARTED}
        assert [one.id for one in made.told.sessions] == [session.id]


async def test_a_start_under_way_when_the_container_dies_is_not_repeated_once_its_mark_is_there() -> None:
    async with in_pod() as (made, engine):
        await run(engine, "true")
        (made.crash / "supervisor.marked").write_text("stop self")
        started = asyncio.create_task(launch(engine, "echo x >> ran; sleep 300"))
        await until(lambda: not (made.crash / "supervisor.marked").exists())
        await by_podman(made)
        session = await asyncio.wait_for(started, SOON_S)
        end = end_of(await engine.wait(session.id, up_to=SOON_S))
        assert (end.state, end.evidence) == (SessionState.LOST, Evidence.CONTAINER_RESTARTED)
        assert not (made.workspace / "ran").exists()
        assert [one.id for one in made.told.sessions] == [session.id]


async def test_a_start_that_found_its_container_dead_brings_it_up_and_happens_once() -> None:
    async with in_pod() as (made, engine):
        await run(engine, "true")
        command = spec(engine, "echo x >> ran; exit 6", background=True)
        grant = granted(engine, command)
        plan = await engine.backend.plan(command, "talk")
        assert plan.home == made.home
        await by_podman(made)
        session = await engine.launch(grant, origin())
        assert end_of(await engine.wait(session.id, up_to=SOON_S)).exit_code == 6
        assert (made.workspace / "ran").read_text() == "x\n"


async def test_where_podman_is_gone_the_records_tell_that_the_container_died(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_pod() as (made, engine):
        session = await launch(engine, "echo up; sleep 300", shows="up")

        monkeypatch.setattr(Podman, "state", raising(OSError("no podman")))
        await by_podman(made)
        while (await engine.store.get(session.id) or session).end is None:
            await engine.reconcile()
        end = end_of(await engine.wait(session.id, up_to=1))
        assert (end.state, end.evidence) == (SessionState.LOST, Evidence.CONTAINER_RESTARTED)
        with pytest.raises((SupervisorUnreachable, OSError)):
            await run(engine, "true")
        assert [one.id for one in made.told.sessions] == [session.id]
        monkeypatch.undo()
        assert end_of((await run(engine, "exit 3")).session).exit_code == 3
