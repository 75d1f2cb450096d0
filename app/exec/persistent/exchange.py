"""One command given to a shell, in two steps, and found again after a crash.

    trigger typed ──▶ R printed ──▶ payload typed ──▶ S printed ──▶ the command's output ──▶ E printed

What is typed is typed with keys of the call, and what is printed bears its names: so a repeat of the call knows how far
the first execution came, and nothing runs twice.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from shellback.exec.core import limits
from shellback.exec.core.answers import Look
from shellback.exec.core.errors import ExecError, InputUnknown, InvalidCommand, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import CallKey, Session
from shellback.exec.core.ports import Then
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.waiting import judged, look_at
from shellback.exec.log.output import OutputLog, Slice
from shellback.exec.log.plain_text import decoded
from shellback.exec.persistent import payload
from shellback.exec.persistent.marks import (
    OPEN,
    Mark,
    Names,
    Reader,
    asking,
    last_mark,
    mark_named,
    opening,
    without,
)
from shellback.exec.persistent.payload import KNOWN, Bounds, Frame
from shellback.exec.wire.crashpoints import reach

READY_S: Final = 5.0
"""How long a waiting shell may take to ask for a command."""
START_S: Final = 30.0
"""How long a new one may take."""
_MARK: Final = 45
"""Bytes of the shortest mark that says something, and of the longest that says nothing."""
_SOON_S: Final = 0.05
_SWALLOWED_S: Final = 0.4
_SETTLED_S: Final = 0.05
_END_S: Final = 10.0
_INTERRUPT: Final = b"\x03"


class ShellBusy(InvalidCommand):
    """Raised when a shell cannot take a command because another one runs in it; the message has the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """With what a shell will ask for its next command, if nothing changes; `at` is where its last one ended."""

    at: int
    status: int
    options: str


