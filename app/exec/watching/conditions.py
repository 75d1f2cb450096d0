"""The conditions of watches: a line of output, silence, a time, or a session that waits for input."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.limits import CALLBACK_CHARS, CALLBACK_LINES
from shellback.exec.core.model import Session
from shellback.exec.core.watch import Watch
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.waiting import Waiting, until_waiting, waiting
from shellback.exec.log.mask import UNMASKED, Mask
from shellback.exec.log.output import OutputLog, holes_in, nth_newline
from shellback.exec.log.plain_text import decoded

PATIENCE_S: Final = 30.0
UNFINISHED_S: Final = 1.0
"""An unfinished line is matched after it has not changed for this time."""
REST_S: Final = 0.05
RESTS: Final = 9
"""A scan pauses this many times as long as it worked, so that it uses at most a tenth of a processor."""
_NEVER: Final = 10**14
"""More bytes than are ever printed, and a number that the supervisor accepts."""

News = dict[str, Any]


class Line:
    """A line of the output matches a pattern. `gate` limits concurrent scans."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, gate: asyncio.Semaphore) -> None:
        self._follower = Follower(engine, session)
        self._gate = gate
        regex = compiled(watch.pattern or "")
        log = engine.output(session)
        self._scan = LineScan(regex, log.paths, watch.offset, log.mask)
        self._seen = watch.offset
        self._rest_s = 0.0
        self._unfinished = False

    @property
    def news(self) -> News | None:
        """The matching lines since the last hit."""
        found = self._scan.found
        if not found.count:
            return None
        told = asdict(found)
        return {"counted": found.count < COUNTED, "last_lines": told.pop("lines"), **told}

    @property
    def dropped(self) -> int:
        """Bytes that were dropped before they were scanned, and are not reported yet."""
        return self._scan.found.dropped

    @property
    def offset(self) -> int:
        """The offset up to which the output was scanned."""
        return self._scan.position

    async def look(self, patience_s: float) -> bool:
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
        self._scan.take()


class _Timed:
    """A condition with a time, which reports the last lines."""

    def __init__(self, engine: Engine, session: Session, watch: Watch) -> None:
        self._follower = Follower(engine, session)
        self._logs = [log for log in engine.streams(session) if log is not None]
        self._seconds = watch.seconds or 0.0
        self.news: News | None = None

    def _last(self) -> News:
        """The last lines of the stream with the latest output; of standard error if the times are equal."""
        shown = max(reversed(self._logs), key=OutputLog.modified_at).last_lines(CALLBACK_LINES, CALLBACK_CHARS)
        return {"last_lines": shown.text.splitlines()[-CALLBACK_LINES:]}


class Silence(_Timed):
    """No output for some seconds since the watch was placed; reported once for each silence."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, clock: Callable[[], float]) -> None:
        super().__init__(engine, session, watch)
        self._sizes = [log.size() for log in self._logs]
        self._told_at = watch.offset if watch.hits else -1
        last = max(watch.created_at, *(log.modified_at() for log in self._logs))
        self._since = time.monotonic() - max(0.0, clock() - last)

    @property
    def offset(self) -> int:
        """Bytes of output on both streams."""
        return sum(self._sizes)

    async def look(self, patience_s: float) -> bool:
        untold = self.offset > self._told_at
        left_s = max(0.0, self._since + self._seconds - time.monotonic())
        # A silence that has already lasted long enough is reported at once.
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
        self.news = {"silent_s": round(silent_s, 1), **self._last()} if holds else None
        return grown.ended

    def told(self) -> None:
        self._told_at, self.news = self.offset, None


class Moment(_Timed):
    """Some seconds after the watch was placed by the clock; a clock that is set back does not delay it."""

    def __init__(self, engine: Engine, session: Session, watch: Watch, clock: Callable[[], float]) -> None:
        super().__init__(engine, session, watch)
        self._due = time.monotonic() + min(self._seconds, max(0.0, watch.created_at + self._seconds - clock()))
        self.offset = watch.offset

    async def look(self, patience_s: float) -> bool:
        wait_s = min(patience_s, max(0.0, self._due - time.monotonic()))
        grown = await self._follower.grown(_NEVER, timeout_s=wait_s)
        if time.monotonic() >= self._due:
            self.news = self._last()
        return grown.ended

    def told(self) -> None:
        self.news = None


class Input:
    """The session waits for input; again only after more output."""

    def __init__(self, engine: Engine, session: Session, watch: Watch) -> None:
        self._engine = engine
        self._session = session
        self._follower = Follower(engine, session)
        self._told_at = watch.offset if watch.hits else -1
        self.news: News | None = None
        self.offset = watch.offset

    async def look(self, patience_s: float) -> bool:
        self._session = session = await self._engine.store.get(self._session.id) or self._session
        if self.news is not None:  # to be reported when allowed, if it still holds
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
        self._told_at, self.news = self.offset, None


Condition = Line | Silence | Moment | Input
"""The condition of one watch; belongs to one task.

