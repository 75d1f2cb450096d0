"""What a watch waits for: a line, silence, a moment, or a session that waits for input.

Each is looked at with some patience, and has news from the moment that it holds until it is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from shellback.exec.core.limits import CALLBACK_CHARS, CALLBACK_LINES
from shellback.exec.core.model import Session
from shellback.exec.core.watch import Watch
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.waiting import Waiting, until_waiting, waiting
from shellback.exec.log.output import OutputLog
from shellback.exec.watching.line_scan import COUNTED, LineScan, compiled

PATIENCE_S: Final = 30.0
UNFINISHED_S: Final = 1.0
"""A line without its end is looked at once it has been as it is for so long."""
REST_S: Final = 0.05
RESTS: Final = 9
"""Looking rests so many times as long as it worked, so that it never has more than a tenth of a processor."""
_NEVER: Final = 10**14
"""More than is ever printed, and not more than a supervisor takes for a number."""

News = dict[str, Any]


class Condition(Protocol):
    """What one watch waits for; belongs to one task."""

    @property
    def news(self) -> News | None:
        """What holds and has not been told: portable JSON."""
        ...

    @property
    def offset(self) -> int:
        """Where the watch goes on once that is told."""
        ...

    async def look(self, patience_s: float) -> bool:
        """Wait for a change, at most so long; whether the session has ended and all of its output is looked at."""
        ...

    def told(self) -> None:
        """The news has been told."""
        ...


class Line:
    """A line of the output that a pattern matches. `gate` lets few look at a time."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, gate: asyncio.Semaphore) -> None:
        self._follower = Follower(engine, session)
        self._gate = gate
        regex = compiled(watch.pattern or "")
        self._scan = LineScan(regex, engine.output(session).paths, watch.offset)
        self._seen = watch.offset
        self._rest_s = 0.0
        self._unfinished = False

    @property
    def news(self) -> News | None:
        """The matching lines since the last hit."""
        found = self._scan.found
        if not found.count:
            return None
        return {
            "count": found.count,
            "counted": found.count < COUNTED,
            "last_lines": list(found.lines),
            "start": found.start,
            "end": found.end,
            "dropped": found.dropped,
        }

    @property
    def dropped(self) -> int:
        """Bytes that were gone before they could be looked at, and have not been told."""
        return self._scan.found.dropped

    @property
    def offset(self) -> int:
        """Up to where the output has been looked at."""
        return self._scan.position

    async def look(self, patience_s: float) -> bool:
        """Wait for a change, at most so long; whether the session has ended."""
        wait_s = max(self._rest_s, min(patience_s, UNFINISHED_S) if self._unfinished else patience_s)
        grown = await self._follower.grown(self._seen, rest_s=self._rest_s, timeout_s=wait_s)
        still = grown.size <= self._seen
        async with self._gate:
            more = await asyncio.to_thread(self._scan.look, grown.size, last=grown.ended or (still and wait_s > 0))
        self._rest_s = max(REST_S, RESTS * self._scan.spent_s)
        self._seen = self._scan.position if more else max(self._seen, grown.size)
        self._unfinished = not still and not more and self._scan.position < grown.size
        return grown.ended and not more

    def told(self) -> None:
        """The news has been told."""
        self._scan.take()


