"""The process of the supervisor: its lock, its two threads, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Final

from shellback.exec.supervisor.process import link, procfs
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.sandbox.launching import Orphans
from shellback.exec.supervisor.service import recovery
from shellback.exec.supervisor.service.requests import Requests
from shellback.exec.supervisor.service.supervisor import Supervisor
from shellback.exec.wire import layout, linux

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


def main(config: Config, legacy: link.Legacy, ready: int) -> int:
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

    orphans = Orphans()

    def serve() -> None:
        status = 70
        try:
            supervisor = Supervisor(config.home, legacy, diary, orphans)
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
        _reap(orphans)
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


def _reap(orphans: Orphans) -> None:
    with contextlib.suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD)) is not None:
            orphans.leave(info.si_pid)
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
