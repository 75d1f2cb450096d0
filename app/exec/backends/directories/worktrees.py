"""Worktrees of a source repository: each has a branch of its own, and its files of git are in the source.

git obeys the configuration of the source here, so a source with settings that may run programs is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.backends.directories.programs import ProgramFailed, Programs
from shellback.exec.core.sight.place import head
from shellback.exec.wire import gitconfig

PREFIX: Final = "shellback/"
ASK_S: Final = 30.0
_PATH_BYTES: Final = 8192


def branch_of(directory: Path) -> str:
    """The branch of a conversation's directory."""
    return PREFIX + directory.name


def common_of(source: Path) -> Path | None:
    """The git directory of a repository, bare or not; None if it is none, or a worktree itself."""
    for place in (source / ".git", source):
        if (place / "HEAD").is_file() and (place / "objects").is_dir() and not place.is_symlink():
            return place
    return None


def objection(source: Path) -> str | None:
    """Why no worktree can be made from a source; None if one can."""
    common = common_of(source)
    if common is None:
        return f"its source {source} is no git repository, or a worktree itself: name the main repository"
    names: list[str] = []
    for file in ("config", "config.worktree"):
        try:
            names += gitconfig.harmful(head(str(common / file), gitconfig.MOST_BYTES + 1), place=".git")
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{common / file} cannot be read: {error.strerror}"
    if names:
        return (
            f"git settings of its source {source} may run programs ({', '.join(names[:5])}): remove them there, or use"
            " `clone`, which does not obey them"
        )
    return None


@dataclass(frozen=True, slots=True)
class Worktree:
    """The worktree of a source at `directory`. Its methods raise ProgramFailed, and block."""

    run: Programs
    source: Path
    directory: Path

    def prepare(self, draft: Path, *, begun: bool) -> None:
        """Forget what is left of earlier ones, here and at `draft`; with `begun` also the branch that was made there.

        Fails if the branch exists.
        """
        self.forget(draft)
        self.forget(self.directory)
        if begun:
            self._drop()
        if self._has_branch():
            raise ProgramFailed(
                f"branch {branch_of(self.directory)} exists already in {self.source}: an earlier conversation with this"
                " name has left it. Rename or delete it, or begin a conversation with another name"
            )

    def add(self, draft: Path, *, seconds: float) -> None:
        """Make it in the empty directory `draft`: the source's HEAD, on a new branch."""
        branch = branch_of(self.directory)
        words = ("worktree", "add", "-q", "-b", branch, "--", str(draft), "HEAD")
        self.run.git(*words, seconds=seconds, cwd=self.source)

    def moved(self) -> None:
        """Tell the source that it is at its place now."""
        self._asked("worktree", "repair", str(self.directory))

    def forget(self, path: Path) -> None:
        """Have the source forget it, if it was at `path` and is missing there.

        Its branch is deleted if all its commits are elsewhere.
        """
        listed = self._asked("worktree", "list", "--porcelain").split("\n\n")
        about = next((lines for lines in map(str.splitlines, listed) if lines[:1] == [f"worktree {path}"]), None)
        if about is None or os.path.lexists(path):
            return
        self._asked("worktree", "remove", "--force", "--force", "--", str(path))
        if f"branch {self._ref}" in about:
            self._drop()

    @property
    def _ref(self) -> str:
        return f"refs/heads/{branch_of(self.directory)}"

    def _has_branch(self) -> bool:
        return bool(self._asked("for-each-ref", "--format=%(refname)", self._ref))

    def _drop(self) -> None:
        own = ("rev-list", "-n1", self._ref, "--not", f"--exclude={self._ref}", "--glob=refs/*", "--")
        if self._has_branch() and not self._asked(*own):
            self._asked("branch", "-q", "-D", "--", branch_of(self.directory))

    def _asked(self, *words: str) -> str:
        ceiling = str(self.source.parent)
        return self.run.git(*words, seconds=ASK_S, cwd=self.source, GIT_CEILING_DIRECTORIES=ceiling)


def admin_of(source: Path, directory: Path) -> Path | None:
    """Where the source keeps the files of git of a worktree, or None."""
    common = common_of(source)
    for one in sorted((common / "worktrees").glob("*/gitdir")) if common is not None else []:
        if os.fsdecode(head(str(one), _PATH_BYTES)).strip() == f"{directory}/.git":
            return one.parent
    return None
