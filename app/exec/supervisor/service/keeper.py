"""The supervisor's process, and its parent, which holds its descriptors, reaps its orphans, and restarts it.

While no supervisor runs, pipes and terminals stay open, and the wait status of each process that ends is kept until a
supervisor has recorded it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import getopt
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Final

from shellback.exec.supervisor.process import channels, link, procfs, queries, spawn
from shellback.exec.supervisor.records.diary import Diary, plain
from shellback.exec.supervisor.service import recovery
from shellback.exec.supervisor.service.requests import Requests
from shellback.exec.supervisor.service.supervisor import Supervisor
from shellback.exec.wire import crashpoints, layout, linux
from shellback.exec.wire.protocol import Message

_MAX_DEAD: Final = 10_000
_BACKOFF_S: Final = (0.0, 0.0, 0.05, 0.2, 1.0)
_CALM_S: Final = 10.0
_AGAIN_MS: Final = 10
_LOOKS: Final = 10
_LOOK_S: Final = 0.005
_NO_ROOM: Final = 71
"""Stands for an exit status if no supervisor could be forked."""
_ORDERS: Final = {signal.SIGTERM: "end", signal.SIGINT: "end", signal.SIGHUP: "retire"}
"""Orders to a service: `end` the commands and exit, or `retire`: exit as soon as none runs."""

_BUSY: Final = (
    "shellback: a supervisor serves {home} already: stop it, or let it end by itself "
    "(if a worker started it, it ends after a while without commands), then start this again\n"
)
LOCKED: Final = 75
"""Exit status when another supervisor holds the lock."""
_WNOTHREAD: Final = 0x20000000


@dataclass(frozen=True, slots=True)
class Config:
    """With `idle_s` 0 it never ends by itself. `service`: a service manager runs the keeper and signals it."""

    home: str
    idle_s: float
    keeper_lock: int
    service: bool = False


class Keeper:
    """Descriptors, wait statuses and one child."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._diary = Diary(os.path.join(config.home, layout.SUPERVISOR, layout.DIARY), "keeper")
        self._held: dict[str, link.Held] = {}
        self._dead: deque[link.Dead] = deque(maxlen=_MAX_DEAD)
        self._unsent: deque[Message] = deque(maxlen=_MAX_DEAD)
        self._unreaped = False
        self._number = 0
        self._link: socket.socket | None = None
        self._child = 0
        self._order = ""
        self._bell, self._bell_in = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._bell_in, False)

    def run(self, ready: int) -> int:
        """Serve until a supervisor ends by itself; the first one that listens writes to `ready`."""
        linux.become_subreaper()
        signal.signal(signal.SIGCHLD, self._ring)
        for number in _ORDERS if self._config.service else ():
            signal.signal(number, self._ordered)
        signal.set_wakeup_fd(self._bell_in, warn_on_full_buffer=False)
        failures, status = 0, 1
        while status != 0:
            began = time.monotonic()
            if self._fork(ready, failures):
                ready, status = -1, self._serve()
            else:
                status = _NO_ROOM
            failures = 0 if time.monotonic() - began > _CALM_S else failures + 1
            if status == LOCKED and not self._held and not self._dead:
                return status
            # The state directory was removed: no supervisor can serve it, and no client can ask for one.
            if status and not self._held and os.fstat(self._config.keeper_lock).st_nlink == 0:
                return status
            if status:
                self._say(f"supervisor ended with {status}, start {failures} follows")
                time.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
        return 0

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        # In addition to `set_wakeup_fd`: without a byte in the pipe a wait status would be missed.
        with contextlib.suppress(OSError):
            os.write(self._bell_in, b"\0")

    def _ordered(self, number: int, _frame: FrameType | None) -> None:
        order = _ORDERS[signal.Signals(number)]
        if self._order != "end":
            self._order = order
            self._unsent.append({"op": order})

    def _say(self, what: str) -> None:
        self._diary.note(what)
        if self._config.service:
            with contextlib.suppress(OSError):
                os.write(2, f"shellback supervisor: {plain(what)}\n".encode())

    def _fork(self, ready: int, failures: int) -> bool:
        """Start a supervisor; False if the machine has no room for one now."""
        try:
            ours, theirs = link.pair()
        except OSError:
            return False
        keeper = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return False
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self._config.service:
                for number in _ORDERS:
                    signal.signal(number, signal.SIG_DFL)
                # Ctrl-C is for the keeper only: a supervisor that dies of it is restarted.
                os.setpgid(0, 0)
            linux.close_all((self._bell, self._bell_in, self._config.keeper_lock))
            ours.close()
            os._exit(
                supervise(self._config, link.Legacy(keeper, theirs, self._held, list(self._dead), failures), ready)
            )
        theirs.close()
        if ready >= 0:
            os.close(ready)
        ours.setblocking(False)
        self._link, self._child = ours, pid
        self._unsent.clear()
        if self._order:
            self._unsent.append({"op": self._order})
        return True

    def _serve(self) -> int:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        assert self._link is not None
        poller.register(self._link, select.POLLIN)
        while True:
            for fd, _ in poller.poll(_AGAIN_MS if self._unsent or self._unreaped else None):
                if fd == self._bell:
                    os.read(self._bell, 4096)
                elif not self._receive():
                    poller.unregister(fd)
            self._send()
            status = self._reap()
            if status is not None:
                # Its last messages are still unread.
                self._receive()
                self._link.close()
                return status

    def _receive(self) -> bool:
        """Handle all messages that have arrived; False once the other side has gone."""
        assert self._link is not None
        while True:
            try:
                got = link.receive(self._link)
            except BlockingIOError:
                return True
            if got is None:
                return False
            message, fds = got
            match message["op"]:
                case "hold":
                    held = self._held.setdefault(message["session"], link.Held())
                    # Descriptors beyond our limit are missing; only the supervisor has these.
                    held.fds.update(zip(message["names"], fds, strict=False))
                    held.noted = message["notes"]
                    crashpoints.reach("keeper.held")
                case "drop":
                    self._drop(message["session"], message["names"])
                case "answer":
                    held = self._held.get(message["session"])
                    if held is not None and channels.MASTER in held.fds:
                        held.answered = queries.given(held.fds[channels.MASTER], message["answers"], held.answered)
                case "forget":
                    numbers = set(message["numbers"])
                    self._dead = deque((dead for dead in self._dead if dead.number not in numbers), _MAX_DEAD)
                case "ping":
                    # Everything reaped before is in the queue before this.
                    self._unsent.append({"op": "pong"})
                    self._send()
                case _:
                    self._diary.note("unknown message")

    def _drop(self, session: str, names: list[str] | None) -> None:
        held = self._held.get(session)
        if held is not None:
            for name in list(held.fds) if names is None else names:
                fd = held.fds.pop(name, -1)
                if fd >= 0:
                    os.close(fd)
            if names is None:
                del self._held[session]

    def _reap(self) -> int | None:
        """Reap all children that have ended; the supervisor's exit status if it is one of them."""
        ended: int | None = None
        self._unreaped = False
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return ended
            if info is None:
                return ended
            known = procfs.ticks() - 1
            try:
                proc = procfs.read(info.si_pid)
                first = procfs.first_of_namespace(info.si_pid)
            except OSError:
                # No descriptor now. The child stays a zombie and keeps its pid until there is one.
                self._unreaped = True
                return ended
            os.waitid(os.P_PID, info.si_pid, os.WEXITED)
            if info.si_pid == self._child:
                ended = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
                continue
            if first:
                # Not a command: it must not be taken for one.
                continue
            start, sid = (proc.start, proc.sid) if proc is not None else (0, 0)
            self._number += 1
            dead = link.Dead(self._number, info.si_pid, start, sid, info.si_code, info.si_status, known)
            self._dead.append(dead)
            crashpoints.reach("keeper.reaped")
            self._unsent.append({"op": "ended", "dead": asdict(dead)})
            self._send()

    def _send(self) -> None:
        """Send queued messages in order, as far as the supervisor takes them; the next one gets every status anyway."""
        try:
            while self._unsent and self._link is not None:
                link.send(self._link, self._unsent[0])
                self._unsent.popleft()
        except ConnectionError:
            self._unsent.clear()
        except OSError:
            return  # no room now: again in a moment


