"""Host mounts: all of what they bring or nothing of it, never from elsewhere, never over what an agent wrote."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.mounts import hydration, tree
from shellback.exec.backends.mounts.hydration import Owner, forget, hydrate
from shellback.exec.backends.mounts.mount import HostMount
from shellback.exec.backends.mounts.tree import CHARS, PATHS, preview
from shellback.exec.core.errors import MountUnusable, WorkspaceUnusable
from tests.supervisors import raising, returning

BINARY = bytes(range(256)) * 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An allowed root with a project in it."""
    project = tmp_path / "root" / "project"
    (project / "src" / "deep").mkdir(parents=True)
    (project / "src" / "a.py").write_text("a")
    (project / "src" / "deep" / "b.py").write_text("bb")
    (project / "src" / "deep" / "c.bin").write_bytes(BINARY)
    (project / "run").write_text("#!/bin/sh\n")
    (project / "run").chmod(0o750)
    (project / "empty").mkdir()
    return project.parent


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "podman" / "scope"


def files(workspace: Path) -> set[str]:
    return {str(path.relative_to(workspace)) for path in workspace.rglob("*") if not path.is_dir()}


def filled(mount: HostMount, workspace: Path, root: Path, **more: Any) -> int | None:
    return hydrate([mount], workspace, roots=[root], **more)


def nothing_is_left(workspace: Path) -> bool:
    """Whether neither the workspace nor a beginning of one is there."""
    return not workspace.exists() and [path.suffix for path in workspace.parent.iterdir()] in ([], [".filled"])


def refused(why: str, mount: HostMount, workspace: Path, root: Path, **more: Any) -> None:
    """The mount is refused for this reason, and nothing was made."""
    with pytest.raises(MountUnusable, match=why):
        filled(mount, workspace, root, **more)
    assert nothing_is_left(workspace)


def test_bytes_modes_and_empty_directories_are_copied(root: Path, workspace: Path) -> None:
    assert filled(HostMount("project"), workspace, root) == 4
    copy = workspace / "project"
    assert (copy / "src/deep/c.bin").read_bytes() == BINARY
    assert stat.S_IMODE((copy / "run").stat().st_mode) == 0o750
    assert (copy / "empty").is_dir()
    assert stat.S_IMODE(workspace.parent.stat().st_mode) == 0o700
    assert {path.name for path in workspace.parent.iterdir()} == {"scope", ".scope.filled"}


def test_set_id_bits_do_not_come_along_and_the_group_may_what_the_owner_may(root: Path, workspace: Path) -> None:
    (root / "project/run").chmod(0o6755)
    filled(HostMount("project"), workspace, root, owner=Owner(group=True))
    assert stat.S_IMODE((workspace / "project/run").stat().st_mode) == 0o775
    assert stat.S_IMODE((workspace / "project").stat().st_mode) & 0o070 == 0o070


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_copies_belong_to_whom_commands_run_as(root: Path, workspace: Path) -> None:
    os.symlink("run", root / "project/link")
    filled(HostMount("project"), workspace, root, owner=Owner(uid=65534, gid=65534))
    owners = {path.lstat().st_uid for path in (workspace, *workspace.rglob("*"))}
    assert owners == {65534}


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), (), {"src/a.py", "src/deep/b.py", "src/deep/c.bin", "run"}),
        (("*.py",), (), {"src/a.py", "src/deep/b.py"}),
        (("src/*.py",), (), {"src/a.py"}),
        (("**/*.py",), ("src/deep",), {"src/a.py"}),
        ((), ("deep",), {"src/a.py", "run"}),
        ((), ("src/**",), {"run"}),
        ((), ("*.py", "run"), {"src/deep/c.bin"}),
        (("[ab].py",), (), {"src/a.py", "src/deep/b.py"}),
    ],
)
def test_globs_choose_files(
    root: Path, workspace: Path, include: tuple[str, ...], exclude: tuple[str, ...], expected: set[str]
) -> None:
    mount = HostMount(root / "project", ".", include_glob=include, exclude_glob=exclude)
    assert filled(mount, workspace, root) == len(expected)
    assert files(workspace) == expected
    assert (workspace / "empty").exists() == (not include)


