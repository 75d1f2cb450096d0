"""Spawns processes: quickly, as another user if asked, and with the kernel's errno on failure."""

from __future__ import annotations

import _posixsubprocess
import contextlib
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from shellback.exec.supervisor.process import landlock, procfs, pty
from shellback.exec.wire import layout, linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.protocol import StartRequest

if TYPE_CHECKING:
    from io import FileIO

_SOFT: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit we were started with; children get it."""

_SCORE: Final = "/proc/self/oom_score_adj"
_EXPENDABLE: Final = 500
"""Of 1000: counts as if it used half of all memory in addition."""

_VFORK: Final = (True,) if sys.version_info < (3, 14) else ()


class ExecFailed(Exception):
    """Raised when the command could not be executed; no process is left."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


def raise_descriptor_limit() -> int:
    """Raise our soft limit to the hard limit, and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def lower_descriptor_limit() -> None:
    """Take the limit of a command. Descriptors above it stay open, and none can be made."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_SOFT, hard), hard))


@contextlib.contextmanager
def _expendable() -> Generator[None]:
    """Processes forked meanwhile are killed before us if memory runs out: a container has one limit for all."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no /proc, or it is read-only
            # It stays open, because afterwards there may be no room for a descriptor.
            score = stack.enter_context(open(_SCORE, "r+b", buffering=0))
            before = _raised(score)
            stack.callback(score.write, b"%d" % before)
        yield


def be_expendable() -> None:
    """Let the kernel kill us and our future children first if memory runs out."""
    with contextlib.suppress(OSError), open(_SCORE, "r+b", buffering=0) as score:
        _raised(score)


def _raised(score: FileIO) -> int:
    """The score before; it is at least `_EXPENDABLE` now."""
    before = int(score.read(16))
    if before < _EXPENDABLE:
        score.write(b"%d" % _EXPENDABLE)
    return before


def plain_signals() -> None:
    """In a forked child: ignore and block no signal."""
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def owner(request: StartRequest) -> tuple[int, int] | None:
    """(uid, gid) of the command; None for our own."""
    if request.uid is None or request.uid == os.getuid() != 0:
        return None
    return request.uid, request.uid if request.gid is None else request.gid


def spawn(request: StartRequest, stdin: int, stdout: int, stderr: int) -> int:
    """Start the command on pipes in its own POSIX session; its pid.

    Raises ExecFailed with the errno of exec, or of entering `cwd`.
    """
    command = Command(request)

    def fork(failed: tuple[int, int], born: list[int]) -> None:
        who = owner(request)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_expendable())
            if who is not None and linux.SWITCHES:
                stack.enter_context(linux.credentials(*who, list(request.groups)))
                who = None
            # As the command's user, who must be able to enter the directory.
            stack.enter_context(_placed(request, command))
            # Lowered only here, where no new descriptor is made; open ones stay open.
            stack.callback(raise_descriptor_limit)
            lower_descriptor_limit()
            born.append(command.fork_exec((stdin, stdout, stderr), failed, who))

    return _executed(fork, lambda report: int(report.split(b":", 2)[1], 16))


def _executed(fork: Callable[[tuple[int, int], list[int]], None], number: Callable[[bytes], int]) -> int:
    """The pid of a child that has executed. `fork` gets the pipe for an error of the child, and a list for its pid."""
    out, into = os.pipe()
    born: list[int] = []
    with closing(out):
        with closing(into):
            try:
                fork((out, into), born)
            except OSError:
                # A process that exists is reported, whatever fails after its fork.
                if not born:
                    raise
        report = os.read(out, 512)
    (pid,) = born
    if report:
        os.waitpid(pid, 0)
        raise ExecFailed(number(report))
    return pid


@contextlib.contextmanager
def _placed(request: StartRequest, command: Command) -> Generator[None]:
    """If the request names the inode of its directory, be in that directory during the fork.

    Raises ExecFailed (ESTALE) if the path leads to another directory by now.
    """
    if request.place is None:
        yield
        return
    with linux.opened(request.cwd, os.O_PATH | os.O_DIRECTORY) as fd:
        place = os.fstat(fd)
        if (place.st_dev, place.st_ino) != request.place:
            raise ExecFailed(errno.ESTALE)
        os.fchdir(fd)
    command.cwd = "."
    try:
        yield
    finally:
        os.chdir("/")


class Command:
    """A request in the form that the kernel takes."""

    def __init__(self, request: StartRequest, also: Mapping[str, str] = MappingProxyType({})) -> None:
        env = {**request.env, **also, layout.MARKER: procfs.mark(request.session_id)}
        self.argv = [os.fsencode(word) for word in request.argv]
        self.env = [os.fsencode(f"{name}={value}") for name, value in env.items()]
        self.cwd: str | None = request.cwd
        self.umask = request.umask
        self.groups = list(request.groups)
        name = self.argv[0]
        self.executables = (
            (name,)
            if b"/" in name
            else tuple(os.path.join(os.fsencode(folder), name) for folder in os.get_exec_path(env) if folder)
        )

    def fork_exec(self, streams: tuple[int, int, int], failed: tuple[int, int], who: tuple[int, int] | None) -> int:
        # By vfork, so that our memory is not copied, unless the child itself has to become `who`.
        uid, gid = who or (None, None)
        groups = None if who is None else self.groups
        stdin, stdout, stderr = streams
        return _posixsubprocess.fork_exec(
            self.argv, self.executables, True, (failed[1],),
            self.cwd,  # pyright: ignore[reportArgumentType] - None is our own
            self.env, stdin, -1, -1, stdout, -1, stderr, *failed,
            True, True, -1, gid, groups, uid, self.umask, None, *_VFORK,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip


def spawn_by_fork(request: StartRequest, streams: list[int]) -> int:
    """Start a command that needs code of ours in the child: a controlling terminal, or a fence; its pid.

    `streams` are its 0, 1 and 2, all above 2, or the one terminal. Raises ExecFailed with the errno of exec or of an
    earlier step.
    """
    command = Command(request)
    rules = -1
    if request.fence is not None:
        own = (os.ttyname(streams[0]),) if request.pty is not None else ()
        rules = landlock.ruleset((*request.fence, *own))

    def fork(failed: tuple[int, int], born: list[int]) -> None:
        try:
            with _expendable(), _placed(request, command):
                pid = os.fork()
                if pid == 0:
                    _exec_in_child(request, command, streams, failed[1], rules)
                born.append(pid)
        finally:
            if rules >= 0:
                os.close(rules)

    return _executed(fork, int)


def execute(argv: list[bytes], executables: Sequence[bytes], env: Sequence[bytes]) -> int:
    """Execute the first of `executables` that exists; returns only the errno of a failure."""
    number = 0
    for path in executables:
        try:
            os.execve(path, argv, dict(entry.split(b"=", 1) for entry in env))  # noqa: S606 - the point of it
        except OSError as error:
            if number == 0 or error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                number = error.errno or 0
    return number or errno.ENOENT


def _exec_in_child(request: StartRequest, command: Command, streams: list[int], failed: int, rules: int) -> None:
    number = 0
    try:
        if request.pty is not None:
            pty.become_session_on(streams[0])
        else:
            os.setsid()
            for target, fd in enumerate(streams):
                os.dup2(fd, target)
        lower_descriptor_limit()
        plain_signals()
        who = owner(request)
        if who is not None:
            os.setgroups(request.groups)
            os.setresgid(who[1], who[1], who[1])
            os.setresuid(who[0], who[0], who[0])
        if rules >= 0:
            landlock.fence(rules)
        if command.cwd is not None:
            os.chdir(command.cwd)
        os.umask(command.umask)
        number = execute(command.argv, command.executables, command.env)
    except OSError as error:
        number = error.errno or 0
    finally:
        os.write(failed, str(number or 2).encode())
        os._exit(127)
