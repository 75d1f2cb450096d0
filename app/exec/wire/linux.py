"""System calls that Python lacks, and the identity of this boot."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Generator, Iterable
from typing import Final

from shellback.exec.wire.descriptors import closing, kept

_PR_SET_NAME: Final = 15
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITIES_3: Final = 0x20080522
_SECCOMP_MODE_FILTER: Final = 2
_PR_SET_CHILD_SUBREAPER: Final = 36
_M_ARENA_MAX: Final = -8
_FALLOC_KEEP_SIZE: Final = 1
_FALLOC_PUNCH_HOLE: Final = 2
_CLONE_FS: Final = 0x200
_PIDFD_GET_INFO: Final = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 8

# Raw calls change the credentials of the calling thread only; the wrappers of libc change all threads.
_SETGROUPS, _SETRESUID, _SETRESGID = {
    "x86_64": (116, 117, 119),
    "aarch64": (159, 147, 149),
}.get(os.uname().machine, (0, 0, 0))

CLONE: Final = 56 if os.uname().machine == "x86_64" else 220
"""The call number of clone."""

SWITCHES: Final = _SETRESUID != 0
"""Whether `credentials` knows the call numbers of this machine."""

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
held = ctypes.PyDLL(None, use_errno=True)
"""The same without giving way to other threads meanwhile."""
held.syscall.restype = ctypes.c_long


def checked(result: int, name: str | None = None) -> int:
    """The result of a call of `libc`; raises OSError with its errno, about `name`, if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str], flags: int = os.O_PATH, mode: int = 0o600, *, dir_fd: int | None = None
) -> Generator[int]:
    """A descriptor of a file, by default O_PATH; closed at the end."""
    with closing(os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)) as fd:
        yield fd


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def become_subreaper() -> None:
    """Make orphaned descendants our children."""
    checked(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def name_process(name: str) -> None:
    """Show `name` in process listings, at most 15 bytes of it."""
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def one_heap() -> None:
    """Have later threads share one heap of the C library; what a thread freed in one of its own, no other could use.

    Nothing happens where the C library has no such choice.
    """
    with contextlib.suppress(AttributeError):
        libc.mallopt(_M_ARENA_MAX, 1)


def filter_calls(program: bytes) -> None:
    """Add a seccomp filter to this process and its future children, for good.

    Raises OSError without no_new_privs, or if the kernel has no filters.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    told = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions)))
    checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, told, 0, 0))


def give_up_capabilities() -> None:
    """Keep no capability, and no way to one: neither in the bounding set nor by executing a set-uid file."""
    number = 0
    while libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    checked(libc.capset(struct.pack("Ii", _CAPABILITIES_3, 0), bytes(24)))
    checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free the blocks of a range, which then reads as zeroes; OSError EOPNOTSUPP if the file system cannot."""
    flags = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
    checked(libc.fallocate(fd, flags, ctypes.c_int64(start), ctypes.c_int64(length)))


@contextlib.contextmanager
def credentials(uid: int, gid: int, groups: list[int]) -> Generator[None]:
    """Give this thread, and processes that it spawns meanwhile, another identity.

    The saved ids stay ours, so that we can return. Exec overwrites them in the child, which keeps no capability. If we
    cannot return, the process ends at once.
    """
    own_uids, own_gids, own_groups = os.getresuid(), os.getresgid(), os.getgroups()
    try:
        _set_groups(groups)
        checked(held.syscall(_SETRESGID, gid, gid, own_gids[1]))
        checked(held.syscall(_SETRESUID, uid, uid, own_uids[1]))
        yield
    finally:
        try:
            checked(held.syscall(_SETRESUID, *own_uids))
            checked(held.syscall(_SETRESGID, *own_gids))
            _set_groups(own_groups)
        except OSError:
            os._exit(70)


def _set_groups(groups: list[int]) -> None:
    array = (ctypes.c_uint32 * len(groups))(*groups)
    checked(held.syscall(_SETGROUPS, len(groups), array))


def file_identity(uid: int, gid: int) -> None:
    """Let this thread, for good, access files as `uid` and `gid`, without capabilities.

    Its other ids stay ours, so that the user cannot signal or trace it. No other thread changes.
    """
    _set_groups([gid])
    libc.setfsgid(gid)
    libc.setfsuid(uid)
    # Both return the old id, whether they worked or not.
    if (libc.setfsuid(-1), libc.setfsgid(-1)) != (uid, gid):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@contextlib.contextmanager
def own_file_identity() -> Generator[None]:
    """Access files with the ids of the process, in a thread with another `file_identity`."""
    uid, gid = libc.setfsuid(-1), libc.setfsgid(-1)
    libc.setfsuid(os.geteuid())
    libc.setfsgid(os.getegid())
    try:
        yield
    finally:
        libc.setfsgid(gid)
        libc.setfsuid(uid)


def own_umask(mask: int) -> None:
    """Give this thread its own umask, for good, unless the kernel refuses that."""
    with contextlib.suppress(OSError):
        checked(libc.unshare(_CLONE_FS))
        os.umask(mask)


def exit_info(pidfd: int) -> int | None:
    """The wait status of a reaped child of another process, or None if the kernel does not tell."""
    buffer = bytearray(64)
    struct.pack_into("Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError as error:
        if error.errno in {errno.ENOTTY, errno.EINVAL, errno.ESRCH, errno.EOPNOTSUPP}:
            return None
        raise
    if not buffer[0] & _PIDFD_INFO_EXIT:
        return None
    status: int = struct.unpack_from("i", buffer, 60)[0]
    return status


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def container_id() -> str:
    """Identifies our PID namespace: its inode, and the start of its first process; empty if /proc hides that.

    Raises OSError if it cannot be read now.
    """
    try:
        with open("/proc/1/stat", encoding="utf-8", errors="replace") as file:
            start = file.read().rpartition(")")[2].split()[19]
        return f"{os.stat('/proc/self/ns/pid').st_ino}:{start}"
    except (FileNotFoundError, PermissionError):
        return ""


def write_all(fd: int, data: bytes) -> None:
    """Write all data: a full disk or a limit takes a part first, and fails only at the next write."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def overwrite_environment(kept: Callable[[str], bool]) -> None:
    """Overwrite the values of other variables where the kernel put them and /proc/PID/environ shows them (proc(5)).

    They have to be elsewhere before: setenv(3) moves them.
    """
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and not kept(os.fsdecode(name)):
            ctypes.memset(at + len(name) + 1, 0, len(value))
        at += len(entry) + 1


def text_in_memory(name: str, text: bytes) -> int:
    """A descriptor from which `text` can be read."""
    with kept(os.memfd_create(name)) as fd:
        write_all(fd, text)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd
