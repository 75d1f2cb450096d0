"""In a container nobody can lay a cover again: what runs there ends with the first one that is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from shellback.exec.backends import homes
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.link.client import SupervisorClient
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import ExitRecord, StartRequest
from tests.podmans import Yard, yard
from tests.supervisors import SOON, end, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def place() -> Generator[Yard]:
    with yard() as made:
        yield made


def by_rename(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("KEY=new\n")
    new.rename(path)


def by_backup(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}~"))
    path.write_text("KEY=new\n")


async def begun(
    backend: ContainerBackend, profile: str, name: str
) -> tuple[SupervisorClient, asyncio.Future[ExitRecord]]:
    """A command that runs, and its end."""
    home = await backend.containers.ensure(await asyncio.to_thread(backend.container, profile, "talk"))
    ended: asyncio.Future[ExitRecord] = asyncio.get_running_loop().create_future()

    def told(record: ExitRecord) -> None:
        if not ended.done():
            ended.set_result(record)

    client = SupervisorClient(home, spawn=False, wait_s=SOON, on_exit=told)
    request = StartRequest(
        session_id=name,
        argv=("/bin/sh", "-c", "setsid sleep 1000 & echo ready; sleep 1000"),
        env={"PATH": os.defpath},
        cwd="/workspace",
        boot_id=(await client.connect())["boot_id"],
        uid=backend.user,
        gid=backend.group,
    )
    assert (await client.start(request))["outcome"] == "started"
    await until(lambda: b"ready" in (home / layout.SESSIONS / name / layout.LOG).read_bytes())
    return client, ended


@pytest.mark.parametrize("profile", [WORK, READ_ONLY])
@pytest.mark.parametrize("edit", [by_rename, by_backup])
async def test_commands_in_a_container_end_when_a_file_is_edited_outside_that_is_kept_from_them(
    place: Yard, edit: Callable[[Path], None], profile: str
) -> None:
    name = ".envrc" if profile == WORK else ".env"
    (place.workspace / name).write_text("KEY=old\n")
    backend = place.backend()
    client, ended = await begun(backend, profile, "one")
    try:
        edit(place.workspace / name)
        record = await asyncio.wait_for(ended, SOON)
        assert (record["ended_by"], record["signal"], record["survivors"]) == ("protection", 9, [])
        (loss,) = record.get("losses", [])
        assert (loss["path"], loss["how"]) == (f"/workspace/{name}", "ended")
        await client.ack("one")
    finally:
        await client.close()
    # The next one is in a container that has the cover.
    done = await place.run(f"echo x >> {name}; cat {name}", profile=profile, backend=backend)
    assert "KEY=new" in done.output if profile == WORK else "KEY" not in done.output
    assert (place.workspace / name).read_text() == "KEY=new\n"


async def test_a_cover_lost_while_the_supervisor_of_a_container_is_away_ends_what_ran_and_nothing_starts(
    place: Yard,
) -> None:
    secret = place.workspace / ".env"
    secret.write_text("KEY=old\n")
    backend = place.backend()
    client, ended = await begun(backend, READ_ONLY, "one")
    try:
        await end(homes.peer(place.containers().homes()[0]))
        by_rename(secret)
        await client.connect()
        record = await asyncio.wait_for(ended, SOON)
        assert record["ended_by"] == "protection"
        another = StartRequest(
            session_id="two",
            argv=("/bin/true",),
            env={},
            cwd="/workspace",
            boot_id=(await client.connect())["boot_id"],
            uid=backend.user,
            gid=backend.group,
        )
        answer = await client.start(another)
        assert answer["error"] == "uncovered"
    finally:
        await client.close()
