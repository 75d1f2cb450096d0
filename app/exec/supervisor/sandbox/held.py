"""Approved bytes, laid over the files that a command of a sandbox is about to run, and looked at before it begins.

A copy that was hashed while it was made is mounted read-only on the very file it was read from, for this command alone:
whatever is written into the file, the command finds the copy. Somebody outside who renames another file over the path
takes the mount away with the name; what that changed before the command begins is seen by `check`.
Sources: openat2(2), open_tree(2), move_mount(2), mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import stat
import struct
from typing import Final

from shellback.exec.supervisor.sandbox import covers
from shellback.exec.wire import linux
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import EMPTY, Sandbox

CHANGED: Final = "changed since it was approved"
FILE_BYTES: Final = 16 * 1024 * 1024
_FILES: Final = 64
_CHUNK: Final = 1 << 20
_MS_NOSUID_NODEV: Final = 0x6
_MNT_DETACH: Final = 2
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_IN_ROOT: Final = 0x10 | 0x2
_OPENAT2: Final = 437
_LAID: Final = re.compile(r"^held (\d+):(\d+)$", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def over_scripts(sandbox: Sandbox) -> bytes:
    """Mount what is held, in this mount namespace, and say what it is now; for who has entered the instance.

    Raises:
        OSError: With the path: ESTALE where the content is another, ELOOP for a symlink.
    """
    if not sandbox.held:
        return b""
    size = f"size={len(sandbox.held) * (FILE_BYTES + 4096)},nr_inodes={len(sandbox.held) + 8},mode=0755"
    if _libc.mount(b"tmpfs", EMPTY.encode(), b"tmpfs", _MS_NOSUID_NODEV, size.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), EMPTY)
    said: list[str] = []
    with covers.opened(sandbox.workspace) as root:
        start = len(sandbox.workspace) + 1
        for number, (_, path, content) in enumerate(sandbox.held[:_FILES]):
            copy = f"{EMPTY}/{number}"
            with covers.beneath(root, path[start:], _READ) as file:
                _copy(file, copy, path, content)
                with covers.opened(copy) as made:
                    covers.lay(made, file, path)
            status = os.stat(copy)
            said.append(f"held {status.st_dev}:{status.st_ino}\n")
    _libc.umount2(EMPTY.encode(), _MNT_DETACH)
    return "".join(said).encode()


def check(pid: int, request: StartRequest, text: str) -> None:
    """Look whether a process that waits to be the command is where it shall be, and would find what is held.

    `text` has what `over_scripts` said.

    Raises:
        OSError: ESTALE with the path of what is another, or why there is no telling.
    """
    if request.place is not None:
        place = os.stat(f"/proc/{pid}/cwd")
        if (place.st_dev, place.st_ino) != request.place:
            raise OSError(errno.ESTALE, CHANGED, request.cwd)
    if request.sandbox is None or not request.sandbox.held:
        return
    laid = [(int(device), int(inode)) for device, inode in _LAID.findall(text)]
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        for (named, path, _), what in zip(request.sandbox.held, laid, strict=True):
            for name in {named, path}:
                if _found(root, name) != what:
                    raise OSError(errno.ESTALE, CHANGED, name)
    finally:
        os.close(root)


def _copy(file: int, copy: str, path: str, content: str) -> None:
    before = os.fstat(file)
    if not stat.S_ISREG(before.st_mode):
        raise OSError(errno.ESTALE, CHANGED, path)
    digest, total = hashlib.sha256(), 0
    made = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while total <= FILE_BYTES and (data := os.read(file, _CHUNK)):
            total += len(data)
            digest.update(data)
            linux.write_all(made, data)
        if digest.hexdigest() != content:
            raise OSError(errno.ESTALE, CHANGED, path)
        os.fchmod(made, stat.S_IMODE(before.st_mode) & 0o777)
        os.utime(made, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        os.close(made)


def _found(root: int, name: str) -> tuple[int, int]:
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT)
    fd = _libc.syscall(_OPENAT2, root, os.fsencode(name), how, ctypes.c_size_t(len(how)))
    if fd < 0:
        raise OSError(errno.ESTALE, CHANGED, name)
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    finally:
        os.close(fd)
