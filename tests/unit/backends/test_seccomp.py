"""The system call filter, run by an interpreter: what it refuses, with which error, and that it has no way round."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from shellback.exec.backends import seccomp
from shellback.exec.backends.seccomp import CHECKED, DENIED, NEWEST, Call, Step, assemble, program
from shellback.exec.core.errors import BackendUnavailable
from tests.databases import unavailable

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}
MACHINES = sorted(ARCHITECTURE)
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
KILLED = "killed"
HIGH = 1 << 32

PROGRAMS = {machine: program(machine) for machine in MACHINES}

each_machine = pytest.mark.parametrize("machine", MACHINES)


def interpret(code: bytes, number: int, *arguments: int, architecture: int) -> tuple[int | str, int]:
    """Run a filter as the kernel does; returns the errno, 0 if allowed, or KILLED, and the steps taken."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(arguments + (0,) * 6)[:6])
    steps = list(struct.iter_unpack("<HBBI", code))
    accumulator = at = taken = 0
    while True:
        operation, yes, no, k = steps[at]
        taken += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, k)[0]
            case 0x54:
                accumulator &= k
            case 0x15:
                at += yes if accumulator == k else no
            case 0x35:
                at += yes if accumulator >= k else no
            case 0x45:
                at += yes if accumulator & k else no
            case 0x06:
                return {0x7FFF0000: 0, 0x80000000: KILLED}.get(k, k - 0x50000), taken
            case _:
                raise AssertionError(f"operation {operation:#x} is not used")
        at += 1


def answer(machine: str, call: int | str, *arguments: int) -> int | str:
    """What the filter of a machine says to a call, by number or name."""
    number = call if isinstance(call, int) else named(machine, call)
    return interpret(PROGRAMS[machine], number, *arguments, architecture=ARCHITECTURE[machine])[0]


def named(machine: str, name: str) -> int:
    """The number of a call that the filter knows."""
    number = (DENIED.get(name) or CHECKED[name]).number(machine)
    assert number is not None
    return number


def numbers(machine: str, calls: dict[str, Call]) -> dict[int, Call]:
    """The calls that a machine has, by number."""
    return {number: call for call in calls.values() if (number := call.number(machine)) is not None}


@each_machine
def test_each_number_is_answered_as_the_table_says(machine: str) -> None:
    denied, checked = numbers(machine, dict(DENIED)), numbers(machine, dict(CHECKED))
    assert not denied.keys() & checked.keys()
    for number in (*range(NEWEST + 200), *range(0x3FFFFF00, 0x40000300), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        if number in checked:
            continue
        expected = errno.ENOSYS if number > NEWEST else denied[number].error if number in denied else 0
        for arguments in ((0,) * 6, (2**64 - 1,) * 6):
            assert answer(machine, number, *arguments) == expected, number


@each_machine
def test_a_program_of_another_architecture_is_killed_whatever_it_calls(machine: str) -> None:
    for architecture in (FOREIGN[machine], ARCHITECTURE[{"x86_64": "aarch64"}.get(machine, "x86_64")], 0):
        for number in range(NEWEST + 2):
            assert interpret(PROGRAMS[machine], number, architecture=architecture)[0] == KILLED


def test_numbers_of_x32_answer_as_on_a_kernel_without_x32() -> None:
    for number in range(600):
        assert answer("x86_64", 0x40000000 | number) == errno.ENOSYS
    # Old kernels took these, made for x32, without its bit too: 521 is ptrace.
    for number in range(512, 548):
        assert answer("x86_64", number) == errno.ENOSYS


@each_machine
@pytest.mark.parametrize("high", [0, HIGH, 0xFFFFFFFF << 32])
@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x5423])
def test_nothing_is_typed_into_a_terminal_with_any_upper_half(machine: str, high: int, request_: int) -> None:
    assert answer(machine, "ioctl", 0, high | request_, 0) == errno.EPERM
    assert answer(machine, "ioctl", 2**64 - 1, high | request_, 2**64 - 1) == errno.EPERM


@each_machine
@pytest.mark.parametrize("request_", [0x5401, 0x5402, 0x540E, 0x540F, 0x5410, 0x5413, 0x5414, 0x5421, 0x541B, 0x5450])
def test_what_terminals_and_files_need_of_ioctl_is_allowed(machine: str, request_: int) -> None:
    # In this order: TCGETS TCSETS TIOCSCTTY TIOCGPGRP TIOCSPGRP TIOCGWINSZ TIOCSWINSZ FIONBIO FIONREAD FIONCLEX.
    assert answer(machine, "ioctl", 0, request_) == 0
    assert answer(machine, "ioctl", 0x5412, request_, 0x5412) == 0


