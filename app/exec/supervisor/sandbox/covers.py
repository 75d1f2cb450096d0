"""What of its view one command has differently: laid there in a mount namespace of its own, before bubblewrap builds.

Descriptors all the way: what was looked at is what is covered. No symlink is followed, whoever puts one there
meanwhile, so nothing comes in that was not meant; the start fails instead. Bubblewrap would do it by name, and read the
whole table of mounts for each. Sources: openat2(2), open_tree(2), mount_setattr(2), move_mount(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Generator
from typing import Final

from shellback.exec.wire.sandbox import EMPTY, NOTHING, PROC, Sandbox

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_STATX: Final = 332 if os.uname().machine == "x86_64" else 291
_MOUNT_ROOT: Final = 0x2000
_EMPTY_PATH: Final = 0x1000
_CLONE: Final = 0x8000 | _EMPTY_PATH | os.O_CLOEXEC | 1
_RECURSIVELY: Final = 0x8000 | _EMPTY_PATH
_ONTO: Final = 0x44
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_NO_SYMLINKS_BENEATH: Final = 0x4 | 0x8
_PATH: Final = os.O_PATH | os.O_CLOEXEC
_KERNELS: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Directories and files of /proc that are the machine's, not processes'."""
_OF_USERS: Final = ("keys", "key-users")
"""Files of /proc that tell of the user's processes outside too."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def over_processes() -> None:
    """Cover what the new /proc of this mount namespace has of the kernel and of users outside.

    Raises:
        OSError: With the path that was in the way.
    """
    with opened(PROC) as root, opened(os.devnull) as null:
        for name in (*_KERNELS, *_OF_USERS):
            with contextlib.suppress(FileNotFoundError):
                _cover(root, name, null if name in _OF_USERS else None)


def over_workspace(sandbox: Sandbox) -> None:
    """Cover what is to be covered in the workspace, in this mount namespace; for who has entered the instance.

    Raises:
        OSError: With the path that was in the way: ELOOP for a symlink.
    """
    with (
        opened(sandbox.workspace) as root,
        opened(EMPTY) as empty,
        opened(os.devnull) as null,
        opened(NOTHING, _PATH | os.O_NOFOLLOW) as nothing,
    ):
        start = len(sandbox.workspace) + 1
        for path in sandbox.fixed:
            _cover(root, path[start:], read_only=False)
        for path in sandbox.readonly:
            with beneath(root, path[start:]) as place:
                lay(nothing if _is_socket(place) else place, place, path[start:])
        for path in sandbox.stubs:
            _make(root, path[start:])
            _cover(root, path[start:], empty)
        for path in sandbox.masked:
            with contextlib.suppress(FileNotFoundError), beneath(root, path[start:]) as place:
                folder = stat.S_ISDIR(os.fstat(place).st_mode)
                lay(empty if folder else nothing if _is_socket(place) else null, place, path[start:])


@contextlib.contextmanager
def opened(path: str, flags: int = _PATH) -> Generator[int]:
    """A descriptor that only names a file."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def beneath(root: int, name: str, flags: int = _PATH) -> Generator[int]:
    """A file below a directory, no symlink on the way; OSError otherwise."""
    how = struct.pack("QQQ", flags, 0, _NO_SYMLINKS_BENEATH)
    fd = _checked(_libc.syscall(_OPENAT2, root, os.fsencode(name), how, ctypes.c_size_t(len(how))), name)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_socket(place: int) -> bool:
    return stat.S_ISSOCK(os.fstat(place).st_mode)


def _make(root: int, name: str) -> None:
    above, _, last = name.rpartition("/")
    with beneath(root, above or ".") as folder, contextlib.suppress(FileExistsError):
        os.mkdir(last, 0o755, dir_fd=folder)


def _cover(root: int, name: str, source: int | None = None, *, read_only: bool = True) -> None:
    """Mount `source` on it, or itself."""
    with beneath(root, name) as place:
        lay(place if source is None else source, place, name, read_only=read_only)


def lay(source: int, place: int, name: str, *, read_only: bool = True) -> None:
    """Mount a file or directory on another, both open; `name` is for the error."""
    with cloned(source, name, read_only=read_only) as tree:
        put(tree, place, name)


@contextlib.contextmanager
def cloned(source: int, name: str, *, read_only: bool) -> Generator[int]:
    """A mount of a file or directory, with all below it, that is nowhere yet."""
    tree = _checked(_libc.syscall(_OPEN_TREE, source, b"", _CLONE), name)
    try:
        attributes = _NO_SETUID | _NO_DEVICES | (_READ_ONLY if read_only else 0)
        given = struct.pack("QQQQ", attributes, 0, 0, 0)
        size = ctypes.c_size_t(len(given))
        _checked(_libc.syscall(_MOUNT_SETATTR, tree, b"", _RECURSIVELY, given, size), name)
        yield tree
    finally:
        os.close(tree)


def put(tree: int, place: int, name: str) -> None:
    """Mount it on what is open."""
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", place, b"", _ONTO), name)


def mounted(fd: int) -> bool:
    """Whether something is mounted here: statx(2)."""
    found = ctypes.create_string_buffer(256)
    _checked(_libc.syscall(_STATX, fd, b"", _EMPTY_PATH, 0, found), "")
    return bool(struct.unpack_from("Q", found, 8)[0] & _MOUNT_ROOT)


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
