"""Makes the directory of a conversation, all or nothing: beside its place, and then renamed to it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shellback.exec.backends.directories import worktrees
from shellback.exec.backends.directories.marks import marked
from shellback.exec.backends.directories.programs import ProgramFailed, Programs, programs
from shellback.exec.backends.directories.worktrees import Worktree
from shellback.exec.backends.removal import removed
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.runner import Runner
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.descriptors import closing

AREA: Final = ".shellback"
"""The directory in the root where directories are made and removed; no conversation is named like it."""
MAKE_S: Final = 600.0
"""How long a copy or clone may take."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def ensured(named: NamedWorkspace, directory: Path, *, state: Path, who: Runner) -> None:
    """Have the directory of a conversation: it is made if that was never done. `state` keeps the marks. Blocks.

    A repeat after a crash finds it, or begins anew; nobody sees it before it is whole.

    Raises:
        WorkspaceUnusable: It cannot be made, or was made and is missing.
    """
    try:
        with marked(state, directory) as mark:
            if not is_directory(directory):
                if mark.made:
                    raise WorkspaceUnusable(
                        f"the directory of this conversation is missing: {directory} was removed or renamed; put it"
                        " back, or begin another conversation"
                    )
                with programs(who, mark.descriptor) as run, opened_area(directory.parent) as (root, area):
                    _make(run, named, directory, root, area)
            elif not mark.made:
                with programs(who, mark.descriptor) as run:
                    if (tree := _tree(run, named, directory)) is not None:
                        tree.moved()  # the last step, if a crash came before it
            mark.note()
    except ProgramFailed as error:
        raise _unmade(directory, str(error)) from None
    except OSError as error:
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        raise _unmade(directory, f"{error.strerror}{where}") from None


def is_directory(path: Path) -> bool:
    """Whether it is a directory, and no symlink to one. Raises WorkspaceUnusable if it is anything else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise WorkspaceUnusable(f"{path} is not a directory: remove it, or begin another conversation")
    return True


@contextmanager
def opened_area(root: Path) -> Generator[tuple[int, int]]:
    """Descriptors of a root and of the area in it, which is ours alone. Raises OSError, WorkspaceUnusable."""
    with closing(os.open(root, _DIRECTORY)) as top:
        with contextlib.suppress(FileExistsError):
            os.mkdir(AREA, 0o711, dir_fd=top)
        with closing(os.open(AREA, _DIRECTORY, dir_fd=top)) as area:
            if os.fstat(area).st_uid != os.geteuid():
                raise WorkspaceUnusable(f"{root}/{AREA} belongs to another user: remove it")
            yield top, area


def objection(named: NamedWorkspace) -> str | None:
    """Why directories cannot be made from the source of a workspace, as it is now; None if they can."""
    source = named.source
    if source is None:
        return None
    real, root = Path(os.path.realpath(source)), Path(os.path.realpath(named.path))
    if real.is_relative_to(root) or root.is_relative_to(real):
        return f"its source {source} and its path {named.path} are not beside each other: take another directory"
    if not real.is_dir():
        return f"its source {source} is missing or no directory: create it, or name another one"
    if named.origin == "copy" and (real / ".git").is_file():
        return f"its source {source} is a worktree, and a copy would share its repository: use `clone`"
    return worktrees.objection(real) if named.origin == "worktree" else None


def _make(run: Programs, named: NamedWorkspace, directory: Path, root: int, area: int) -> None:
    if (why := objection(named)) is not None:
        raise _unmade(directory, why)
    name, draft = directory.name, directory.parent / AREA / directory.name
    tree = _tree(run, named, directory)
    begun = os.path.lexists(draft)
    if not removed(f"./{name}", below=area):
        raise _unmade(directory, f"what is left of an earlier attempt, {draft}, cannot be removed")
    if tree is not None:
        tree.prepare(draft, begun=begun)
    os.mkdir(name, 0o755, dir_fd=area)
    try:
        if run.who.drops:
            os.chown(name, run.who.uid, run.who.gid, dir_fd=area, follow_symlinks=False)
        reach("directory.begun")
        _fill(run, named, draft, tree)
        reach("directory.made")
        os.rename(name, name, src_dir_fd=area, dst_dir_fd=root)
    except BaseException:
        removed(f"./{name}", below=area)
        if tree is not None:
            with contextlib.suppress(ProgramFailed):
                tree.forget(draft)
        raise
    reach("directory.renamed")
    if tree is not None:
        tree.moved()


def _fill(run: Programs, named: NamedWorkspace, draft: Path, tree: Worktree | None) -> None:
    if named.origin == "copy":
        run.run("cp", "-a", "-x", "--", f"{named.source}/.", str(draft), seconds=MAKE_S, cwd=draft)
    elif named.origin == "clone":
        # Not `--local`: files of the source would be shared by hard links, and a command could change them.
        words = ("clone", "-q", "--no-local", "--template=", "--no-recurse-submodules", "--", str(named.source), ".")
        run.git(*words, seconds=MAKE_S, cwd=draft, GIT_ALLOW_PROTOCOL="file")
    elif tree is not None:
        tree.add(draft, seconds=MAKE_S)


def _tree(run: Programs, named: NamedWorkspace, directory: Path) -> Worktree | None:
    if named.origin != "worktree" or named.source is None:
        return None
    return Worktree(run, Path(os.path.realpath(named.source)), directory)


def _unmade(directory: Path, why: str) -> WorkspaceUnusable:
    return WorkspaceUnusable(
        f"the directory of this conversation, {directory}, cannot be made: {why}. Correct it and repeat"
    )
