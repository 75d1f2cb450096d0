"""Pins: paths that no command can rename while an approved command uses them.

A mount point cannot be renamed or removed by a process that has the mount (rename(2): EBUSY). So each file and
directory on the way to a held script is bind mounted onto itself in the instance. The mounts of an instance propagate
to its commands (mount_namespaces(7): slaves), including running ones. Processes outside of sandboxes do not have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shellback.exec.supervisor.sandbox import covers, namespaces
from shellback.exec.wire import linux

_MS_SHARED: Final = 1 << 20
_MS_SLAVE: Final = 1 << 19
_MS_REC: Final = 1 << 14
_STACKED: Final = 8
_MNT_DETACH: Final = 0x2
_NOFOLLOW: Final = 0x8
_TRIES: Final = 50
_NAME: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def lay(workspace: str, own: Sequence[str], others: Sequence[str] = ()) -> None:
    """Pin paths in the instance that we are in, for all its commands; OSError names one of `own` that cannot be."""
    _change(workspace, _MS_SHARED)
    if not own and not others:
        return
    with linux.opened(workspace) as root:
        for path in sorted({*own, *others}):
            try:
                _lay(root, path[len(workspace) + 1 :], path)
            except OSError:
                if path in own:
                    raise


def apart(workspace: str) -> None:
    """In our own mount namespace: receive later mounts of the instance, and send none."""
    _change(workspace, _MS_SLAVE | _MS_REC)


def lay_elsewhere(instances: Sequence[Mapping[str, int]], workspace: str, paths: Sequence[str]) -> None:
    """Pin paths in other instances, as far as these see the paths."""
    _in_each(instances, lambda: lay(workspace, paths))


def lift(instances: Sequence[Mapping[str, int]], workspace: str, but: Sequence[str]) -> None:
    """Unpin all paths except `but`; blocks for some milliseconds."""
    _in_each(instances, lambda: _lift(workspace, but))


def _lay(root: int, name: str, path: str) -> None:
    for _ in range(_TRIES):
        with covers.beneath(root, name, _NAME) as place:
            if covers.mounted(place):
                return
            with covers.cloned(place, path, read_only=False) as tree:
                covers.put(tree, place, path)
                with contextlib.suppress(OSError), covers.beneath(root, name, _NAME) as found:
                    if covers.mounted(found):
                        return
                # It was renamed meanwhile.
                linux.libc.umount2(f"/proc/self/fd/{tree}".encode(), _MNT_DETACH)
    raise OSError(errno.ESTALE, covers.CHANGED, path)


def _lift(workspace: str, but: Sequence[str]) -> None:
    """Unmount the mounts of the workspace's own file system; covers are of other file systems."""
    with open("/proc/self/mountinfo", "rb") as file:
        # Device and path. After a rename from outside, this is the new name of the mount.
        mounts = [(words[2], covers.unescaped(words[4])) for words in map(bytes.split, file)]
    root = os.fsencode(workspace)
    own = [device for device, path in mounts if path == root][-1:]
    ours = {path for device, path in mounts if [device] == own and path.startswith(root + b"/")}
    for path in sorted(ours, reverse=True):
        for _ in range(0 if os.fsdecode(path) in but else _STACKED):
            if linux.libc.umount2(path, _MNT_DETACH | _NOFOLLOW):
                break


def _in_each(instances: Sequence[Mapping[str, int]], work: Callable[[], None]) -> None:
    for instance in instances:
        pid = os.fork()
        if pid == 0:
            try:
                namespaces.join(instance)
                work()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)


def _change(workspace: str, propagation: int) -> None:
    if linux.libc.mount(None, os.fsencode(workspace), None, propagation, None):
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise OSError(number, os.strerror(number), workspace)
