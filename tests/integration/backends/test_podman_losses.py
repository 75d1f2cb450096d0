"""In a container nobody can lay a cover again: what runs there ends with the first one that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shellback.exec.backends import homes
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.wire.protocol import Message
from tests.integration.supervisor.test_sandbox_losses import by_backup, by_rename
from tests.podmans import Yard, inside, yards
from tests.supervisors import Rig, end

pytestmark = pytest.mark.anyio


place = yards("podman")


async def start(rig: Rig, backend: ContainerBackend, name: str, script: str) -> Message:
    return await rig.start(name, script, cwd="/workspace", uid=backend.user, gid=backend.group)


@asynccontextmanager
async def begun(backend: ContainerBackend, profile: str) -> AsyncGenerator[Rig]:
    """A container in which a command runs."""
    home = await backend.containers.ensure(await asyncio.to_thread(backend.container, profile, "talk"))
    async with inside(home) as rig:
        answer = await start(rig, backend, "one", "setsid sleep 1000 & echo ready; sleep 1000")
        assert answer["outcome"] == "started"
        await rig.until_log("one", b"ready")
        yield rig


@pytest.mark.parametrize("profile", [WORK, READ_ONLY])
@pytest.mark.parametrize("edit", [by_rename, by_backup])
async def test_commands_in_a_container_end_when_a_file_is_edited_outside_that_is_kept_from_them(
    place: Yard, edit: Callable[[Path], None], profile: str
) -> None:
    name = ".envrc" if profile == WORK else ".env"
    (place.workspace / name).write_text("KEY=old\n")
    backend = place.backend()
    async with begun(backend, profile) as rig:
        edit(place.workspace / name)
        record = await rig.exit("one")
        assert (record["ended_by"], record["signal"], record["survivors"]) == ("protection", 9, [])
        (loss,) = record.get("losses", [])
        assert (loss["path"], loss["how"]) == (f"/workspace/{name}", "ended")
        await rig.client.ack("one")
    # The next one is in a container that has the cover.
    done = await place.run(f"echo x >> {name}; cat {name}", profile=profile, backend=backend)
    assert [word in done.output for word in ("KEY", "edited")] == [profile == WORK] * 2
    assert (place.workspace / name).read_text() == "KEY=old\n# edited\n"


async def test_a_cover_lost_while_the_supervisor_of_a_container_is_away_ends_what_ran_and_nothing_starts(
    place: Yard,
) -> None:
    secret = place.workspace / ".env"
    secret.write_text("KEY=old\n")
    backend = place.backend()
    async with begun(backend, READ_ONLY) as rig:
        await end(homes.peer(place.containers().homes()[0]))
        by_rename(secret)
        record = await rig.exit_after_connect("one")
        assert record["ended_by"] == "protection"
        answer = await start(rig, backend, "two", "true")
        assert answer["error"] == "uncovered"