`news` are the facts to report, as portable JSON, while the condition holds and until `told` is called; `offset` is
where the watch goes on then. `look` waits for a change, at most `patience_s`; it returns True once the session has
ended and all its output was scanned.
"""


def condition_of(
    engine: Engine, session: Session, watch: Watch, gate: asyncio.Semaphore, clock: Callable[[], float]
) -> Condition:
    """The condition of `watch`, with its progress."""
    match watch.kind:
        case "pattern":
            return Line(engine, session, watch, gate)
        case "idle":
            return Silence(engine, session, watch, clock)
        case "after":
            return Moment(engine, session, watch, clock)
        case "input":
            return Input(engine, session, watch)


re2: Final[Any] = _re2  # the module has no types
PATTERN_CHARS: Final = 1000
BLOCK: Final = 1 << 20
LINE_BYTES: Final = 1 << 16
"""Longer lines are matched in pieces."""
LOOK_BYTES: Final = 16 << 20
"""Bytes that one scan reads at most."""
LINES: Final = 5
LINE_CHARS: Final = 400
"""Lines that a hit shows, and characters of each."""
COUNTED: Final = 1000
"""Matching lines are counted up to this number between two hits."""

_ENDS_OF_TEXT: Final = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m|\(\?[a-zA-Z]*-?[a-zA-Z]*U")
# Bounded, and within a line, so that removing them does not change the lines.
_SEQUENCES: Final = re.compile(
    rb"\x1b\[[0-?]{0,256}[ -/]{0,16}[@-~]?"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]{0,4}[0-~]?"
)


def compiled(pattern: str) -> Any:
    """A regular expression that is matched against single lines in linear time.

    Raises InvalidCommand if it does not compile, is too long, or matches an empty line.
    """
    if not pattern or len(pattern) > PATTERN_CHARS:
        raise InvalidCommand(f"pattern has {len(pattern)} characters; it must have 1 to {PATTERN_CHARS}")
    if "\n" in pattern or "\r" in pattern or _ENDS_OF_TEXT.search(pattern):
        raise InvalidCommand(
            r"pattern is matched line by line: ^ and $ are the ends of a line; leave out \A, \z, line ends and (?-m)"
        )
    options = re2.Options()
    options.never_nl = True
    options.log_errors = False
    try:
        alone = pattern.encode()
        re2.compile(alone, options)
        regex = re2.compile(b"(?m:" + alone + b")", options)
    except UnicodeEncodeError:
        raise InvalidCommand("pattern holds a lone surrogate, which is not text; leave it out") from None
    except re2.error as error:
        reason = error.args[0]
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidCommand(
            f"pattern does not compile: {said}. The syntax is RE2's: no look-around, no back-references"
        ) from None
    if regex.search(b"") is not None:
        raise InvalidCommand("pattern matches an empty line and so everything; name what has to be in the line")
    return regex


@dataclass(slots=True)
class Found:
    """Matching lines: number, the first few, their range; and bytes that were dropped before the scan."""

    count: int = 0
    lines: list[str] = field(default_factory=list[str])
    start: int = 0
    end: int = 0
    dropped: int = 0


class LineScan:
    """Scans one log (`paths`: the log and its table of holes) for one pattern, block by block.

    `offset` may be within a line; then a match must end after it.
    """

    def __init__(self, regex: Any, paths: tuple[str, str], offset: int, mask: Mask = UNMASKED) -> None:
        self._regex, self._mask = regex, mask
        self._path, self._holes = paths
        self._old = offset
        self._fd = -1
        """The log, during a look."""
        self._told = False
        self._begun = False
        self.position: int = offset
        """The offset of the first line that was not scanned."""
        self.found = Found()
        self.spent_s = 0.0
        """Processor time of the last scan, in seconds."""

    def take(self) -> Found:
        """The findings so far; then begin anew."""
        found, self.found = self.found, Found()
        return found

    def look(self, upto: int, *, last: bool = False) -> bool:
        """Scan up to `upto`, at most `LOOK_BYTES`; whether more is left. Blocks.

        With `last`, an unfinished line is matched too, once.
        """
        began = time.thread_time()
        try:
            self._fd = fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self.position = upto
            return False
        try:
            if not self._begun:
                self._begin(fd)
            most = self.position + LOOK_BYTES
            while self.position < min(upto, most) and self._block(fd, upto, last=last):
                pass
            return self.position >= most and self.position < upto
        finally:
            os.close(fd)
            self._fd = -1
            self.spent_s = time.thread_time() - began

    def _begin(self, fd: int) -> None:
        """Go back to the begin of the line that contains the offset."""
        self._begun = True
        start = max(0, self._old - LINE_BYTES)
        before = os.pread(fd, self._old - start, start).replace(b"\r", b"\n")
        self.position = start + before.rfind(b"\n") + 1

    def _block(self, fd: int, upto: int, *, last: bool) -> bool:
        """Scan the complete lines of one block; whether there may be more."""
        position = self.position
        raw = os.pread(fd, min(BLOCK, upto - position), position)
        hole = next((one for one in holes_in(self._holes) if one.end > position), None)
        if hole is not None and hole.start <= position:
            self.found.dropped += min(hole.end, upto) - position
            self.position, self._told = min(hole.end, upto), False
            return True
        cut = hole is not None and hole.start < position + len(raw)
        if hole is not None and cut:
            raw = raw[: hole.start - position]
        text = raw.replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        if end == 0:
            if cut or len(raw) >= LINE_BYTES:
                end = len(raw)
            else:
                return bool(raw) and last and self._unfinished(text)
        first = 0
        if self._told:
            first = text.find(b"\n", 0, end) + 1
            self._told = not first
            first = first or end
        self._search(text, first, end)
        self.position = position + end
        return True

    def _unfinished(self, text: bytes) -> bool:
        """Match an unfinished line. If it matches, it is not reported again when it is finished."""
        count = self.found.count
        if not self._told:
            self._search(text, 0, len(text))
        if self.found.count == count:
            return False
        self.position, self._told = self.position + len(text), True
        return True

    def _search(self, text: bytes, first: int, end: int) -> None:
        """Note the matching lines of `text`, which begins at our position, between two line borders."""
        plain, at, fresh = text, self.position, self._old - self.position
        if b"\x1b" in text:
            text, at, fresh = text[first:end], at + first, fresh - first
            plain = _SEQUENCES.sub(b"", text)
            fresh = len(_SEQUENCES.sub(b"", text[:fresh])) if fresh > 0 else fresh
            first, end = 0, len(plain)
        position = first
        while position < end and self.found.count < COUNTED:
            match = self._regex.search(plain, position, end)
            if match is None:
                return
            if match.end() <= fresh:
                position = max(match.end(), match.start() + 1)
                continue
            start = plain.rfind(b"\n", first, match.start()) + 1 or first
            stop = plain.find(b"\n", match.end(), end)
            stop = end if stop < 0 else stop
            if plain is text:
                self._note(at + start, at + stop)
            else:
                self._note(*_line_in(text, plain.count(b"\n", 0, start), at))
            position = stop + 1

    def _note(self, start: int, end: int) -> None:
        """Note the line between these offsets of the log."""
        found = self.found
        if not found.count:
            found.start = start
        found.count += 1
        found.end = end
        if len(found.lines) < LINES:
            text = decoded(self._masked(start, end))
            found.lines.append(text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…")

    def _masked(self, start: int, end: int) -> bytes:
        """What is between two offsets, without secrets; one may begin before, and end behind it, but for holes."""
        holes, reach = holes_in(self._holes), self._mask.reach
        floor = max((one.end for one in holes if one.end <= start), default=0)
        first = max(floor, start - reach)
        last = min([end + reach, *(one.start for one in holes if one.start >= end)])
        data = os.pread(self._fd, last - first, first)
        return self._mask.hide(data, start - first, end - first, torn=first == floor > 0).data


def _line_in(text: bytes, number: int, at: int) -> tuple[int, int]:
    """The offsets of line `number` of a text that begins at `at`."""
    start = nth_newline(text, number) + 1
    end = text.find(b"\n", start)
    return at + start, at + (len(text) if end < 0 else end)
