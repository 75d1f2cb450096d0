"""The supervisor's state: running commands, and what happens when they end or must end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.supervisor.process import channels, link, procfs, spawn
from shellback.exec.supervisor.process.growth import Growth
from shellback.exec.supervisor.process.inputs import Input
from shellback.exec.supervisor.process.job import COVERED, ITSELF, LOSSES, TIMEOUT, Job
from shellback.exec.supervisor.process.kill import Killer
from shellback.exec.supervisor.process.leash import Leash
from shellback.exec.supervisor.process.lifetimes import GRACE_S, WHO, Lifetimes
from shellback.exec.supervisor.process.queries import Queries
from shellback.exec.supervisor.process.streams import Pipe, Screen
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.records.ledger import Ledger
from shellback.exec.supervisor.records.logfile import LogFile
from shellback.exec.supervisor.records.records import Records
from shellback.exec.supervisor.sandbox import sandboxes
from shellback.exec.supervisor.sandbox.losses import ENDED, MOST, Place, Watch, covers_of_container
from shellback.exec.supervisor.sandbox.sandboxes import Sandboxes
from shellback.exec.wire import crashpoints, layout, linux
from shellback.exec.wire.protocol import LEASE, PROTECTION, ExitRecord, Loss, Message
from shellback.exec.wire.sandbox import CONTAINED

_LAST_DRAIN: Final = 4 << 20
_UNTOLD_S: Final = 1.0
_SURVIVORS: Final = 64


class Supervisor:
    def __init__(self, home: str, legacy: link.Legacy, diary: Diary) -> None:
        self.diary = diary
        self._home = home
        self.loop = Loop()
        self.growth = Growth(self.loop)
        self.records = Records(home)
        self.ledger = Ledger(self.loop, self.records, diary, self._written_late)
        self.boot_id = linux.boot_id()
        self.container_id = linux.container_id()
        self.jobs: dict[str, Job] = {}
        self.stopping = self.uncovered = False
        self._container: Watch | None = None
        self.ended: Callable[[ExitRecord], None] = lambda _record: None
        self.uncovering: Callable[[Job], None] = lambda _job: None
        self.changed: Callable[[], None] = lambda: None
        self.keeper = link.Line(self.loop, legacy, self.told, self._keeper_gone)
        self.sandboxes = Sandboxes(self.loop, home, self.records, self.keeper, diary)
        self.sandboxes.lost, self.sandboxes.uncovered = self.lost, self.end_uncovered
        self.descriptors = spawn.raise_descriptor_limit()
        self.killer = Killer(self.loop, lambda: {os.getpid(), self.keeper.pid or 0, 1, 0})
        self.leash = Leash(self.loop, home, self.jobs, self._end_unleased)
        self.lifetimes = Lifetimes(
            self.jobs,
            self.records,
            self.killer,
            lambda job: self.kill(job, GRACE_S, WHO, lambda _: self.exited(job)),
            lambda name: self.status(name).get("record"),
        )
        self.claim = f"{self.boot_id} {self.container_id} {self.keeper.pid}:{self.keeper.start}\n".encode()

    # -- what has begun ---------------------------------------------------------------------------

    def note_running(self, job: Job) -> None:
        try:
            self.records.write(job.session_id, layout.RUNNING, job.running(self.boot_id, self.container_id))
        except OSError as error:
            self.diary.note(f"{job.session_id}: running.json: {error.strerror}")

    def connect(self, job: Job, ours: dict[str, int], *, resumed: bool) -> None:
        """Give the job its logs, streams and input; the job owns the descriptors from now on."""
        cap = int(job.notes["log_cap"])
        names = [(layout.LOG, layout.HOLES)]
        if channels.ERR in ours:
            names.append((layout.ERR, layout.ERR_HOLES))
        for pair in names:
            job.logs.append(LogFile(self.records, job.session_id, pair, cap))
            job.logs[-1].losing = lambda number: self.diary.note(
                f"{job.session_id}: output is dropped: {os.strerror(number)}"
            )
            if resumed:
                job.logs[-1].resume()
        if channels.MASTER in ours:
            inner = ours.pop(channels.INNER), ours.pop(channels.INNER_IN)
            job.streams.append(
                Screen(ours.pop(channels.MASTER), inner, job.logs[0], lambda: job.record is None and not job.over)
            )
        for name, log in zip((channels.OUT, channels.ERR), job.logs, strict=False):
            if name in ours:
                job.streams.append(Pipe(ours.pop(name), log))
        for stream in job.streams:
            stream.grew = lambda: self.growth.grew(job)
        if channels.STDIN in ours:
            screen = job.streams[0] if job.streams and isinstance(job.streams[0], Screen) else None
            job.input = Input(
                self.loop,
                ours.pop(channels.STDIN),
                terminal=screen is not None,
                closed=lambda: self.keeper.drop(job.session_id, [channels.STDIN]),
            )
            if screen is not None:
                Queries(self.loop, self.keeper, job.session_id, screen, job.input).attend()

    def follow(self, job: Job) -> None:
        """Watch the job's process, streams and deadline."""
        if job.pidfd >= 0:
            self.loop.watch(job.pidfd, lambda _: self.exited(job), IN)
        # The number of a closed stream may belong to another descriptor.
        for stream in (stream for stream in job.streams if stream.open):
            stream.watch(self.loop, lambda: self.stream_ended(job))
        deadline = job.notes["deadline"]
        if deadline is not None and job.record is None:
            job.timer = self.loop.at(deadline, lambda: self._expired(job))
        self.leash.attend()
        self.changed()

    def not_started(self, job: Job, number: int) -> Message:
        self._drain(job)
        record = job.end(self.boot_id, state="start_failed", errno=number)
        for stream in job.streams:
            stream.close()
        self._finish(job, record)
        return {"outcome": "start_failed", "record": record}

    # -- ends ------------------------------------------------------------------------------------

    def exited(self, job: Job) -> None:
        """Record the end of a job if it has ended."""
        if job.record is not None or job.pidfd < 0:
            return
        if job.adopted:
            if not procfs.alive(job.pid, job.start):
                self.loop.forget(job.pidfd)
                self.expect_end(job)
            return
        info = os.waitid(os.P_PIDFD, job.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return
        crashpoints.reach("supervisor.exit_seen")
        self.end(job, info.si_code, info.si_status)
        os.waitid(os.P_PIDFD, job.pidfd, os.WEXITED)
        crashpoints.reach("supervisor.reaped")
        self._close_pidfd(job)

    def _close_pidfd(self, job: Job) -> None:
        if job.pidfd >= 0:
            self.loop.forget(job.pidfd)
            os.close(job.pidfd)
            job.pidfd = -1

    def expect_end(self, job: Job) -> None:
        """Record the end of an adopted job, as the keeper tells it; without a keeper the kernel may know it."""
        self.loop.after(_UNTOLD_S if self.keeper.pid is not None else 0.0, lambda: self._ended_untold(job))

    def _ended_untold(self, job: Job) -> None:
        if job.record is not None:
            return
        if self.keeper.pid is not None and (found := procfs.read(job.pid)) is not None and found.start == job.start:
            # The keeper has not reaped it yet.
            self.expect_end(job)
            return
        self.keeper.when_told(lambda: self._ended_unknown(job))

    def _ended_unknown(self, job: Job) -> None:
        if job.record is not None:
            return
        status = linux.exit_info(job.pidfd) if job.pidfd >= 0 else None
        if status is None:
            self.lose(job, "supervisor_killed")
        elif os.WIFSIGNALED(status):
            self.end(job, os.CLD_KILLED, os.WTERMSIG(status))
        else:
            self.end(job, os.CLD_EXITED, os.WEXITSTATUS(status))
        self._close_pidfd(job)

    def end(self, job: Job, code: int, status: int, known: int = 0) -> None:
        """Record the end that the kernel reported; `known` comes from the process that reaped it."""
        self._drain(job)
        self.sandboxes.last_look(job)
        if self._container is not None:
            self._container.last_look()
        job.known = max(job.known, known)
        try:
            job.look()
            survivors = self._survivors(job)
        except OSError as error:
            # No descriptor for the search; the end needs none and must be recorded now.
            self.diary.note(f"{job.session_id}: survivors not searched: {error.strerror}")
            survivors = []
        exited = code == os.CLD_EXITED
        state = "timed_out" if job.ended_by == TIMEOUT else "exited" if exited else "signaled"
        how: dict[str, Any] = {"exit_code": status} if exited else {"signal": status}
        if survivors:
            self.lifetimes.leaves(job)
        self._finish(job, job.end(self.boot_id, state=state, survivors=survivors, **how))

    def lose(self, job: Job, evidence: str) -> None:
        """Record that the end is not known, and why."""
        self._drain(job)
        self._finish(job, job.end(self.boot_id, state="lost", evidence=evidence, ended_by=ITSELF))

    def _drain(self, job: Job) -> None:
        job.over = True
        for stream in job.streams:
            if stream.open:
                stream.drain(_LAST_DRAIN)

    def _finish(self, job: Job, record: ExitRecord) -> None:
        job.record = record
        if job.timer is not None:
            job.timer.cancel()
        if job.input is not None:
            job.input.close()
        if not self.ledger.enter(record):
            # The keeper holds the record until it is on disk.
            # Stubs and covers are in `laid.json`, and may be too long for a message.
            notes: Message = {
                name: job.notes[name] for name in job.notes.keys() - {sandboxes.STUBS, sandboxes.PLACEHOLDERS, COVERED}
            }
            notes["record"] = record
            self.keeper.send_soon(link.hold(job.session_id, [], notes))
        self.ended(record)
        self.growth.ended(job)
        crashpoints.reach("supervisor.rung")
        self.vacate(job)
        self.stream_ended(job)

    def vacate(self, job: Job) -> None:
        """Let the PID namespace of an ended job, if it has one, end with its last process."""
        self.sandboxes.vacate(job, lambda: self.stream_ended(job))

    def _survivors(self, job: Job) -> list[int]:
        if job.init is not None:
            return sandboxes.inhabitants(job, _SURVIVORS)
        # Orphans become children of our first thread, which starts no commands: usually it has none.
        orphans = procfs.children(os.getpid())
        if job.adopted and self.keeper.pid is not None:
            orphans += procfs.children(self.keeper.pid)
        procs = [proc for pid in orphans if pid != job.pid and (proc := procfs.read(pid)) is not None and proc.alive]
        found = [
            proc.pid for proc in procs if job.pid in {proc.sid, proc.pgid} or procfs.marker(proc.pid) == job.session_id
        ]
        if found:
            below = procfs.with_descendants(found, procfs.snapshot(job.start))
            found = sorted(pid for pid in below if procfs.survives(pid))
        return found[:_SURVIVORS]

    def stream_ended(self, job: Job) -> None:
        if job.record is None or job.init is not None or any(stream.open for stream in job.streams):
            return
        for log in job.logs:
            log.close()
        job.logs.clear()
        self.jobs.pop(job.session_id, None)
        self.sandboxes.left(job)
        # If the disk has no room yet, only the keeper has the record.
        self.keeper.drop(job.session_id, list(channels.NAMES) if self.ledger.lacks(job.session_id) else None)
        self.changed()

    # -- covers ----------------------------------------------------------------------------------

    def lost(self, job: Job, loss: Loss) -> None:
        """Record that a cover of a job was lost, and what became of it."""
        known = job.notes.setdefault(LOSSES, [])
        if len(known) < MOST or loss["how"] == ENDED:
            known.append(loss)
        self.diary.note(f"{job.session_id}: lost a cover, {loss['how']} after {loss['ms']} ms")
        if job.record is None and (job.pidfd >= 0 or job.adopted):
            self.note_running(job)
        self.uncovering(job)

    def end_uncovered(self, job: Job) -> None:
        """Kill the whole tree of a job at once: a lost cover cannot be restored."""
        self.exited(job)
        if job.record is None:
            job.ended_by = PROTECTION
        if job.init is not None:
            procfs.signal_exactly(*job.init, signal.SIGKILL)
        self.killer.kill(job.target, 0.0, lambda _: self.exited(job), lambda: self._first_signal(job, job.ended_by))

    def watch_container(self) -> None:
        """In a container: end all commands once one of its covers is lost; from inside it cannot be restored."""

        def told(loss: Loss) -> None:
            for job in list(self.jobs.values()):
                self.lost(job, loss)

        def end() -> None:
            self.uncovered = True
            for job in list(self.jobs.values()):
                self.end_uncovered(job)

        covered = covers_of_container(self._home)
        if covered:
            place = Place(covered=covered, root=CONTAINED, who=None, told=told, end=end)
            table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._container = self.sandboxes.losses.watch(place, table=table)
            self._container.look()
            os.close(table)

    # -- killing ---------------------------------------------------------------------------------

    def _expired(self, job: Job) -> None:
        def done(survivors: list[int]) -> None:
            if survivors:
                self.diary.note(f"{job.session_id}: {len(survivors)} processes outlived the timeout")

        self.kill(job, float(job.notes["grace_s"]), TIMEOUT, done)

    def _end_unleased(self, job: Job) -> None:
        self.diary.note(f"{job.session_id}: ended, as the lease of this host was not renewed")
        self.kill(job, GRACE_S, LEASE, lambda _: self.exited(job))

    def kill(self, job: Job, grace_s: float, who: str, done: Callable[[list[int]], None]) -> None:
        """End the job's whole tree and record who did it."""
        if not job.when_launched(lambda: self.kill(job, grace_s, who, done)):
            self.killer.kill(job.target, grace_s, done, lambda: self._first_signal(job, who))

    def signal(self, job: Job, number: int, done: Callable[[], None]) -> None:
        """Send a signal to the job's whole tree."""
        if not job.when_launched(lambda: self.signal(job, number, done)):
            self.killer.signal(job.target, number, done)

    def _first_signal(self, job: Job, who: str) -> None:
        self.exited(job)
        if job.record is None:
            job.ended_by = who
            if job.pidfd >= 0 or job.adopted:
                # Otherwise it is recorded with the process.
                self.note_running(job)
            crashpoints.reach("supervisor.killing")

    def status(self, name: str) -> Message:
        """The status of a session: `unknown`, `abandoned`, `running`, or its end with the record."""
        job = self.jobs.get(name)
        if job is not None and job.record is None:
            return job.status()
        known = self.ledger.look_up(name)
        if known is not None:
            return known
        lost = Job(name, {})
        self.lose(lost, "record_unreadable")
        return {"state": "lost", "record": lost.record}

    def _written_late(self, name: str) -> None:
        # Clients could not acknowledge it when it was told first.
        if name in self.ledger.ended:
            self.ended(self.ledger.ended[name])
        if name not in self.jobs:
            self.keeper.drop(name)

    # -- the keeper ------------------------------------------------------------------------------

    def told(self, dead: link.Dead) -> None:
        """Take over a wait status from the keeper."""
        for job in self.jobs.values():
            if job.record is None and (job.pid, job.start) == (dead.pid, dead.start):
                self.end(job, dead.code, dead.status, dead.known)
                self._close_pidfd(job)
                break
        self.keeper.forget([dead])

    def _keeper_gone(self) -> None:
        self.diary.note("the keeper is gone: no new background commands")
        self.changed()
