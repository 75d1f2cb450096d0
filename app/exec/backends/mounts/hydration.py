"""Filling a workspace from host mounts: beside it first, then in its place by one rename.

A workspace that has anything in it, or ever was filled, is left as it is: what an agent wrote or removed there stays.
Whoever comes second waits for the first; what a crash has left beside the workspace is thrown away and made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.mounts.copying import Copying, Hydrated, Owner
from shellback.exec.backends.mounts.mount import HostMount, Roots
from shellback.exec.backends.mounts.tree import MOUNT_BYTES, plan
from shellback.exec.core.errors import MountUnusable, WorkspaceUnusable
from shellback.exec.core.sight.place import closing

_ROOM: Final = {errno.ENOSPC: "make room", errno.EDQUOT: "make room in the quota"}


def hydrate(
    mounts: Sequence[HostMount],
    workspace: Path,
    *,
    roots: Sequence[str | os.PathLike[str]],
    secret: Callable[[Path], bool] = lambda _: False,
    owner: Owner | None = None,
    parents: int = 0o700,
    stop: Callable[[], bool] = lambda: False,
) -> Hydrated:
    """Make the workspace with what the mounts bring, all of it or nothing. Blocks.

    Args:
        mounts: What to copy; without any, an empty workspace is made.
        workspace: Where to.
        roots: Where mounts may come from.
        secret: Whether a real path is a secret, which no mount brings.
        owner: Whom the copies belong to.
        parents: The mode of the directories above it that have to be made.
        stop: Asked while copying; once it says True, nothing is left and `InterruptedError` is raised.

    Raises:
        MountUnusable: A mount is missing, outside the roots, too large, changed too often, or cannot be read.
        WorkspaceUnusable: The place of the workspace cannot be written.
    """
    owner = owner or Owner()
    staging = workspace.with_name(f".{workspace.name}.new")
    with _first(workspace, parents) as mark:
        if workspace.is_dir() and (os.fstat(mark).st_size or any(workspace.iterdir())):
            return Hydrated(skipped=True)
        if not mounts and workspace.is_dir():
            return Hydrated()  # somebody may have it mounted already
        shutil.rmtree(staging, ignore_errors=True)
        with Roots(roots if mounts else (), secret) as opened:
            wanted = plan(mounts, opened)
            budget = sum(mount.max_bytes or MOUNT_BYTES for mount in mounts)
            copying = Copying(wanted, budget, opened, staging, owner, stop)
            try:
                done = copying.run()
                staging.rename(workspace)
            except InterruptedError:
                raise
            except OSError as error:
                raise MountUnusable(
                    f"{error.filename or workspace}: {error.strerror}; "
                    f"{_ROOM.get(error.errno or 0, 'mend that')}, then try again. Nothing was copied"
                ) from None
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        if mounts:
            os.pwrite(mark, f"{done.files} files, {done.bytes} bytes\n".encode(), 0)
            os.fsync(mark)
    return done


async def hydrated(mounts: Sequence[HostMount], workspace: Path, **more: Any) -> Hydrated:
    """`hydrate` in a thread; cancelling gives it up, and leaves nothing."""
    given_up = threading.Event()
    try:
        return await asyncio.to_thread(partial(hydrate, mounts, workspace, **more, stop=given_up.is_set))
    finally:
        given_up.set()


def overlay(cache: Path, kind: str, scope: str) -> Path:
    """Where the workspace of a scope is kept: under its own name where that is a plain one."""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", scope)
    name = scope if plain else f"s-{hashlib.sha256(scope.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
    return cache / kind / name


def forget(workspace: Path) -> None:
    """Remove a workspace that nothing uses, and that it ever was filled. Blocks.

    Raises:
        OSError: Something of it cannot be removed.
    """
    if workspace.is_symlink():
        workspace.unlink()
    elif workspace.exists():
        shutil.rmtree(workspace)
    _mark(workspace).unlink(missing_ok=True)


def _mark(workspace: Path) -> Path:
    return workspace.with_name(f".{workspace.name}.filled")


@contextlib.contextmanager
def _first(workspace: Path, parents: int) -> Generator[int]:
    """The mark of the workspace, locked: only one fills it at a time."""
    try:
        for above in reversed(workspace.parents):
            with contextlib.suppress(FileExistsError):
                above.mkdir(mode=parents)
        fd = os.open(_mark(workspace), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise WorkspaceUnusable(
            f"{error.filename}, where workspaces are kept, cannot be written: {error.strerror}; set SHELLBACK_CACHE"
        ) from None
    with closing(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
