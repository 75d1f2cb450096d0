"""The life of containers: made once, used by all, gone when they should be, and found again by whoever comes next."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.homes import known
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.engine.memory_store import MemoryWorkspaceStore
from shellback.exec.supervisor.loop import now
from shellback.exec.wire import layout, leash
from tests.podmans import Yard, inside, yards
from tests.supervisors import cancelled, raising, until

pytestmark = pytest.mark.anyio


place = yards("podman", "docker")


class Counted(Containers):
    """Containers that count how often podman runs one."""

    runs = 0

    def watch(self) -> Counted:
        run = self.engine.run

        def counted(name: str, words: list[str]) -> str:
            self.runs += 1
            return run(name, words)

        self.engine.run = counted  # type: ignore[method-assign]
        return self


def counted(place: Yard, **options: object) -> tuple[Counted, ContainerBackend]:
    plain = place.containers()
    made = Counted(plain.root, plain.engine, **options).watch()  # pyright: ignore[reportArgumentType]
    return made, place.backend(made)


async def begin(home: Path) -> None:
    """Start what goes on when we have left."""
    async with inside(home) as rig:
        assert (await rig.start("long", "sleep 300", cwd="/workspace", uid=65534, gid=65534))["outcome"] == "started"


async def test_commands_in_a_container_end_when_the_leash_of_their_host_does(place: Yard) -> None:
    backend = place.backend()
    await place.run("true", backend=backend)
    (home,) = backend.containers.homes()
    leash.renew(backend.containers.root.parent, now() + 1.0)
    async with inside(home) as rig:
        assert (await rig.start("long", "sleep 300", cwd="/workspace", uid=65534, gid=65534))["outcome"] == "started"
        record = await rig.exit("long")
    assert (record["ended_by"], record["survivors"]) == ("lease", [])


async def test_calls_at_the_same_time_make_one_container_and_the_next_worker_goes_on_with_it(place: Yard) -> None:
    containers, backend = counted(place)
    backend.check()
    want = backend.container(WORK, "talk")
    homes = await asyncio.gather(*(containers.ensure(want) for _ in range(8)))
    assert set(homes) == {containers.home(want)}
    assert containers.runs == 1
    await containers.close()
    again, backend = counted(place)
    assert (await place.run("echo on", backend=backend)).output == "on\n"
    assert again.runs == 0


async def test_a_caller_that_leaves_leaves_a_container_that_comes_up(place: Yard) -> None:
    log = MemoryWorkspaceStore()
    containers, backend = counted(place, log=log)
    backend.check()
    impatient = asyncio.create_task(containers.ensure(backend.container(WORK, "talk")))
    await until(lambda: containers.runs == 1)
    await cancelled(impatient)
    await containers.close()
    assert [row.state for row in await log.list()] == ["running"]
    assert (await place.run("echo on", backend=backend)).output == "on\n"
    assert containers.runs == 1


async def test_people_find_a_container_by_its_labels(place: Yard) -> None:
    backend = place.backend()
    await place.run("true", backend=backend, scope="a talk")
    labels = ("--filter", "label=shellback.scope=a talk", "--filter", "label=shellback.profile=work")
    ask = backend.containers.engine._must  # pyright: ignore[reportPrivateUsage]
    found = ask("ps", *labels, "--format", "{{.Names}}")
    (home,) = backend.containers.homes()
    assert found.split() == [home.name]
    assert home.name.startswith("shellback-")


async def test_an_idle_container_is_stopped_and_starts_again_when_it_is_wanted(place: Yard) -> None:
    log = MemoryWorkspaceStore()
    containers, backend = counted(place, idle_s=0.05, log=log)
    await place.run("echo x >/tmp/gone", backend=backend)
    (home,) = containers.homes()
    assert [row.state for row in await log.list()] == ["running"]
    await asyncio.sleep(0.06)
    assert await containers.sweep(lambda _home: True) == []
    assert await containers.sweep() == [home]
    assert [row.state for row in await log.list()] == ["stopped"]
    assert await containers.sweep() == []
    state = containers.engine.state(home.name)
    assert state is not None
    assert state[0] == "exited"
    assert (await place.run("cat /tmp/gone; echo on", backend=backend)).output.endswith("on\n")
    assert containers.runs == 1
    assert [row.state for row in await log.list()] == ["running"]


async def test_a_container_in_which_something_runs_or_whose_end_nobody_heard_is_never_idle(place: Yard) -> None:
    containers, backend = counted(place, idle_s=0.01)
    await place.run("true", backend=backend)
    (home,) = containers.homes()
    await begin(home)
    await asyncio.sleep(0.02)
    assert await containers.sweep() == []
    async with inside(home) as rig:
        await rig.client.kill("long", grace_s=0.1, ended_by="person")
        assert await containers.sweep() == []
        await rig.client.ack("long")
    assert await containers.sweep() == [home]


async def test_removing_ends_what_runs_and_keeps_what_sessions_left(place: Yard) -> None:
    log = MemoryWorkspaceStore()
    containers, backend = counted(place, log=log)
    await place.run("true", backend=backend)
    (home,) = containers.homes()
    await begin(home)
    assert await containers.remove(home.name)
    assert containers.engine.state(home.name) is None
    record = (home / layout.SESSIONS / "long" / layout.EXIT).read_text()
    assert '"shutdown"' in record
    assert [row.state for row in await log.list()] == ["removed"]
    assert not await containers.remove(home.name)


async def test_a_home_without_sessions_goes_with_its_container(place: Yard) -> None:
    containers, backend = counted(place)
    backend.check()
    homes = [await containers.ensure(backend.container(profile, "one")) for profile in (WORK, READ_ONLY)]
    other = await containers.ensure(backend.container(WORK, "two"))
    assert [await containers.remove(home.name) for home in homes] == [True, True]
    assert containers.homes() == [other]


@pytest.mark.parametrize("how", ["killed", "removed"])
async def test_a_container_that_is_gone_is_had_again_and_says_what_became_of_its_commands(
    place: Yard, how: str
) -> None:
    containers, backend = counted(place)
    await place.run("true", backend=backend)
    (home,) = containers.homes()
    await begin(home)
    at_once = ("--time", "0") if containers.engine.name == "podman" else ()  # docker gives no time
    word = ("kill", "--signal", "KILL") if how == "killed" else ("rm", "--force", *at_once)
    await asyncio.to_thread(containers.engine._must, *word, home.name)  # pyright: ignore[reportPrivateUsage]
    await until(lambda: _state(containers, home) in {None, "exited"})
    await containers.revive(home)
    async with inside(home) as rig:
        (record,) = [one for one in (await rig.client.list())[1] if one["session_id"] == "long"]
    assert (record["state"], record["evidence"]) == ("lost", "container_restarted")
    assert (await place.run("echo on", backend=backend)).output == "on\n"
    assert containers.runs == (1 if how == "killed" else 2)


def _state(containers: Containers, home: Path) -> str | None:
    found = containers.engine.state(home.name)
    return None if found is None else found[0]


async def test_what_another_description_left_goes_when_nothing_runs_in_it(place: Yard) -> None:
    containers, backend = counted(place)
    await place.run("true", backend=backend, profile=READ_ONLY)
    (first,) = containers.homes()
    (place.workspace / ".env").write_text("KEY=1")
    await place.run("true", backend=backend, profile=READ_ONLY)
    second = [home for home in containers.homes() if home != first]
    assert len(second) == 1
    assert containers.engine.state(first.name) is None
    await begin(second[0])
    (place.workspace / ".env.local").write_text("KEY=2")
    await place.run("true", backend=backend, profile=READ_ONLY)
    assert _state(containers, second[0]) == "running"
    async with inside(second[0]) as rig:
        assert (await rig.client.status("long"))["state"] == "running"


async def test_the_description_is_durable_before_the_container_is_there(place: Yard) -> None:
    containers, backend = counted(place)
    backend.check()
    want = backend.container(WORK, "talk")

    containers.engine.run = raising(BackendUnavailable("no room"))
    with pytest.raises(BackendUnavailable, match="no room"):
        await containers.ensure(want)
    assert known(containers.home(want)) == want
    with pytest.raises(BackendUnavailable, match=r"how the container of .* was made is missing"):
        await containers.revive(containers.root / "shellback-none")


async def test_a_paused_container_is_named_and_not_ended(place: Yard) -> None:
    containers, backend = counted(place)
    backend.check()
    want = backend.container(WORK, "talk")
    home = await containers.ensure(want)
    os.rename(home / layout.SUPERVISOR / layout.SOCKET, home / layout.SUPERVISOR / "aside")
    engine = containers.engine
    state = engine.state
    engine.state = lambda name: ("paused", "id") if state(name) else None
    with pytest.raises(BackendUnavailable, match=f"{place.kind} unpause"):
        await containers.ensure(want)
    engine.state = state
    assert _state(containers, home) == "running"
