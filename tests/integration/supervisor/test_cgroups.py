"""Limits on what a sandbox uses, by real cgroups and limits of processes: bounded bombs, as an unprivileged user."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import resource
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

from shellback.exec.supervisor.sandbox import cgroups, hierarchies, rlimits
from shellback.exec.supervisor.sandbox.cgroups import Cgroups
from shellback.exec.wire.sandbox import Bounds
from tests.databases import unavailable
from tests.sandboxes import Boxes
from tests.supervisors import fork, score

pytestmark = pytest.mark.anyio

NOBODY: Final = 65534
MIB: Final = 1 << 20
_CLONE_NEWUSER: Final = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)

Act = Callable[[], object]


def in_child(act: Act, *before: Act) -> tuple[str, int]:
    """What a process says and its exit code, or minus signal: it does `before`, becomes nobody and says `act()`."""
    reads, writes = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(reads)
            for step in before:
                step()
            become_nobody()
            os.write(writes, str(act()).encode())
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - said to the parent
            os.write(writes, repr(error).encode())
        finally:
            os._exit(99)
    os.close(writes)
    with open(reads, encoding="utf-8") as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def enter_namespace() -> None:
    assert _libc.unshare(_CLONE_NEWUSER) == 0, os.strerror(ctypes.get_errno())


def bomb() -> tuple[int, int]:
    """Fork 50 times at most and say how many sleep then, and the errno of the fork that failed."""
    children: list[int] = []
    number = 0
    stays, leaves = os.pipe()
    while len(children) < 50 and not number:
        try:
            pid = fork()
        except OSError as error:
            number = error.errno or 0
            continue
        if pid == 0:
            os.close(leaves)
            os.read(stays, 1)
            os._exit(0)
        children.append(pid)
    os.close(leaves)
    for pid in children:
        os.waitpid(pid, 0)
    return len(children), number


def hog() -> str:
    """Use 256 MiB of memory."""
    with mmap.mmap(-1, 256 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    return "had it"


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def groups(notes: list[str]) -> Generator[Cgroups]:
    found = Cgroups(f"test.{os.getpid():x}", notes.append)
    found.probe()
    if not (found.memory and found.processes) and os.geteuid() != 0:
        pytest.skip("no group of cgroups is this user's")
    if not (found.memory and found.processes):
        unavailable(f"cgroups cannot limit here: {found.says}")
    try:
        yield found
    finally:
        deadline = time.monotonic() + 30
        while found.leftovers() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found.leftovers() == 0


def bounded(said: tuple[str, int], most: int) -> bool:
    """Whether forks ended at the bound: what has just ended still counts for a moment, so a few may be missing."""
    return said in {(f"({count}, {errno.EAGAIN})", 0) for count in range(most - 6, most + 1)}


def folders_of(group: cgroups.Group) -> list[Path]:
    return [Path(folder) for folder in group._folders]  # pyright: ignore[reportPrivateUsage]


def test_all_members_of_a_group_count_together(groups: Cgroups) -> None:
    group = groups.make("two", memory_bytes=0, processes=20)
    assert group is not None
    first = fork()
    if first == 0:
        with contextlib.suppress(BaseException):
            group.join()
            signal.pause()
        os._exit(0)
    try:
        deadline = time.monotonic() + 30
        while str(first) not in (folders_of(group)[0] / "cgroup.procs").read_text().split():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert bounded(in_child(bomb, group.join), 18)
        assert not group.remove(), "a group with a process in it stays"
        assert groups.leftovers() == 1
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    assert groups.leftovers() == 0
    assert group.remove(), "gone is gone"


def test_a_hog_is_killed_by_the_kernel_and_its_neighbour_lives(groups: Cgroups) -> None:
    group = groups.make("hog", memory_bytes=64 * MIB, processes=0)
    assert group is not None
    assert in_child(hog) == ("had it", 0)
    lives, ends = os.pipe()
    neighbour = fork()
    if neighbour == 0:
        with contextlib.suppress(BaseException):
            group.join()
            os.close(ends)
            os.read(lives, 1)
        os._exit(7)
    os.close(lives)
    assert in_child(hog, group.join) == ("", -signal.SIGKILL)
    os.close(ends)
    assert os.waitstatus_to_exitcode(os.waitpid(neighbour, 0)[1]) == 7
    assert group.remove()


def test_a_group_that_is_there_is_taken_over_with_new_limits(groups: Cgroups, notes: list[str]) -> None:
    for processes, memory in ((20, 64), (40, 512), (10, 32)):
        group = groups.make("again", memory_bytes=memory * MIB, processes=processes)
        assert group is not None
        assert not notes
        assert bounded(in_child(bomb, group.join), processes - 1)
        assert in_child(hog, group.join)[1] == (0 if memory > 256 else -signal.SIGKILL)
    assert groups.leftovers(keep=["again"]) == 0
    assert all(folder.exists() for folder in folders_of(group))
    assert group.remove()


def test_without_limits_there_is_no_group(groups: Cgroups) -> None:
    assert groups.make("none", memory_bytes=0, processes=0) is None


def test_groups_of_others_stay(groups: Cgroups, notes: list[str]) -> None:
    other = Cgroups(f"test.{os.getpid():x}0", notes.append)
    other.probe()
    assert other.processes
    theirs = other.make("theirs", memory_bytes=0, processes=5)
    assert theirs is not None
    assert groups.leftovers() == 0
    assert all(folder.exists() for folder in folders_of(theirs))
    assert theirs.remove()


def test_a_dead_supervisor_s_groups_are_removed_by_the_next(groups: Cgroups, notes: list[str]) -> None:
    dead = groups.make("left", memory_bytes=64 * MIB, processes=5)
    kept = groups.make("kept", memory_bytes=64 * MIB, processes=5)
    assert dead is not None
    assert kept is not None
    following = Cgroups(f"test.{os.getpid():x}", notes.append)
    following.probe()
    assert following.leftovers(keep=["kept"]) == 0
    assert not any(folder.exists() for folder in folders_of(dead))
    assert all(folder.exists() for folder in folders_of(kept))
    assert kept.remove()


def test_one_who_may_make_no_group_is_told_why(notes: list[str]) -> None:
    def probe() -> str:
        found = Cgroups("nobody", notes.append)
        found.probe()
        assert (found.memory, found.processes) == (False, False)
        assert found.make("x", memory_bytes=MIB, processes=1) is None
        assert found.leftovers() == 0
        return found.says

    said, code = in_child(probe)
    if "no cgroup limits" not in said:
        unavailable(f"an unprivileged user may make groups here: {said}")
    assert code == 0
    assert said.startswith("no cgroup limits memory or processes: ")
    assert len(said) > len("no cgroup limits memory or processes: ")


SYSTEMD: Final = "0::/system.slice/shellback.service"
MOUNT: Final = "30 23 0:26 / {folder} rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("groups_of", "mounts", "says"),
    [
        ("0::/\n", "", "no cgroup file system is mounted"),
        (f"{SYSTEMD}\n", MOUNT, "not delegated"),
        ("0::/\n", MOUNT, "no controller of memory or processes"),
        ("0::/../other\n", MOUNT, "no cgroup file system is mounted"),
        ("4:memory:/docker/a\n", "30 23 0:26 /docker/b {folder} ro - cgroup cgroup ro,memory\n", "no cgroup"),
        ("4:memory:/docker/a\n", "30 23 0:26 /docker/a {folder}/x ro - cgroup cgroup ro,memory\n", "No such file"),
    ],
)
def test_a_machine_whose_cgroups_are_not_for_us_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups_of: str, mounts: str, says: str
) -> None:
    unit = tmp_path / "system.slice" / "shellback.service"
    unit.mkdir(parents=True)
    (unit / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    files = {"/proc/self/cgroup": groups_of, "/proc/self/mountinfo": mounts.format(folder=tmp_path)}
    read = hierarchies.read

    def seen(path: str) -> str:
        return files[path] if path in files else read(path)

    monkeypatch.setattr(hierarchies, "read", seen)
    found = Cgroups("t", lambda _: None)
    found.probe()
    assert (found.memory, found.processes) == (False, False)
    assert says in found.says


def test_limits_of_a_process_hold_for_its_children(tmp_path: Path) -> None:
    def write() -> str:
        fd = os.memfd_create("file")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return f"{os.write(fd, bytes(2 * MIB))} {resource.getrlimit(resource.RLIMIT_CORE)}"

    def allocate() -> str:
        try:
            return hog()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    assert tmp_path.exists()
    assert in_child(write, lambda: rlimits.set_limits(file_bytes=MIB)) == (f"{MIB} (0, 0)", 0)
    assert in_child(allocate, lambda: rlimits.set_limits(data_bytes=128 * MIB)) == ("ENOMEM", 0)


def test_processes_are_counted_in_the_namespace_alone_where_the_kernel_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", fork)
    uid, gid = (NOBODY, NOBODY) if os.getuid() == 0 else (os.getuid(), os.getgid())
    if not rlimits.counts_by_namespace(uid, gid):
        unavailable("this kernel counts all processes of a user, or makes no user namespaces")

    def bomb_inside() -> object:
        enter_namespace()
        rlimits.set_limits(processes=20)
        return bomb()

    def bomb_in_a_limited_namespace() -> object:
        stays, leaves = os.pipe()
        for _ in range(25):
            if fork() == 0:
                os.close(leaves)
                os.read(stays, 1)
                os._exit(0)
        rlimits.set_limits(processes=20)
        enter_namespace()
        return bomb()

    assert bounded(in_child(bomb_inside), 19)
    said, _ = in_child(bomb_in_a_limited_namespace)
    assert said == f"(0, {errno.EAGAIN})", (
        "a namespace holds all of its maker's processes to the limit it was made with"
    )


EXPENDABLE = 500
LIMIT = 96 << 20
HOG = "room = bytearray(512 << 20); room[:: 4096] = b'x' * len(room[:: 4096]); print('had it')"


@pytest.mark.parametrize("pty", [None, (24, 80)], ids=["pipes", "terminal"])
async def test_a_command_in_a_sandbox_is_ended_before_its_supervisor_where_memory_is_short(
    box: Boxes, pty: tuple[int, int] | None
) -> None:
    # The second one goes by what stands there before it.
    for name in ("first", "second"):
        await box.run(name, "/bin/sh", "-c", "cat /proc/self/oom_score_adj", pty=pty)
        assert int(box.log(name)) == max(EXPENDABLE, score(os.getpid()))
    for pid in await box.pids():
        assert score(pid) == score(os.getpid())


@pytest.mark.usefixtures("groups")
async def test_a_command_that_takes_more_than_the_limit_is_ended_and_nobody_else(box: Boxes) -> None:
    more: dict[str, Any] = {"sandbox": await box.planned(bounds=Bounds(memory_bytes=LIMIT))}
    await box.start("bystander", "/bin/sh", "-c", "echo ready; exec sleep 600", **more, shows=b"ready")
    before = await box.pids()
    async with asyncio.timeout(60):
        record = await box.run("hog", "python3", "-c", HOG, **more)
    assert (record["signal"], box.log("hog")) == (signal.SIGKILL, b"")
    assert await box.live() == ["bystander"]
    assert await box.pids() == before
    assert (await box.run("next", "/bin/sh", "-c", "exit 7", **more))["exit_code"] == 7