class Exchange:
    """One command of one call. Cancelling leaves the command running; a repeat of the call finds it."""

    def __init__(self, engine: Engine, session: Session, names: Names, key: CallKey) -> None:
        self._engine = engine
        self._session = session
        self._key = key
        self._follower = Follower(engine, session)
        self._log = self._follower.out
        self._tries = ""
        self._come: list[Mark] = []
        self.options: str | None = None
        """The shell's options, once it has asked."""
        self.printed: tuple[int, bytes] = 0, b""
        """Output that the supervisor sent along, and its offset in the log, which has no holes then."""
        self.frame = _frame(names, session, key)

    async def run(self, command: str, bounds: Bounds, *, timeout_s: float, foreseen: Foreseen | None = None) -> Outcome:
        """Have the shell run a command.

        With `foreseen` the supervisor types the payload, if the shell asks just so.

        Raises:
            ShellBusy: The shell does not ask for it; nothing has run.
            TaskCompleted: It has ended; nothing has run.
            InputUnknown: Not known whether the shell has it.
        """
        until = time.monotonic() + timeout_s
        # The second time for an unfinished line that somebody has typed: it swallowed the first.
        last = time.monotonic() + READY_S
        asked = await self._asked(
            READY_S, foreseen and self._then(command, bounds, foreseen), foreseen
        ) or await self._asked(last - time.monotonic())
        if asked is None:
            raise ShellBusy(
                f"shell {self._session.id} does not ask for a command, so nothing was run: it is stopped, or does "
                "something before it prompts; read what it shows, or kill it and start another"
            )
        reader, ready, given = asked
        self.options = ready.options
        if not given:
            reach("shell.asked")
            what = payload.payload(
                command, self.frame, bounds, status=ready.status or 0, options=ready.options, library=ready.library
            )
            await self._type(what, "2", reader.size + 2 * _MARK)
        reach("shell.given")
        return await self._followed(reader, until, until_input=True, asked=True)

    def shown(self, done: Outcome) -> Slice | None:
        """The output of a command, if all of it was sent along and is short; else it is in the log."""
        at, data = self.printed
        if done.start < at or done.end > at + len(data) or done.end - done.start > limits.RESULT_CHARS:
            return None
        kept, secrets = self._log.mask.hide(data, done.start - at, done.end - at, ends=False, of=self._log.session_id)
        text, length = self._log.text_of(kept), done.end - done.start
        return Slice(
            text=text, start=done.start, end=done.end, bytes_total=at + len(data), bytes_shown=length, secrets=secrets
        )

    def _then(self, command: str, bounds: Bounds, foreseen: Foreseen) -> Then:
        status, options = foreseen.status, foreseen.options
        library = payload.library(self.frame, bounds)
        what = payload.payload(command, self.frame, bounds, status=status, options=options, library=library)
        return Then(
            asks=opening("R", self.frame.ready),
            says=asking(status, options, library),
            data=what,
            key=f"{self._key}.2",
            done=opening("E", self.frame.end),
        )

    async def before(self, *, timeout_s: float) -> Outcome | None:
        """Continue an earlier execution of the call; None if none of its input ever ran or will run.

        Raises:
            TaskCompleted: The shell has ended before it ran.
            InputUnknown: It is unknown whether the command ran.
        """
        until = time.monotonic() + timeout_s
        start = await mark_named(self._log, self.frame.start)
        if start is not None or (self._session.live and await self._typed()):
            return await self._followed(Reader(self._log, start.start if start else 0), until, until_input=True)
        if not self._session.live:
            raise await self._gone()
        if not reads_commands(await look_at(self._engine, self._session)):
            raise InputUnknown(
                f"not known whether the command arrived at shell {self._session.id}; it is not run a second time, look "
                "at what the shell shows before you give it again"
            )
        # It waits for input and has printed nothing of the call: what was typed then lies nowhere any more.
        self._tries = secrets.token_hex(4)
        return None

    async def begin(self, bounds: Bounds, prompt: str) -> Outcome:
        """Set up a new shell, or see that it has been; doing it twice changes nothing.

        Raises:
            ShellBusy: It does not answer.
            TaskCompleted: It has ended.
            InputUnknown: The supervisor went away.
        """
        until = time.monotonic() + START_S
        start = await mark_named(self._log, self.frame.start)
        if start is not None or await self._typed():
            return await self._followed(Reader(self._log, start.start if start else 0), until, until_input=False)
        await self._follower.grown(0, timeout_s=START_S)
        await self.clear()
        self._tries = secrets.token_hex(4)
        asked = await self._asked(START_S)
        if asked is None:
            raise ShellBusy(f"shell {self._session.id} does not answer; kill it and start another")
        self.options = asked[1].options
        await self._type(payload.setup(self.frame, bounds, prompt=prompt), "2")
        return await self._followed(asked[0], until, until_input=False, asked=True)

    async def clear(self) -> None:
        """Make a shell prompt again that listens for the command of a call that has gone."""
        if listens(self._log):
            await self._interrupt()

    async def _asked(
        self, patience_s: float, then: Then | None = None, foreseen: Foreseen | None = None
    ) -> tuple[Reader, Mark, bool] | None:
        """Type the trigger and wait for R; None where the shell does not ask, and does not wait for more any longer.

        The last value is whether the supervisor has typed the payload.
        """
        reader = Reader(self._log, self._log.size() if foreseen is None else foreseen.at)
        line = payload.trigger(self.frame.ready)
        answer = await self._type(line, f"1{self._tries}", reader.size + len(line) + _MARK, then)
        reach("shell.typed")
        given = bool(answer.get("given"))
        come: list[Mark] | None = None
        if "printed" in answer:
            self.printed = answer["at"], answer["printed"]
            come = reader.given(*self.printed)
        self._tries = secrets.token_hex(4)
        until = time.monotonic() + patience_s
        swallowed = False
        while (left := until - time.monotonic()) > 0:
            marks, come = come if come is not None else await reader.marks(), None
            for number, mark in enumerate(marks, 1):
                if mark.name == self.frame.ready:
                    self._come = marks[number:]
                    return reader, mark, given
            if swallowed:
                break
            grown = await self._follower.grown(reader.size, timeout_s=min(left, _SWALLOWED_S))
            if grown.ended:
                raise await self._gone()
            # It reads on, and has not asked: an unfinished line has taken in what was typed.
            swallowed = grown.size <= reader.size and reads_commands(await look_at(self._engine, self._session))
        await self._interrupt()
        return None

    async def _interrupt(self) -> None:
        """Type Ctrl-C, which also discards unread input of the terminal."""
        size = self._log.size()
        await self._type(_INTERRUPT, secrets.token_hex(4))
        await self._follower.grown(size, rest_s=_SETTLED_S, timeout_s=1.0)

    async def _type(
        self, data: bytes, which: str, beyond: int | None = None, then: Then | None = None
    ) -> dict[str, Any]:
        """Type `data`, and wait shortly for output `beyond` an offset: mostly all of it comes then."""
        key = CallKey(f"{self._key}.{which}")
        try:
            return await self._engine.supervised.port.write(
                self._session.id, data, key=key, beyond=beyond, timeout_s=_SOON_S, then=then
            )
        except (TaskCompleted, InvalidCommand):
            raise await self._gone() from None
        except SupervisorUnreachable:
            raise InputUnknown(
                f"the supervisor of shell {self._session.id} went away; not known whether the command arrived"
            ) from None

    async def _typed(self) -> bool:
        """Whether the supervisor remembers that it wrote the payload."""
        try:
            known = await self._engine.supervised.port.written(self._session.id, CallKey(f"{self._key}.2"))
        except ExecError:
            return False
        return bool(known and known["accepted"])

    async def _gone(self) -> TaskCompleted:
        session = await self._engine.wait(self._session.id, up_to=_END_S)
        return TaskCompleted(session.id, "the shell has ended; start another")

    async def _followed(self, reader: Reader, until: float, *, until_input: bool, asked: bool = False) -> Outcome:
        course = Course(self._engine, self._session, self.frame, reader, self._follower, asked, self._come)
        done = await course.run(until, until_input=until_input)
        if done.how == "unheard":
            raise ShellBusy(
                f"shell {self._session.id} asked for the command and then prompted again, so nothing was run: somebody "
                "interrupted it, or it cannot take commands any more (a variable or builtin of its own was changed); "
                "try again, or kill it and start another"
            )
        return done


