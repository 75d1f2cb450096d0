"""Ends the commands of a host whose lease nobody renews: another host continues their conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from shellback.exec.supervisor.loop import Loop, Timer, now
from shellback.exec.supervisor.process.job import Job
from shellback.exec.wire import leash
from shellback.exec.wire.protocol import LEASE

_AGAIN_S: Final = 1.0


class Leash:
    """Looks at the leash when it is due; `end` ends the tree of a job."""

    def __init__(self, loop: Loop, home: str, jobs: Mapping[str, Job], end: Callable[[Job], None]) -> None:
        self._loop = loop
        self._home = home
        self._jobs = jobs
        self._end = end
        self._timer: Timer | None = None

    def attend(self) -> None:
        """Look from now on, while commands run."""
        if self._timer is None:
            self._look()

    def _look(self) -> None:
        self._timer = None
        running = [job for job in self._jobs.values() if job.record is None]
        due = leash.until(self._home)
        if due is None or not running:
            return
        if now() < due:
            self._timer = self._loop.at(due, self._look)
            return
        for job in running:
            if job.ended_by != LEASE:
                self._end(job)
        # One may just be starting.
        self._timer = self._loop.after(_AGAIN_S, self._look)
