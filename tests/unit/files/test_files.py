"""File operations in real directories: what they do, what they refuse, and as whom."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from shellback.exec.core.errors import CommandDenied, InvalidCommand, PathOutsideSandbox, WorkspaceUnusable
from shellback.exec.files.contents import FileTooLarge
from shellback.exec.files.files import Files
from tests.filetrees import ROOT, SECRET, UID, give, ground, handled, tree

pytestmark = pytest.mark.anyio


def real(path: Path) -> str:
    return os.path.realpath(path)


def identities() -> Generator[tuple[int, ...]]:
    """User ids of each thread of this process: real, effective, saved, and for files."""
    for status in Path("/proc/self/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        yield tuple(map(int, lines["Uid"].split()))


@pytest.fixture
def made() -> Generator[Path]:
    with ground() as directory:
        yield directory


@pytest.fixture
def workspace(made: Path) -> Path:
    return made / "ws"


@pytest.fixture
async def files(workspace: Path) -> AsyncGenerator[Files]:
    async with handled(workspace) as made:
        yield made


async def test_what_is_written_is_read_and_parents_are_made(files: Files, workspace: Path) -> None:
    wrote = await files.write_bytes("a/b/c", b"\0one\xff")
    assert (wrote.name, wrote.path, wrote.size, wrote.is_dir) == ("c", f"{workspace}/a/b/c", 5, False)
    assert await files.read_bytes(f"{workspace}/a/b/c") == b"\0one\xff"
    assert await files.read_bytes("a/./b//c") == b"\0one\xff"
    await files.write_bytes("a/b/c", b"two")
    await files.write_bytes("a/b/c", b"+", mode="append")
    assert (workspace / "a/b/c").read_bytes() == b"two+"
    with pytest.raises(FileExistsError):
        await files.write_bytes("a/b/c", b"", mode="create")


async def test_the_inner_path_is_what_commands_see(workspace: Path) -> None:
    async with handled(workspace, inner="/workspace") as files:
        assert (await files.write_bytes("/workspace/a/f", b"x")).path == "/workspace/a/f"
        os.symlink("/workspace/a", workspace / "link")
        os.symlink(workspace / "a", workspace / "host")
        assert await files.read_bytes("link/f") == b"x"
        assert await files.realpath("link/new") == "/workspace/a/new"
        assert [one.path for one in (await files.glob("**/f")).entries] == ["/workspace/a/f"]
        for outside in (str(workspace / "a" / "f"), "host/f", "/workspaces", "/"):
            with pytest.raises(PathOutsideSandbox):
                await files.read_bytes(outside)


@pytest.mark.parametrize(
    "path", ["..", "a/../../x", "/etc/passwd", "/", "out/f", "above/ws/a/f", "absolute", "up/../x"]
)
async def test_no_path_leads_out(files: Files, made: Path, path: str) -> None:
    await files.write_bytes("a/f", b"x")
    for name, target in {
        "out": "../outside",
        "above": "..",
        "absolute": str(made / "outside" / "f"),
        "up": "..",
    }.items():
        os.symlink(target, made / "ws" / name)
    before = tree(made)
    for done in (
        files.read_bytes(path),
        files.write_bytes(path, b"y"),
        files.write_bytes(path, b"y", atomic=True),
        files.list_dir(path),
        files.make_dir(f"{path}/new"),
        files.remove(f"{path}/f"),
        files.realpath(path),
        files.exists(path),
        files.glob("*", path=path),
        files.grep(".", path=path),
    ):
        with pytest.raises(PathOutsideSandbox):
            await done
    assert tree(made) == before


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "\ud800"])
async def test_what_can_be_no_path_is_refused(files: Files, path: str) -> None:
    for done in (files.read_bytes(path), files.write_bytes(path, b""), files.realpath(path)):
        with pytest.raises(InvalidCommand):
            await done


async def test_errors_are_those_of_python_with_the_path_as_given(files: Files, workspace: Path) -> None:
    await files.write_bytes("file", b"x")
    await files.make_dir("dir/sub")
    os.symlink("loop", workspace / "loop")
    expected = {
        FileNotFoundError: [files.read_bytes("no"), files.stat("no/no"), files.list_dir("no"), files.remove("no")],
        IsADirectoryError: [files.read_bytes("dir"), files.write_bytes("dir", b""), files.write_bytes("new/", b"")],
        NotADirectoryError: [
            files.write_bytes("file/x", b""),
            files.make_dir("file/x"),
            files.list_dir("file"),
            files.read_bytes("file/"),
        ],
        FileExistsError: [files.make_dir("file"), files.write_bytes("file", b"", mode="create", atomic=True)],
    }
    for kind, calls in expected.items():
        for call in calls:
            with pytest.raises(kind) as raised:
                await call
            assert str(workspace) not in str(raised.value.filename)
            assert raised.value.filename
    with pytest.raises(OSError, match="loop") as looped:
        await files.read_bytes("loop")
    assert looped.value.errno == errno.ELOOP
    assert not await files.exists("loop")
    assert not await files.exists("file/x")


async def test_nothing_waits_for_a_pipe_or_talks_to_a_socket(files: Files, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(workspace / "sock"))
        give(workspace)
        for name in ("pipe", "sock"):
            for call in (
                files.read_bytes(name),
                files.write_bytes(name, b"x"),
                files.write_bytes(name, b"x", atomic=True),
            ):
                with pytest.raises(OSError, match="not a regular file"):
                    await asyncio.wait_for(call, 30)
    assert (await files.grep("x")).unreadable == 0
    assert await files.remove("pipe") == 1


async def test_links_are_followed_inside_and_removed_themselves(files: Files, workspace: Path) -> None:
    await files.write_bytes("target/f", b"old")
    os.symlink("target", workspace / "link")
    os.symlink(f"{workspace}/target/f", workspace / "file")
    os.symlink("target/made", workspace / "dangling")
    for atomic in (False, True):
        await files.write_bytes("file", b"new", atomic=atomic)
        assert (workspace / "target/f").read_bytes() == b"new"
        assert (workspace / "file").is_symlink()
    await files.write_bytes("dangling", b"through")
    assert (workspace / "target/made").read_bytes() == b"through"
    entries = {one.name: (one.is_dir, one.size, one.link) for one in await files.list_dir()}
    assert entries == {
        "dangling": (False, 7, True),
        "file": (False, 3, True),
        "link": (True, None, True),
        "target": (True, None, False),
    }
    assert (await files.stat("link")).is_dir
    assert await files.remove("link") == 1
    assert await files.remove("target") == 3
    assert not await files.exists("file")


async def test_realpath_climbs_from_where_a_link_leads(files: Files, workspace: Path) -> None:
    await files.make_dir("a/b")
    for name, target in {"rel": "b", "up": "../out", "one": "two", "two": "one"}.items():
        os.symlink(target, workspace / "a" / name)
    for given in (
        "a/rel/missing",
        "a/up/missing",
        "a/rel/..",
        "a/up/..",
        "no/../a/rel/x/../y",
        "a/rel/.",
        ".",
        "no/no",
    ):
        assert await files.realpath(given) == real(workspace / given)
    with pytest.raises(OSError, match="symbolic links"):
        await files.realpath("a/one/x")


async def test_the_workspace_and_what_it_is_in_stay(files: Files, workspace: Path) -> None:
    await files.write_bytes("a/f", b"x")
    os.symlink(".", workspace / "self")
    for path in (".", "", "a/..", str(workspace), f"{workspace}/", str(workspace.parent), "/", "self/."):
        with pytest.raises(InvalidCommand):
            await files.remove(path)
    assert await files.remove("self") == 1
    assert (workspace / "a/f").exists()


async def test_a_tree_deeper_than_descriptors_is_removed(files: Files, workspace: Path) -> None:
    here = os.open(workspace, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            os.chown("d", UID, -1, dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    assert await files.remove("d") == 1500
    assert os.listdir(workspace) == []


async def test_what_is_forbidden_is_asked_by_its_true_name_before_anything_is_made(workspace: Path) -> None:
    asked: list[str] = []

    def forbidden(path: Path) -> str | None:
        asked.append(str(path.relative_to(workspace)))
        return "because" if "held" in path.parts else None

    async with handled(workspace, forbidden=forbidden) as files:
        os.symlink("held", workspace / "link")
        for call in (
            files.write_bytes("link/new/f", b""),
            files.write_bytes("held", b""),
            files.make_dir("link/x"),
            files.make_dir("held"),
        ):
            with pytest.raises(CommandDenied, match="because"):
                await call
        assert os.listdir(workspace) == ["link"]
        assert set(asked) == {"held/new/f", "held", "held/x"}
        (workspace / "held").mkdir()
        (workspace / "held" / "f").write_text("x")
        give(workspace)
        for call in (files.remove("link/f"), files.write_bytes("held/f", b"y", atomic=True), files.remove("held")):
            with pytest.raises(PermissionError, match="because"):
                await call
        assert await files.read_bytes("held/f") == b"x"


async def test_a_check_ends_the_call_with_nothing_done(files: Files, workspace: Path) -> None:
    await files.write_bytes("f", b"what is there")
    seen: list[tuple[str, bytes | None]] = []

    def check(path: str, descriptor: int | None) -> None:
        seen.append((path, None if descriptor is None else os.pread(descriptor, 4, 0)))
        raise CommandDenied("not this")

    for call in (
        files.read_bytes("f", check=check),
        files.write_bytes("f", b"new", check=check),
        files.write_bytes("a/new", b"new", check=check),
        files.remove("f", check=check),
    ):
        with pytest.raises(CommandDenied):
            await call
    f = (f"{workspace}/f", b"what")
    assert seen == [f, f, (f"{workspace}/a/new", None), f]
    assert tree(workspace) == {"f": b"what is there"}


async def test_too_much_is_refused_with_its_size(files: Files, workspace: Path) -> None:
    with (workspace / "big").open("wb") as big:
        big.truncate(65 * 1024 * 1024)
    for reading in (files.read_bytes("big"), files.read_text("big")):
        with pytest.raises(FileTooLarge, match=f"{65 * 1024 * 1024} .* with a command"):
            await reading


async def test_a_workspace_that_is_gone_is_said(files: Files, workspace: Path) -> None:
    os.rmdir(workspace)
    with pytest.raises(WorkspaceUnusable, match="put it back"):
        await files.list_dir()


async def test_no_descriptor_is_left_open(files: Files, workspace: Path) -> None:
    async def everything() -> None:
        await files.write_bytes("a/f", b"x", atomic=True)
        await files.glob("**/*")
        await files.write_bytes("a/f", b"y", mode="append")
        for path in ("no/f", "a/f/x", "loop", "out/f", "../x", "a", "pipe"):
            for call in (files.read_bytes(path), files.write_bytes(f"{path}/f/f", b""), files.list_dir(path)):
                with contextlib.suppress(OSError, ValueError):
                    await call
        await files.remove("no")
        await files.remove("a")

    os.symlink("loop", workspace / "loop")
    os.symlink("../outside", workspace / "out")
    os.mkfifo(workspace / "pipe")
    await everything()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await everything()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_files_belong_to_whom_commands_run_as(files: Files, workspace: Path) -> None:
    await files.write_bytes("a/f", b"x")
    await files.write_bytes("g", b"x", atomic=True)
    for name, mode in {"a": 0o755, "a/f": 0o644, "g": 0o644}.items():
        status = (workspace / name).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (UID, mode)
    async with handled(workspace, umask=0o002) as shared:
        await shared.write_bytes("b/f", b"x")
    assert ((workspace / "b").stat().st_mode & 0o777, (workspace / "b/f").stat().st_mode & 0o777) == (0o775, 0o664)
    assert os.umask(0o022) == 0o022


async def test_an_atomic_write_keeps_the_mode_and_leaves_nothing_beside_it(files: Files, workspace: Path) -> None:
    await files.write_bytes("f", b"old")
    (workspace / "f").chmod(0o750)
    await files.write_bytes("f", b"new", atomic=True)
    assert (tree(workspace), (workspace / "f").stat().st_mode & 0o777) == ({"f": b"new"}, 0o750)


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
async def test_root_has_no_more_than_commands_have(files: Files, workspace: Path) -> None:
    (workspace / "mine").write_bytes(SECRET)
    (workspace / "mine").chmod(0o600)
    (workspace / "group").write_bytes(SECRET)
    (workspace / "group").chmod(0o640)
    (workspace / "closed").mkdir(mode=0o700)
    for call in (
        files.read_bytes("mine"),
        files.read_bytes("group"),
        files.write_bytes("mine", b"x"),
        files.write_bytes("mine", b"x", atomic=True),
        files.list_dir("closed"),
        files.write_bytes("closed/f", b"x"),
    ):
        with pytest.raises(PermissionError):
            await call
    assert (await files.grep("outside")).unreadable == 2
    assert (workspace / "mine").read_bytes() == SECRET
    seen = set(identities())
    assert seen == {(0, 0, 0, 0), (0, 0, 0, UID)}, "real, effective and saved ids stay, so nobody may signal a thread"


@pytest.mark.skipif(not ROOT, reason="others handle files as themselves")
async def test_a_workspace_reached_by_a_mount_alone_may_be_in_a_directory_of_root(made: Path, workspace: Path) -> None:
    os.chmod(made, 0o700)
    async with handled(workspace, inner="/workspace") as files, handled(workspace) as plain:
        await files.write_bytes("a/f", b"x")
        assert await files.read_bytes("/workspace/a/../a/f") == b"x"
        assert [one.path for one in (await files.grep("x")).hits] == ["/workspace/a/f"]
        with pytest.raises(PathOutsideSandbox):
            await files.read_bytes("../outside/f")
        with pytest.raises(WorkspaceUnusable):
            await plain.list_dir()
        os.chmod(workspace, 0o700)
        os.chown(workspace, 0, 0)
        with pytest.raises(WorkspaceUnusable):
            await files.list_dir()


@pytest.mark.skipif(not ROOT, reason="only root could be root here")
def test_nobody_handles_files_as_root(workspace: Path) -> None:
    with pytest.raises(ValueError, match="root"):
        Files(workspace, uid=0)


async def test_a_cancelled_write_is_done_or_not_begun(files: Files, workspace: Path) -> None:
    data = b"x" * 5_000_000
    calls = [asyncio.create_task(files.write_bytes(f"f{number}", data)) for number in range(20)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    sizes = {name: (workspace / name).stat().st_size for name in os.listdir(workspace)}
    assert set(sizes.values()) <= {len(data)}
    assert len(sizes) < len(calls)