@pytest.mark.parametrize(
    ("mount_path", "expected"),
    [
        (None, "project/run"),
        ("there/it/is", "there/it/is/run"),
        ("./a//b/", "a/b/run"),
        ("/workspace", "run"),
        ("/workspace/a", "a/run"),
        ("a/../b", "b/run"),
        (".", "run"),
    ],
)
def test_it_goes_where_it_is_wanted(root: Path, workspace: Path, mount_path: str | None, expected: str) -> None:
    filled(HostMount("project", mount_path), workspace, root)
    assert expected in files(workspace)


def test_one_file_is_a_mount_too(root: Path, workspace: Path) -> None:
    hydrate([HostMount("project/run"), HostMount("project/src/a.py", ".")], workspace, roots=[root])
    assert files(workspace) == {"run", "a.py"}


@pytest.mark.parametrize("mount_path", ["..", "../x", "a/../../b", "/etc", "/workspacex", "/workspace/../x", "a\0b"])
def test_a_mount_path_outside_the_workspace_is_refused(mount_path: str) -> None:
    with pytest.raises(MountUnusable, match=r"workspace|NUL"):
        HostMount("project", mount_path)


@pytest.mark.parametrize("host_path", ["/etc", "../outside", "project/../../outside", "link", "/"])
def test_what_is_in_no_allowed_root_is_refused(root: Path, workspace: Path, host_path: str) -> None:
    (root.parent / "outside").mkdir()
    (root.parent / "root-sibling").mkdir()
    os.symlink(root.parent / "outside", root / "link")
    refused("in none of the directories", HostMount(host_path), workspace, root)
    refused("in none of the directories", HostMount(root.parent / "root-sibling"), workspace, root)


def test_without_an_allowed_root_nothing_is_mounted(root: Path, workspace: Path) -> None:
    with pytest.raises(MountUnusable, match="HOST_MOUNT_ROOTS"):
        hydrate([HostMount(root / "project")], workspace, roots=[])
    with pytest.raises(MountUnusable, match="cannot be read"):
        hydrate([HostMount("project")], workspace, roots=[root / "missing"])


def test_what_is_missing_is_named(root: Path, workspace: Path) -> None:
    refused(r"absent.*does not exist", HostMount("absent"), workspace, root)


@pytest.mark.parametrize("limit", [1, len(BINARY) - 1, len(BINARY) + 12])
def test_over_budget_nothing_is_copied(root: Path, workspace: Path, limit: int) -> None:
    refused(f"more than {limit:,} bytes", HostMount("project", max_bytes=limit), workspace, root)
    assert filled(HostMount("project", max_bytes=len(BINARY) + 13), workspace, root) == 4


def test_a_mount_without_a_budget_may_have_a_gibibyte(root: Path, workspace: Path) -> None:
    with open(root / "project/large", "wb") as large:
        large.truncate(2**30 + 1)
    refused("more than 1,073,741,824 bytes", HostMount("project"), workspace, root)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(path.parent)  # the whole path may be too long for one
        try:
            listening.bind(path.name)
        finally:
            os.chdir(before)


@pytest.mark.parametrize(("make", "said"), [(os.mkfifo, "a FIFO"), (a_socket, "a socket")])
def test_what_is_no_file_is_refused_by_name(
    root: Path, workspace: Path, make: Callable[[Path], None], said: str
) -> None:
    make(root / "project/src/odd")
    refused(f"src/odd is {said}", HostMount("project"), workspace, root)
    assert filled(HostMount("project", exclude_glob=("odd",)), workspace, root) == 4


def test_a_device_is_refused_by_name(workspace: Path) -> None:
    with pytest.raises(MountUnusable, match="/dev/null is a device"):
        hydrate([HostMount("/dev/null")], workspace, roots=["/dev"])


def test_symlinks_that_stay_inside_are_copied_as_they_are(root: Path, workspace: Path) -> None:
    os.symlink("../run", root / "project/src/up")
    os.symlink("nothing-yet", root / "project/broken")
    filled(HostMount("project"), workspace, root)
    assert os.readlink(workspace / "project/src/up") == "../run"
    assert os.readlink(workspace / "project/broken") == "nothing-yet"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "../secret", "src/../../secret", "turn/../secret"])
def test_a_symlink_out_of_the_mount_is_refused(root: Path, workspace: Path, target: str) -> None:
    (root / "secret").write_text("no")
    os.symlink(".", root / "project/turn")
    os.symlink(target, root / "project/link")
    refused("link is a symlink to", HostMount("project"), workspace, root)


