"""Steps of the children of a sandboxed start before they execute bubblewrap or the first process of a PID namespace.

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
"""The namespaces of an instance, in the order of entering."""

_KINDS: Final = {USER: 0x10000000, NET: 0x40000000, MNT: 0x20000}
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWPID: Final = 0x20000000
_MS_NOSUID_NODEV_NOEXEC: Final = 0xE
_MS_NOSUID_NOEXEC: Final = 0xA
_OWN_TERMINALS: Final = b"newinstance,ptmxmode=0666,mode=620"

LIFE_FD, STDERR_FD, SECCOMP_FD, ARGS_FD, INFO_FD, GO_FD, SAID_FD = range(3, 10)
"""STDERR_FD is the command's own standard error; bubblewrap reports to us on 2."""
_ABOVE: Final = 32
"""Descriptors are moved above this number before each gets its final number."""

GO: Final = b"g"
_GO_S: Final = 600.0
"""How long a first process with its marker waits for GO: far longer than a launch may take."""
UNTOLD: Final = 113
"""Exit status of a process that would have become a command and was not told to go."""
WAITER: Final = (
    f"echo ready >&{SAID_FD}; IFS= read -r mark <&{GO_FD} || exit {UNTOLD}; echo {GO.decode()} >&{LIFE_FD};"
    f' exec {LIFE_FD}>&- {GO_FD}<&- {SAID_FD}>&- 2>&{STDERR_FD}; exec {STDERR_FD}>&-; export "$mark"; exec "$@"'
)
"""The command's process before its exec: it reports that the sandbox stands, and waits for its marker.

With the marker it tells the first process to stay. Without, it ends with UNTOLD, which is not a command's status.
"""
_WAITING: Final = f"\0{WAITER}\0".encode()

_SETSID: Final = "/usr/bin/setsid"
_SLEEPERS: Final = ("/usr/bin/sleep", "/bin/sleep")


def in_child(work: Callable[[], NoReturn], said: int) -> int:
    """Fork a child that does `work` as in `reporting`; its pid."""
    pid = os.fork()
    if pid == 0:
        reporting(work, said)
    return pid


def reporting(work: Callable[[], NoReturn], said: int) -> NoReturn:
    """In a forked child: do `work`, and write `!errno` to `said` if it fails."""
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


def be_apart() -> None:
    """Get own mounts; the next child is the first process of a PID namespace."""
    linux.checked(linux.libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID))
    # Bubblewrap would make all other devices too, which takes 40 % of its time.
    linux.checked(linux.libc.mount(b"devpts", places.TERMINALS.encode(), b"devpts", _MS_NOSUID_NOEXEC, _OWN_TERMINALS))


def waits(pid: int) -> bool:
    """Whether this process waits to become a command, or is just about to."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return _WAITING in file.read(len(_WAITING) + 64)
    except OSError:
        return False


def first_process(life: int, mounted: int) -> NoReturn:
    """Be the first process of the namespace: mount its /proc, then stay if `life` gives a marker and GO.

    With SIGCHLD ignored the kernel reaps all orphans (wait(2)). If `life` closes instead, end.
    """
    # Before another process is in the namespace: an earlier end would leave a zombie that keeps us for good.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    linux.checked(linux.libc.mount(b"proc", places.PROC.encode(), b"proc", _MS_NOSUID_NODEV_NOEXEC, None))
    _number_anew()
    os.write(mounted, b".")
    # Only the open descriptors: the limit can be a billion.
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
            # It gets its own POSIX session only with its marker: recovery takes it for unborn before.
            os.execve(_SETSID, ["setsid", path, "infinity"], {layout.MARKER.encode(): mark})  # noqa: S606 - the point of it
    while True:
        signal.pause()


def told(life: int, patience_s: float = _GO_S) -> bytes | None:
    """The marker that `life` gives before GO; None if it closes, or stays silent after a part.

    A bubblewrap killed during its fork leaves a child that holds `life` forever, hence the timeout.
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


def options_in_memory(name: str, words: Iterable[str]) -> int:
    """A descriptor from which bubblewrap reads `words` as `--args`."""
    return linux.text_in_memory(name, os.fsencode("".join(f"{word}\0" for word in words)))
