"""One command: its process, its channels, and how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shellback.exec.supervisor.loop import Timer, now
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.process.inputs import Input
from shellback.exec.supervisor.process.kill import Target
from shellback.exec.supervisor.process.streams import Pipe
from shellback.exec.supervisor.records.logfile import LogFile
from shellback.exec.wire.protocol import VERSION, ExitRecord, Message

TIMEOUT = "timeout"
ITSELF = "itself"
LOSSES = "losses"
COVERED = "covered"
"""The covers of the job's sandbox; they are stored in `laid.json`."""


def target_of(record: ExitRecord) -> Target:
    """The process tree of an ended session, as far as it can be told from other processes."""
    # If it ended in the tick it began in, no process proves the number: another one may have begun in that tick.
    init = record["init"]
    return Target(
        record["session_id"],
        record["pid"] or 0,
        record["starttime"] or 0,
        record["known"],
        None if init is None else (init[0], init[1]),
    )


@dataclass(slots=True)
class Job:
    """A session while it has a process or an open stream.

    `notes` are what a later supervisor needs; they are kept in `running.json`. `start` is in ticks since boot, `began`
    in seconds since boot. `over`: the process has ended. `known` is the last tick at which the pid belonged to the
    process. An adopted job is a child of the keeper, not ours. `init` is pid and start of the first process of its PID
    namespace, while that exists. `launching` are callbacks for the moment when it has a process, `waits`
    the requests that wait for more output.
    """

    session_id: str
    notes: Message
    pid: int = 0
    start: int = 0
    pidfd: int = -1
    adopted: bool = False
    streams: list[Pipe] = field(default_factory=list[Pipe])
    logs: list[LogFile] = field(default_factory=list[LogFile])
    input: Input | None = None
    timer: Timer | None = None
    ended_by: str = ITSELF
    over: bool = False
    known: int = 0
    record: ExitRecord | None = None
    init: tuple[int, int] | None = None
    launching: list[Callable[[], None]] | None = None
    waits: list[Any] = field(default_factory=list[Any])

    @property
    def target(self) -> Target:
        if self.record is not None:
            return target_of(self.record)
        self.look()
        return Target(self.session_id, self.pid, self.start, max(self.start, self.known), self.init)

    def when_launched(self, then: Callable[[], None]) -> bool:
        """If the job has no process yet, call `then` once it has one, and return True."""
        if self.launching is None:
            return False
        self.launching.append(then)
        return True

    def look(self) -> None:
        """Check that the pid still belongs to the process: it does for a zombie, but maybe not once it is reaped."""
        before = procfs.ticks() - 1
        with contextlib.suppress(OSError):
            found = procfs.read(self.pid)
            if found is not None and found.start == self.start:
                self.known = before

    def running(self, boot_id: str, container_id: str) -> Message:
        """Content of `running.json`."""
        return {
            **{name: note for name, note in self.notes.items() if name != COVERED},
            "version": VERSION,
            "session_id": self.session_id,
            "pid": self.pid,
            "start": self.start,
            "boot_id": boot_id,
            "container_id": container_id,
            "ended_by": self.ended_by,
            "init": self.init,
        }

    def status(self) -> Message:
        """The status of a session that has not ended, for clients."""
        return {
            "state": "running",
            "session_id": self.session_id,
            "pid": self.pid or None,
            "starttime": self.start,
            "started_at": self.notes.get("started_at"),
            "background": self.notes["background"],
            "pty": self.notes["pty"] is not None,
            "adopted": self.adopted,
            "bytes_total": sum(log.size for log in self.logs),
            **self._lost(),
        }

    def _lost(self) -> Message:
        return {LOSSES: self.notes[LOSSES]} if LOSSES in self.notes else {}

    def _unwritten(self) -> Message:
        number = max((log.errno for log in self.logs), default=0)
        found: Message = {"log_errno": number} if number else {}
        return found | ({"uncounted": True} if any(log.uncounted for log in self.logs) else {})

    def end(self, boot_id: str, **how: Any) -> ExitRecord:
        """The exit record; `how` has the state and the other known fields."""
        sizes = [(log.size, log.dropped) for log in self.logs] + [(0, 0)] * 2
        duration = max(0.0, now() - self.notes["began"]) if "began" in self.notes else 0.0
        record: Message = {
            "version": VERSION,
            "session_id": self.session_id,
            "boot_id": boot_id,
            "pid": self.pid or None,
            "starttime": self.start or None,
            "exit_code": None,
            "signal": None,
            "errno": None,
            "evidence": None,
            "ended_by": self.ended_by,
            "started_at": self.notes.get("started_at"),
            "ended_at": time.time(),
            "duration_s": duration,
            "bytes_total": sizes[0][0],
            "bytes_dropped": sizes[0][1],
            "err_bytes_total": sizes[1][0],
            "err_bytes_dropped": sizes[1][1],
            "survivors": [],
            "known": self.known,
            "init": None if self.init is None else list(self.init),
            **self._lost(),
            **self._unwritten(),
            **how,
        }
        return ExitRecord(**record)
