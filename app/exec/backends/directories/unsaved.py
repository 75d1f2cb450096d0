"""Whether a directory of a conversation has work that is nowhere else.

Agents wrote it, so git is not run in its repository: it gets a git directory of ours, with our configuration, which
borrows objects and refs. What cannot be found out counts as work.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Final

from shellback.exec.backends.directories import worktrees
from shellback.exec.backends.directories.programs import ProgramFailed, Programs, programs
from shellback.exec.core.runner import Runner
from shellback.exec.core.sight.place import head
from shellback.exec.log.links import TMP
from shellback.exec.policy.rules.named import NamedWorkspace

LOOK_S: Final = 120.0
_HEAD_BYTES: Final = 4096
_KNOWN: Final = 1000
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
_GITLINK: Final = "160000 "


def unsaved(named: NamedWorkspace, directory: Path, who: Runner) -> str | None:
    """Why a directory must stay, in words after "because"; None if nothing in it would be lost. Blocks."""
    source = None if named.source is None else Path(os.path.realpath(named.source))
    try:
        with programs(who) as run:
            if named.origin == "worktree" and source is not None:
                return _of_worktree(run, directory, source)
            git = directory / ".git"
            if not os.path.lexists(git):
                some = any(name != TMP for name in os.listdir(directory))
                return "it has files, and no repository tells whether they are needed" if some else None
            if git.is_symlink() or not git.is_dir():
                return "its repository was replaced"
            return _of_repository(run, directory, source)
    except (ProgramFailed, OSError, ValueError) as error:
        return f"it cannot be found out whether it has work: {error}"


def _of_worktree(run: Programs, directory: Path, source: Path) -> str | None:
    git, common = worktrees.admin_of(source, directory), worktrees.common_of(source)
    if git is None or common is None:
        return "its source does not know it as a worktree any more"
    # Its branches are the source's, and stay.
    return _Look(run, directory, git, common).found("HEAD", "--not", "--glob=refs/*")


def _of_repository(run: Programs, directory: Path, source: Path | None) -> str | None:
    git = directory / ".git"
    for part in ("worktrees", "modules"):
        if os.path.lexists(git / part) and os.listdir(git / part):
            return f"its repository has {part} of its own, which are not looked at"
    known: list[str] = []
    if source is not None:
        try:
            words = ("ls-remote", "--", str(source))
            listed = run.git(*words, seconds=LOOK_S, cwd=run.scratch, GIT_ALLOW_PROTOCOL="file")
            known = sorted({line.partition("\t")[0] for line in listed.splitlines()})[:_KNOWN]
        except ProgramFailed:
            pass  # it is no repository, or gone
    own = ("--ignore-missing", "HEAD", "--exclude=refs/remotes/*", "--glob=refs/*", "--not", "--remotes")
    return _Look(run, directory, git, git).found(*own, *known)


class _Look:
    """A look at a work tree and its repository, of which only `HEAD`, refs and objects are read."""

    def __init__(self, run: Programs, directory: Path, git: Path, common: Path) -> None:
        self._run, self._directory, self._objects = run, directory, common / "objects"
        self._ours = run.scratch / "git"
        self._ours.mkdir()
        (self._ours / "config").write_text(_CONFIG)
        (self._ours / "HEAD").write_bytes(head(str(git / "HEAD"), _HEAD_BYTES))
        for name in ("refs", "packed-refs", "shallow"):
            if os.path.lexists(common / name):
                (self._ours / name).symlink_to(common / name)
        if run.who.drops:
            os.chown(self._ours, run.who.uid, run.who.gid)

    def found(self, *own: str) -> str | None:
        """The first sign of work, or None. `own` chooses the commits that are nowhere else."""
        refs, born = bool(self._git("for-each-ref", "--count=1")), True
        try:
            # Not the index that is there: whoever wrote it could hide changes.
            self._git("read-tree", "HEAD")
        except ProgramFailed:
            born = False
        if not born and (refs or any(files for _, _, files in os.walk(self._objects))):
            return "its HEAD is no commit"
        if self._git("status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=all"):
            return "it has changes that are not committed"
        if self._nested():
            return "it has submodules or other repositories, which are not looked at"
        if born and self._git("rev-list", "-n1", *own, "--"):
            return "it has commits that are nowhere else"
        return None

    def _nested(self) -> bool:
        """Whether there are repositories at or around files of the tree; elsewhere they are untracked files."""
        listed = [one.partition("\t") for one in self._git("ls-files", "-s", "-z").split("\0")]
        places = {place for _, _, path in listed for place in PurePath(path).parents}
        places |= {PurePath(path) for about, _, path in listed if about.startswith(_GITLINK)}
        return any(os.path.lexists(self._directory / place / ".git") for place in places - {PurePath()})

    def _git(self, *words: str) -> str:
        return self._run.git(
            *words,
            seconds=LOOK_S,
            silent=True,
            cwd=self._directory,
            GIT_DIR=str(self._ours),
            GIT_WORK_TREE=str(self._directory),
            GIT_OBJECT_DIRECTORY=str(self._objects),
        )
