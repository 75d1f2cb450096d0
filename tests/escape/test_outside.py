"""A command writes without a pause what a person replaces outside meanwhile: it is stopped, and the person is told."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from shellback.exec.core.findings import LOST_MOUNT
from shellback.exec.core.model import EndedBy
from shellback.exec.reports.render import ended_line
from shellback.exec.wire.gitconfig import UNREADABLE
from tests.escape.test_repositories import Ground, contained, ground
from tests.execs import end_of, launch
from tests.supervisors import SOON, answered, until

__all__ = ["ground"]

LOOP = """
import os, time
path, setting = ".git/config", b"[core]\\n\\tfsmonitor = " + os.environ["PWN"].encode() + b"\\n"
print("ready", flush=True)
tries = 0
while True:
    tries += 1
    if tries % 20000 == 0:
        print("tried", tries, flush=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        continue
    os.write(fd, setting)
    os.close(fd)
    time.sleep(0.001)  # so that what comes in is a configuration, not more than anybody reads
"""


EDITS = [
    pytest.param("git config user.name somebody", id="git, which writes a new file and renames it"),
    pytest.param("sed -i 's/bare = false/bare = no/' .git/config", id="sed"),
    pytest.param("mv .git/config .git/config~ && cp .git/config~ .git/config", id="an editor that keeps a backup"),
    pytest.param("cp .git/config .git/c && rm .git/config && mv .git/c .git/config", id="unlink"),
]


async def attacked(ground: Ground, edit: str, *, ends: bool) -> None:
    """Edit while a command writes without a pause, and see that it is told and that nothing more gets in."""
    config = ground.workspace / ".git/config"
    async with ground.engine() as engine:
        command = f"{ground.begin}export PWN; exec python3 -c {shlex.quote(LOOP)}"
        session = await launch(engine, command, shows="ready")
        await asyncio.to_thread(ground.outdoors, "sh", "-c", edit, check=True)
        if ends:
            ended = await engine.wait(session.id, up_to=SOON)
            assert end_of(ended).ended_by is EndedBy.PROTECTION
            assert "a protected file was replaced outside" in ended_line(ended)
        await until(lambda: any(one.kind == LOST_MOUNT for one in ground.sink.all.values()))
        after = await asyncio.to_thread(config.read_bytes)
        if not ends and (await engine.store.get(session.id) or session).live:
            before = (await engine.output(session).ends()).bytes_total
            await answered(engine.output(session).ends, lambda ends: ends.bytes_total >= before + 40)
        assert await asyncio.to_thread(config.read_bytes) == after
        found = [one for one in ground.sink.all.values() if one.kind == LOST_MOUNT]
        assert {(one.path, one.session_id, one.conversation_id) for one in found} == {(str(config), session.id, "talk")}
        told = " ".join(one.detail for one in found)
        assert "core.fsmonitor" not in told or b"fsmonitor" in after
        # A copy that is written beside the command may leave half a line, and git takes none of such a file.
        assert b"fsmonitor" not in after or "core.fsmonitor" in told or UNREADABLE in told
        if not ends:
            assert set(engine.untold("talk")) >= {one.sentence for one in found if one.session_id == session.id}


@pytest.mark.parametrize("edit", EDITS)
def test_a_configuration_that_is_replaced_outside_is_closed_again_and_what_came_in_is_told(
    ground: Ground, edit: str
) -> None:
    asyncio.run(attacked(ground, edit, ends=False))


@pytest.mark.parametrize("edit", EDITS)
def test_in_a_container_the_command_ends_and_what_came_in_is_told(tmp_path: Path, edit: str) -> None:
    with contained(tmp_path, inspected=True) as ground:
        asyncio.run(attacked(ground, edit, ends=True))
