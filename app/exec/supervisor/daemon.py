"""The supervisor: starts commands, drains them, ends them in time, and records how they ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from app.exec import pty_spawn
from app.exec.supervisor import channels, crashpoints, layout, link, linux, peers, procfs, spawn
from app.exec.supervisor.diary import Diary
from app.exec.supervisor.inputs import Input
from app.exec.supervisor.job import ITSELF, TIMEOUT, Job
from app.exec.supervisor.kill import Killer, Target
from app.exec.supervisor.logfile import LogFile
from app.exec.supervisor.loop import IN, Loop, Timer, now
from app.exec.supervisor.peers import Peer
from app.exec.supervisor.protocol import (
    VERSION,
    ExitRecord,
    Message,
    Refused,
    StartRequest,
    bytes_of,
    field_of,
    number_of,
    session_id,
    size_of,
)
from app.exec.supervisor.records import ABANDONED, Records
from app.exec.supervisor.streams import Pipe, Screen
from app.exec.supervisor.syncer import Syncer

LOCKED: Final = 75
"""Exit status when another supervisor holds the lock."""
_LAST_DRAIN: Final = 4 << 20
_RETRY_S: Final = 1.0
_SURVIVORS: Final = 64
_WNOTHREAD: Final = 0x20000000
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_FDS: Final = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True)
class Config:
    """`idle_s` 0 never ends by itself."""

    home: str
    idle_s: float
    keeper_lock: int


@dataclass(slots=True)
class Legacy:
    """What the keeper has for a supervisor that starts: its link, and what the last one left."""

    keeper: int
    link: socket.socket
    held: dict[str, link.Held] = field(default_factory=dict[str, link.Held])
    dead: list[link.Dead] = field(default_factory=list[link.Dead])


class Supervisor:
    """All state of the process, and the only thread that touches it."""

    def __init__(self, config: Config, legacy: Legacy, diary: Diary) -> None:
        self.config = config
        self.diary = diary
        self.loop = Loop()
        self.records = Records(config.home)
        self.boot_id = linux.boot_id()
        self.container_id = linux.container_id()
        self.keeper: int | None = legacy.keeper
        self.link = legacy.link
        self.keeper_start = self._start_of(legacy.keeper)
        self.jobs: dict[str, Job] = {}
        self.ended: dict[str, ExitRecord] = {}
        self._unwritten: dict[str, Job] = {}
        self._peers: set[Peer] = set()
        self._instance = uuid.uuid4().hex
        self._limit = spawn.raise_descriptor_limit()
        self._stopping = False
        self._idle: Timer | None = None
        self._listener: socket.socket | None = None
        self._killer = Killer(self.loop, self._spare)
        self._syncer = Syncer(self.records, lambda why: diary.note("supervisor", f"sync failed: {why}"))
        own = os.getpid()
        self._orphans = os.open(f"/proc/self/task/{own}/children", os.O_RDONLY | os.O_CLOEXEC)
        self._ops: dict[str, Callable[[Peer, Message], Message | None]] = {
            "hello": self._hello,
            "info": lambda _peer, _message: self._info(),
            "start": self._start,
            "status": lambda _peer, message: self.status(session_id(message)),
            "list": lambda _peer, _message: self._list(),
            "write": self._write,
            "resize": self._resize,
            "kill": self._kill,
            "ack": self._ack,
            "abandon": self._abandon,
            "stop": self._stop,
        }
        self.link.setblocking(False)
        self.loop.watch(self.link.fileno(), self._keeper_speaks, IN)

    @staticmethod
    def _start_of(pid: int) -> int:
        proc = procfs.read(pid)
        return proc.start if proc is not None else 0

    # -- clients ---------------------------------------------------------------------------------

    def listen(self, folder_fd: int) -> None:
        self._listener = peers.listen(folder_fd)
        self.loop.watch(self._listener.fileno(), self._accept, IN)
        self.rest()

    def _accept(self, _events: int = 0) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_FDS:
                    self.diary.note("supervisor", "no descriptor for another client")
                    time.sleep(0.01)
                return
            peer = Peer(self.loop, connection, self._handle)
            peer.closed = self._left
            self._peers.add(peer)
            self.rest()

    def _left(self, peer: Peer, why: str) -> None:
        self._peers.discard(peer)
        if why:
            self.diary.note("supervisor", f"client cut off: {why}")
        self.rest()

    def _handle(self, peer: Peer, message: Message) -> None:
        number, op = message.get("id"), message.get("op")
        try:
            call = self._ops.get(op) if isinstance(op, str) else None
            if call is None:
                raise Refused("unknown_op", f"this supervisor speaks version {VERSION} and does not know that request")
            answer = call(peer, message)
        except Refused as refusal:
            peer.send({"id": number, "ok": False, "error": refusal.code, "message": str(refusal)})
        except OSError as error:
            self.diary.note("supervisor", f"{op} failed: {error.strerror}")
            peer.send({"id": number, "ok": False, **_failure(error)})
        else:
            if answer is not None:
                peer.send({"id": number, "ok": True, **answer})

    def _hello(self, peer: Peer, message: Message) -> Message | None:
        version = message.get("version")
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise Refused("unsupported_version", f"this supervisor speaks version {VERSION}")
        if message.get("watch"):
            peer.send({"id": message.get("id"), "ok": True, **self._info()})
            for record in list(self.ended.values()):
                peer.send({"event": "exit", "record": record})
            peer.watches = True
            return None
        return self._info()

    def _info(self) -> Message:
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "boot_id": self.boot_id,
            "instance": self._instance,
            "keeper": self.keeper is not None,
            "keeper_pid": self.keeper,
            "live": sum(job.record is None for job in self.jobs.values()),
            "unacknowledged": len(self.ended),
            "descriptors": self._limit,
            "stopping": self._stopping,
        }

    # -- starting --------------------------------------------------------------------------------

    def _start(self, _peer: Peer, message: Message) -> Message:
        crashpoints.reach("supervisor.request")
        request = StartRequest.from_wire(message)
        name = request.session_id
        if request.boot_id != self.boot_id:
            raise Refused("boot_id", "the machine has been started anew since this command was to run")
        if name in self.jobs or name in self.ended:
            return {"outcome": "already", "status": self.status(name)}
        if self._stopping:
            raise Refused("stopping", "the supervisor is about to end")
        if self.keeper is None and request.background:
            raise Refused("keeper_dead", "the keeper is gone; nothing new can run in the background until both restart")
        made = channels.make(request, self._limit)
        try:
            if not self.records.claim(name, self._claim_text()):
                status = self.status(name)
                return {"outcome": "abandoned" if status["state"] == "abandoned" else "already", "status": status}
            crashpoints.reach("supervisor.marked")
            return self._run(request, made)
        finally:
            made.close()

    def _claim_text(self) -> bytes:
        return f"{self.boot_id} {self.container_id} {self.keeper or 0}:{self.keeper_start}\n".encode()

    def _run(self, request: StartRequest, made: channels.Channels) -> Message:
        began = now()
        job = Job(
            request.session_id,
            {
                "began": began,
                "started_at": time.time(),
                "deadline": began + request.timeout_s if request.timeout_s else None,
                "grace_s": request.grace_s,
                "log_cap": request.log_cap,
                "background": request.background,
                "separate_stderr": request.separate_stderr,
                "pty": request.pty,
            },
        )
        try:
            self.hold(job, made)
            self.connect(job, made.ours, resumed=False)
            if request.pty is None:
                job.pid = spawn.spawn(request, made.child[0], made.child[1], made.child[2])
            else:
                job.pid = spawn.spawn_on_terminal(request, made.child[0])
        except (spawn.ExecFailed, OSError) as failure:
            made.close_child()
            return self._not_started(job, failure.errno or errno.EIO)
        made.close_child()
        crashpoints.reach("supervisor.forked")
        job.start = self._start_of(job.pid)
        job.pidfd = os.pidfd_open(job.pid)
        self.jobs[job.session_id] = job
        try:
            self.records.write_once(job.session_id, layout.RUNNING, job.running(self.boot_id, self.container_id))
        except OSError as error:
            self.diary.note("supervisor", f"{job.session_id}: running.json: {error.strerror}")
        crashpoints.reach("supervisor.recorded_pid")
        self.follow(job)
        if request.pty is not None and request.stdin is not None and job.input is not None:
            job.input.write(request.stdin, eof=not request.keep_stdin_open, key="", told=lambda _: None)
        return {"outcome": "started", "pid": job.pid, "starttime": job.start, "started_at": job.notes["started_at"]}

    def hold(self, job: Job, made: channels.Channels) -> None:
        """Give the keeper its dups, before there is a process that could miss them."""
        names = [name for name in made.ours if not (name == channels.STDIN and channels.MASTER in made.ours)]
        self.tell_keeper(
            {"op": "hold", "session": job.session_id, "names": names, "notes": job.notes},
            [made.ours[name] for name in names],
        )
        crashpoints.reach("supervisor.held")

    def connect(self, job: Job, ours: dict[str, int], *, resumed: bool) -> None:
        """Give the job its logs, streams and input over descriptors that are the job's from now on."""
        cap = int(job.notes["log_cap"])
        names = [(layout.LOG, layout.HOLES)]
        if channels.ERR in ours:
            names.append((layout.ERR, layout.ERR_HOLES))
        for pair in names:
            job.logs.append(LogFile(self.records, job.session_id, pair, cap))
            if resumed:
                job.logs[-1].resume()
        if channels.MASTER in ours:
            inner = ours.pop(channels.INNER), ours.pop(channels.INNER_IN)
            job.streams.append(Screen(ours.pop(channels.MASTER), inner, job.logs[0]))
        for name, log in zip((channels.OUT, channels.ERR), job.logs, strict=False):
            if name in ours:
                job.streams.append(Pipe(ours.pop(name), log))
        if channels.STDIN in ours:
            terminal = isinstance(job.streams[0], Screen) if job.streams else False
            job.input = Input(
                self.loop,
                ours.pop(channels.STDIN),
                terminal=terminal,
                closed=lambda: self.drop(job, [channels.STDIN]),
            )

    def follow(self, job: Job) -> None:
        """Watch the job's process, streams and deadline."""
        if job.pidfd >= 0:
            self.loop.watch(job.pidfd, lambda _: self._exited(job), IN)
        for stream in job.streams:
            stream.watch(self.loop, lambda: self.stream_ended(job))
        deadline = job.notes["deadline"]
        if deadline is not None and job.record is None:
            job.timer = self.loop.at(deadline, lambda: self._expired(job))
        if self._idle is not None:
            self.rest()

    def _not_started(self, job: Job, number: int) -> Message:
        record = job.end(self.boot_id, state="start_failed", errno=number)
        for stream in job.streams:
            stream.close()
        self._finish(job, record)
        return {"outcome": "start_failed", "record": record}

    # -- ends ------------------------------------------------------------------------------------

    def _exited(self, job: Job) -> None:
        if job.record is not None:
            return
        try:
            info = os.waitid(os.P_PIDFD, job.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self.loop.forget(job.pidfd)
            # Its parent is the keeper, which tells; without one the kernel may know.
            self.loop.after(_RETRY_S if self.keeper is not None else 0.0, lambda: self._ended_elsewhere(job))
            return
        if info is None:
            return
        crashpoints.reach("supervisor.exit_seen")
        self.end(job, info.si_code, info.si_status)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, job.pidfd, os.WEXITED)
        crashpoints.reach("supervisor.reaped")
        self._close_pidfd(job)

    def _close_pidfd(self, job: Job) -> None:
        if job.pidfd >= 0:
            self.loop.forget(job.pidfd)
            os.close(job.pidfd)
            job.pidfd = -1

    def _ended_elsewhere(self, job: Job) -> None:
        if job.record is not None:
            return
        status = linux.exit_info(job.pidfd)
        if status is None:
            self.lose(job, "supervisor_killed")
        elif os.WIFSIGNALED(status):
            self.end(job, os.CLD_KILLED, os.WTERMSIG(status))
        else:
            self.end(job, os.CLD_EXITED, os.WEXITSTATUS(status))
        self._close_pidfd(job)

    def end(self, job: Job, code: int, status: int) -> None:
        """Record the end that the kernel reported."""
        for stream in job.streams:
            if stream.open:
                stream.drain(_LAST_DRAIN)
        survivors = self._survivors(job)
        exited = code == os.CLD_EXITED
        state = "timed_out" if job.ended_by == TIMEOUT else "exited" if exited else "signaled"
        how: dict[str, Any] = {"exit_code": status} if exited else {"signal": status}
        self._finish(job, job.end(self.boot_id, state=state, survivors=survivors, **how), (code, status))

    def lose(self, job: Job, evidence: str) -> None:
        """Record that the end is not known, and why."""
        for stream in job.streams:
            if stream.open:
                stream.drain(_LAST_DRAIN)
        self._finish(job, job.end(self.boot_id, state="lost", evidence=evidence, ended_by=ITSELF))

    def _finish(self, job: Job, record: ExitRecord, status: tuple[int, int] | None = None) -> None:
        job.record = record
        if job.timer is not None:
            job.timer.cancel()
        if job.input is not None:
            job.input.close()
        self.ended[job.session_id] = record
        if not self._write_record(job):
            if status is not None:
                self.tell_keeper_soon(
                    {"op": "keep", "pid": job.pid, "start": job.start, "code": status[0], "status": status[1]}
                )
            self._unwritten[job.session_id] = job
            self.loop.after(_RETRY_S, self._retry)
        event: Message = {"event": "exit", "record": record}
        for peer in list(self._peers):
            if peer.watches:
                peer.send(event)
        crashpoints.reach("supervisor.rung")
        self.stream_ended(job)

    def _write_record(self, job: Job) -> bool:
        assert job.record is not None
        name = job.session_id
        try:
            self.records.write_aside(name, layout.EXIT, dict(job.record))
            crashpoints.reach("supervisor.record_written")
            self.records.rename(name, layout.EXIT + ".new", layout.EXIT)
        except OSError as error:
            self.diary.note("supervisor", f"{name}: exit record: {error.strerror}")
            # Where somebody removed the session's directory there is nothing to try again.
            return isinstance(error, FileNotFoundError)
        crashpoints.reach("supervisor.record_renamed")
        self._syncer.add(name)
        return True

    def _retry(self) -> None:
        for name, job in list(self._unwritten.items()):
            if name not in self.ended or self._write_record(job):
                del self._unwritten[name]
        if self._unwritten:
            self.loop.after(_RETRY_S, self._retry)

    def _survivors(self, job: Job) -> list[int]:
        # Orphans are given to our first thread, which starts nothing itself: usually there are none.
        orphans = procfs.children(self._orphans)
        if job.adopted and self.keeper is not None:
            orphans += procfs.children(f"/proc/{self.keeper}/task/{self.keeper}/children")
        if not orphans:
            return []
        found: list[int] = []
        for pid in orphans:
            proc = procfs.read(pid)
            if (
                proc is not None
                and proc.alive
                and pid != job.pid
                and (job.pid in {proc.sid, proc.pgid} or procfs.marker(pid) == job.session_id)
            ):
                found.append(pid)
        if found:
            below = procfs.with_descendants(found, procfs.snapshot(job.start))
            found = sorted(pid for pid in below if (proc := procfs.read(pid)) is not None and proc.alive)
        return found[:_SURVIVORS]

    def stream_ended(self, job: Job) -> None:
        if job.record is None or any(stream.open for stream in job.streams):
            return
        for log in job.logs:
            log.close()
        job.logs.clear()
        self.jobs.pop(job.session_id, None)
        self.drop(job, None)
        self.rest()

    # -- killing ---------------------------------------------------------------------------------

    def _expired(self, job: Job) -> None:
        self.kill(job, float(job.notes["grace_s"]), TIMEOUT, lambda survivors: self._expiry_done(job, survivors))

    def _expiry_done(self, job: Job, survivors: list[int]) -> None:
        if survivors:
            self.diary.note("supervisor", f"{job.session_id}: {len(survivors)} processes outlived the timeout")

    def kill(self, job: Job, grace_s: float, who: str, done: Callable[[list[int]], None]) -> None:
        """End the job's whole tree and record who did it."""
        self._killer.kill(job.target, grace_s, lambda: self._first_signal(job, who), done)

    def _first_signal(self, job: Job, who: str) -> None:
        if job.record is None and job.pidfd >= 0:
            self._exited(job)
        if job.record is None:
            job.ended_by = who
            try:
                self.records.write(job.session_id, layout.RUNNING, job.running(self.boot_id, self.container_id))
            except OSError as error:
                self.diary.note("supervisor", f"{job.session_id}: running.json: {error.strerror}")

    def _kill(self, peer: Peer, message: Message) -> Message | None:
        name, number = session_id(message), message.get("id")
        grace = number_of(message, "grace_s", 2.0)
        who = field_of(message, "ended_by", str)
        job = self.jobs.get(name)

        def done(survivors: list[int]) -> None:
            if job is not None and job.record is None and job.pidfd >= 0:
                self._exited(job)
            peer.send({"id": number, "ok": True, "killed": not survivors, "survivors": survivors})

        if job is not None:
            self.kill(job, grace, who, done)
            return None
        status = self.status(name)
        record = status.get("record")
        if record is None:
            raise Refused("not_found", f"no session {name}")
        if record["boot_id"] != self.boot_id or record.get("starttime") is None:
            return {"killed": True, "survivors": []}
        target = Target(name, record["pid"], record["starttime"])
        self._killer.kill(target, grace, lambda: None, done)
        return None

    def _spare(self) -> set[int]:
        return {os.getpid(), self.keeper or 0, 1, 0}

    # -- the other requests ----------------------------------------------------------------------

    def status(self, name: str) -> Message:
        """What is known of a session: `unknown`, `abandoned`, `running`, or its end with the record."""
        job = self.jobs.get(name)
        if job is not None and job.record is None:
            return job.status()
        record = self.ended.get(name)
        if record is not None:
            return {"state": record["state"], "record": record}
        acked = self.records.read(name, layout.ACKED)
        if acked is not None:
            return {"state": acked["state"], "record": acked, "acknowledged": True}
        claim = self.records.claimed_by(name)
        if claim is None:
            return {"state": "unknown"}
        if claim == ABANDONED:
            return {"state": "abandoned"}
        lost = Job(name, {})
        self.lose(lost, "record_unreadable")
        return {"state": "lost", "record": lost.record}

    def _list(self) -> Message:
        live = [job.status() for job in self.jobs.values() if job.record is None]
        return {"sessions": live, "ended": list(self.ended.values())}

    def _live(self, message: Message) -> Job:
        name = session_id(message)
        job = self.jobs.get(name)
        if job is None or job.record is not None:
            known = self.status(name)["state"] != "unknown"
            raise Refused("ended" if known else "not_found", f"no live session {name}")
        return job

    def _write(self, peer: Peer, message: Message) -> Message | None:
        job = self._live(message)
        if job.input is None:
            raise Refused("no_stdin", "the session was started without an open input")
        data = bytes_of(message.get("data", ""))
        key = message.get("key")
        number = message.get("id")
        job.input.write(
            data,
            eof=bool(message.get("eof")),
            key=key if isinstance(key, str) else "",
            told=lambda outcome: peer.send({"id": number, "ok": True, **outcome}),
        )
        return None

    def _resize(self, _peer: Peer, message: Message) -> Message:
        job = self._live(message)
        rows, cols = size_of(message)
        screen = job.streams[0] if job.streams else None
        if not isinstance(screen, Screen) or not screen.open:
            raise Refused("no_pty", "the session has no terminal")
        pty_spawn.resize(screen.fd, rows, cols)
        return {}

    def _ack(self, _peer: Peer, message: Message) -> Message:
        name = session_id(message)
        record = self.ended.pop(name, None)
        if record is not None:
            with contextlib.suppress(FileNotFoundError):
                self.records.rename(name, layout.EXIT, layout.ACKED)
            self.records.remove(name, layout.RUNNING)
        return {"acknowledged": record is not None}

    def _abandon(self, _peer: Peer, message: Message) -> Message:
        name = session_id(message)
        if name not in self.jobs and name not in self.ended and self.records.claim(name, ABANDONED):
            return {"abandoned": True, "status": {"state": "abandoned"}}
        status = self.status(name)
        return {"abandoned": status["state"] == "abandoned", "status": status}

    def _stop(self, _peer: Peer, _message: Message) -> Message:
        self._stopping = True
        self.loop.after(0.0, self.rest)
        return {"live": len(self.jobs)}

    # -- the keeper ------------------------------------------------------------------------------

    def tell_keeper(self, message: Message, fds: list[int] | None = None) -> None:
        """Send to the keeper; without one, which only foreground commands get past, nothing is held.

        Raises:
            TimeoutError: The keeper does not read.
        """
        if self.keeper is None:
            return
        try:
            link.send(self.link, message, fds)
        except BlockingIOError:
            self.link.settimeout(_RETRY_S)
            try:
                link.send(self.link, message, fds)
            finally:
                self.link.setblocking(False)
        except (BrokenPipeError, ConnectionError):
            self._keeper_gone()

    def tell_keeper_soon(self, message: Message) -> None:
        """Send to the keeper, now or when it reads again."""
        try:
            if self.keeper is not None:
                link.send(self.link, message)
        except BlockingIOError:
            self.loop.after(0.01, lambda: self.tell_keeper_soon(message))
        except (BrokenPipeError, ConnectionError):
            self._keeper_gone()

    def drop(self, job: Job, names: list[str] | None) -> None:
        self.tell_keeper_soon({"op": "drop", "session": job.session_id, "names": names})

    def _keeper_gone(self) -> None:
        if self.keeper is not None:
            self.keeper = None
            self.loop.forget(self.link.fileno())
            self.diary.note("supervisor", "the keeper is gone: no new background commands")
            self.rest()

    def _keeper_speaks(self, _events: int) -> None:
        while self.keeper is not None:
            try:
                got = link.receive(self.link)
            except BlockingIOError:
                return
            if got is None:
                self._keeper_gone()
                return
            self.inherited(link.Dead(**got[0]["dead"]))

    def inherited(self, dead: link.Dead) -> None:
        """Take over a wait status from the keeper."""
        for job in list(self.jobs.values()):
            if job.record is None and (job.pid, job.start) == (dead.pid, dead.start):
                self.end(job, dead.code, dead.status)
                self._close_pidfd(job)
                break
        self.tell_keeper_soon({"op": "forget", "numbers": [dead.number]})

    # -- idle ------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Start or stop counting the time in which nobody needs us."""
        wanted = bool(self.jobs or self._unwritten or self._peers)
        if self._idle is not None:
            if not wanted:
                return
            self._idle.cancel()
            self._idle = None
        if self._stopping and not self.jobs and not self._unwritten:
            self._idle = self.loop.after(0.05, self._leave)
        elif not wanted:
            idle = 0.05 if self.keeper is None else self.config.idle_s
            if idle > 0:
                self._idle = self.loop.after(idle, self._leave)

    def _leave(self) -> None:
        self._idle = None
        assert self._listener is not None
        if not self._stopping:
            self._accept()
            if self._peers or self.jobs:
                self.rest()
                return
        # Who connects from here on is cut off before an answer, and starts a new pair.
        self.loop.forget(self._listener.fileno())
        self._listener.close()
        self.diary.note("supervisor", "ends: nobody needs it")
        self.loop.stop()


