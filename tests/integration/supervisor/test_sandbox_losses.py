"""What is protected stays so while commands run, whatever a person does to it outside, or the commands end for it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import ExitRecord
from tests.filetrees import git, give
from tests.sandboxes import Boxes, boxes
from tests.supervisors import SOON, answered, end, failure, state_of, stop, until

pytestmark = pytest.mark.anyio

SECRET = "API_KEY=of-the-person"


def prepared(box: Boxes) -> None:
    """A repository, and other files that are protected."""
    git("init", "--quiet", cwd=box.workspace)
    give(box.workspace)
    for name, text in ((".envrc", "export A=1\n"), (".env", f"{SECRET}\n")):
        written(box.workspace / name, text)


def written(path: Path, text: str) -> None:
    path.write_text(text)
    give(path)


def by_rename(path: Path) -> None:
    """As `sed -i` and most editors: a new file, renamed over the old one."""
    new = path.with_name("new-file")
    written(new, path.read_text() + "# edited\n")
    new.rename(path)


def by_backup(path: Path) -> None:
    """As Emacs, and Vim with a backup: the old file is renamed away, and stays; no mount is lost by that."""
    text = path.read_text()
    path.rename(path.with_name(f"{path.name}~"))
    written(path, text + "# edited\n")


def by_unlink(path: Path) -> None:
    """As git does it at a checkout."""
    text = path.read_text()
    path.unlink()
    written(path, text + "# edited\n")


def written_anew(path: Path) -> None:
    written(path, f"{SECRET}\n# edited\n")


def moved_here(path: Path) -> None:
    written_anew(new := path.with_name("new-file"))
    new.rename(path)


def watched(pid: int) -> list[int]:
    """The events of which the kernel tells a process, for each directory that it watches: inotify(7), proc(5)."""
    shown = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return [int(mask, 16) for text in shown for mask in re.findall(r"^inotify .* mask:(\w+)", text, re.MULTILINE)]


EDITS = [by_rename, by_backup, by_unlink]
IN_CREATE = 0x100


async def losses(box: Boxes, name: str) -> list[dict[str, Any]]:
    """The losses of a session that runs, once there is one."""
    return (await answered(lambda: box.client.status(name), lambda status: status.get("losses")))["losses"]


async def gone_on(box: Boxes, name: str) -> ExitRecord:
    await box.client.write(name, b"go\n")
    return await box.exit(name)


async def begun(box: Boxes, name: str, script: str, **more: Any) -> None:
    """Start it in the workspace, and return once it says that it waits for a line."""
    await box.start(name, script, cwd=str(box.workspace), stdin=b"", keep_stdin_open=True, **more, shows=b"ready")


async def ended(box: Boxes, name: str) -> dict[str, Any]:
    """The loss for which a session was ended."""
    record = await box.exit(name)
    assert (record["ended_by"], record["signal"]) == ("protection", 9)
    (loss,) = [one for one in record.get("losses", []) if one["how"] == "ended"][:1]
    return dict(loss)


def emptied(box: Boxes) -> None:
    """Take away what is the workspace's own; what stands in for something goes by itself."""
    for path in box.workspace.iterdir():
        if path.is_symlink() or path.is_file() or path.name in {".git", "git-elsewhere"}:
            subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", [".envrc", ".git/config"])
async def test_a_protected_file_stays_protected_when_it_is_edited_outside(
    box: Boxes, edit: Callable[[Path], None], name: str
) -> None:
    prepared(box)
    await begun(box, "a", f"echo ready; read -r _; echo hostile >> {name} && echo WROTE; exit 0")
    edit(box.workspace / name)
    (loss,) = await losses(box, "a")
    assert (loss["path"], loss["how"], loss["keys"]) == (f"{box.workspace}/{name}", "restored", [])
    record = await gone_on(box, "a")
    assert b"WROTE" not in box.log("a"), box.log("a")
    assert "hostile" not in (box.workspace / name).read_text()
    assert (record["exit_code"], record.get("losses")) == (0, [loss])


@pytest.mark.parametrize("edit", EDITS)
async def test_a_masked_file_stays_masked_when_it_is_edited_outside(box: Boxes, edit: Callable[[Path], None]) -> None:
    prepared(box)
    script = "grep -rn API_KEY .; echo ready; read -r _; grep -rn API_KEY .; exit 0"
    await begun(box, "a", script, profile=READ_ONLY)
    edit(box.workspace / ".env")
    (loss,) = await losses(box, "a")
    assert (loss["path"], loss["how"]) == (f"{box.workspace}/.env", "restored")
    record = await gone_on(box, "a")
    assert record["exit_code"] == 0
    assert SECRET.encode() not in box.log("a")


