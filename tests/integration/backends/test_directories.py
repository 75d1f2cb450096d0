"""The directory of a conversation: made once and whole, removed only if nothing is lost; nothing of it is executed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.directories import making, marks, removing
from shellback.exec.backends.directories.unsaved import unsaved
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.runner import Runner, make_workspace
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.exec.wire import crashpoints
from tests import filetrees
from tests.filetrees import give
from tests.supervisors import WHO, arm

POINTS = ("directory.begun", "directory.made", "directory.renamed")


def git(place: Path, *words: str, check: bool = True) -> str:
    """What git prints to the user of commands."""
    return filetrees.git(*words, cwd=place, who=WHO, check=check)


class World:
    """A root, a source repository with one commit, and a state directory."""

    def __init__(self, place: Path) -> None:
        self.place, self.root, self.state, self.source = place, place / "root", place / "state", place / "source"
        self.who = Runner()
        self.state.mkdir(mode=0o700)
        make_workspace(self.root)
        make_workspace(self.source)
        git(self.source, "init", "-q", "-b", "main")
        (self.source / "file").write_text("one\n")
        self.commit(self.source)
        give(self.source)

    def commit(self, place: Path, *words: str) -> None:
        git(place, "add", "-A")
        git(place, "commit", "-q", "--allow-empty", "-m", "more", *words)

    def named(self, origin: str, **more: Any) -> NamedWorkspace:
        source = None if origin == "empty" else self.source
        made = NamedWorkspace(path=self.root, per_conversation=True, origin=origin, source=source)
        return replace(made, **more)

    def make(self, origin: str, name: str = "talk", **more: Any) -> Path:
        directory = self.root / name
        making.ensured(self.named(origin, **more), directory, state=self.state, who=self.who)
        return directory

    def left(self) -> list[str]:
        """What lies in the root, and beside the directories in it."""
        return sorted(os.listdir(self.root)) + sorted(os.listdir(self.root / making.AREA))

    def branches(self) -> list[str]:
        return git(self.source, "branch", "--format=%(refname:short)").split()

    def kept(self, origin: str, name: str = "talk") -> str | None:
        return unsaved(self.named(origin), self.root / name, self.who)

    def remove(self, origin: str, name: str = "talk") -> bool:
        directory = self.root / name
        return removing.remove(self.named(origin), directory, state=self.state, who=self.who, free=lambda: True)

    def killed(self, point: str, origin: str, call: str) -> int:
        """The exit status of a process that is killed at a crash point of a call."""
        points = self.place / "points"
        points.mkdir()
        arm(points, point, "kill self")
        code = (
            "from pathlib import Path, PosixPath\n"
            "from shellback.exec.backends.directories import making, removing\n"
            "from shellback.exec.core.runner import Runner\n"
            "from shellback.exec.policy.rules.named import NamedWorkspace\n"
            "from shellback.exec.wire import crashpoints\n"
            f"crashpoints.arm_from({str(points)!r})\n"
            f"named, state = {self.named(origin)!r}, Path({str(self.state)!r})\n"
            f"talk = named.path / 'talk'\n{call}\n"
        )
        return subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.fixture
def world() -> Generator[World]:
    place = Path(tempfile.mkdtemp(prefix="shellback-test-", dir="/tmp"))
    place.chmod(0o755)
    try:
        yield World(place)
    finally:
        crashpoints.arm_from(None)
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("origin", ["empty", "copy", "clone", "worktree"])
def test_a_directory_is_made_once_and_whole_and_belongs_to_the_user_of_commands(world: World, origin: str) -> None:
    made = world.make(origin)
    assert made.stat().st_uid == world.who.uid
    assert (made / "file").exists() is (origin != "empty")
    if origin in {"clone", "worktree"}:
        branch = "shellback/talk" if origin == "worktree" else "main"
        assert git(made, "symbolic-ref", "--short", "HEAD").strip() == branch
        assert git(made, "status", "--porcelain") == ""
        assert (made / "file").stat().st_uid == world.who.uid
    (made / "mine").write_text("mine")
    assert world.make(origin) == made
    assert (made / "mine").read_text() == "mine"
    assert world.left() == [".shellback", "talk"]


def test_no_object_of_a_clone_is_shared_with_its_source(world: World) -> None:
    made = world.make("clone")
    shared = {file.stat().st_ino for file in (world.source / ".git").rglob("*") if file.is_file()}
    assert not shared & {file.stat().st_ino for file in made.rglob("*") if file.is_file()}
    assert not (made / ".git" / "objects" / "info" / "alternates").exists()


@pytest.mark.parametrize("origin", ["copy", "clone", "worktree"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_nothing_half_made_that_is_used_and_a_repeat_finds_it(
    world: World, origin: str, point: str
) -> None:
    assert world.killed(point, origin, "making.ensured(named, talk, state=state, who=Runner())") == -9
    assert (world.root / "talk").exists() is (point == "directory.renamed")
    made = world.make(origin)
    assert git(made, "status", "--porcelain") == ""
    assert (made / "file").read_text() == "one\n"
    assert world.left() == [".shellback", "talk"]
    if origin == "worktree":
        assert world.branches() == ["main", "shellback/talk"]
        listed = git(world.source, "worktree", "list", "--porcelain")
        assert [line for line in listed.splitlines() if line.startswith("worktree")] == [
            f"worktree {world.source}",
            f"worktree {made}",
        ]


@pytest.mark.parametrize("origin", ["copy", "clone", "worktree"])
def test_an_error_in_the_middle_leaves_nothing_and_says_its_cause(world: World, origin: str) -> None:
    points = world.place / "points"
    points.mkdir()
    crashpoints.arm_from(str(points))
    arm(points, "directory.made", f"error {errno.ENOSPC}")
    with pytest.raises(WorkspaceUnusable, match=r"talk, cannot be made: .*\. Correct it and repeat"):
        world.make(origin)
    assert world.left() == [".shellback"]
    assert world.branches() == ["main"]
    world.make(origin)


def test_a_full_disk_is_named_and_nothing_is_left(world: World) -> None:
    """A bound on the sizes of files, as the disk's end is met: by the program that writes."""
    (world.source / "large").write_bytes(os.urandom(1 << 20))
    world.commit(world.source)
    give(world.source)
    for origin in ("copy", "clone"):
        code = (
            "import resource, signal\n"
            "from pathlib import Path\n"
            "from shellback.exec.backends.directories import making\n"
            "from shellback.exec.core.runner import Runner\n"
            "from shellback.exec.policy.rules.named import NamedWorkspace\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            f"named = NamedWorkspace(path=Path({str(world.root)!r}), per_conversation=True, origin={origin!r},"
            f" source=Path({str(world.source)!r}))\n"
            f"making.ensured(named, named.path / 'talk', state=Path({str(world.state)!r}), who=Runner())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert "cannot be made: " in done.stderr
        assert "Correct it and repeat" in done.stderr
        assert world.left() == [".shellback"]


def test_what_cannot_be_a_source_is_refused_with_its_cause(world: World) -> None:
    plain, inside = world.place / "plain", world.root / "inside"
    plain.mkdir()
    inside.mkdir()
    for origin, source, cause in (
        ("copy", world.place / "none", "is missing or no directory"),
        ("clone", world.place / "none", "is missing or no directory"),
        ("clone", plain, "does not exist|does not appear to be a git repository"),
        ("worktree", plain, "is no git repository, or a worktree itself"),
        ("copy", inside, "are not beside each other"),
        ("clone", world.place, "are not beside each other"),
    ):
        with pytest.raises(WorkspaceUnusable, match=cause):
            world.make(origin, source=source)
    assert not (world.root / "talk").exists()
    tree = world.make("worktree", "other")
    elsewhere = world.place / "elsewhere"
    make_workspace(elsewhere)
    for origin, cause in (("copy", "a copy would share its repository"), ("worktree", "a worktree itself")):
        named = NamedWorkspace(path=elsewhere, per_conversation=True, origin=origin, source=tree)
        with pytest.raises(WorkspaceUnusable, match=cause):
            making.ensured(named, elsewhere / "talk", state=world.state, who=world.who)


def test_a_root_that_is_missing_or_a_symlink_is_refused(world: World) -> None:
    for break_it in (lambda: None, lambda: world.root.symlink_to(world.source)):
        shutil.rmtree(world.root, ignore_errors=True)
        break_it()
        with pytest.raises(WorkspaceUnusable, match="cannot be made"):
            world.make("empty")
    assert sorted(os.listdir(world.source)) == [".git", "file"]


def test_a_branch_that_exists_is_neither_used_nor_deleted(world: World) -> None:
    git(world.source, "branch", "shellback/talk")
    for _ in range(2):
        with pytest.raises(WorkspaceUnusable, match="branch shellback/talk exists already"):
            world.make("worktree")
    assert world.branches() == ["main", "shellback/talk"]


def test_a_directory_that_was_removed_by_hand_is_not_made_again(world: World) -> None:
    shutil.rmtree(world.make("clone"))
    for _ in range(2):
        with pytest.raises(WorkspaceUnusable, match=r"is missing: .* was removed or renamed; put it back"):
            world.make("clone")
    (world.root / "talk").symlink_to(world.source)
    with pytest.raises(WorkspaceUnusable, match="is not a directory"):
        world.make("clone")


def test_two_who_make_the_same_directory_make_it_once(world: World) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            world.make("worktree")
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    assert world.branches() == ["main", "shellback/talk"]


@pytest.mark.parametrize("origin", ["clone", "worktree", "copy"])
def test_work_that_is_nowhere_else_is_found(world: World, origin: str) -> None:
    made = world.make(origin)
    assert world.kept(origin) is None
    (made / ".tmp").mkdir()
    (made / ".tmp" / ".gitignore").write_text("*\n")
    assert world.kept(origin) is None

    (made / "new").write_text("new")
    assert world.kept(origin) == "it has changes that are not committed"
    (made / "new").unlink()
    (made / "file").write_text("two\n")
    assert world.kept(origin) == "it has changes that are not committed"
    git(made, "update-index", "--assume-unchanged", "file")
    assert world.kept(origin) == "it has changes that are not committed", "whatever its index says"
    git(made, "update-index", "--no-assume-unchanged", "file")
    world.commit(made)
    on_its_branch = world.kept(origin)
    assert on_its_branch == (None if origin == "worktree" else "it has commits that are nowhere else")
    git(made, "checkout", "-q", "--detach")
    world.commit(made)
    assert world.kept(origin) == "it has commits that are nowhere else"
    git(world.source, "fetch", "-q", str(made), "HEAD:refs/heads/taken")
    assert world.kept(origin) is None


def test_what_is_pushed_is_saved_and_a_stash_is_not(world: World) -> None:
    made = world.make("clone")
    world.commit(made)
    git(made, "push", "-q", "origin", "HEAD:refs/heads/pushed")
    assert world.kept("clone") is None
    (made / "file").write_text("stashed\n")
    git(made, "stash", "-q")
    assert world.kept("clone") == "it has commits that are nowhere else"


def test_without_a_repository_files_are_work(world: World) -> None:
    made = world.make("empty")
    assert world.kept("empty") is None
    (made / ".tmp").mkdir()
    assert world.kept("empty") is None
    (made / "file").write_text("x")
    assert world.kept("empty") == "it has files, and no repository tells whether they are needed"


def _closed(made: Path) -> None:
    make_workspace(made / "closed")
    (made / "closed" / "new").write_text("work")
    if os.geteuid() == 0:
        os.chown(made / "closed", 0, 0)
    (made / "closed").chmod(0o700 if os.geteuid() == 0 else 0)


def _detached(made: Path) -> None:
    git(made, "checkout", "-q", "--detach")
    git(made, "remote", "remove", "origin")
    git(made, "branch", "-q", "-D", "main")
    shutil.rmtree(made.parent.parent / "source")


def _other_format(made: Path) -> None:
    shutil.rmtree(made / ".git")
    (made / "file").unlink()
    git(made, "init", "-q", "--object-format=sha256")
    git(made, "commit", "-q", "--allow-empty", "-m", "work")


def _other_refs(made: Path) -> None:
    refs = made / ".git" / "refs"
    (made / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n")
    (made / ".git" / "packed-refs").unlink()
    shutil.rmtree(refs)
    refs.mkdir()
    (refs / "heads").write_text("this repository uses the reftable format\n")
    (made / "file").unlink()


def _modules(made: Path) -> None:
    (made / ".git" / "modules").mkdir()
    make_workspace(made / ".git" / "modules" / "part")
    git(made / ".git" / "modules" / "part", "init", "-q", "--bare")


def _nested(made: Path) -> None:
    make_workspace(made / "lib")
    (made / "lib" / "file").write_text("one\n")
    give(made)
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "lib")
    git(made, "push", "-q", "origin", "HEAD:refs/heads/pushed")
    git(made / "lib", "init", "-q")
    git(made / "lib", "commit", "-q", "--allow-empty", "-m", "work")


def _last_of_many(made: Path) -> None:
    make_workspace(made / "many")
    for at in range(7000):
        (made / "many" / f"{'x' * 120}{at}").touch()
    make_workspace(made / "zzz")
    git(made / "zzz", "init", "-q")
    git(made / "zzz", "commit", "-q", "--allow-empty", "-m", "work")
    give(made)
    git(made, "-c", "advice.addEmbeddedRepo=false", "add", "-A")
    git(made, "commit", "-q", "-m", "many")
    git(made, "push", "-q", "origin", "HEAD:refs/heads/pushed")


@pytest.mark.parametrize(
    "hide",
    [_closed, _detached, _other_format, _other_refs, _modules, _nested, _last_of_many],
    ids=lambda one: one.__name__,
)
def test_work_that_git_does_not_show_at_once_is_found(world: World, hide: Callable[[Path], None]) -> None:
    made = world.make("clone")
    hide(made)
    assert world.kept("clone") is not None


def test_a_repository_around_the_private_directory_is_not_obeyed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.make("clone")
    world.commit(made)
    around, other = world.place / "around", world.place / "other"
    for place in (around, other):
        make_workspace(place)
        git(place, "init", "-q")
    git(other, "fetch", "-q", str(made), "HEAD:refs/heads/taken")
    git(around, "config", f"url.{other}.insteadOf", str(world.source))
    around.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(around))
    assert world.kept("clone") == "it has commits that are nowhere else"


def test_nothing_of_a_hostile_repository_is_executed_by_the_look(world: World) -> None:
    made, trap = world.make("clone"), world.place / "trap"
    make_workspace(trap)
    make_workspace(made / "nested")
    git(made / "nested", "init", "-q")
    world.commit(made / "nested")
    world.commit(made)
    touch = f"touch {trap}/sprung; cat"
    config = (
        f'[core]\n\tfsmonitor = "{touch}"\n\thooksPath = {made}/hooks\n\tsshCommand = "{touch}"\n\tpager = "{touch}"\n'
        f'[filter "trap"]\n\tclean = "{touch}"\n\tsmudge = "{touch}"\n\tprocess = "{touch}"\n\trequired = true\n'
        f'[diff "trap"]\n\ttextconv = "{touch}"\n\tcommand = "{touch}"\n[diff]\n\texternal = "{touch}"\n'
        f'[include]\n\tpath = {made}/more\n[uploadpack]\n\tpackObjectsHook = "{touch}"\n'
    )
    (made / ".git" / "config").write_text(config)
    (made / "nested" / ".git" / "config").write_text(config)
    (made / "more").write_text(f'[alias]\n\tst = "!{touch}"\n')
    (made / ".gitattributes").write_text("* filter=trap diff=trap\n")
    for place in (made / ".git" / "hooks", made / "hooks"):
        place.mkdir(exist_ok=True)
        for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
            (place / name).write_text(f"#!/bin/sh\ntouch {trap}/sprung\n")
            (place / name).chmod(0o755)
    (made / "file").write_text("two\n")
    give(made)
    assert world.kept("clone") == "it has changes that are not committed"
    assert os.listdir(trap) == []
    git(made, "status", check=False)
    assert os.listdir(trap) == ["sprung"], "the trap works"


@pytest.mark.parametrize("broken", ["file", "link", "no_head", "fifo", "objects", "worktrees"])
def test_a_repository_that_cannot_be_understood_counts_as_work(world: World, broken: str) -> None:
    made = world.make("clone")
    place = made / ".git"
    if broken == "file":
        shutil.rmtree(place)
        place.write_text(f"gitdir: {world.source}/.git\n")
    elif broken == "link":
        shutil.rmtree(place)
        place.symlink_to(world.source / ".git")
    elif broken == "no_head":
        (place / "HEAD").unlink()
    elif broken == "fifo":
        (place / "HEAD").unlink()
        os.mkfifo(place / "HEAD")
    elif broken == "objects":
        shutil.rmtree(place / "objects")
    else:
        git(made, "worktree", "add", "-q", "--detach", str(world.root / "third"))
    assert world.kept("clone") is not None


def test_a_source_whose_settings_may_run_programs_has_no_worktrees_but_clones(world: World) -> None:
    trap = world.place / "trap"
    make_workspace(trap)
    git(world.source, "config", "filter.trap.smudge", f"touch {trap}/sprung; cat")
    (world.source / ".gitattributes").write_text("* filter=trap\n")
    hook = world.source / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {trap}/sprung\n")
    hook.chmod(0o755)
    world.commit(world.source)
    give(world.source)
    with pytest.raises(WorkspaceUnusable, match=r"may run programs \(filter\.\*\.smudge.*use `clone`"):
        world.make("worktree")
    assert (world.make("clone") / "file").read_text() == "one\n"
    git(world.source, "config", "--remove-section", "filter.trap")
    assert (world.make("worktree", "other") / "file").read_text() == "one\n"
    assert os.listdir(trap) == []


def test_a_removal_follows_no_symlink_and_stays_in_its_root(world: World) -> None:
    precious = world.place / "precious"
    precious.mkdir()
    (precious / "kept").write_text("kept")
    made = world.make("empty")
    (made / "link").symlink_to(precious)
    (made / "deep").mkdir(mode=0o500)
    assert world.remove("empty")
    assert not made.exists()
    assert (precious / "kept").exists()
    (world.root / "talk").symlink_to(precious)
    assert world.remove("empty")
    assert not os.path.lexists(world.root / "talk")
    assert (precious / "kept").exists()
    assert world.left() == [".shellback"]
    world.make("empty")
    area = world.root / making.AREA
    area.rmdir()
    area.symlink_to(precious)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        world.remove("empty")
    assert (precious / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_an_area_of_another_user_is_not_used(world: World) -> None:
    area = world.root / making.AREA
    make_workspace(area)
    with pytest.raises(WorkspaceUnusable, match="belongs to another user: remove it"):
        world.make("empty")


def test_a_worktree_is_forgotten_with_its_directory_and_its_commits_are_not(world: World) -> None:
    world.make("worktree", "plain")
    world.commit(world.make("worktree", "worked"))
    for name in ("plain", "worked"):
        assert world.kept("worktree", name) is None
        assert world.remove("worktree", name)
    assert world.branches() == ["main", "shellback/worked"]
    assert git(world.source, "worktree", "list").count("\n") == 1


def test_a_removal_that_was_interrupted_is_finished(world: World) -> None:
    world.make("empty")
    points = world.place / "points"
    points.mkdir()
    crashpoints.arm_from(str(points))
    arm(points, "directory.aside", f"error {errno.EIO}")
    with pytest.raises(OSError, match="crash point"):
        world.remove("empty")
    assert not (world.root / "talk").exists()
    assert len(world.left()) == 2
    removing.finish(world.root)
    assert world.left() == [".shellback"]
    world.make("empty")


@pytest.mark.parametrize("origin", ["empty", "worktree"])
def test_a_kill_in_a_removal_leaves_the_name_free(world: World, origin: str) -> None:
    world.make(origin)
    call = "removing.remove(named, talk, state=state, who=Runner(), free=lambda: True)"
    assert world.killed("directory.aside", origin, call) == -9
    assert not (world.root / "talk").exists()
    assert world.make(origin).is_dir()
    assert world.remove(origin)
    assert world.left() == [".shellback"]


def test_a_removal_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.make("empty")

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        world.remove("empty")
    assert marks.made(world.state, made)
    made.rmdir()
    with pytest.raises(WorkspaceUnusable, match="is missing"):
        world.make("empty")
