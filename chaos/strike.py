"""Who strikes: the process that reaches the point, or we, when it has stopped there."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
import uuid
from pathlib import Path
from typing import Protocol

from chaos.cells import MAKING, Cell, Moment
from chaos.outages import Outage
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.log.placements import Placements
from shellback.exec.supervisor.process import procfs
from tests.podmans import podman
from tests.stage import Stage
from tests.supervisors import kill, state_of

DATABASE_AWAY_S = 0.3
HELD_S = 2.0
BOOT_ID = "boot_id"
"""The file below a run's directory that has the boot id of its machine."""
DIES_FIRST = "supervisor.recorded_pid"
"""What the keeper reaps, it reaps because no supervisor was there: here one dies before."""


class Strike(Protocol):
    """What is to happen at a point, once."""

    def begin(self) -> None:
        """A worker has been hired, and nothing sent."""
        ...

    def look(self, moment: Moment) -> None:
        """Called again and again with what has come about."""
        ...


class Kill:
    """Worker, supervisor, keeper: whoever reaches the point does the killing, itself last."""

    def __init__(self, made: Stage, cell: Cell) -> None:
        self.made = made
        self.cell = cell
        self.armed = False
        self.pids: dict[str, int] = {}

    def begin(self) -> None:
        """Arm the point, or what comes before it."""
        if self.cell.point == "keeper.reaped":
            self.made.arm(DIES_FIRST)
        self.look("hired")

    def look(self, moment: Moment) -> None:
        """Arm the point at its moment, then see to it once it is reached."""
        if not self.armed and moment == self.cell.armed:
            with contextlib.suppress(SupervisorUnreachable):
                self._arm()
        if self.armed and self.made.fired(self.cell.point):
            self.struck()

    def struck(self) -> None:
        """The point has been reached: nothing is left to do."""

    def orders(self) -> list[str]:
        """What the file of the point says."""
        others = [f"kill {self.pids[victim]}" for victim in self.cell.victims if victim != self.cell.here]
        return [*others, *(["kill self"] if self.cell.here in self.cell.victims else [])]

    def _arm(self) -> None:
        supervisor, keeper = self.made.supervisor_pids()
        crew = {name: one.process.pid for name, one in self.made.crew.items()}
        self.pids = {**crew, "supervisor": supervisor, "keeper": keeper}
        self.made.arm(self.cell.point, "\n".join(self.orders()))
        self.armed = True


class Pause(Kill):
    """Whoever reaches the point stops there, and we do what no process can do to itself."""

    done = False

    def orders(self) -> list[str]:
        """It stops itself."""
        return ["stop self"]

    def struck(self) -> None:
        """Once."""
        if not self.done:
            self.done = True
            pidfd = os.pidfd_open(self.pids[self.cell.here])
            try:
                _wait_until_stopped(self.pids[self.cell.here])
                self.act(pidfd)
            finally:
                os.close(pidfd)

    def act(self, pidfd: int) -> None:
        """Strike, and let who stopped go on."""
        raise NotImplementedError


class Cut(Pause):
    """Postgres is away for a moment."""

    def __init__(self, made: Stage, cell: Cell, outage: Outage) -> None:
        super().__init__(made, cell)
        self.outage = outage

    def act(self, pidfd: int) -> None:
        """Let go on without a database."""
        with self.outage():
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            time.sleep(DATABASE_AWAY_S)


class Hold(Pause):
    """A SQLite file has no process: another one holds it for writing, as a back-up or an editor may."""

    def act(self, pidfd: int) -> None:
        """Take it, before or as soon as who stopped has let go of it."""
        holder = sqlite3.connect(str(self.made.where.database.url.database), timeout=0, isolation_level=None)
        try:
            try:
                holder.execute("BEGIN EXCLUSIVE")
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except sqlite3.OperationalError:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                holder.execute("PRAGMA busy_timeout = 10000")
                holder.execute("BEGIN EXCLUSIVE")
            threading.Event().wait(HELD_S)
            holder.execute("ROLLBACK")
        finally:
            holder.close()


class PowerCut(Kill):
    """All at once: a PID namespace ends with all that is in it, and what follows runs under another boot id."""

    boot_id: Path
    done = False

    def boot(self) -> Path:
        """A new boot id, in a file."""
        self.boot_id = self.made.root / BOOT_ID
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        return self.boot_id

    def orders(self) -> list[str]:
        """It stops itself, and the rest a moment later with it for good."""
        return ["stop self"]

    def struck(self) -> None:
        """Once; who looks after workers hires another, on the machine that has been started anew."""
        if not self.done:
            self.done = True
            crew = self.made.crew
            crew.get("host", crew["worker"]).kill()
            self.boot()
            if self.cell.elsewhere and self.cell.here == "worker":  # it has stopped itself, and is on another machine
                crew["worker"].process.send_signal(signal.SIGCONT)

    def _arm(self) -> None:
        self.made.arm(self.cell.point, "\n".join(self.orders()))
        self.armed = True


class InContainer(Pause):
    """What a worker or a supervisor can do to itself it does; to container, keeper and podman we do it."""

    def orders(self) -> list[str]:
        """It kills or stops itself."""
        return ["kill self" if self.cell.here in self.cell.victims else "stop self"]

    def struck(self) -> None:
        """Once, where it has stopped."""
        if self.cell.here not in self.cell.victims and self.cell.point != MAKING:
            super().struck()

    def look(self, moment: Moment) -> None:
        """As above; podman is looked for as long as it has not been seen at work."""
        super().look(moment)
        if self.cell.point == MAKING and not self.made.fired(MAKING) and (pid := _making(self.pids["worker"])):
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
            (self.made.points / MAKING).unlink()

    def act(self, pidfd: int) -> None:
        """The container ends while the worker waits for it, or does not look."""
        (home,) = Placements(self.made.home).homes()
        if self.cell.victims == ("container",):
            podman("kill", home.name)
        else:
            kill(int(podman("inspect", "--format", "{{.State.Pid}}", home.name)))
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)

    def _arm(self) -> None:
        self.pids = {"worker": self.made.workers[-1].process.pid}
        self.made.arm(self.cell.point, "\n".join(self.orders()))
        self.armed = True


def _making(parent: int) -> int | None:
    """The podman that makes a container for this worker, if there is one now."""
    for proc in procfs.snapshot():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{proc.pid}/cmdline").read_bytes().split(b"\0")
            if proc.ppid == parent and words[0].endswith(b"/podman") and b"run" in words:
                return proc.pid
    return None


def _wait_until_stopped(pid: int) -> None:
    until = time.monotonic() + 5.0
    while time.monotonic() < until and state_of(pid) not in {"T", ""}:
        time.sleep(0.002)
