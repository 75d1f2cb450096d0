"""Starting a process: quickly, as somebody else if asked, and with the kernel's reason when it fails."""

from __future__ import annotations

import _posixsubprocess
import contextlib
import errno
import os
import resource
import signal
import sys
from collections.abc import Generator
from typing import Final

from shellback.exec.supervisor.process import landlock, procfs, pty
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import StartRequest

_SOFT: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""What our starter had, before it was raised: what children get."""


_SCORE: Final = "/proc/self/oom_score_adj"
_EXPENDABLE: Final = 500
"""Of 1000: by half of what memory there is, more than what it really has."""

_VFORK: Final = (True,) if sys.version_info < (3, 14) else ()


class ExecFailed(Exception):
    """Raised when the command could not be executed; nothing is left of the attempt."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


def raise_descriptor_limit() -> int:
    """Raise our limit to the hard one and return it; children get the one we started with."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def lower_descriptor_limit() -> None:
    """Have the limit of a command. No descriptor above it can be made any more."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_SOFT, hard), hard))


@contextlib.contextmanager
def _expendable() -> Generator[None]:
    """What is forked meanwhile is ended before us where memory is short: in a container we share one bound."""
    before = be_expendable()
    try:
        yield
    finally:
        if before < _EXPENDABLE:
            _score(before)


def be_expendable() -> int:
    """Be ended before others where memory is short, with all that is forked from now on; what the score was before."""
    try:
        with open(_SCORE, "rb", buffering=0) as file:
            before = int(file.read(16))
        if before < _EXPENDABLE:
            _score(_EXPENDABLE)
    except OSError:  # no /proc, or it is read-only
        return _EXPENDABLE
    return before


def _score(value: int) -> None:
    with open(_SCORE, "wb", buffering=0) as file:
        file.write(b"%d" % value)


def plain_signals() -> None:
    """In a forked child: have no signal ignored or blocked."""
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def owner(request: StartRequest) -> tuple[int, int] | None:
    """(uid, gid) the command runs as, None for ours."""
    if request.uid is None or request.uid == os.getuid() != 0:
        return None
    return request.uid, request.uid if request.gid is None else request.gid


def spawn(request: StartRequest, stdin: int, stdout: int, stderr: int) -> int:
    """Start the command on pipes in a session of its own and return its pid.

    Raises:
        ExecFailed: With the errno of exec, or of entering `cwd`.
    """
    command = _Command(request)
    who = owner(request)
    failed_out, failed_in = os.pipe()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_expendable())
            if who is not None and linux.SWITCHES:
                stack.enter_context(linux.credentials(*who, list(request.groups)))
                who = None
            # As the command's user: what that one may not enter is no place to run in.
            stack.enter_context(_placed(request, command))
            # Lowered only here, where no new descriptor is made: what is open stays open.
            stack.callback(raise_descriptor_limit)
            lower_descriptor_limit()
            pid = command.fork_exec((stdin, stdout, stderr), (failed_out, failed_in), who)
        os.close(failed_in)
        failed_in = -1
        report = os.read(failed_out, 512)
    finally:
        os.close(failed_out)
        if failed_in >= 0:
            os.close(failed_in)
    if report:
        os.waitpid(pid, 0)
        raise ExecFailed(int(report.split(b":", 2)[1], 16))
    return pid


@contextlib.contextmanager
def _placed(request: StartRequest, command: _Command) -> Generator[None]:
    """Be in the command's directory ourselves while it is forked, if it has to be a certain one.

    Raises:
        ExecFailed: The name means another one by now.
        OSError: There is none.
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


class _Command:
    """A request in the form in which the kernel wants it."""

    def __init__(self, request: StartRequest) -> None:
        env = {**request.env, layout.MARKER: procfs.mark(request.session_id)}
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
        # vfork, so that our memory is not copied, unless the child itself has to become `who`.
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
    """Start the command with code of ours in the child: on a terminal that controls it, or behind a fence.

    `streams` are its 0, 1 and 2, all above 2, or the one terminal. Returns its pid.

    Raises:
        ExecFailed: With the errno of exec, or of what precedes it.
        OSError: The fence cannot be built.
    """
    command = _Command(request)
    rules = -1
    if request.fence is not None:
        own = (os.ttyname(streams[0]),) if request.pty is not None else ()
        rules = landlock.ruleset((*request.fence, *own))
    failed_out, failed_in = os.pipe()
    try:
        try:
            with _expendable(), _placed(request, command):
                pid = os.fork()
                if pid == 0:
                    _exec_in_child(request, command, streams, failed_in, rules)
        finally:
            os.close(failed_in)
            if rules >= 0:
                os.close(rules)
        report = os.read(failed_out, 512)
    finally:
        os.close(failed_out)
    if report:
        os.waitpid(pid, 0)
        raise ExecFailed(int(report))
    return pid


def _exec_in_child(request: StartRequest, command: _Command, streams: list[int], failed: int, rules: int) -> None:
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
        env = dict(entry.split(b"=", 1) for entry in command.env)
        for path in command.executables:
            try:
                os.execve(path, command.argv, env)  # noqa: S606 - the point of it
            except OSError as error:
                if number == 0 or error.errno not in {2, 20}:
                    number = error.errno or 0
    except OSError as error:
        number = error.errno or 0
    finally:
        os.write(failed, str(number or 2).encode())
        os._exit(127)
