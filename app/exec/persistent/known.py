"""What this process remembers of a shell. If it is lost, log and kernel are read again; no answer is lost."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from shellback.exec.backends.kinds import CONTAINED
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.waiting import look_at
from shellback.exec.log.output import OutputLog
from shellback.exec.persistent.exchange import Foreseen, Outcome, prompts, reads_commands, ready, rests, runs
from shellback.exec.persistent.marks import Reader, last_mark
from shellback.exec.persistent.payload import Frame

_BUSY_S: Final = 1.0
"""How long a busy shell may take to prompt."""
_PAUSE_S: Final = 0.05


@dataclass(slots=True)
class _Pending:
    """A command that still runs and that no call waits for."""

    frame: Frame
    reader: Reader
    status: int | None = None
    over: bool = False
    blind: int = 0


class Known:
    """One shell: whether a call is about to use it, where its last command ended, and what runs on in it.

    `kept` is the last directory that it told, `foreseen` how it asks for the next command if nothing changes.
    """

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session
        self.log = engine.output(session)
        self._rested: int | None = None
        self._typed = -_BUSY_S
        self._told: int | None = None
        self._pending: _Pending | None = None
        self.busy = False
        self.kept = ""
        self.foreseen: Foreseen | None = None

    def note(self, done: Outcome, frame: Frame, options: str | None) -> None:
        """Remember the outcome of a command, and the options with which the shell had asked for it."""
        self._told = done.upto
        self.kept = done.cwd or self.kept
        ended = done.how == "ended"
        self._rested = done.upto if ended else None
        self.foreseen = None
        if ended and options is not None and done.status is not None:
            self.foreseen = Foreseen(at=done.upto, status=done.status, options=options)
        runs = done.how in {"timeout", "waiting"}
        self._pending = _Pending(frame, Reader(self.log, done.upto)) if runs else None

    def begins(self) -> None:
        """Forget how it rested: if nobody hears how the next command ends, log and kernel are read again."""
        self._rested = self.foreseen = None

    def typed(self) -> None:
        """Remember that input was typed."""
        self._rested = None
        self._typed = time.monotonic()

    def told(self, upto: int = 0) -> int:
        """The offset up to which output was shown; if unknown, the end of the last command that ended."""
        if self._told is None:
            mark = last_mark(self.log, "E")
            self._told = mark.end if mark else 0
        self._told = max(self._told, upto)
        return self._told

    async def place(self) -> str:
        """The directory in which its next command runs, "" if unknown.

        The directory at the end of the last command may be out of date: the shell may have left it, or it was moved.
        """
        look = await look_at(self._engine, self._session)
        inside = look.reader if look is not None and reads_commands(look) else 0
        found = place_of(self._session, self.log, inside)
        return found if look is not None else found or self.kept

    def rests(self) -> bool:
        """Whether it only prompted since its last command ended; False if that is not remembered."""
        return self._rested is not None and rests(self.log, self._rested)

    async def ready(self) -> bool:
        """Whether it takes a command now, according to its output and the kernel."""
        until = time.monotonic() + _BUSY_S
        follower = Follower(self._engine, self._session)
        while not ready(self.log, look := await look_at(self._engine, self._session)):
            now = time.monotonic()
            # What reads may not have taken yet what was just typed, and end with it.
            answered = now < self._typed + _BUSY_S
            if now > until or (not answered and (runs(self.log) or (look is not None and look.how != "none"))):
                return False
            await follower.grown(self.log.size(), timeout_s=_PAUSE_S)
        return True

    async def pending(self, session: Session) -> tuple[bool, int | None]:
        """Whether a command still runs that no call waits for, and the status of one that has ended since."""
        pending = self._pending
        if pending is None:
            return self.busy, None
        await self._take(pending)
        if session.end is None and not pending.over and not await self._left(pending):
            return True, None
        # It may have told its end between the look and what was taken before that.
        await self._take(pending)
        self._pending = None
        return False, pending.status if session.end is None else session.end.exit_code

    async def _take(self, pending: _Pending) -> None:
        for mark in await pending.reader.marks():
            if mark.name == pending.frame.end:
                pending.status, pending.over = mark.status, True
            elif (mark.kind, mark.name) == ("P", pending.frame.prompt) and not pending.over:
                pending.status = mark.status

    async def _left(self, pending: _Pending) -> bool:
        """Whether the shell has left the command, which then tells no status itself."""
        if pending.status is None:
            return False
        look = await look_at(self._engine, self._session)
        pending.blind = pending.blind + 1 if look is None or look.how == "unknown" else 0
        return prompts(look, pending.blind - 1)


_GONE: Final = " (deleted)"


def place_of(session: Session, log: OutputLog, inside: int = 0) -> str:
    """The directory of a shell, or of the shell `inside` it, as it sees it; "" if unknown.

    A container's processes have other pids here, so there the last mark counts, which a command could have printed.
    """
    if session.backend in CONTAINED:
        mark = last_mark(log, "E")
        return "" if mark is None else mark.places[0]
    try:
        if session.pid is None or session.end is not None:
            return ""
        link = f"/proc/{inside or session.pid}/cwd"
        place = os.readlink(link)
        removed = place.endswith(_GONE) and os.stat(link).st_nlink == 0
    except OSError:
        return ""
    return place.removesuffix(_GONE) if removed else place
