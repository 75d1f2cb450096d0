"""The system call filter of sandboxed commands, as a classic BPF program.

The namespaces isolate without the filter; it removes rarely used kernel interfaces, in which escapes are found. A
refused call fails as it does without the privilege, or on a kernel without the call, so programs use their fallback.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import BackendUnavailable

# Numbers are those of Linux 6.18: arch/x86/entry/syscalls/syscall_64.tbl and, for aarch64, scripts/syscall.tbl;
# nfsservctl, which the second file lacks, is in include/uapi/asm-generic/unistd.h.
NEWEST: Final = 469
"""The newest call that the tables consider (file_setattr); later calls fail with ENOSYS, as on Linux 6.18."""

# linux/audit.h
_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# linux/filter.h: struct sock_filter and its operations on the accumulator; both machines are little-endian.
_INSTRUCTION: Final = struct.Struct("<HBBI")
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_LONGEST_JUMP: Final = 255

# linux/seccomp.h: struct seccomp_data is nr, arch, instruction pointer, six arguments of 64 bits.
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

# linux/sched.h: all CLONE_NEW*, and CLONE_PARENT: a sibling of the caller would be a child of the supervisor.
_CLONE_REFUSED: Final = 0x7E020000 | 0x8000
# CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: to stop sharing these affects no other process.
_UNSHARE_HARMLESS: Final = 0x00050F00
# asm-generic/ioctls.h
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
# linux/socket.h; with SOCK_PACKET the kernel turns AF_INET into AF_PACKET.
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE_MASK, _SOCK_PACKET, _NETLINK_ROUTE = 0xF, 10, 0


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction; a jump goes to the label `yes` or `no`, where None means the next step."""

    code: int
    k: int
    yes: str | None = None
    no: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: its number on each machine, or None; the error that refuses it, and the reason."""

    x86_64: int | None
    aarch64: int | None
    error: int
    reason: str
    steps: tuple[Step, ...] = ()

    def number(self, machine: str) -> int | None:
        """Its number on the machine."""
        return self.x86_64 if machine == "x86_64" else self.aarch64


def _argument(index: int, *, high: bool = False) -> Step:
    # The low half by default: the kernel takes an `int` and ignores the high half.
    return Step(_LOAD, _ARGUMENTS + 8 * index + 4 * high)


_MOUNTS: Final = "changes what is mounted where"
_OTHERS: Final = "reaches into the memory or descriptors of another process"
_KERNEL: Final = "loads code into the kernel or replaces it"
_MACHINE: Final = "changes the machine for everybody on it"
_CLOCK: Final = "sets the machine's clock"
_KEYS: Final = "key rings are shared by all processes of a user, in and out of the sandbox"
_RINGS: Final = "submits calls that no filter sees"
_HANDLES: Final = "opens files without walking a path to them"
_SURFACE: Final = "a wide door into the kernel that programs do without"
_OBSOLETE: Final = "obsolete; no program of today calls it"

DENIED: Final[Mapping[str, Call]] = {
    "mount": Call(165, 40, errno.EPERM, _MOUNTS),
    "umount2": Call(166, 39, errno.EPERM, _MOUNTS),
    "pivot_root": Call(155, 41, errno.EPERM, _MOUNTS),
    "chroot": Call(161, 51, errno.EPERM, _MOUNTS),
    "open_tree": Call(428, 428, errno.EPERM, _MOUNTS),
    "move_mount": Call(429, 429, errno.EPERM, _MOUNTS),
    "fsopen": Call(430, 430, errno.EPERM, _MOUNTS),
    "fsconfig": Call(431, 431, errno.EPERM, _MOUNTS),
    "fsmount": Call(432, 432, errno.EPERM, _MOUNTS),
    "fspick": Call(433, 433, errno.EPERM, _MOUNTS),
    "mount_setattr": Call(442, 442, errno.EPERM, _MOUNTS),
    "open_tree_attr": Call(467, 467, errno.EPERM, _MOUNTS),
    "setns": Call(308, 268, errno.EPERM, "enters another namespace"),
    "clone3": Call(
        435, 435, errno.ENOSYS, "its flags are in memory, where no filter sees them; libc falls back to clone"
    ),
    "ptrace": Call(101, 117, errno.EPERM, _OTHERS),
    "process_vm_readv": Call(310, 270, errno.EPERM, _OTHERS),
    "process_vm_writev": Call(311, 271, errno.EPERM, _OTHERS),
    "process_madvise": Call(440, 440, errno.ENOSYS, _OTHERS),
    "pidfd_getfd": Call(438, 438, errno.EPERM, _OTHERS),
    "kcmp": Call(312, 272, errno.EPERM, _OTHERS),
    "bpf": Call(321, 280, errno.EPERM, _KERNEL),
    "init_module": Call(175, 105, errno.EPERM, _KERNEL),
    "finit_module": Call(313, 273, errno.EPERM, _KERNEL),
    "delete_module": Call(176, 106, errno.EPERM, _KERNEL),
    "kexec_load": Call(246, 104, errno.EPERM, _KERNEL),
    "kexec_file_load": Call(320, 294, errno.EPERM, _KERNEL),
    "io_uring_setup": Call(425, 425, errno.ENOSYS, _RINGS),
    "io_uring_enter": Call(426, 426, errno.ENOSYS, _RINGS),
    "io_uring_register": Call(427, 427, errno.ENOSYS, _RINGS),
    "add_key": Call(248, 217, errno.EPERM, _KEYS),
    "request_key": Call(249, 218, errno.EPERM, _KEYS),
    "keyctl": Call(250, 219, errno.EPERM, _KEYS),
    "name_to_handle_at": Call(303, 264, errno.EPERM, _HANDLES),
    "open_by_handle_at": Call(304, 265, errno.EPERM, _HANDLES),
    "perf_event_open": Call(298, 241, errno.EPERM, _SURFACE),
    "userfaultfd": Call(323, 282, errno.EPERM, _SURFACE),
    "fanotify_init": Call(300, 262, errno.EPERM, _SURFACE),
    "modify_ldt": Call(154, None, errno.ENOSYS, _SURFACE),
    "settimeofday": Call(164, 170, errno.EPERM, _CLOCK),
    "clock_settime": Call(227, 112, errno.EPERM, _CLOCK),
    "adjtimex": Call(159, 171, errno.EPERM, _CLOCK),
    "clock_adjtime": Call(305, 266, errno.EPERM, _CLOCK),
    "reboot": Call(169, 142, errno.EPERM, _MACHINE),
    "swapon": Call(167, 224, errno.EPERM, _MACHINE),
    "swapoff": Call(168, 225, errno.EPERM, _MACHINE),
    "acct": Call(163, 89, errno.EPERM, _MACHINE),
    "quotactl": Call(179, 60, errno.EPERM, _MACHINE),
    "quotactl_fd": Call(443, 443, errno.EPERM, _MACHINE),
    "sethostname": Call(170, 161, errno.EPERM, _MACHINE),
    "setdomainname": Call(171, 162, errno.EPERM, _MACHINE),
    "syslog": Call(103, 116, errno.EPERM, "reads the kernel's log"),
    "vhangup": Call(153, 58, errno.EPERM, "ends the terminal of others"),
    "iopl": Call(172, None, errno.EPERM, "drives hardware"),
    "ioperm": Call(173, None, errno.EPERM, "drives hardware"),
    "uselib": Call(134, None, errno.ENOSYS, _OBSOLETE),
    "nfsservctl": Call(180, 42, errno.ENOSYS, _OBSOLETE),
    "lookup_dcookie": Call(212, 18, errno.ENOSYS, _OBSOLETE),
}
"""Calls that are refused with any arguments."""

_UNIX: Final = Step(_IF_EQUAL, _AF_UNIX, "allow")

CHECKED: Final[Mapping[str, Call]] = {
    "clone": Call(
        56, 220, errno.EPERM, "refused when it makes a namespace (CLONE_NEW*) or a sibling (CLONE_PARENT)",
        (_argument(0), Step(_IF_ANY_BIT, _CLONE_REFUSED, "EPERM", "allow")),
    ),
    "unshare": Call(
        272, 97, errno.EPERM, "refused with any flag but those that stop sharing memory, files, or semaphores",
        (
            _argument(0, high=True),
            Step(_IF_EQUAL, 0, None, "EPERM"),
            _argument(0),
            Step(_IF_ANY_BIT, ~_UNSHARE_HARMLESS & 0xFFFFFFFF, "EPERM", "allow"),
        ),
    ),
    "ioctl": Call(
        16, 29, errno.EPERM, "refused when it types into a terminal (TIOCSTI, TIOCLINUX) or sets its driver (TIOCSETD)",
        (
            _argument(1),
            Step(_IF_EQUAL, _TIOCSTI, "EPERM"),
            Step(_IF_EQUAL, _TIOCLINUX, "EPERM"),
            Step(_IF_EQUAL, _TIOCSETD, "EPERM", "allow"),
        ),
    ),
    "socket": Call(
        41, 198, errno.EAFNOSUPPORT, "refused for every family but AF_UNIX, AF_INET, AF_INET6, and NETLINK_ROUTE",
        (
            _argument(1),
            Step(_AND, _SOCK_TYPE_MASK),
            Step(_IF_EQUAL, _SOCK_PACKET, "EAFNOSUPPORT"),
            _argument(0),
            _UNIX,
            Step(_IF_EQUAL, _AF_INET, "allow"),
            Step(_IF_EQUAL, _AF_INET6, "allow"),
            Step(_IF_EQUAL, _AF_NETLINK, None, "EAFNOSUPPORT"),
            _argument(2),
            Step(_IF_EQUAL, _NETLINK_ROUTE, "allow", "EAFNOSUPPORT"),
        ),
    ),
    "socketpair": Call(
        53, 199, errno.EAFNOSUPPORT, "refused for every family but AF_UNIX",
        (_argument(0), Step(_IF_EQUAL, _AF_UNIX, "allow", "EAFNOSUPPORT")),
    ),
}  # fmt: skip
"""Calls that are refused for some arguments only."""


def program(machine: str | None = None, *, unix: bool = True) -> bytes:
    """Return the filter for a machine, by default for this one; without `unix`, only socketpair has AF_UNIX.

    SIGSYS kills a program of another architecture (32 bits) at its first call: the numbers of its calls have
    other meanings, and if its calls failed instead, it could not even exit. x32 numbers are above NEWEST.

    Raises:
        BackendUnavailable: There is no filter for this machine.
    """
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES:
        raise BackendUnavailable(
            f"no system call filter for machine {machine} ({' and '.join(_ARCHITECTURES)} have one); "
            "set BACKEND=host to run commands without a sandbox"
        )
    targets = {call.number(machine): errno.errorcode[call.error] for call in DENIED.values()}
    targets |= {call.number(machine): name for name, call in CHECKED.items()}
    listing: list[Step | str] = [
        Step(_LOAD, _ARCH),
        Step(_IF_EQUAL, _ARCHITECTURES[machine], None, "kill"),
        Step(_LOAD, _NR),
        *_tree(_segments(targets)),
    ]
    for name, call in CHECKED.items():
        listing += [name, *(step for step in call.steps if unix or name != "socket" or step != _UNIX)]
    for error in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT):
        listing += [errno.errorcode[error], Step(_RETURN, _ERRNO | error)]
    listing += ["allow", Step(_RETURN, _ALLOW), "kill", Step(_RETURN, _KILL_PROCESS)]
    return assemble(listing)


def assemble(listing: Sequence[Step | str]) -> bytes:
    """Encode steps, and the labels before them, in the kernel's format.

    Raises:
        ValueError: A label occurs twice, or a jump goes backwards, or further than 8 bits can express.
        KeyError: A jump names a label that does not exist.
    """
    places: dict[str, int] = {}
    steps: list[Step] = []
    for item in listing:
        if isinstance(item, Step):
            steps.append(item)
        elif item in places:
            raise ValueError(f"label {item} is there twice")
        else:
            places[item] = len(steps)

    def distance(start: int, label: str | None) -> int:
        if label is None:
            return 0
        jump = places[label] - start - 1
        if not 0 <= jump <= _LONGEST_JUMP:
            raise ValueError(f"step {start} cannot jump to {label}, {jump} steps away")
        return jump

    return b"".join(
        _INSTRUCTION.pack(step.code, distance(at, step.yes), distance(at, step.no), step.k)
        for at, step in enumerate(steps)
    )


def _segments(targets: Mapping[int | None, str]) -> list[tuple[int, str]]:
    # All numbers, as runs with one target each; a run is given by its first number.
    found: list[tuple[int, str]] = []
    for number in range(NEWEST + 2):
        target = "ENOSYS" if number > NEWEST else targets.get(number, "allow")
        if not found or found[-1][1] != target:
            found.append((number, target))
    return found


def _tree(segments: Sequence[tuple[int, str]]) -> Iterator[Step | str]:
    # A binary search: one step for each border between runs. A call takes about seven steps; with a list it would
    # take one for each number. Only the number is tested, so the kernel (5.11 or newer) determines once which
    # calls are always allowed, and does not run the program for them.
    middle = len(segments) // 2
    left, right = segments[:middle], segments[middle:]
    border = right[0][0]
    yes = f"from {border}" if len(right) > 1 else right[0][1]
    yield Step(_IF_AT_LEAST, border, yes, None if len(left) > 1 else left[0][1])
    if len(left) > 1:
        yield from _tree(left)
    if len(right) > 1:
        yield yes
        yield from _tree(right)
