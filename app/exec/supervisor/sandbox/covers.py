"""Covers of one command: mounts in its own mount namespace, made before it gives up its capabilities.

Files are accessed by descriptors, so the inspected file is the covered file. Symlinks are not followed: if one is put
in the way, the start fails.

Approved scripts are held the same way: a copy, hashed while it is made, is mounted read-only on the file from which it
was read. The command runs the copy, whatever is written into the file later. Renaming another file over the path from
outside removes the mount; `check_held` detects that if it happens before the command begins. Sources: openat2(2),
open_tree(2), mount_setattr(2), move_mount(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import stat
import struct
from collections.abc import Generator
from typing import Final

from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import EMPTY, FIXED, MASKED, NOTHING, PROC, READ_ONLY, STUB, Sandbox

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_STATX: Final = 332 if os.uname().machine == "x86_64" else 291
_MOUNT_ROOT: Final = 0x2000
_EMPTY_PATH: Final = 0x1000
_NO_FOLLOW: Final = 0x100
_CLONE: Final = 0x8000 | _EMPTY_PATH | os.O_CLOEXEC | 1
_RECURSIVELY: Final = 0x8000 | _EMPTY_PATH
_ONTO: Final = 0x44
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_NO_SYMLINKS_BENEATH: Final = 0x4 | 0x8
_PATH: Final = os.O_PATH | os.O_CLOEXEC
_KERNELS: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Directories and files of /proc that belong to the machine, not to processes."""
_OF_USERS: Final = ("keys", "key-users")
"""Files of /proc that tell about the user's processes outside too."""

CHANGED: Final = "changed since it was approved"
FILE_BYTES: Final = 16 * 1024 * 1024
_FILES: Final = 64
_CHUNK: Final = 1 << 20
_MS_NOSUID_NODEV: Final = 0x6
_MNT_DETACH: Final = 2
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_IN_ROOT: Final = 0x10 | 0x2
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_LAID: Final = re.compile(r"^held (\d+):(\d+)$", re.MULTILINE)


def over_processes() -> None:
    """In the new /proc of this mount namespace, cover the files of the kernel and of users outside."""
    with linux.opened(PROC) as root, linux.opened(os.devnull) as null:
        for name in (*_KERNELS, *_OF_USERS):
            with contextlib.suppress(FileNotFoundError):
                _cover(root, name, null if name in _OF_USERS else None)


def over_workspace(sandbox: Sandbox, *, early: bool = False, again: bool = False) -> None:
    """Lay the covers of the workspace in this mount namespace, after entering the instance.

    OSError names the path in the way: ELOOP for a symlink. `early`: make no stub, and leave out what cannot be covered.
    `again`: lay only those that an early call left out, and those that were lost since.
    """
    with (
        linux.opened(sandbox.workspace) as root,
        linux.opened(EMPTY) as empty,
        linux.opened(os.devnull) as null,
        linux.opened(NOTHING, os.O_PATH | os.O_NOFOLLOW) as nothing,
    ):

        def cover(name: str, kind: str) -> None:
            if kind == STUB and not early:
                _make(root, name)
            with beneath(root, name) as place:
                if kind == FIXED:
                    lay(place, place, name, read_only=False)
                    return
                found = os.fstat(place).st_mode
                mask = empty if kind == STUB or stat.S_ISDIR(found) else nothing if stat.S_ISSOCK(found) else null
                lay(place if kind == READ_ONLY and mask != nothing else mask, place, name)

        start = len(sandbox.workspace) + 1
        for kind, paths in (
            (FIXED, sandbox.fixed), (READ_ONLY, sandbox.readonly), (STUB, sandbox.stubs), (MASKED, sandbox.masked)
        ):  # fmt: skip
            allowed = (OSError,) if early else (FileNotFoundError,) if kind == MASKED else ()
            for path in paths:
                with contextlib.suppress(*allowed):
                    if not (again and _is_mounted(root, path[start:])):
                        cover(path[start:], kind)


@contextlib.contextmanager
def beneath(root: int, name: str, flags: int = _PATH, resolve: int = _NO_SYMLINKS_BENEATH) -> Generator[int]:
    """A file below a directory; OSError if a symlink is on the way."""
    how = struct.pack("QQQ", flags, 0, resolve)
    fd = linux.checked(linux.libc.syscall(_OPENAT2, root, os.fsencode(name), how, ctypes.c_size_t(len(how))), name)
    with closing(fd):
        yield fd


def _make(root: int, name: str) -> None:
    above, _, last = name.rpartition("/")
    with beneath(root, above or ".") as folder, contextlib.suppress(FileExistsError):
        os.mkdir(last, 0o755, dir_fd=folder)


def _cover(root: int, name: str, source: int | None = None, *, read_only: bool = True) -> None:
    """Mount `source`, or the file itself, on the file."""
    with beneath(root, name) as place:
        lay(place if source is None else source, place, name, read_only=read_only)


