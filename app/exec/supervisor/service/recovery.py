"""Settles the sessions of the last supervisor: each is adopted, ended, lost or was never started.

An exit code or signal comes from the kernel, through the keeper, or is not given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Generator
from typing import Final, cast

from shellback.exec.supervisor.loop import now
from shellback.exec.supervisor.process import channels, link, procfs
from shellback.exec.supervisor.process.job import ITSELF, Job, target_of
from shellback.exec.supervisor.records.records import ABANDONED, Unreadable
from shellback.exec.supervisor.sandbox import namespaces, sandboxes
from shellback.exec.supervisor.service.supervisor import Supervisor
from shellback.exec.wire import layout, linux, protocol
from shellback.exec.wire.protocol import ExitRecord, Message

_DAMAGED: Final = b"?"
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_TRIES: Final = 3
"""How many supervisors fail because of a temporary error before its session is given up."""
_STRAYS_S: Final = 1.0
"""Delay of the search for namespaces without a job; nothing waits for it."""
_BOOT_ID: Final = re.compile(r"[0-9A-Za-z-]+\Z")
_NOTES: Final[Message] = {
    "deadline": None, "grace_s": 1.0, "log_cap": 0, "background": True, "separate_stderr": False, "pty": None,
}  # fmt: skip


def recover(supervisor: Supervisor, legacy: link.Legacy) -> None:
    """Settle every session that was not acknowledged."""
    supervisor.sandboxes.instances.adopt(legacy.held)
    supervisor.sandboxes.contained.adopt(legacy.held)
    recovery = _Recovery(supervisor, legacy)
    for name in supervisor.records.sessions():
        with recovery.contained(name):
            recovery.settle(name)
    recovery.settle_pending()
    recovery.close_rest()
    recovery.keep_laid()
    # All users of stubs have been adopted: the other stubs of the last supervisor are removed.
    supervisor.sandboxes.stubs.tidy_later()
    supervisor.watch_container()
    supervisor.loop.after(_STRAYS_S, recovery.settle_strays)


class _Recovery:
    def __init__(self, supervisor: Supervisor, legacy: link.Legacy) -> None:
        self._sup = supervisor
        self._records = supervisor.records
        self._held = legacy.held
        self._failures = legacy.failures
        self._dead = legacy.dead
        self._taken: set[tuple[int, int]] = set()
        self._pending: list[str] = []
        self._laid: dict[str, Message] = {}
        self._unclaimed: dict[str, Job] = {}
        self._procs: list[procfs.Proc] = []
        self._living: list[procfs.Proc] = []
        self._markers: dict[int, str | None] = {}

    def settle(self, name: str) -> None:
        """Settle a session with records; one that is only claimed is left to `settle_pending`."""
        files = self._records.names(name)
        if layout.LAID in files:
            with contextlib.suppress(Unreadable):
                self._laid[name] = protocol.laid(self._records.read(name, layout.LAID))
        if layout.ACKED in files:
            self._linger(name)
        elif layout.EXIT in files:
            self._ended(name)
        elif self._unwritten(name) or layout.STARTED not in files or self._running(name):
            return
        elif self._claim(name) != ABANDONED:
            self._pending.append(name)

    def _claim(self, name: str) -> bytes:
        try:
            return self._records.claimed_by(name) or b""
        except Unreadable:
            return _DAMAGED

    def _unwritten(self, name: str) -> bool:
        """Take over an exit record that the disk had no room for."""
        held = self._held.get(name)
        if held is None or "record" not in held.notes:
            return False
        record = cast("ExitRecord", held.notes["record"])
        self._taken.add((record["pid"] or 0, record["starttime"] or 0))
        if self._sup.ledger.enter(record):
            self._sup.keeper.drop(name)
        return True

    def _ended(self, name: str) -> None:
        record: ExitRecord | None = None
        with contextlib.suppress(Unreadable):
            record = self._records.ended(name, layout.EXIT)
        if record is None:
            self._records.keep_aside(name, layout.EXIT)
            self._sup.diary.note(f"{name}: exit record unreadable")
            job = self._job(name, {})
            self._connect(job)
            self._lose(job, "record_unreadable")
            return
        self._sup.ledger.ended[name] = record
        self._taken.add((record["pid"] or 0, record["starttime"] or 0))
        self._linger(name)

    def _linger(self, name: str) -> None:
        """Go on draining the streams that survivors of an ended session hold."""
        held = self._held.get(name)
        if held is not None:
            job = self._job(name, {})
            job.record = self._record(name) or job.end(self._sup.boot_id, state="exited")
            job.init = target_of(job.record).init
            self._connect(job)
            if job.input is not None:
                job.input.close()
            self._keep_streams(job)

    def _record(self, name: str) -> ExitRecord | None:
        with contextlib.suppress(Unreadable):
            return self._sup.ledger.ended.get(name) or self._records.ended(name, layout.ACKED)
        return None

    def _keep_streams(self, job: Job) -> None:
        """Watch the open streams of an ended job; without any, let go of the job."""
        if job.init is not None or any(stream.open for stream in job.streams):
            self._sup.jobs[job.session_id] = job
            self._sup.follow(job)
            self._sup.sandboxes.watch(job)
            self._sup.vacate(job)
        else:
            self._sup.stream_ended(job)

    def _lose(self, job: Job, evidence: str) -> None:
        self._sup.lose(job, evidence)
        self._keep_streams(job)

    def _job(self, name: str, notes: Message) -> Job:
        held = self._held.get(name)
        laid = self._laid.pop(name, {})
        job = Job(name, {**_NOTES, **(held.notes if held is not None else {}), **notes, **laid}, adopted=True)
        self._sup.sandboxes.adopt(job)
        return job

    def _connect(self, job: Job) -> None:
        held = self._held.get(job.session_id)
        ours = dict(held.fds) if held is not None else {}
        if channels.MASTER in ours:
            ours[channels.STDIN] = os.dup(ours[channels.MASTER])
        if held is not None:
            held.fds.clear()
        self._sup.connect(job, ours, resumed=True)

    def _running(self, name: str) -> bool:
        """Settle a session whose process is on record; False without a usable record."""
        row = self._records.running(name)
        if row is None:
            return False
        job = self._job(name, row)
        job.pid, job.start, job.ended_by = row["pid"], row["start"], row["ended_by"]
        job.init = None if row.get("init") is None else (row["init"][0], row["init"][1])
        if row["boot_id"] != self._sup.boot_id or row["container_id"] != self._sup.container_id:
            same = row["boot_id"] == self._sup.boot_id
            job.notes.pop("began", None)
            # The pid means another process here, and must never be signalled.
            job.pid = job.start = 0
            job.init = None
            self._connect(job)
            self._lose(job, "container_restarted" if same else "machine_rebooted")
        else:
            self._settle(job)
        return True

    def _settle(self, job: Job) -> None:
        """Record the end that the keeper saw, or adopt the process."""
        self._taken.add((job.pid, job.start))
        self._connect(job)
        dead = next((dead for dead in self._dead if (dead.pid, dead.start) == (job.pid, job.start)), None)
        if dead is not None:
            self._sup.end(job, dead.code, dead.status, dead.known)
            self._keep_streams(job)
            return
        job.pidfd = procfs.open_pidfd(job.pid, job.start) or -1
        self._sup.jobs[job.session_id] = job
        self._sup.follow(job)
        if job.pidfd < 0:
            # Gone; the keeper may have just reaped it and be about to tell.
            self._sup.expect_end(job)
            return
        job.look()
        self._sup.sandboxes.watch(job)
        self._sup.diary.note(f"{job.session_id}: adopted")
        if job.ended_by != ITSELF:
            # The supervisor that began to end it has gone.
            self._sup.kill(job, float(job.notes["grace_s"]), job.ended_by, lambda _: None)

    def settle_pending(self) -> None:
        """Settle claimed sessions whose process, if there was one, is not on record."""
        if not self._pending:
            return
        self._procs = self._look()
        ours = [proc for proc in self._procs if proc.ppid == self._sup.keeper.pid and proc.pid != os.getpid()]
        # Checked now: once a first process has ended, it looks like a command.
        self._living = [proc for proc in ours if not procfs.first_of_namespace(proc.pid)]
        # A missing process was reaped before; the keeper has told that or tells it now.
        late = self._sup.keeper.catch_up()
        self._dead += late
        self._markers = {proc.pid: procfs.marker(proc.pid) for proc in self._procs if proc.alive}
        # First sessions with a process, so that no other session is given it.
        for name in sorted(self._pending, key=lambda name: self._find(name) is None):
            with self.contained(name):
                self._settle_claimed(name)
        for dead in late:
            self._sup.told(dead)

    def _settle_claimed(self, name: str) -> None:
        job = self._job(name, {})
        # Also for a lost session: its namespace ends now, not in the search for strays.
        job.init = self._first_process(name)
        found = self._find(name)
        if found is not None:
            job.pid, job.start = found
            self._note_start(job)
            self._settle(job)
        else:
            self._connect(job)
            self._lose(job, self._evidence(name))

    @contextlib.contextmanager
    def contained(self, name: str) -> Generator[None]:
        """Settle the others if this session is damaged; a status request for it then answers `lost`.

        Without room for descriptors or memory no session can be settled: this supervisor fails, and the next one tries
        again. Other OS errors get two more tries.
        """
        try:
            yield
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            if isinstance(error, OSError) and (error.errno in _NO_ROOM or self._failures < _TRIES - 1):
                raise
            self._sup.diary.note(f"{name}: cannot be recovered: {type(error).__name__}")

    def _look(self) -> list[procfs.Proc]:
        procs = procfs.snapshot()
        for _ in range(100):
            if not self._unborn(procs):
                break
            # The last supervisor died during a fork: its child has not executed the command yet.
            time.sleep(0.01)
            procs = procfs.snapshot()
        for proc in self._unborn(procs):
            # It hangs in a file system. It must not run after its session was reported as never started.
            procfs.signal_exactly(proc.pid, proc.start, signal.SIGKILL)
        return procs

    def _unborn(self, procs: list[procfs.Proc]) -> list[procfs.Proc]:
        own, keeper = os.getsid(0), self._sup.keeper.pid
        ours = [proc for proc in procs if proc.ppid == keeper and proc.pid != os.getpid()]
        return [
            proc
            for proc in ours
            # In a sandbox it leads a POSIX session just before its exec; a recorded command may imitate that.
            if proc.sid == own
            or ((proc.pid, proc.start) not in self._taken and namespaces.waits(proc.pid, os.getpid()))
        ]

    def _note_start(self, job: Job) -> None:
        if "began" not in job.notes:
            job.notes["began"] = job.start / procfs.TICKS
        with contextlib.suppress(OSError):
            self._records.write(job.session_id, layout.RUNNING, job.running(self._sup.boot_id, self._sup.container_id))

    def _find(self, name: str) -> tuple[int, int] | None:
        held = self._held.get(name)
        waits = held is not None and sandboxes.INSTANCE in held.notes and self._first_process(name) is None
        # Many sandboxed starts may be under way; without its first process this one was never told to go.
        fitting = set[tuple[int, int]]() if waits else self._fitting(name)
        marked = [proc for proc in self._procs if self._markers.get(proc.pid) == name and proc.pid == proc.sid]
        if marked:
            first = min((proc.start, proc.pid) for proc in marked)
            # Descendants have the marker too: an older candidate is preferred.
            fitting = {(pid, start) for pid, start in fitting if (start, pid) < first}
            if not fitting:
                return first[1], first[0]
        return fitting.pop() if len(fitting) == 1 else None

    def _first_process(self, name: str) -> tuple[int, int] | None:
        mark = layout.FIRST + name
        bearing = [proc for proc in self._procs if self._markers.get(proc.pid) == mark]
        # A command can forge a marker, but not be first in a namespace.
        return next(((proc.pid, proc.start) for proc in bearing if procfs.first_of_namespace(proc.pid)), None)

    def _fitting(self, name: str) -> set[tuple[int, int]]:
        """Processes that may be the session's, forked but not recorded; exactly one candidate is the process.

        Candidates lead a POSIX session, are children of the keeper now, started after the command's descriptors were
        handed over, have no marker of another session, and are not first in a namespace. A supervisor dies in one start
        at most.
        """
        held = self._held.get(name)
        if held is None:
            return set()
        since = int(float(held.notes.get("began", now())) * procfs.TICKS) - 1
        return {
            (one.pid, one.start)
            for one in [*self._living, *self._dead]
            if one.sid == one.pid
            and one.start >= since
            and (one.pid, one.start) not in self._taken
            and self._markers.get(one.pid) in {None, name}
        }

    def _evidence(self, name: str) -> str:
        claim = self._claim(name).decode("ascii", "replace").split()
        if not claim:
            # Either a kill before the fork, or a power failure after which the command may have run.
            age, up = time.time() - self._records.made_at(name), now() + 1
            # A file from the future means that the clock was set: it cannot tell the boots apart.
            return "record_unreadable" if age < -1 else "never_started" if age < up else "machine_rebooted"
        if not _BOOT_ID.match(claim[0]):
            return "record_unreadable"
        if claim[0] != self._sup.boot_id:
            return "machine_rebooted"
        if len(claim) != 3:
            return "supervisor_killed"
        if claim[1] != self._sup.container_id:
            return "container_restarted"
        # The same keeper has neither a child nor a wait status of it, and a first process stays only if told to.
        same = claim[2] == f"{self._sup.keeper.pid}:{self._sup.keeper.start}"
        none = same and not self._fitting(name) and self._first_process(name) is None
        return "never_started" if none else "supervisor_killed"

    def settle_strays(self) -> None:
        """Let each PID namespace without a job end with its last process."""
        known = {job.init for job in self._sup.jobs.values()}
        for proc in procfs.snapshot():
            mark = procfs.marker(proc.pid) or ""
            name = mark.removeprefix(layout.FIRST)
            if name == mark or (proc.pid, proc.start) in known or not procfs.first_of_namespace(proc.pid):
                continue
            job = self._sup.jobs.get(name) or self._unclaimed.pop(name, None)
            job = job or self._job(name, self._records.running(name) or {})
            job.init = proc.pid, proc.start
            if name in self._sup.jobs:
                if job.record is not None:
                    self._sup.vacate(job)
                continue
            job.record = self._record(name) or job.end(self._sup.boot_id, state="exited")
            self._keep_streams(job)
        for job in self._unclaimed.values():
            self._sup.sandboxes.left(job)
        self._unclaimed.clear()

    def keep_laid(self) -> None:
        """Keep the stubs of sandboxes without a job until it is known that no process lives in them."""
        self._unclaimed = {name: self._job(name, {}) for name in list(self._laid)}

    def close_rest(self) -> None:
        """Close and drop what belongs to no session any more."""
        for name, held in self._held.items():
            linux.close_all(held.fds.values())
            if name not in self._sup.jobs and "record" not in held.notes:
                self._sup.keeper.drop(name)
        self._sup.keeper.forget(self._dead)