# Namespaces: mount, cgroup, UTS, IPC, user, PID, network.
@each_machine
@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_is_made(machine: str, flag: int) -> None:
    for others in (0, 17, 0x003D0F00, HIGH, 2**64 - 1):
        assert answer(machine, "clone", flag | others) == errno.EPERM
        assert answer(machine, "unshare", flag | others) == errno.EPERM


@each_machine
@pytest.mark.parametrize("flags", [0x80, 0x100000, HIGH, HIGH | 0x200, 1 << 63], ids=hex)
def test_unshare_takes_no_flag_that_is_new_or_makes_a_time_namespace(machine: str, flags: int) -> None:
    assert answer(machine, "unshare", flags) == errno.EPERM


@each_machine
def test_no_process_is_made_beside_its_maker(machine: str) -> None:
    assert answer(machine, "clone", 0x8000 | 17) == errno.EPERM


@each_machine
@pytest.mark.parametrize("flags", [17, 0x4111, 0x1200011, 0x3D0F00, 0x50F00, 0x5011], ids=hex)
def test_processes_and_threads_are_made(machine: str, flags: int) -> None:
    # fork, vfork, fork of glibc, thread of glibc, thread of Go, process of Go with a descriptor.
    assert answer(machine, "clone", flags) == 0
    assert answer(machine, "clone", HIGH | flags) == 0, "the kernel does not look at the upper half"


@each_machine
@pytest.mark.parametrize("flags", [0, 0x200, 0x400, 0x40000, 0x600])
def test_a_thread_may_stop_sharing_its_directory_and_files(machine: str, flags: int) -> None:
    assert answer(machine, "unshare", flags) == 0


@each_machine
@pytest.mark.parametrize("family", range(60))
def test_sockets_are_local_or_of_the_internet_or_ask_for_routes(machine: str, family: int) -> None:
    expected = 0 if family in (1, 2, 10, 16) else errno.EAFNOSUPPORT
    for high in (0, HIGH):
        for kind in (1, 2, 3, 5, 0x80801):
            assert answer(machine, "socket", high | family, kind, 0) == expected
        assert answer(machine, "socketpair", high | family, 1, 0) == (0 if family == 1 else errno.EAFNOSUPPORT)


@each_machine
@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        *((family, 1, 0) for family in (0xFFFFFFFF, 0x80000002, 0x10002)),
        *((16, 3, protocol) for protocol in (1, 4, 9, 12, 15, 16, 0xFFFFFFFF, HIGH | 12)),
        *((2, kind, 0) for kind in (10, 10 | 0x80000, 10 | HIGH)),
    ],
)
def test_no_socket_is_of_no_family_netlink_for_more_than_routes_or_packets_by_the_old_name(
    machine: str, family: int, kind: int, protocol: int
) -> None:
    assert answer(machine, "socket", family, kind, protocol) == errno.EAFNOSUPPORT
    assert answer(machine, "socket", 16, 3 | 0x80000, HIGH) == 0


@each_machine
def test_local_sockets_can_be_left_to_pairs(machine: str) -> None:
    code, architecture = program(machine, unix=False), ARCHITECTURE[machine]
    for name, family, expected in (("socket", 1, 97), ("socket", HIGH | 1, 97), ("socket", 2, 0), ("socketpair", 1, 0)):
        assert interpret(code, named(machine, name), family, 1, 0, architecture=architecture)[0] == expected


@each_machine
def test_programs_fall_back_where_there_is_another_way(machine: str) -> None:
    for name in ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "process_madvise"):
        assert answer(machine, name) == errno.ENOSYS


# By number, independently of the table of the filter.
ALLOWED = {
    # read write openat mmap rt_sigreturn execve exit wait4 kill fcntl prctl personality futex epoll_create1 pipe2
    # memfd_create statx rseq seccomp mbind io_setup mknod
    "x86_64": [0, 1, 257, 9, 15, 59, 60, 61, 62, 72, 157, 135, 202, 291, 293, 319, 332, 334, 317, 237, 206, 133],
    "aarch64": [63, 64, 56, 222, 139, 221, 93, 260, 129, 25, 167, 92, 98, 20, 59, 279, 291, 293, 277, 235, 0, 33],
    # pidfd_send_signal pidfd_open close_range openat2 faccessat2 epoll_pwait2 landlock (3) memfd_secret futex_waitv
    # fchmodat2
    "both": [424, 434, 436, 437, 439, 441, 444, 445, 446, 447, 449, 452],
}