def test_followed_symlinks_bring_what_they_name_from_allowed_roots_only(root: Path, workspace: Path) -> None:
    (root / "shared").mkdir()
    (root / "shared/s.txt").write_text("shared")
    os.symlink(root / "shared", root / "project/there")
    filled(HostMount("project", follow_symlinks=True), workspace, root)
    assert (workspace / "project/there/s.txt").read_text() == "shared"
    assert not (workspace / "project/there").is_symlink()
    forget(workspace)
    (root.parent / "outside").write_text("no")
    os.symlink(root.parent / "outside", root / "project/out")
    refused("in none of the directories", HostMount("project", follow_symlinks=True), workspace, root)


def test_followed_symlinks_in_a_circle_are_refused(root: Path, workspace: Path) -> None:
    os.symlink("..", root / "project/src/again")
    refused("back to a directory", HostMount("project", follow_symlinks=True), workspace, root)


def test_what_an_agent_wrote_or_removed_stays(root: Path, workspace: Path) -> None:
    filled(HostMount("project"), workspace, root)
    (workspace / "project/run").write_text("mine")
    assert filled(HostMount("project"), workspace, root) is None
    assert (workspace / "project/run").read_text() == "mine"
    for path in sorted(workspace.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    inode = workspace.stat().st_ino  # which a container may have mounted
    assert filled(HostMount("project"), workspace, root) is None
    assert workspace.stat().st_ino == inode
    assert files(workspace) == set()
    forget(workspace)
    assert filled(HostMount("project"), workspace, root) == 4


def test_a_workspace_that_has_files_already_is_left_alone(root: Path, workspace: Path) -> None:
    workspace.mkdir(parents=True)
    (workspace / "mine").write_text("x")
    assert filled(HostMount("project"), workspace, root) is None
    assert files(workspace) == {"mine"}


def test_half_a_hydration_is_made_anew(root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(hydration, "_sync", raising(Died()))
        patched.setattr("shutil.rmtree", returning(None))  # as kill -9 would, it leaves what is there
        with pytest.raises(Died):
            filled(HostMount("project"), workspace, root)
    assert (workspace.parent / ".scope.new/project/run").exists()
    assert not workspace.exists()
    assert filled(HostMount("project"), workspace, root) == 4
    assert not (workspace.parent / ".scope.new").exists()


def test_a_failure_while_copying_leaves_nothing(root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydration, "_sync", raising(OSError(28, "No space left on device", str(workspace))))
    refused(r"No space left on device; make room", HostMount("project"), workspace, root)


def test_it_can_be_given_up_and_tells_how_far_it_is(
    root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InterruptedError):
        filled(HostMount("project"), workspace, root, stop=lambda: True)
    assert nothing_is_left(workspace)
    monkeypatch.setattr(hydration, "TOLD_S", -1.0)
    with caplog.at_level("INFO"):
        filled(HostMount("project"), workspace, root)
    assert caplog.messages[-1] == "copying host mounts: 4 of 4 files, 1,293 of 1,293 bytes"


def writing_while_read(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> None:
    """Let somebody add to `path` after each block that is read of it, so many times."""
    left = [times]
    read = os.read

    def reading(fd: int, size: int) -> bytes:
        block = read(fd, size)
        if block and left[0] and os.fstat(fd).st_ino == path.stat().st_ino:
            left[0] -= 1
            with path.open("a") as out:
                out.write("more")
        return block

    monkeypatch.setattr(hydration.os, "read", reading)


def test_a_file_that_changes_meanwhile_is_copied_again_and_said(
    root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changing = root / "project/run"
    writing_while_read(monkeypatch, changing, 1)
    filled(HostMount("project"), workspace, root)
    assert (workspace / "project/run").read_text() == changing.read_text()
    assert f"1 files of host mounts changed while they were copied, {changing} the first" in caplog.text


def test_a_file_that_never_rests_is_refused(root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing_while_read(monkeypatch, root / "project/run", 1000)
    refused(r"run changes each time", HostMount("project"), workspace, root)


def test_a_file_that_grows_over_budget_while_it_is_copied_is_refused(
    root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing_while_read(monkeypatch, root / "project/run", 1)
    budget = len(BINARY) + 13
    refused(f"and others grew beyond {budget:,} bytes", HostMount("project", max_bytes=budget), workspace, root)


def test_what_is_swapped_for_a_symlink_between_look_and_copy_is_not_followed(
    root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root.parent / "secret").mkdir()
    (root.parent / "secret/a.py").write_text("no")
    plan = tree.plan

    def planned(*args: Any) -> Any:
        found = plan(*args)
        (root / "project/src").rename(root / "project/away")
        os.symlink(root.parent / "secret", root / "project/src")
        return found

    monkeypatch.setattr("shellback.exec.backends.mounts.hydration.plan", planned)
    refused("went away while it was copied", HostMount("project"), workspace, root)


def test_two_at_once_make_one(root: Path, workspace: Path) -> None:
    barrier = threading.Barrier(4)

    def one(_number: int) -> bool:
        barrier.wait(timeout=30)
        return filled(HostMount("project"), workspace, root) is None

    with ThreadPoolExecutor(4) as threads:
        skipped = sorted(threads.map(one, range(4), timeout=60))
    assert skipped == [False, True, True, True]
    assert len(files(workspace)) == 4


def test_two_mounts_of_the_same_place_are_refused(root: Path, workspace: Path) -> None:
    (root / "other").mkdir()
    (root / "other/run").write_text("x")
    with pytest.raises(MountUnusable, match="both bring run"):
        hydrate([HostMount("project", "."), HostMount("other", ".")], workspace, roots=[root])
    with pytest.raises(MountUnusable, match="needs the directory run"):
        hydrate([HostMount("project", "."), HostMount("other", "run/below")], workspace, roots=[root])
    done = hydrate([HostMount("project/src", "src"), HostMount("other", "src/other")], workspace, roots=[root])
    assert done == 4


def test_too_many_entries_are_refused(root: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ENTRIES", 5)
    refused("more than 5 entries", HostMount("project"), workspace, root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_told_before_anything_is_copied(root: Path, workspace: Path) -> None:
    (root / "project/run").chmod(0)
    refused("Permission denied", HostMount("project"), workspace, root)


def test_a_place_that_cannot_be_written_is_told(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceUnusable, match="SHELLBACK_CACHE"):
        filled(HostMount("project"), tmp_path / "file/podman/scope", root)


def test_a_listed_secret_is_refused_by_name(root: Path, workspace: Path) -> None:
    (root / "project/.env").write_text("KEY=1")
    (root / "project/keys").mkdir()
    (root / "project/link").symlink_to("keys")

    def secret(path: Path) -> bool:
        return path.name in {".env", "keys"}

    for globs in ((), (".env",), ("keys",)):
        mount = HostMount("project", exclude_glob=globs, follow_symlinks=True)
        refused(r"(\.env|keys) may be a secret", mount, workspace, root, secret=secret)
        with pytest.raises(MountUnusable, match="may be a secret"):
            preview([mount], roots=[root], secret=secret)
    assert nothing_is_left(workspace)
    assert filled(HostMount("project", include_glob=("src/*.py",), exclude_glob=("keys",)), workspace, root) == 1


def test_a_preview_names_the_first_files_and_is_bounded(root: Path) -> None:
    assert preview([], roots=[]) == ""
    shown = preview([HostMount("project", include_glob=("*.py",))], roots=[root])
    assert shown.splitlines()[1:] == [
        "- /workspace/project: 2 files, 3 bytes, from project",
        "    project/src/a.py (1 bytes)",
        "    project/src/deep/b.py (2 bytes)",
    ]
    for number in range(PATHS + 5):
        (root / "project" / f"{number:03d}\x1b[31m{'x' * 20}").write_text("")
    many = preview([HostMount("project", str(number)) for number in range(5)], roots=[root])
    assert "and 9 more" in preview([HostMount("project")], roots=[root])
    assert len(many) <= CHARS
    assert "\x1b" not in many


def test_globs_that_mean_nothing_are_refused() -> None:
    for glob in ("", "../x", "a\0"):
        with pytest.raises(MountUnusable, match="include_glob"):
            HostMount("project", include_glob=(glob,))
    with pytest.raises(MountUnusable, match="max_bytes"):
        HostMount("project", max_bytes=0)
