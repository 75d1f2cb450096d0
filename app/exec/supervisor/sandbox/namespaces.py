"""The code of a sandboxed start's children, before they become bubblewrap or the first process of a PID namespace.

It runs between fork and exec. Sources: namespaces(7), pid_namespaces(7), user_namespaces(7), mount(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
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
"""Namespaces of an instance, in the order in which they are entered."""

_KINDS: Final = {USER: 0x10000000, NET: 0x40000000, MNT: 0x20000}
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWPID: Final = 0x20000000
_MS_NOSUID_NODEV_NOEXEC: Final = 0xE
_MS_NOSUID_NOEXEC: Final = 0xA
_OWN_TERMINALS: Final = b"newinstance,ptmxmode=0666,mode=620"

LIFE_FD, STDERR_FD, SECCOMP_FD, ARGS_FD, INFO_FD, GO_FD, SAID_FD = range(3, 10)
"""STDERR_FD is the command's own; bubblewrap writes its messages for us to 2."""
_ABOVE: Final = 32
"""Descriptors are moved above this number before each gets its final number."""

GO: Final = b"g"
_GO_S: Final = 600.0
"""Seconds that a process with its mark waits for its order: far longer than a launch may take."""
UNTOLD: Final = 113
"""Exit status of a process that should have become a command and got no order."""
WAITER: Final = (
    f"echo ready >&{SAID_FD}; IFS= read -r mark <&{GO_FD} || exit {UNTOLD}; echo {GO.decode()} >&{LIFE_FD};"
    f' exec {LIFE_FD}>&- {GO_FD}<&- {SAID_FD}>&- 2>&{STDERR_FD}; exec {STDERR_FD}>&-; export "$mark"; exec "$@"'
)
"""The command's process before it becomes the command: it reports that the sandbox stands, and waits for its marker.

Then it tells the first process to stay. Without an order it ends by itself, with a status that no command has.
"""
_WAITING: Final = f"\0{WAITER}\0".encode()

_SETSID: Final = "/usr/bin/setsid"
_SLEEPERS: Final = ("/usr/bin/sleep", "/bin/sleep")


def in_child(work: Callable[[], NoReturn], said: int) -> int:
    """Fork a child that does `work`, or reports `!errno`; returns its pid."""
    pid = os.fork()
    if pid == 0:
        reporting(work, said)
    return pid


def reporting(work: Callable[[], NoReturn], said: int) -> NoReturn:
    """Do `work` in a forked child, or report `!errno`."""
    number, place = 0, ""
    try:
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
    """The error and its file on one line, because lines are the units of a report."""
    return f"{error.filename}: {error.strerror}".replace("\n", "?") + "\n" if error.filename else ""


def prepare(who: tuple[int, int] | None, bounds: Bounds, join: Callable[[], object] | None = None) -> None:
    """Set a command's limits and user, default signals, and make it the first victim when memory runs out."""
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
    """Enter an instance."""
    for name in ALL:
        if name in namespaces:
            linux.checked(linux.libc.setns(namespaces[name], _KINDS[name]))


def be_apart() -> None:
    """Make a mount namespace; the next child is the first process of a PID namespace."""
    linux.checked(linux.libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID))
    # Bubblewrap makes these devices only together with all others, which takes two fifths of its time.
    linux.checked(linux.libc.mount(b"devpts", places.TERMINALS.encode(), b"devpts", _MS_NOSUID_NOEXEC, _OWN_TERMINALS))


def waits(pid: int) -> bool:
    """Whether this process waits for the order to become a command, or is about to become it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return _WAITING in file.read(len(_WAITING) + 64)
    except OSError:
        return False


def first_process(life: int, mounted: int) -> NoReturn:
    """Be the first process of the namespace: mount its /proc, wait for the mark from `life`, and stay with it.

    With SIGCHLD ignored the kernel reaps every orphan (wait(2)). If `life` closes instead, no process knows of us.
    """
    # Before any other process exists here: an earlier one would stay our zombie, and so keep the namespace.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    linux.checked(linux.libc.mount(b"proc", places.PROC.encode(), b"proc", _MS_NOSUID_NODEV_NOEXEC, None))
    _number_anew()
    os.write(mounted, b".")
    # Only open descriptors, because the limit can be a billion.
    for fd in map(int, os.listdir(f"{places.PROC}/self/fd")):
        if fd != life:
            with contextlib.suppress(OSError):
                os.close(fd)
    mark = told(life)
    if mark is None:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for path in _SLEEPERS:
        with contextlib.suppress(OSError):
            # It makes its POSIX session only with its mark, because recovery takes a process without one as unborn.
            os.execve(_SETSID, ["setsid", path, "infinity"], {layout.MARKER.encode(): mark})  # noqa: S606 - the point of it
    while True:
        signal.pause()


def told(life: int, patience_s: float = _GO_S) -> bytes | None:
    """The text from `life` before the order to stay; None if it closes, or sends only a part in time.

    A bubblewrap that was killed while it forked leaves a child that holds `life` forever, so the wait is bounded.
    """
    said = b""
    while not said.partition(b"\n")[2].startswith(GO):
        if said and not select.select([life], [], [], patience_s)[0]:
            return None
        data = os.read(life, 4096)
        if not data:
            return None
        said += data
    return said.partition(b"\n")[0]


def _number_anew() -> None:
    """Start the pids of this namespace at a random number.

    If each namespace started at 1, a pid that one command stored would often be the next command's own shell. A kernel
    without the file (proc(5), ns_last_pid) starts at 1.
    """
    kernel = f"{places.PROC}/sys/kernel"
    with contextlib.suppress(OSError, ValueError):
        with open(f"{kernel}/pid_max", "rb", buffering=0) as file:
            most = int(file.read())
        # As bytes: Python would search a codec in files that are no longer visible.
        with open(f"{kernel}/ns_last_pid", "wb", buffering=0) as file:
            file.write(b"%d" % (int.from_bytes(os.urandom(4)) % (most * 3 // 4)))


def become(argv: list[str], descriptors: Mapping[int, int]) -> NoReturn:
    """Execute with exactly these descriptors, and without an environment."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for number, fd in descriptors.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    # Limits are set last, because the supervisor may have more open files than a command may have.
    spawn.lower_descriptor_limit()
    os.execve(argv[0], argv, {})  # noqa: S606 - the point of it


def options_in_memory(name: str, words: Iterable[str]) -> int:
    """A descriptor from which bubblewrap can read `words` as `--args`."""
    return linux.text_in_memory(name, os.fsencode("".join(f"{word}\0" for word in words)))
