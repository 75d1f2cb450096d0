"""A fence for commands on the host, where no sandbox is: they write only where they may. Opt-in, and no isolation.

What it holds: files and directories elsewhere can be neither written, emptied, made, renamed, linked nor removed, also
through links, `/proc` or bind of a socket; device files elsewhere take no ioctl. `mount` is refused, set-uid programs
give nothing (no_new_privs), processes from before the fence cannot be traced. From ABI 6 (Linux 6.12) on, processes
outside cannot be signalled and abstract sockets outside not be reached. Each command is behind a fence of its own, so
this includes other commands: one cannot signal the server that another has started, only its keeper outside can.

What it does not hold: reading and executing everything that the user may; mode, owner, times and extended attributes
of files elsewhere; descriptors that were open before; TCP, UDP and every other network, left alone on purpose; unix
sockets with a path, and so whatever a container or credential daemon does on request; memory, processes and disk.
Before ABI 6 signals and abstract sockets as well. Sources: landlock(7); Documentation/userspace-api/landlock.rst of the
kernel, "Current limitations"; tests/hostile/test_landlock.py has each of these.

Below ABI 3 (Linux 6.2) any file could be emptied through the fence, so it is refused there.
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

NEEDED: Final = 3
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Written by programs that mean no file; what of them there is, is always writable."""

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
    """What this kernel has of Landlock, 0 for nothing."""
    return max(int(linux.libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)), 0)


def refusal() -> str | None:
    """Why commands cannot be fenced here and what would change it, None where they can."""
    version = abi()
    if version == 0:
        return "this kernel has no Landlock: it needs CONFIG_SECURITY_LANDLOCK, and landlock in lsm= at boot"
    if version < NEEDED:
        return f"this kernel has Landlock ABI {version}, through which files can be emptied: Linux 6.2 has ABI {NEEDED}"
    return None


def ruleset(writable: Sequence[str]) -> int:
    """A descriptor for `fence`: writing only beneath these files and directories, and to `DEVICES`.

    Paths have to be real ones, so that nobody who may write there can put a link to another place in their stead.

    Raises:
        OSError: EOPNOTSUPP where there is no fence, ELOOP for a path with a link in it, or a path cannot be opened.
    """
    why = refusal()
    if why is not None:
        raise OSError(errno.EOPNOTSUPP, why)
    version = abi()
    ioctl = _IOCTL_DEV if version >= 5 else 0
    handled = _FOLDER | _NOWHERE | ioctl
    rules = ctypes.create_string_buffer(struct.pack("=QQQ", handled, 0, _SCOPES if version >= 6 else 0), 24)
    with linux.kept(linux.checked(linux.libc.syscall(_CREATE, rules, ctypes.c_size_t(24), 0))) as fd:
        for path in writable:
            _allow(fd, path, 0)
        for path in DEVICES:
            if os.path.exists(path):
                _allow(fd, os.path.realpath(path), ioctl)
    return fd


def fence(fd: int) -> None:
    """Put the calling thread, and all that it will start, behind a `ruleset`. Nothing takes it back.

    Two system calls, for a forked child before exec; the user may have been changed before or is changed after.

    Raises:
        OSError: The kernel refuses, as it does behind 16 other fences.
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