@pytest.mark.parametrize("back", [moved_here, written_anew], ids=["renamed", "written"])
async def test_a_masked_file_that_was_away_is_masked_when_it_comes_back(
    box: Boxes, back: Callable[[Path], None]
) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _; grep -rn API_KEY .; exit 0", profile=READ_ONLY)
    (box.workspace / ".env").unlink()
    supervisor, _ = await box.pids()
    # As soon as the supervisor takes it for gone, it has the kernel tell when a file appears.
    await until(lambda: any(mask & IN_CREATE for mask in watched(supervisor)))
    back(box.workspace / ".env")
    (loss,) = await losses(box, "a")
    assert (loss["path"], loss["how"]) == (f"{box.workspace}/.env", "restored")
    assert (await gone_on(box, "a"))["exit_code"] == 0
    assert SECRET.encode() not in box.log("a")


async def test_settings_that_a_loss_brought_are_named_but_for_harmless_ones(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _")
    config = box.workspace / ".git/config"
    written(new := config.with_name("new"), f"{config.read_text()}[user]\n\tname = me\n[core]\n\tfsmonitor = run-me\n")
    new.rename(config)
    (loss,) = await losses(box, "a")
    assert loss["keys"] == ["core.fsmonitor"]
    await gone_on(box, "a")


async def test_what_is_changed_in_a_file_that_is_covered_again_is_told_with_the_end(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _")
    config = box.workspace / ".git/config"
    by_rename(config)
    await losses(box, "a")
    # As through a descriptor that a command got in the meantime.
    written(config, f"{config.read_text()}[core]\n\tfsmonitor = run-me\n")
    record = await gone_on(box, "a")
    assert [(one["how"], one["keys"]) for one in record.get("losses", [])] == [
        ("restored", []),
        ("changed", ["core.fsmonitor"]),
    ]


def directory_moved(box: Boxes) -> str:
    (box.workspace / ".git").rename(box.workspace / "git-elsewhere")
    (box.workspace / ".git").mkdir()
    return ".git"


def symlink_put(box: Boxes) -> str:
    (box.workspace / "link").symlink_to("elsewhere")
    (box.workspace / "link").rename(box.workspace / ".envrc")
    return ".envrc"


def second_name(box: Boxes) -> str:
    written(new := box.workspace / "new", "text\n")
    os.link(new, box.workspace / "other-name")
    new.rename(box.workspace / ".envrc")
    return ".envrc"


def taken_away(box: Boxes) -> str:
    (box.workspace / ".git/config").unlink()
    return ".git/config"


@pytest.mark.parametrize("change", [directory_moved, symlink_put, second_name, taken_away])
async def test_what_cannot_be_protected_again_ends_the_command_and_all_it_started(
    box: Boxes, change: Callable[[Boxes], str]
) -> None:
    prepared(box)
    await begun(box, "a", "setsid sleep 1000 & echo ready; read -r _")
    path = change(box)
    assert (await ended(box, "a"))["path"].startswith(f"{box.workspace}/{path}")
    emptied(box)
    await box.nothing_left()


async def test_a_file_that_somebody_keeps_open_ends_the_command_as_that_may_be_the_command(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _")
    written(new := box.workspace / "new", "text\n")
    with new.open():
        new.rename(box.workspace / ".envrc")
        assert (await ended(box, "a"))["path"] == f"{box.workspace}/.envrc"


async def test_a_protected_file_that_is_removed_outside_cannot_be_made_by_a_command(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _; echo hostile > .envrc && echo WROTE; exit 0")
    (box.workspace / ".envrc").unlink()
    (loss,) = await losses(box, "a")
    assert loss["how"] == "restored"
    assert (await gone_on(box, "a"))["exit_code"] == 0
    assert b"WROTE" not in box.log("a")
    emptied(box)
    await box.nothing_left()


@pytest.mark.parametrize("profile", [WORK, READ_ONLY])
async def test_a_hidden_file_stays_hidden_from_this_command_and_the_next_when_it_is_written_anew(
    tmp_path: Path, profile: str
) -> None:
    async with boxes(tmp_path, ahead_s=SOON) as box:
        prepared(box)
        written(secret := box.workspace / "key.pem", f"{SECRET}\n")
        box.backend = BubblewrapBackend(box.workspace, hidden=[secret])
        script = "echo ready; read -r _; cat key.pem; exit 0"
        # With one that has gone, the beginning of the next stands by already.
        await box.run("first", "cat key.pem", cwd=str(box.workspace), profile=profile)
        await begun(box, "a", script, profile=profile)
        await box.run("more", "true", profile=profile)
        by_rename(secret)
        await losses(box, "a")
        # Also in the instance that later commands begin in, before any comes.
        diary = box.home / layout.SUPERVISOR / layout.DIARY
        await until(lambda: re.search(r"sandbox \S+: lost a cover, restored", diary.read_text()) is not None)
        await gone_on(box, "a")
        await box.run("next", "cat key.pem", cwd=str(box.workspace), profile=profile)
        for name in ("first", "a", "next"):
            assert SECRET.encode() not in box.log(name), name


async def test_what_was_lost_while_no_supervisor_lived_is_protected_again_by_the_next(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _; echo hostile >> .envrc && echo WROTE; exit 0")
    supervisor, keeper = await box.pids()
    # The keeper starts the next one as soon as it goes on.
    await stop(keeper)
    await end(supervisor)
    by_rename(box.workspace / ".envrc")
    os.kill(keeper, signal.SIGCONT)
    await box.client.connect()
    (loss,) = await losses(box, "a")
    assert loss["how"] == "restored"
    assert (await gone_on(box, "a")).get("losses") == [loss]
    assert b"WROTE" not in box.log("a")


async def test_losses_are_still_known_when_another_supervisor_records_the_end(box: Boxes) -> None:
    prepared(box)
    await begun(box, "a", "echo ready; read -r _")
    by_rename(box.workspace / ".envrc")
    (loss,) = await losses(box, "a")
    await box.kill_supervisor()
    by_rename(box.workspace / ".env")
    await box.client.connect()
    assert (await gone_on(box, "a")).get("losses") == [loss]


async def test_a_command_does_not_begin_when_a_cover_was_lost_while_its_sandbox_was_made(box: Boxes) -> None:
    prepared(box)
    box.arm("supervisor.stands", "stop self")
    supervisor, _ = await box.pids()
    starting = asyncio.create_task(box.start("a", "echo hostile >> .envrc", cwd=str(box.workspace)))
    await until(lambda: state_of(supervisor) == "T")
    by_rename(box.workspace / ".envrc")
    os.kill(supervisor, signal.SIGCONT)
    assert failure(await starting) == errno.EAGAIN
    assert b".envrc" in box.log("a")
    assert "hostile" not in (box.workspace / ".envrc").read_text()


@pytest.mark.parametrize("field", ["fixed", "readonly", "masked", "stubs"])
@pytest.mark.parametrize("below", ["", "/deeper"])
async def test_a_symlink_that_came_after_the_plan_lets_nothing_in(box: Boxes, field: str, below: str) -> None:
    # What a command sees of the view only while its sandbox is made: the processes of the host.
    (box.workspace / "fake-place").symlink_to("/proc")
    place = f"{box.workspace}/fake-place{below and '/sys'}"
    changes: dict[str, Any] = {field: (place,)}
    assert failure(await box.start("a", "ls fake-place", sandbox=await box.planned(**changes))) == errno.ELOOP
    assert b"fake-place" in box.log("a")
    (box.workspace / "fake-place").unlink()
    await box.nothing_left()


async def test_a_place_outside_the_workspace_is_not_covered(box: Boxes) -> None:
    sandbox = await box.planned(masked=(f"{box.workspace}/../../usr/bin/env",))
    assert failure(await box.start("a", "exit 0", sandbox=sandbox)) == errno.EXDEV
    await box.nothing_left()


async def test_covers_are_read_only_fixed_or_empty_for_their_command_alone(tmp_path: Path) -> None:
    async with boxes(tmp_path) as box:
        made = "mkdir -p fake/dir && echo kept > fake/file && echo secret > fake/env"
        assert (await box.run("before", made))["exit_code"] == 0
        root = f"{box.workspace}/fake"
        sandbox = await box.planned(fixed=(root,), readonly=(f"{root}/file", f"{root}/dir"), masked=(f"{root}/env",))
        script = """
            mv fake elsewhere && exit 1; rm -rf fake/dir; echo x > fake/file && exit 2; touch fake/dir/x && exit 3
            umount fake/file && exit 4
            test "$(cat fake/file)" = kept || exit 5; test -z "$(cat fake/env)" || exit 6
            touch fake/beside"""
        assert (await box.run("covered", script, sandbox=sandbox))["exit_code"] == 0, box.log("covered")
        assert (await box.run("after", "cat fake/env; echo x > fake/file; mv fake fake-2; rm -r fake-2"))[
            "exit_code"
        ] == 0
        assert b"secret" in box.log("after")
        await box.nothing_left()
