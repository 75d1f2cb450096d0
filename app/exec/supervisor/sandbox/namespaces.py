"""Steps of the children of a sandboxed start.

It runs between fork and exec. Sources: namespaces(7), pid_namespaces(7), user_namespaces(7), mount(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

from shellback.exec.supervisor.process import spawn
from shellback.exec.supervisor.sandbox import rlimits
from shellback.exec.wire import layout, linux
from shellback.exec.wire import sandbox as places
from shellback.exec.wire.sandbox import Bounds

USER: Final = "user"
NET: Final = "net"
MNT: Final = "mnt"
ALL: Final = (USER, NET, MNT)
"""The namespaces of an instance, in the order of entering."""

INNER: Final = "inner"
"""The user namespace of the commands, below that of the instance; no further one can be made in it."""

_KINDS: Final = {USER: 0x10000000, NET: 0x40000000, MNT: 0x20000}
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWPID: Final = 0x20000000
_CLONE_NEWIPC: Final = 0x8000000
_CLONE_NEWUTS: Final = 0x4000000
_CLONE_NEWCGROUP: Final = 0x2000000
_CLONE_PARENT: Final = 0x8000
_MS_MOVE: Final = 0x2000
_MS_NOSUID_NODEV: Final = 0x6
_PR_SET_DUMPABLE: Final = 4
_OWNER: Final = 0xB701
"""NS_GET_USERNS."""
_WORDS: Final = 1 << 16
_HOST: Final = "sandbox"
_MS_NOSUID_NODEV_NOEXEC: Final = 0xE
_MS_NOSUID_NOEXEC: Final = 0xA
_OWN_TERMINALS: Final = b"newinstance,ptmxmode=0666,mode=620"

ARGS_FD, INFO_FD = 3, 4
_ABOVE: Final = 32
"""Descriptors are moved above this number before each gets its final number."""

GO: Final = b"g"

_SLEEPERS: Final = ("/usr/bin/sleep", "/bin/sleep")


def in_child(work: Callable[[], NoReturn], said: int, *, move: bool = True) -> int:
    """Fork a child that does `work` as in `reporting`; its pid."""
    pid = os.fork()
    if pid == 0:
        reporting(work, said, move=move)
    return pid


def reporting(work: Callable[[], NoReturn], said: int, *, move: bool = True) -> NoReturn:
    """In a forked child: do `work`, and write `!errno` to `said` if it fails.

    `move`: `work` may use the number of `said` for another descriptor, and closes none that it does not know.
    """
    number, place = 0, ""
    try:
        if move:
            said = fcntl.fcntl(said, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
        work()
    except OSError as error:
        number = error.errno or 0
        place = where(error)
    finally:
        with contextlib.suppress(OSError):
            os.write(said, f"{place}!{number}\n".encode("utf-8", "replace"))
        os._exit(127)


def where(error: OSError) -> str:
    """The error and its file as exactly one line, whatever the file name, because we parse lines."""
    return f"{error.filename}: {error.strerror}".replace("\n", "?") + "\n" if error.filename else ""


def prepare(who: tuple[int, int] | None, bounds: Bounds, join: Callable[[], object] | None = None) -> None:
    """Take the limits and the user of a command, reset signals, and be killed first if memory runs out."""
    if join is not None:
        join()
    spawn.be_expendable()
    spawn.plain_signals()
    rlimits.set_limits(processes=bounds.processes, file_bytes=bounds.file_bytes, data_bytes=bounds.data_bytes)
    if who is not None:
        os.setgroups([])
        os.setresgid(who[1], who[1], who[1])
        os.setresuid(who[0], who[0], who[0])


def join(namespaces: Mapping[str, int]) -> None:
    """Enter the namespaces of an instance."""
    for name in ALL:
        if name in namespaces:
            linux.checked(linux.libc.setns(namespaces[name], _KINDS[name]))


def owner_of(namespace: int) -> int:
    """The user namespace that owns a mount namespace; source: ioctl_ns(2)."""
    return fcntl.ioctl(namespace, _OWNER)


def be_apart() -> None:
    """Get own mounts, host name, and objects of System V; the next child is the first process of a PID namespace."""
    linux.checked(linux.libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS))
    # A kernel may lack it.
    linux.libc.unshare(_CLONE_NEWCGROUP)
    socket.sethostname(_HOST)
    linux.checked(linux.libc.mount(b"devpts", places.TERMINALS.encode(), b"devpts", _MS_NOSUID_NOEXEC, _OWN_TERMINALS))
    mount_fresh(places.SHM, places.RUN_BYTES * 4)


def mount_fresh(place: str, size: int) -> None:
    """Mount an empty directory in memory, for this command only."""
    options = f"mode=0755,size={size}".encode()
    linux.checked(linux.libc.mount(b"tmpfs", place.encode(), b"tmpfs", _MS_NOSUID_NODEV, options), place)


def own_processes() -> None:
    """Show the processes of the new PID namespace in /proc, once its first process has mounted them."""
    linux.checked(linux.libc.mount(places.PROC.encode(), b"/proc", None, _MS_MOVE, None), "/proc")


def sibling() -> int:
    """Fork a child of our parent, which alone gets its wait status; its pid, and 0 in the child."""
    # By the kernel's call: os.fork makes children of our own only. This process has one thread.
    return linux.checked(linux.held.syscall(linux.CLONE, _CLONE_PARENT, 0, 0, 0, 0))


def drop_all(inner: int, program: bytes, *, seen: bool) -> None:
    """Enter the inner user namespace and give up all capabilities for good, with a filter of system calls.

    The mounts and the first process belong to the outer one, so nothing can change them any more. `seen`: our user may
    look at this process, as at those that have executed a program.
    """
    linux.checked(linux.libc.setns(inner, _KINDS[USER]))
    linux.give_up_capabilities()
    if seen:
        linux.libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    linux.filter_calls(program)


def waits(pid: int, supervisor: int) -> bool:
    """Whether this process was forked by a supervisor like this one, and has not executed a program yet."""
    try:
        return _words(pid) == _words(supervisor)
    except OSError:
        return False


def _words(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
        return file.read(_WORDS)


def first_process(life: int, mounted: int) -> NoReturn:
    """Be the first process of the namespace: mount its /proc, then stay if `life` gives a marker.

    With SIGCHLD ignored the kernel reaps all orphans (wait(2)). If `life` closes instead, end.
    """
    # Before another process is in the namespace: an earlier end would leave a zombie that keeps us for good.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    linux.checked(linux.libc.mount(b"proc", places.PROC.encode(), b"proc", _MS_NOSUID_NODEV_NOEXEC, None))
    _number_anew()
    os.write(mounted, b".")
    close_but(life)
    os.closerange(0, 3)
    # One write has it all (pipe(7)); if the writer has ended, nothing.
    mark = os.read(life, 4096)
    if not mark:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.setsid()
    for path in _SLEEPERS:
        with contextlib.suppress(OSError):
            os.execve(path, ["sleep", "infinity"], {layout.MARKER.encode(): mark.rstrip()})  # noqa: S606 - the point of it
    while True:
        signal.pause()


def _number_anew() -> None:
    """Let the pids of this namespace begin at a random number.

    Otherwise a pid that one command wrote down would mean another process, often the shell, in the next command. A
    kernel without ns_last_pid (proc(5)) numbers from 1.
    """
    kernel = f"{places.PROC}/sys/kernel"
    with contextlib.suppress(OSError, ValueError):
        with open(f"{kernel}/pid_max", "rb", buffering=0) as file:
            most = int(file.read())
        # As bytes: Python could not load a codec here, where its files are not visible.
        with open(f"{kernel}/ns_last_pid", "wb", buffering=0) as file:
            file.write(b"%d" % (int.from_bytes(os.urandom(4)) % (most * 3 // 4)))


def become(argv: list[str], descriptors: Mapping[int, int]) -> NoReturn:
    """Execute with exactly these descriptors, and without an environment."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for number, fd in descriptors.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    # Not before: the supervisor may have more open descriptors than a command may have.
    spawn.lower_descriptor_limit()
    os.execve(argv[0], argv, {})  # noqa: S606 - the point of it


def close_but(*fds: int) -> None:
    """Close all descriptors above 2 except these."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)


def options_in_memory(name: str, words: Iterable[str]) -> int:
    """A descriptor from which bubblewrap reads `words` as `--args`."""
    return linux.text_in_memory(name, os.fsencode("".join(f"{word}\0" for word in words)))