def _failure(error: OSError) -> Message:
    code = "descriptors" if error.errno in _NO_FDS else "disk" if error.errno in _FULL else "os_error"
    return {"error": code, "errno": error.errno, "message": error.strerror or str(error)}


def _lock(folder_fd: int) -> int | None:
    lock = os.open(layout.SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
    for _ in range(100):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return lock
    return None


def main(config: Config, legacy: Legacy, ready: int) -> int:
    """Run the supervisor in this process, which the keeper has just forked; ends the process itself.

    The work is done by a second thread. The first gets the orphans and reaps them: apart from the
    commands, so that neither takes the other's wait status. It also keeps our credentials while the
    second wears those of a command for the moment of its start, and so no signal of theirs hits us.
    """
    from app.exec.supervisor import recovery

    linux.become_subreaper()
    linux.name_process("shellback-sup")
    diary = Diary(os.path.join(config.home, layout.SUPERVISOR, layout.DIARY))
    folder = os.open(os.path.join(config.home, layout.SUPERVISOR), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if _lock(folder) is None:
        diary.note("supervisor", "another supervisor holds the lock")
        return LOCKED

    def serve() -> None:
        status = 70
        try:
            supervisor = Supervisor(config, legacy, diary)
            recovery.recover(supervisor, legacy)
            supervisor.listen(folder)
            if ready >= 0:
                os.write(ready, b"ready\n")
                os.close(ready)
            diary.note("supervisor", "ready")
            supervisor.loop.run()
            status = 0
        except BaseException as error:  # noqa: BLE001 - the last line of this process
            diary.note("supervisor", f"fails: {_where(error)}")
        finally:
            os._exit(status)

    threading.Thread(target=serve, name="serve").start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        _reap_orphans()
        signal.sigwait({signal.SIGCHLD})


def _reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | _WNOTHREAD) is not None:
            pass


def _where(error: BaseException) -> str:
    # Type and place; a message could quote a command.
    trace = error.__traceback__
    lines: list[str] = []
    while trace is not None:
        lines.append(f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    number = f" errno {error.errno}" if isinstance(error, OSError) else ""
    return f"{type(error).__name__}{number} at {' '.join(lines[-4:])}"
