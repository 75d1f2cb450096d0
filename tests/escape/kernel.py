"""System calls by their numbers, as an attacker makes them. Standard library only."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

# x86_64, aarch64
NUMBERS: Final = {
    "ioctl": (16, 29), "shmget": (29, 194), "shmat": (30, 196), "clone": (56, 220), "ptrace": (101, 117),
    "syslog": (103, 116), "rt_sigqueueinfo": (129, 138), "pivot_root": (155, 41), "chroot": (161, 51),
    "mount": (165, 40), "umount2": (166, 39), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "add_key": (248, 217),
    "tgkill": (234, 131), "keyctl": (250, 219), "unshare": (272, 97), "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "clone3": (435, 435),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
}  # fmt: skip

NEWNS, NEWUSER, NEWNET, NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
SIGCHLD = 17


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call.

    Raises:
        OSError: It failed.
    """
    number = NUMBERS[name][os.uname().machine != "x86_64"]
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(number), *given)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def libc() -> ctypes.CDLL:
    """The C library, which keeps errno."""
    return _LIBC


def buffer(size: int) -> ctypes.Array[ctypes.c_char]:
    """Room for an answer."""
    return ctypes.create_string_buffer(size)


def at(room: ctypes.Array[ctypes.c_char]) -> int:
    """Where it is."""
    return ctypes.addressof(room)


def become_root_of_a_namespace(more: int = NEWNS) -> None:
    """Be privileged in user, mount and other namespaces of one's own.

    Raises:
        OSError: That is refused.
    """
    uid, gid = os.getuid(), os.getgid()
    call("unshare", NEWUSER | more)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if more & NEWNS:
        call("mount", b"none", b"/", None, 0x44000, None)  # private, and all below