class Silence:
    """Nothing printed for some seconds, counted from when the watch was placed; once for each silence."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, clock: Callable[[], float]) -> None:
        self._follower = Follower(engine, session)
        self._logs = _logs(engine, session)
        self._seconds = watch.seconds or 0.0
        self._sizes = [log.size() for log in self._logs]
        self._told_at = watch.offset if watch.hits else -1
        last = max(watch.created_at, *(log.modified_at() for log in self._logs))
        self._since = time.monotonic() - max(0.0, clock() - last)
        self.news: News | None = None

    @property
    def offset(self) -> int:
        """How much output there is, on both streams."""
        return sum(self._sizes)

    async def look(self, patience_s: float) -> bool:
        """Wait for a change, at most so long; whether the session has ended."""
        untold = self.offset > self._told_at
        left_s = max(0.0, self._since + self._seconds - time.monotonic())
        # One that has lasted long enough before we looked is told at once.
        due = untold and (left_s > 0 or self.news is None)
        wait_s = min(patience_s, left_s) if due else patience_s
        out, *err = self._sizes
        grown = await self._follower.grown(
            out, err_beyond=err[0] if err else None, rest_s=min(1.0, self._seconds / 4), timeout_s=wait_s
        )
        sizes = [grown.size, grown.err_size][: len(self._sizes)]
        if sum(sizes) > self.offset:
            self._sizes, self._since = sizes, time.monotonic()
        silent_s = time.monotonic() - self._since
        holds = self.offset > self._told_at and silent_s >= self._seconds
        self.news = {"silent_s": round(silent_s, 1), **_last(self._logs)} if holds else None
        return grown.ended

    def told(self) -> None:
        """The news has been told."""
        self._told_at, self.news = self.offset, None


class Moment:
    """Some seconds after the watch was placed, by the clock; never later for one that is set back."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, clock: Callable[[], float]) -> None:
        self._follower = Follower(engine, session)
        self._logs = _logs(engine, session)
        seconds = watch.seconds or 0.0
        self._due = time.monotonic() + min(seconds, max(0.0, watch.created_at + seconds - clock()))
        self.news: News | None = None
        self.offset = watch.offset

    async def look(self, patience_s: float) -> bool:
        """Wait for a change, at most so long; whether the session has ended."""
        wait_s = min(patience_s, max(0.0, self._due - time.monotonic()))
        grown = await self._follower.grown(_NEVER, timeout_s=wait_s)
        if time.monotonic() >= self._due:
            self.news = _last(self._logs)
        return grown.ended

    def told(self) -> None:
        """The news has been told."""
        self.news = None


class Input:
    """The session waits for input; again only once it has printed something since."""

    def __init__(self, engine: Engine, session: Session, watch: Watch) -> None:
        self._engine = engine
        self._session = session
        self._follower = Follower(engine, session)
        self._told_at = watch.offset if watch.hits else -1
        self.news: News | None = None
        self.offset = watch.offset

    async def look(self, patience_s: float) -> bool:
        """Wait for a change, at most so long; whether the session has ended."""
        self._session = session = await self._engine.store.get(self._session.id) or self._session
        if self.news is not None:  # to be told when that is allowed, if it is still so
            await asyncio.sleep(patience_s)
            found = await waiting(self._engine, session)
            self.news = self._waits(found)
            return session.end is not None
        if self._told_at >= 0:
            grown = await self._follower.grown(self._told_at, timeout_s=patience_s)
            if grown.ended or grown.size <= self._told_at:
                return grown.ended
            self._told_at = -1
        try:
            async with asyncio.timeout(patience_s):
                found = await until_waiting(self._engine, session)
        except TimeoutError:
            return session.end is not None
        self.news = self._waits(found)
        return found is None

    def _waits(self, found: Waiting | None) -> News | None:
        if found is None:
            return None
        self.offset = self._engine.output(self._session).size()
        return {
            "prompt": found.prompt,
            "evidence": found.evidence,
            "password": found.password,
            "program": found.program,
            "silent_s": round(found.since_s, 1),
        }

    def told(self) -> None:
        """The news has been told."""
        self._told_at, self.news = self.offset, None


def condition_of(
    engine: Engine, session: Session, watch: Watch, gate: asyncio.Semaphore, clock: Callable[[], float]
) -> Condition:
    """What `watch` waits for, as far as it has come."""
    match watch.kind:
        case "pattern":
            return Line(engine, session, watch, gate)
        case "idle":
            return Silence(engine, session, watch, clock)
        case "after":
            return Moment(engine, session, watch, clock)
        case "input":
            return Input(engine, session, watch)


def _logs(engine: Engine, session: Session) -> list[OutputLog]:
    return [log for log in engine.streams(session) if log is not None]


def _last(logs: Sequence[OutputLog]) -> News:
    """The last lines of the stream that was printed to last; of standard error, where the clock does not tell."""
    shown = max(reversed(logs), key=OutputLog.modified_at).last_lines(CALLBACK_LINES, CALLBACK_CHARS)
    return {"last_lines": shown.text.splitlines()[-CALLBACK_LINES:]}
