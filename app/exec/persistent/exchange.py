"""One command given to a shell, in two steps, and found again after a crash.

    trigger typed ──▶ R printed ──▶ payload typed ──▶ S printed ──▶ the command's output ──▶ E printed

What is typed is typed with keys of the call, and what is printed bears its names: so a repeat of the call knows how far
the first execution came, and nothing runs twice.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from shellback.exec.core.errors import ExecError, InputUnknown, InvalidCommand, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import CallKey, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.persistent import payload
from shellback.exec.persistent.course import Course, Outcome, look_at
from shellback.exec.persistent.marks import Mark, Names
from shellback.exec.persistent.payload import Bounds, Frame
from shellback.exec.persistent.readiness import listens, reads_commands
from shellback.exec.persistent.reading import Reader, mark_named
from shellback.exec.persistent.results import ShellBusy
from shellback.exec.wire.crashpoints import reach

READY_S: Final = 5.0
"""How long a shell that waits for a command may take to ask for it."""
START_S: Final = 30.0
"""How long a new one may take."""
_MARK: Final = 45
"""Bytes of the shortest mark that says something, and of the longest that says nothing."""
_SOON_S: Final = 0.05
_SWALLOWED_S: Final = 0.4
_SETTLED_S: Final = 0.05
_END_S: Final = 10.0
_INTERRUPT: Final = b"\x03"


class Exchange:
    """One command of one call. Cancelling leaves the command running; a repeat of the call finds it."""

    def __init__(self, engine: Engine, session: Session, names: Names, key: CallKey) -> None:
        self._engine = engine
        self._session = session
        self._key = key
        self._follower = Follower(engine, session)
        self._log = self._follower.out
        self._tries = ""
        self.frame = _frame(names, session, key)

    async def run(self, command: str, bounds: Bounds, *, timeout_s: float) -> Outcome:
        """Have the shell run a command.

        Raises:
            ShellBusy: The shell does not ask for it; nothing has run.
            TaskCompleted: It has ended; nothing has run.
            InputUnknown: Not known whether the shell has it.
        """
        until = time.monotonic() + timeout_s
        # The second time for an unfinished line that somebody has typed: it swallowed the first.
        last = time.monotonic() + READY_S
        asked = await self._asked(READY_S) or await self._asked(last - time.monotonic())
        if asked is None:
            raise ShellBusy(
                f"shell {self._session.id} does not ask for a command, so nothing was run: it is stopped, or does "
                "something before it prompts; read what it shows, or kill it and start another"
            )
        reach("shell.asked")
        reader, ready = asked
        what = payload.payload(command, self.frame, bounds, status=ready.status or 0, options=ready.options)
        await self._type(what, "2", reader.size + 2 * _MARK)
        reach("shell.given")
        return await self._followed(reader, until, until_input=True, asked=True)

    async def before(self, *, timeout_s: float) -> Outcome | None:
        """Go on with what an earlier execution of the call has typed; None where nothing of it ever ran, or will.

        Raises:
            TaskCompleted: The shell has ended before it ran.
            InputUnknown: There is no telling.
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
        await self._type(payload.setup(self.frame, bounds, prompt=prompt), "2")
        return await self._followed(asked[0], until, until_input=False, asked=True)

    async def clear(self) -> None:
        """Let a shell that listens for a command of somebody who has gone prompt again."""
        if listens(self._log):
            await self._interrupt()

    async def _asked(self, patience_s: float) -> tuple[Reader, Mark] | None:
        """Type the trigger and wait for R; None where the shell does not ask, and does not wait for more any longer."""
        reader = Reader(self._log, self._log.size())
        line = payload.trigger(self.frame.ready)
        await self._type(line, f"1{self._tries}", reader.size + len(line) + _MARK)
        reach("shell.typed")
        self._tries = secrets.token_hex(4)
        until = time.monotonic() + patience_s
        swallowed = False
        while (left := until - time.monotonic()) > 0:
            for mark in await reader.marks():
                if mark.name == self.frame.ready:
                    return reader, mark
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
        """Type Ctrl-C: it also throws away what lies in the terminal."""
        size = self._log.size()
        await self._type(_INTERRUPT, secrets.token_hex(4))
        await self._follower.grown(size, rest_s=_SETTLED_S, timeout_s=1.0)

    async def _type(self, data: bytes, which: str, beyond: int | None = None) -> None:
        """Type something, and wait for a moment for output `beyond`: most often that is all that comes."""
        key = CallKey(f"{self._key}.{which}")
        try:
            await self._engine.supervised.write(
                self._session.id, data, eof=False, key=key, beyond=beyond, timeout_s=_SOON_S
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
            known = await self._engine.supervised.written(self._session.id, key=CallKey(f"{self._key}.2"))
        except ExecError:
            return False
        return bool(known and known["accepted"])

    async def _gone(self) -> TaskCompleted:
        session = await self._engine.wait(self._session.id, up_to=_END_S)
        return TaskCompleted(session.id, "the shell has ended; start another")

    async def _followed(self, reader: Reader, until: float, *, until_input: bool, asked: bool = False) -> Outcome:
        course = Course(self._engine, self._session, self.frame, reader, self._follower, asked=asked)
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
