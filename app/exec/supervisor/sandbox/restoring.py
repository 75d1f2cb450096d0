"""Restores covers in a running sandbox, by a child that enters it.

Sources: setns(2), move_mount(2).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import stat
from collections.abc import Mapping
from typing import Final, NoReturn

from shellback.exec.supervisor.sandbox import covers, namespaces
from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing, kept
from shellback.exec.wire.sandbox import MASKED, STUB, Bounds

FILE: Final = "file"
MASK: Final = "mask"
STANDS: Final = "stands"
ABSENT: Final = "absent"
FAILED: Final = "failed"

_TRIES: Final = 50
_NAME: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MASK_FLAGS: Final = 0x1 | 0x2 | 0x4

Who = tuple[int, int] | None
Result = tuple[str, int, int]
"""The outcome for one path; for FILE with device and inode of the covered file."""


def namespaces_of(pid: int) -> dict[str, int]:
    """Descriptors of the mount namespace of a process, and of its user namespace; OSError if the process has gone."""
    with kept(os.open(f"/proc/{pid}/ns/{namespaces.MNT}", os.O_RDONLY | os.O_CLOEXEC)) as mounts:
        return {namespaces.USER: namespaces.owner_of(mounts), namespaces.MNT: mounts}


def begin(found: Mapping[str, int], who: Who, wanted: Mapping[str, tuple[str, bool]]) -> tuple[int, int]:
    """Fork a child that restores covers: path to kind, and whether a directory may be made there. Closes `found`.

    Returns its pid, and a descriptor for `said` once it has ended.
    """
    try:
        with kept(os.memfd_create("restored")) as said:
            pid = os.fork()
        if pid == 0:
            _restore(found, who, wanted, said)
        return pid, said
    finally:
        linux.close_all(found.values())


def said(fd: int) -> dict[str, Result]:
    """The outcomes that a child reported; {} if it failed."""
    with closing(fd):
        text = os.pread(fd, 1 << 20, 0)
        return {path: (what, device, inode) for path, what, device, inode in json.loads(text)} if text else {}


def _restore(found: Mapping[str, int], who: Who, wanted: Mapping[str, tuple[str, bool]], said: int) -> NoReturn:
    try:
        gc.disable()
        namespaces.prepare(who, Bounds())
        namespaces.join(found)
        os.umask(0o022)
        with linux.opened("/") as root:
            rows = [(path, *_again(root, path, *how)) for path, how in sorted(wanted.items())]
        linux.write_all(said, json.dumps(rows).encode("utf-8", "surrogateescape"))
    finally:
        os._exit(0)


def _again(root: int, path: str, kind: str, make: bool) -> Result:
    for _ in range(_TRIES):
        try:
            return _covered(root, path, kind, make=make)
        except FileNotFoundError:
            # Also if it was renamed meanwhile.
            if make:
                _make(root, path)
            elif not _there(root, path):
                return ABSENT, 0, 0
        except OSError:
            break
    return FAILED, 0, 0


def _covered(root: int, path: str, kind: str, *, make: bool) -> Result:
    with covers.beneath(root, path[1:], _NAME) as place:
        status = os.fstat(place)
        if kind == MASKED:
            _mask(place, path, status)
            return MASK, 0, 0
        if stat.S_ISREG(status.st_mode):
            covers.lay(place, place, path)
            return FILE, status.st_dev, status.st_ino
        if not (make or kind == STUB) or not stat.S_ISDIR(status.st_mode):
            # A process that entered the directory before it was covered could go on using it.
            return FAILED, 0, 0
        covers.lay(place, place, path)
    with covers.beneath(root, path[1:], _LIST) as folder:
        return (FAILED if os.listdir(folder) else STANDS), 0, 0


def _mask(place: int, path: str, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        with linux.opened(os.devnull) as null:
            covers.lay(null, place, path)
        return
    os.fchdir(place)
    linux.checked(linux.libc.mount(b"tmpfs", b".", b"tmpfs", _MASK_FLAGS, b"size=4096"), path)


def _there(root: int, path: str) -> bool:
    try:
        with covers.beneath(root, path[1:], _NAME):
            return True
    except OSError:
        return False


def _make(root: int, path: str) -> None:
    above, _, name = path[1:].rpartition("/")
    with contextlib.suppress(OSError), covers.beneath(root, above or ".") as folder:
        os.mkdir(name, 0o755, dir_fd=folder)
