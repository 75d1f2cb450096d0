"""A machine with its supervisor, simulated: what was started, how it ended, and what survives which death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.wire.protocol import VERSION, ExitRecord, Loss, Message, StartRequest
from tests.model.stillness import Clock


@dataclass
class Job:
    """What the state directory has of one session. `mark` is who created the file that only one can."""

    session_id: str
    mark: str
    boot_id: str
    pid: int = 0
    started_at: float = 0.0
    record: ExitRecord | None = None
    acknowledged: bool = False

    @property
    def running(self) -> bool:
        return self.mark == "started" and self.record is None


class Machine:
    """Outlives its workers. `starts` counts processes by session, `runs` by the text of their command."""

    def __init__(self, clock: Clock, claimed: Callable[[str], None]) -> None:
        self.clock = clock
        self.boot = 1
        self.jobs: dict[str, Job] = {}
        self.starts: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.ports: list[Port] = []
        self.outage = 0
        self.outage_after = False
        self.dies_in_start = False
        self._claimed = claimed
        """Told before each start; fails where the session is not on record as it has to be."""

    @property
    def boot_id(self) -> str:
        return f"boot{self.boot}"

    def running(self) -> list[str]:
        return [job.session_id for job in self.jobs.values() if job.running]

    def start(self, request: StartRequest) -> Message:
        job = self.jobs.get(request.session_id)
        if job is not None:
            return {"ok": True, "outcome": "already", "status": self.status(job.session_id)}
        if request.boot_id != self.boot_id:
            return {"ok": False, "error": "boot_id", "message": "claimed on another boot"}
        self._claimed(request.session_id)
        job = self.jobs[request.session_id] = Job(request.session_id, "started", self.boot_id)
        if self.dies_in_start:
            self.dies_in_start = False
            self.end(job, state="lost", evidence="never_started")
            return {"ok": True, "outcome": "already", "status": self.status(job.session_id)}
        command = request.argv[-1]
        if command.startswith("missing"):
            return {"ok": True, "outcome": "start_failed", "record": self.end(job, state="start_failed", errno=2)}
        self.starts[job.session_id] += 1
        self.runs[command] += 1
        job.pid, job.started_at = 1000 + len(self.jobs), self.clock.time()
        if command.startswith("quick"):
            self.end(job, state="exited", exit_code=0)
            self.ring(job)
        return {"ok": True, "outcome": "started", "pid": job.pid, "started_at": job.started_at}

    def end(self, job: Job, **how: Any) -> ExitRecord:
        """Write the exit record, once."""
        assert job.record is None
        facts: dict[str, Any] = {
            "version": VERSION,
            "session_id": job.session_id,
            "boot_id": job.boot_id,
            "pid": job.pid or None,
            "starttime": None,
            "exit_code": None,
            "signal": None,
            "errno": None,
            "evidence": None,
            "ended_by": "itself",
            "started_at": job.started_at or None,
            "ended_at": self.clock.time(),
            "duration_s": 1.0,
            "bytes_total": 0,
            "bytes_dropped": 0,
            "err_bytes_total": 0,
            "err_bytes_dropped": 0,
            "survivors": [],
            "known": 0,
            "init": None,
            **how,
        }
        job.record = ExitRecord(**facts)
        return job.record

    def exit(self, session_id: str, **how: Any) -> None:
        """A process ends, and whoever listens hears of it."""
        job = self.jobs[session_id]
        self.end(job, **how)
        self.ring(job)

    def ring(self, job: Job) -> None:
        for port in self.ports:
            port.ring(job)

    def lose_all(self, evidence: str) -> None:
        """Nobody saw how what ran ended."""
        for job in self.jobs.values():
            if job.running:
                self.end(job, state="lost", evidence=evidence)

    def status(self, session_id: str) -> Message:
        job = self.jobs.get(session_id)
        if job is None:
            return {"state": "unknown"}
        if job.mark == "abandoned":
            return {"state": "abandoned"}
        if job.record is not None:
            return {"state": job.record["state"], "record": job.record}
        return {"state": "running", "session_id": session_id, "pid": job.pid, "started_at": job.started_at}

    def abandon(self, session_id: str) -> Message:
        if session_id not in self.jobs:
            self.jobs[session_id] = Job(session_id, "abandoned", self.boot_id)
        return self.status(session_id)


class Port:
    """One worker's connection, as far as turns use it. `point` is passed before and after each request: there its
    worker may die."""

    def __init__(self, machine: Machine, point: Callable[[], Awaitable[None]], inside: Callable[..., None]) -> None:
        self.machine = machine
        self.on_exit: Callable[[ExitRecord], None] | None = None
        self.on_reconnect: Callable[[], None] | None = None
        self.on_losses: Callable[[str, list[Loss]], None] | None = None
        self._point = point
        self._inside = inside
        """Calls a function with its argument as the worker's own doing."""

    async def _ask(self, act: Callable[[], Any]) -> Any:
        await self._point()
        if self.machine.outage and not self.machine.outage_after:
            self.machine.outage -= 1
            raise SupervisorUnreachable("an outage")
        answer = act()
        if self.machine.outage:
            self.machine.outage -= 1
            raise SupervisorUnreachable("an outage, after it acted")
        await self._point()
        return answer

    async def connect(self) -> Message:
        await self._point()
        if self not in self.machine.ports:
            self.machine.ports.append(self)
        self._ring_what_is_due()
        return {"boot_id": self.machine.boot_id}

    async def close(self) -> None:
        if self in self.machine.ports:
            self.machine.ports.remove(self)

    def ring(self, job: Job) -> None:
        if self.on_exit is not None and job.record is not None:
            self._inside(self.on_exit, job.record)

    def reconnect(self) -> None:
        """Another supervisor: the worker hears again what is not acknowledged."""
        if self.on_reconnect is not None:
            self._inside(self.on_reconnect)
        self._ring_what_is_due()

    def _ring_what_is_due(self) -> None:
        for job in self._due():
            self.ring(job)

    def _due(self) -> list[Job]:
        return [job for job in self.machine.jobs.values() if job.record is not None and not job.acknowledged]

    async def start(self, request: StartRequest, *, home: Path | None = None) -> Message:
        return await self._ask(lambda: self.machine.start(request))

    async def status(self, session_id: str) -> Message:
        return await self._ask(lambda: self.machine.status(session_id))

    async def list(self) -> tuple[list[Message], list[ExitRecord]]:
        def act() -> tuple[list[Message], list[ExitRecord]]:
            running = [self.machine.status(name) for name in self.machine.running()]
            return running, [job.record for job in self._due() if job.record is not None]

        return await self._ask(act)

    async def ack(self, session_id: str) -> bool:
        def act() -> bool:
            job = self.machine.jobs.get(session_id)
            if job is not None:
                job.acknowledged = True
            return job is not None

        return await self._ask(act)

    async def abandon(self, session_id: str) -> Message:
        return await self._ask(lambda: self.machine.abandon(session_id))