def _frame(names: Names, session: Session, key: CallKey) -> Frame:
    ready, start, end = (names.of_call(kind, session.id, key) for kind in "RSE")
    return Frame(ready=ready, start=start, end=end, prompt=names.of_session(session.id))


_FIRST_S: Final = 0.4
_LONGEST_S: Final = 5.0
_SLOWER: Final = 1.6
"""How long a command is silent before it is looked at, at first, at most, and how that grows."""
_AGAIN_S: Final = 0.005
"""How soon after its P mark a shell may be seen to wait for the next command."""
_FLOOD: Final = 64 * 1024
_REST_S: Final = 0.02
"""Output that comes in such amounts is taken in pieces."""
_SHOWN: Final = 2_000

How = Literal["ended", "interrupted", "inside", "gone", "waiting", "timeout", "unheard", "outer", "replaced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How far a command has come: its output is from `start` to `end` in the log; `upto` is what has been read.

    `ended`: it told its status itself. `interrupted`: the shell has left it, and prompts; `inside`: another shell
    prompts, which it has started. `gone`: the shell has ended. `waiting` for input, and at the `timeout`: it runs on.
    `unheard`: the shell prompts, and has not begun it. `outer`: it has ended a shell inside, and the one around
    that prompts. `replaced`: by `exec` another shell is in its place, and prompts.
    """

    how: How
    start: int
    end: int
    upto: int
    status: int | None = None
    cwd: str = ""
    left: str = ""


@dataclass(slots=True)
class Course:
    """Follows one command from what the reader has read on. It waits for output, the end, or a moment to look.

    `_asked` is whether the shell has asked for the command already, `_come` the marks that were read after that.
    """

    _engine: Engine
    _session: Session
    _frame: Frame
    _reader: Reader
    _follower: Follower
    _asked: bool
    _come: list[Mark]
    _start: int | None = None
    _prompt: Mark | None = None
    _outer: int | None = None
    _blind: int = 0

    async def run(self, until: float, *, until_input: bool) -> Outcome:
        """Follow it to where there is something to tell, at most to the monotonic moment `until`."""
        silence, again = _FIRST_S, _AGAIN_S
        while True:
            before = self._reader.size
            done = await self._taken() or await self._prompted()
            if done is not None:
                return done
            left = until - time.monotonic()
            if left <= 0:
                return self._so_far("timeout")
            rest = _REST_S if self._reader.size - before > _FLOOD else 0.0
            pause = silence if self._prompt is None else again
            grown = await self._follower.grown(self._reader.size, rest_s=rest, timeout_s=min(left, pause))
            if grown.size > self._reader.size:
                silence = _FIRST_S
            elif grown.ended:
                return await self._over()
            elif self._prompt is not None:
                again = min(again * 2, _LONGEST_S)
            elif until_input and await self._waits():
                return self._so_far("waiting")
            else:
                silence = min(silence * _SLOWER, _LONGEST_S)

    async def _taken(self) -> Outcome | None:
        """Process new marks; returns the outcome if one of them ends the command."""
        come, self._come = self._come, []
        for mark in come or await self._reader.marks():
            if mark.name == self._frame.ready:
                self._asked = True
            elif mark.name == self._frame.start and self._start is None:
                self._start = mark.end
            elif mark.name == self._frame.end:
                return self._ended(mark)
            elif (mark.kind, mark.name) == ("P", self._frame.prompt) and (self._asked or self._start is not None):
                self._prompt = mark
            elif mark.kind == "E" and self._start is not None:
                # This command ended a shell inside, and the one around it goes on where that was started.
                self._outer = mark.status
        return None

    async def _prompted(self) -> Outcome | None:
        """The outcome of a command without an E mark: the shell printed P, and the kernel shows that it reads."""
        if self._prompt is None:
            return None
        look = await look_at(self._engine, self._session)
        if not prompts(look, self._blind):
            self._blind = self._blind + 1 if look is None or look.how == "unknown" else 0
            return None
        grown = await self._follower.grown(self._reader.size, timeout_s=_SETTLED_S)
        if grown.size > self._reader.size:
            # It came to its prompt meanwhile: what it told before that may be among what has come.
            return None
        if self._start is None:
            return self._so_far("unheard")
        inside = look is not None and look.reader not in {0, look.pid}
        interrupted = self._prompt.said.endswith(b";" + KNOWN)
        left = "outer" if self._outer is not None else "interrupted" if interrupted else "replaced"
        return Outcome(
            how="inside" if inside else left,
            start=self._start,
            end=self._prompt.start,
            upto=self._prompt.end,
            status=None if inside else self._prompt.status if self._outer is None else self._outer,
        )

    def _ended(self, mark: Mark) -> Outcome:
        start, (cwd, left) = mark.start if self._start is None else self._start, mark.places
        return Outcome(
            how="ended", start=start, end=mark.start, upto=mark.end, status=mark.status or 0, cwd=cwd, left=left
        )

    def _so_far(self, how: How) -> Outcome:
        at = self._reader.at
        return Outcome(how=how, start=at if self._start is None else self._start, end=at, upto=at)

    async def _over(self) -> Outcome:
        session = await self._engine.wait(self._session.id, up_to=_END_S)
        done = await self._taken()
        if done is not None:
            return done
        end = self._follower.out.size()
        status = session.end.exit_code if session.end else None
        return Outcome(how="gone", start=end if self._start is None else self._start, end=end, upto=end, status=status)

    async def _waits(self) -> bool:
        look, log = await look_at(self._engine, self._session), self._follower.out
        if look is None or self._start is None:
            return False
        since = max(self._start, log.size() - _SHOWN)
        found = judged(look, decoded(without(log.piece(since, _SHOWN))).split("\n"))
        return found is not None and found.sure


_SHELL = "bash"
_ALL = "RSEPC"
_TAIL = 4096
_BLIND_S = 1.0
_BLIND = 2


def reads_commands(look: Look | None) -> bool:
    """Whether a shell is blocked reading its terminal, according to the kernel; False if unknown."""
    return look is not None and look.how in {"read", "poll"} and look.name == _SHELL


def prompts(look: Look | None, blind: int = 0) -> bool:
    """Whether what has printed a P mark is a shell that prompts.

    Where the kernel does not let us see who reads, a mark is believed that nothing has followed for a second. One look
    may fail for other reasons: `blind` is how many have before.
    """
    if look is None or look.how == "unknown":
        return blind >= _BLIND and (look is None or look.quiet_s >= _BLIND_S)
    return reads_commands(look)


def rests(log: OutputLog, at: int) -> bool:
    """Whether only a prompt was printed since a command ended at `at`: then no line was typed."""
    data = log.piece(at, _TAIL)
    return len(data) < _TAIL and b"\n" not in (rest := without(data)) and OPEN not in rest


def ready(log: OutputLog, look: Look | None) -> bool:
    """Whether the shell takes a command, or asked for one and got none, by its last mark and the kernel."""
    mark = last_mark(log, _ALL)
    idle = mark is not None and mark.kind in "REP"
    if look is None or look.how == "unknown":
        return idle
    return reads_commands(look) and (idle or mark is None or _interrupted(log, mark))


def listens(log: OutputLog) -> bool:
    """Whether the shell last asked for a command and got none."""
    mark = last_mark(log, _ALL)
    return mark is not None and mark.kind == "R"


def runs(log: OutputLog) -> bool:
    """Whether the shell last began a command."""
    mark = last_mark(log, _ALL)
    return mark is not None and mark.kind in "SC"


def _interrupted(log: OutputLog, mark: Mark) -> bool:
    """Whether Ctrl-C was typed since the mark, for a shell that no longer prints P."""
    return b"^C" in log.piece(mark.end, 1 << 20)