@each_machine
def test_what_ordinary_programs_call_is_allowed(machine: str) -> None:
    for number in (*ALLOWED[machine], *ALLOWED["both"]):
        assert answer(machine, number, *(2**64 - 1,) * 6) == 0, number


def test_numbers_are_those_of_the_kernels_headers() -> None:
    compared = 0
    for machine, header in HEADERS.items():
        if not header.exists():
            continue
        found = re.findall(r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
        theirs = {name: int(number) for name, number in found}
        for name, call in {**DENIED, **CHECKED}.items():
            number = call.number(machine)
            assert (number is None) <= (name not in theirs), name
            if number is not None and name in theirs:
                assert theirs[name] == number, name
                compared += 1
    if not compared:
        unavailable("no headers of the kernel; install linux-libc-dev")
    assert compared >= 50


@each_machine
def test_the_filter_stays_small_and_its_ways_short(machine: str) -> None:
    code = program(machine)
    assert len(code) % 8 == 0
    assert len(code) // 8 <= 128
    taken = [interpret(code, number, architecture=ARCHITECTURE[machine])[1] for number in range(NEWEST + 2)]
    assert max(taken) <= 24
    assert max(taken[number] for number in range(NEWEST + 2) if not answer(machine, number)) <= 16


@each_machine
def test_calls_allowed_whatever_their_arguments_are_found_by_their_number_alone(machine: str) -> None:
    # The kernel remembers such calls, if only these operations decide, and runs the filter for them no more.
    steps = list(struct.iter_unpack("<HBBI", program(machine)))
    checked = numbers(machine, dict(CHECKED))
    for number in range(NEWEST + 1):
        at, value = 0, 0
        while number not in checked and steps[at][0] != 0x06:
            operation, yes, no, k = steps[at]
            assert operation in (0x15, 0x35) or (operation == 0x20 and k in (0, 4)), f"{number} needs {operation:#x}"
            if operation == 0x20:
                value = number if k == 0 else ARCHITECTURE[machine]
            else:
                at += yes if (value == k if operation == 0x15 else value >= k) else no
            at += 1


def test_no_row_is_lost() -> None:
    assert {*DENIED} == {
        *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "mount_setattr"),
        *("fsopen", "fsconfig", "fsmount", "fspick", "setns", "clone3", "ptrace", "process_vm_readv"),
        *("process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp", "bpf", "init_module", "finit_module"),
        *("delete_module", "kexec_load", "kexec_file_load", "io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("add_key", "request_key", "keyctl", "name_to_handle_at", "open_by_handle_at", "perf_event_open"),
        *("userfaultfd", "fanotify_init", "modify_ldt", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
        *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "sethostname", "setdomainname", "syslog"),
        *("vhangup", "iopl", "ioperm", "uselib", "nfsservctl", "lookup_dcookie"),
    }
    assert {*CHECKED} == {"clone", "unshare", "ioctl", "socket", "socketpair"}


def test_each_call_has_a_reason_and_a_number_on_some_machine() -> None:
    for name, call in {**DENIED, **CHECKED}.items():
        assert call.reason, name
        assert call.x86_64 is not None, name


def test_this_machine_is_the_one_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    this = os.uname()
    for machine in MACHINES:
        monkeypatch.setattr(os, "uname", lambda machine=machine: os.uname_result((*this[:4], machine)))
        assert program() == program(machine)


@pytest.mark.parametrize("machine", ["riscv64", "i686", "aarch64_be", "armv7l"])
def test_a_machine_without_a_filter_is_named_with_what_to_do(machine: str) -> None:
    with pytest.raises(BackendUnavailable, match=rf"machine {machine} .*x86_64 and aarch64.*BACKEND=host"):
        program(machine)


def test_the_assembler_refuses_what_the_kernel_would_read_otherwise() -> None:
    end, jump = Step(0x06, 0), Step(0x15, 0, "there")
    assert assemble([jump, *[end] * 255, "there", end])[2] == 255
    with pytest.raises(ValueError, match="256 steps away"):
        assemble([jump, *[end] * 256, "there", end])
    with pytest.raises(ValueError, match="cannot jump to there"):
        assemble(["there", end, jump])
    with pytest.raises(ValueError, match="label there is there twice"):
        assemble(["there", end, "there", end])
    with pytest.raises(KeyError):
        assemble([jump, end])


def test_the_newest_call_that_was_looked_at_is_allowed_and_the_next_is_not() -> None:
    assert seccomp.NEWEST == 469
    for machine in MACHINES:
        assert answer(machine, 469) == 0
        assert answer(machine, 470) == errno.ENOSYS