def _lock(folder_fd: int) -> int | None:
    lock = os.open(layout.SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
    for _ in range(100):
        try:
            # Not flock: a forked child before its exec would keep that lock when we die.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            time.sleep(0.02)
        else:
            return lock
    return None


def supervise(config: Config, legacy: link.Legacy, ready: int) -> int:
    """Run the supervisor in this process, which the keeper has just forked; ends the process itself.

    A second thread does the work. The first thread reaps orphans, and only these, so that neither takes a wait status
    of the other. It keeps our credentials while the second has those of a command at its start, so that the command's
    user can send us no signal.
    """
    linux.become_subreaper()
    linux.name_process("shellback-sup")
    procfs.mark_for(config.home)
    diary = Diary(os.path.join(config.home, layout.SUPERVISOR, layout.DIARY), "supervisor")
    folder = os.open(os.path.join(config.home, layout.SUPERVISOR), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if _lock(folder) is None:
        diary.note("another supervisor holds the lock")
        return LOCKED

    def serve() -> None:
        status = 70
        try:
            supervisor = Supervisor(config.home, legacy, diary)
            recovery.recover(supervisor, legacy)
            Requests(supervisor, folder, config.idle_s)
            if ready >= 0:
                os.write(ready, b"ready\n")
                os.close(ready)
            diary.note("ready")
            supervisor.loop.run()
            supervisor.sandboxes.close()
            status = 0
        except BaseException as error:  # noqa: BLE001 - the last line of this process
            diary.note(f"fails: {_where(error)}")
        finally:
            os._exit(status)

    bell = _bell()
    threading.Thread(target=serve, name="serve").start()
    while True:
        _reap()
        os.read(bell, 4096)


def _bell() -> int:
    """A pipe that becomes readable when a child has ended, whichever thread gets SIGCHLD.

    If one thread blocked the signal, another would get it; if all did, commands would start with it blocked.
    """
    bell, bell_in = os.pipe()
    os.set_blocking(bell_in, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.siginterrupt(signal.SIGCHLD, False)
    signal.set_wakeup_fd(bell_in, warn_on_full_buffer=False)
    return bell


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD)) is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, info.si_pid, os.WEXITED | os.WNOHANG | _WNOTHREAD)


