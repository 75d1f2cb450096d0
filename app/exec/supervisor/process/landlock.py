"""A Landlock fence for commands of the backend `host`: they write only to allowed paths. Opt-in, and no isolation.

Blocked: elsewhere, writing, truncating, making, renaming, linking and removing files and directories, also through
links, `/proc` or bind of a socket; ioctl on device files elsewhere; `mount`; rights from set-uid programs
(no_new_privs); tracing processes from before the fence. From ABI 6 (Linux 6.12) on also: signals to processes outside,
and abstract sockets outside. Each command has its own fence, so a command cannot signal a process of another command;
the supervisor, outside, can.

Not blocked: reading and executing; mode, owner, times and extended attributes of files elsewhere; descriptors opened
before; all networks; unix sockets with a path, and so the actions of container and credential daemons; use of memory,
processes and disk. Before ABI 6 also signals and abstract sockets. Sources: landlock(7);
Documentation/userspace-api/landlock.rst of the kernel, "Current limitations"; tests/hostile/test_landlock.py.

Below ABI 3 (Linux 6.2) any file could be truncated through the fence, so it is refused there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence
from typing import Final

from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import kept

NEEDED: Final = 3
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Device files that are always writable."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION: Final = 1
_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_SCOPES: Final = 0b11

(
    _WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK,
    _MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV,
) = (1 << bit for bit in (1, *range(4, 16)))  # fmt: skip

_FILE: Final = _WRITE_FILE | _TRUNCATE
_MAKE: Final = _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_FOLDER: Final = _FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE | _REFER
_NOWHERE: Final = _MAKE_CHAR | _MAKE_BLOCK


def abi() -> int:
    """The Landlock ABI of this kernel; 0 without Landlock."""
    return max(int(linux.libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)), 0)


def refusal() -> str | None:
    """Why commands cannot be fenced here, and the remedy; None if they can."""
    version = abi()
    if version == 0:
        return "this kernel has no Landlock: it needs CONFIG_SECURITY_LANDLOCK, and landlock in lsm= at boot"
    if version < NEEDED:
        return f"this kernel has Landlock ABI {version}, through which files can be emptied: Linux 6.2 has ABI {NEEDED}"
    return None


def ruleset(writable: Sequence[str]) -> int:
    """A descriptor for `fence`: allows writing beneath these files and directories, and to `DEVICES`.

    Raises OSError: EOPNOTSUPP without Landlock, ELOOP if a path contains a symlink, or a path cannot be opened.
    """
    why = refusal()
    if why is not None:
        raise OSError(errno.EOPNOTSUPP, why)
    version = abi()
    ioctl = _IOCTL_DEV if version >= 5 else 0
    handled = _FOLDER | _NOWHERE | ioctl
    rules = ctypes.create_string_buffer(struct.pack("=QQQ", handled, 0, _SCOPES if version >= 6 else 0), 24)
    with kept(linux.checked(linux.libc.syscall(_CREATE, rules, ctypes.c_size_t(24), 0))) as fd:
        for path in writable:
            _allow(fd, path, 0)
        for path in DEVICES:
            if os.path.exists(path):
                _allow(fd, os.path.realpath(path), ioctl)
    return fd


def fence(fd: int) -> None:
    """Put the calling thread and its future children behind a `ruleset`, for good; for a forked child before exec.

    Raises OSError if the kernel refuses, as it does behind 16 other fences.
    """
    linux.checked(linux.libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    linux.checked(linux.libc.syscall(_RESTRICT, fd, 0))


def _allow(rules: int, path: str, also: int) -> None:
    with linux.opened(path) as fd:
        if os.readlink(f"/proc/self/fd/{fd}") != os.path.normpath(path):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        rights = (_FOLDER if stat.S_ISDIR(os.fstat(fd).st_mode) else _FILE) | also
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        linux.checked(linux.libc.syscall(_ADD, rules, _BENEATH, rule, 0))
