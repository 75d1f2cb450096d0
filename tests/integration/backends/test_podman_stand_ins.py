"""What a workspace does not have and commands of containers cannot make, with real podman, and what is left of that."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from shellback.exec.backends import homes
from shellback.exec.backends.container import COMMANDS
from shellback.exec.backends.trusted import PROTECTED
from shellback.exec.core.model import READ_ONLY, WORK
from tests.filetrees import git, give
from tests.podmans import Yard, yards

pytestmark = pytest.mark.anyio

ATTACK = """
mkdir -p mine/repository; echo hostile > mine/file
for name in .git/commondir .envrc .bashrc .mcp.json .claude/settings.json .vscode/tasks.json; do
    mkdir -p "$(dirname $name)" 2>/dev/null
    echo hostile 2>/dev/null >> $name && echo "wrote $name"
    mv mine/file $name 2>/dev/null && [ -f $name ] && echo "replaced $name"
    rmdir $name 2>/dev/null && echo "removed $name"
    [ -e $name ] && rm $name 2>/dev/null && echo "unlinked $name"
    ln -s mine/file $name 2>/dev/null && [ -L $name ] && echo "linked $name"
done
true
"""


empty = yards("podman", "docker")


@pytest.fixture
def place(empty: Yard) -> Yard:
    """One whose workspace is a repository."""
    git("init", "-q", cwd=empty.workspace)
    give(empty.workspace)
    for path in (empty.workspace, *empty.workspace.rglob("*")):
        if os.geteuid() and path.is_dir():
            path.chmod(0o2775)
    return empty


def there(place: Yard) -> set[str]:
    """What is in the workspace and its repository."""
    return {path.name for path in (*place.workspace.iterdir(), *(place.workspace / ".git").iterdir())}


async def test_what_is_missing_cannot_be_made_and_is_gone_with_the_container(place: Yard) -> None:
    before = there(place)
    backend = place.backend()
    done = await place.run(ATTACK, backend=backend)
    assert (done.exit_code, done.output) == (0, "")
    assert git("status", "--short", cwd=place.workspace) == "?? mine/\n"
    # It is the same one: what stands in for nothing is no change.
    assert (await place.run("echo again; ls .git/commondir .envrc -d", backend=backend)).exit_code == 0
    (home,) = backend.containers.homes()
    await backend.containers.remove(home.name)
    assert there(place) == before | {"mine"}


async def test_what_somebody_else_has_there_stays(place: Yard) -> None:
    (place.workspace / ".vscode").mkdir()
    backend = place.backend()
    await place.run("true", backend=backend)
    (place.workspace / ".idea/workspace.xml").write_text("of a person\n")
    await place.run("echo hostile >> .idea/workspace.xml", backend=backend)
    for home in backend.containers.homes():
        await backend.containers.remove(home.name)
    assert (place.workspace / ".vscode").is_dir()
    assert (place.workspace / ".idea/workspace.xml").read_text() == "of a person\n"
    assert not (place.workspace / ".envrc").exists()


async def test_what_one_conversation_needs_stays_when_another_ends(place: Yard) -> None:
    backend = place.backend()
    await place.run("true", backend=backend, scope="one")
    first = {home.name for home in backend.containers.homes()}
    await place.run("true", backend=backend, scope="two")
    for name in first:
        await backend.containers.remove(name)
    assert (place.workspace / ".envrc").is_socket()
    assert (await place.run(ATTACK, backend=backend, scope="two")).output == ""


async def test_what_a_container_that_died_left_is_removed_by_whoever_looks_next(place: Yard) -> None:
    before = there(place)
    backend = place.backend()
    await place.run("true", backend=backend)
    (home,) = backend.containers.homes()
    supervisor = homes.peer(home)
    status = await asyncio.to_thread(Path(f"/proc/{supervisor}/status").read_text)
    keeper = int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))
    gone = os.pidfd_open(keeper)
    signal.pidfd_send_signal(gone, signal.SIGKILL)
    async with asyncio.timeout(30):
        while homes.kept(home) or (backend.containers.engine.state(home.name) or ("",))[0] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert there(place) > before
    await place.containers().sweep()
    assert there(place) == before


async def test_a_container_that_is_stopped_has_them_again_when_it_starts(place: Yard) -> None:
    before = there(place)
    backend = place.backend()
    await place.run("true", backend=backend)
    (home,) = backend.containers.homes()
    backend.containers.idle_s = 0.0
    assert await backend.containers.sweep() == [home]
    assert there(place) == before
    assert (await place.run(ATTACK, backend=backend)).output == ""
    assert backend.containers.homes() == [home]


async def test_nothing_of_the_workspace_gives_rights_or_is_a_device(place: Yard) -> None:
    if place.kind == "docker":
        await _gives_nothing(place)
        return
    for profile in (WORK, READ_ONLY):
        done = await place.run("cat /proc/self/mountinfo", profile=profile)
        rows = [line.split() for line in done.output.splitlines()]
        ours = [row for row in rows if row[4].startswith(("/workspace", "/run/shellback"))]
        assert ours
        assert [row[4:6] for row in ours if not {"nosuid", "nodev"} <= set(row[5].split(","))] == []


async def _gives_nothing(place: Yard) -> None:
    """Docker cannot mount it so; by other means a set-uid program gives no rights, and a device does not open."""
    disk = os.stat("/").st_dev
    device, program = place.workspace / "device", place.workspace / "id"
    os.mknod(device, 0o666 | stat.S_IFBLK, disk)
    device.chmod(0o666)
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 12345, -1)
    program.chmod(0o4755)
    done = await place.run("./id -u; head -c 1 device")
    assert done.output.startswith(f"{COMMANDS}\n")
    assert done.output.endswith("Operation not permitted\n")
    assert done.exit_code == 1
    # One that only reads has a file in its place.
    assert (await place.run("./id -u; wc -c <device", profile=READ_ONLY)).output.split() == [str(COMMANDS), "0"]


def test_the_table_has_what_tools_run_on_entering_a_directory() -> None:
    names = {rule.name for rule in PROTECTED if rule.where == "root"}
    assert {".pre-commit-config.yaml", "lefthook.yml", ".dir-locals-2.el", ".helix", "crush.json"} <= names