def _where(error: BaseException) -> str:
    # Only type and place: a message could contain a command.
    trace = error.__traceback__
    lines: list[str] = []
    while trace is not None:
        lines.append(f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    number = f" errno {error.errno}" if isinstance(error, OSError) else ""
    return f"{type(error).__name__}{number} at {' '.join(lines[-4:])}"


def _taken(lock: int) -> bool:
    """Take the lock; False if another keeper holds it. Clients that test the lock hold it for a moment."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def main() -> None:
    """Fork a keeper for a home directory, unless there is one.

    Prints `ready` once the supervisor listens, or `busy` if another keeper holds the lock. With `--service` this
    process itself becomes the keeper and reports on standard error; SIGTERM and SIGINT end the commands, SIGHUP makes
    it exit as soon as none runs.
    """
    given, (home,) = getopt.gnu_getopt(sys.argv[1:], "", ["crash-dir=", "idle=", "service"])
    options = dict(given)
    service = "--service" in options
    folder = os.path.join(home, layout.SUPERVISOR)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if layout.foreign(home):
        os.write(2, f"shellback: {layout.FOREIGN.format(home=plain(home))}\n".encode())
        os._exit(2)
    if not service:
        # The parent returns at once; the orphaned child outlives the process that started it.
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
    lock = os.open(os.path.join(folder, layout.KEEPER_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _taken(lock):
        if service:
            os.write(2, _BUSY.format(home=plain(home)).encode())
            os._exit(2)
        os.write(1, b"busy\n")
        os._exit(0)
    ready = os.dup(2 if service else 1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1) if service else (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")
    os.umask(0o077)
    # Also signals ignored by `nohup` or a script's `&`: a service that ignores its orders can only be killed.
    # Not SIGXFSZ: a write beyond the file size limit then fails and costs output, not the supervisor.
    for name in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    spawn.raise_descriptor_limit()
    crashpoints.arm_from(options.get("--crash-dir"))
    linux.name_process("shellback-keep")
    gc.freeze()  # a collection would write to memory that the supervisor shares with this process
    config = Config(home=home, idle_s=float(options.get("--idle", "60")), keeper_lock=lock, service=service)
    sys.exit(Keeper(config).run(ready))
