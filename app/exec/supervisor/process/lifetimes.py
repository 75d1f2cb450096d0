"""Ends sessions whose lifetime, a turn or a conversation, is over, and the survivors of ended sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from shellback.exec.supervisor.process.job import Job, target_of
from shellback.exec.supervisor.process.kill import Killer
from shellback.exec.supervisor.records.records import Records
from shellback.exec.wire.protocol import SESSION_ID, ExitRecord, Message

TURN: Final = "turn"
CONVERSATION: Final = "conversation"
DETACHED: Final = "detached"
GRACE_S: Final = 2.0
WHO: Final = "lifetime"
_REMEMBERED: Final = 4096


class Lifetimes:
    """`kill` ends a job's tree; `ended` gives the exit record of a session, if it has one."""

    def __init__(
        self,
        jobs: dict[str, Job],
        records: Records,
        killer: Killer,
        kill: Callable[[Job], None],
        ended: Callable[[str], ExitRecord | None],
    ) -> None:
        self._jobs = jobs
        self._records = records
        self._killer = killer
        self._kill = kill
        self._ended = ended
        self._left: OrderedDict[str, Message] = OrderedDict()

    def leaves(self, job: Job) -> None:
        """Remember an ended job with survivors: these may have removed the marker by which they are found."""
        self._left[job.session_id] = job.notes
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)

    def expire(self, lifetime: str, owner: str, told: Callable[[list[str]], None]) -> None:
        """Start to end the trees of all sessions with this lifetime and owner; `told` gets these sessions."""

        def mine(notes: Message) -> bool:
            if lifetime == TURN:
                return notes.get("lifetime") == TURN and notes.get("owner") == owner
            return notes.get("lifetime") in {TURN, CONVERSATION} and notes.get("scope") == owner

        found = [job for job in self._jobs.values() if job.record is None and mine(job.notes)]
        for job in found:
            self._kill(job)
        names = [job.session_id for job in found]
        left = {name for name, notes in self._left.items() if mine(notes)}
        self._killer.bearers(
            # Running sessions may have ended meanwhile.
            lambda bearers: told(names + self._end_rest(sorted((left | bearers) - set(names)), mine))
        )

    def _end_rest(self, names: Iterable[str], mine: Callable[[Message], bool]) -> list[str]:
        """End the survivors of those sessions that have ended and are `mine`."""
        found: list[str] = []
        for name in names:
            job = self._jobs.get(name)
            # A process can forge its marker.
            if (job is not None and job.record is None) or not SESSION_ID.match(name):
                continue
            notes = self._left.get(name) or self._records.running(name) or {}
            record = self._ended(name) if mine(notes) else None
            if record is not None and record.get("starttime") is not None:
                self._left.pop(name, None)
                self._killer.kill(target_of(record), GRACE_S, lambda _: None)
                found.append(name)
        return found