def lay(source: int, place: int, name: str, *, read_only: bool = True) -> None:
    """Mount one open file or directory on another; `name` is for the error."""
    with cloned(source, name, read_only=read_only) as tree:
        put(tree, place, name)


@contextlib.contextmanager
def cloned(source: int, name: str, *, read_only: bool) -> Generator[int]:
    """A detached mount of a file or directory and all below it."""
    with closing(linux.checked(linux.libc.syscall(_OPEN_TREE, source, b"", _CLONE), name)) as tree:
        attributes = _NO_SETUID | _NO_DEVICES | (_READ_ONLY if read_only else 0)
        given = struct.pack("QQQQ", attributes, 0, 0, 0)
        size = ctypes.c_size_t(len(given))
        linux.checked(linux.libc.syscall(_MOUNT_SETATTR, tree, b"", _RECURSIVELY, given, size), name)
        yield tree


def put(tree: int, place: int, name: str) -> None:
    """Attach a detached mount at an open file or directory."""
    linux.checked(linux.libc.syscall(_MOVE_MOUNT, tree, b"", place, b"", _ONTO), name)


def mounted(fd: int) -> bool:
    """Whether this is the root of a mount: statx(2)."""
    return _is_mounted(fd, "")


def _is_mounted(root: int, name: str) -> bool:
    found = ctypes.create_string_buffer(256)
    if linux.libc.syscall(_STATX, root, os.fsencode(name), _NO_FOLLOW | _EMPTY_PATH, 0, found):
        return False
    return bool(struct.unpack_from("Q", found, 8)[0] & _MOUNT_ROOT)


def over_scripts(sandbox: Sandbox) -> bytes:
    """Mount the held scripts in this mount namespace, after entering the instance; a report for `check_held`.

    OSError names the path: ESTALE if its content has changed, ELOOP for a symlink.
    """
    if not sandbox.held:
        return b""
    size = f"size={len(sandbox.held) * (FILE_BYTES + 4096)},nr_inodes={len(sandbox.held) + 8},mode=0755"
    linux.checked(linux.libc.mount(b"tmpfs", EMPTY.encode(), b"tmpfs", _MS_NOSUID_NODEV, size.encode()), EMPTY)
    said: list[str] = []
    with linux.opened(sandbox.workspace) as root:
        start = len(sandbox.workspace) + 1
        for number, (_, path, content) in enumerate(sandbox.held[:_FILES]):
            copy = f"{EMPTY}/{number}"
            with beneath(root, path[start:], _READ) as file:
                _copy(file, copy, path, content)
                with linux.opened(copy) as made:
                    lay(made, file, path)
            status = os.stat(copy)
            said.append(f"held {status.st_dev}:{status.st_ino}\n")
    linux.libc.umount2(EMPTY.encode(), _MNT_DETACH)
    return "".join(said).encode()


def check_held(pid: int, request: StartRequest, text: str) -> None:
    """Check that the process that is to become the command is in its directory and finds the held scripts.

    `text` has the report of `over_scripts`. OSError ESTALE names the path that has changed.
    """
    if request.place is not None:
        place = os.stat(f"/proc/{pid}/cwd")
        if (place.st_dev, place.st_ino) != request.place:
            raise OSError(errno.ESTALE, CHANGED, request.cwd)
    if request.sandbox is None or not request.sandbox.held:
        return
    laid = [(int(device), int(inode)) for device, inode in _LAID.findall(text)]
    with linux.opened(f"/proc/{pid}/root") as root:
        for (named, path, _), what in zip(request.sandbox.held, laid, strict=True):
            for name in {named, path}:
                if _found(root, name) != what:
                    raise OSError(errno.ESTALE, CHANGED, name)


def _copy(file: int, copy: str, path: str, content: str) -> None:
    before = os.fstat(file)
    if not stat.S_ISREG(before.st_mode):
        raise OSError(errno.ESTALE, CHANGED, path)
    digest, total = hashlib.sha256(), 0
    with linux.opened(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as made:
        while total <= FILE_BYTES and (data := os.read(file, _CHUNK)):
            total += len(data)
            digest.update(data)
            linux.write_all(made, data)
        if digest.hexdigest() != content:
            raise OSError(errno.ESTALE, CHANGED, path)
        os.fchmod(made, stat.S_IMODE(before.st_mode) & 0o777)
        os.utime(made, ns=(before.st_atime_ns, before.st_mtime_ns))


def _found(root: int, name: str) -> tuple[int, int]:
    try:
        with beneath(root, name, resolve=_IN_ROOT) as fd:
            status = os.fstat(fd)
    except OSError:
        raise OSError(errno.ESTALE, CHANGED, name) from None
    return status.st_dev, status.st_ino


def unescaped(place: bytes) -> bytes:
    """A path from a mount table with its escapes decoded: proc_pid_mountinfo(5)."""
    return _ESCAPED.sub(lambda escape: bytes([int(escape[1], 8)]), place) if b"\\" in place else place
