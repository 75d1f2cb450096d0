"""A command on its way through a shell: what its marks, the kernel and the clock say about how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal

from shellback.exec.core.answers import Look
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.waiting import judged
from shellback.exec.log.plain_text import decoded
from shellback.exec.persistent.marks import Mark, ended, without
from shellback.exec.persistent.payload import KNOWN, Frame
from shellback.exec.persistent.readiness import prompts
from shellback.exec.persistent.reading import Reader

_FIRST_S: Final = 0.4
_LONGEST_S: Final = 5.0
_SLOWER: Final = 1.6
"""How long a command is silent before it is looked at, at first, at most, and how that grows."""
_AGAIN_S: Final = 0.005
"""How soon after its P mark a shell may be seen to wait for the next command."""
_SETTLED_S: Final = 0.05
_FLOOD: Final = 64 * 1024
_REST_S: Final = 0.02
"""Output that comes in such amounts is taken in pieces."""
_END_S: Final = 10.0
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


class Course:
    """Follows one command from what `reader` has read on. It waits for output, the end, or a moment to look.

    `asked` is whether the shell has asked for the command already.
    """

    def __init__(
        self, engine: Engine, session: Session, frame: Frame, reader: Reader, follower: Follower, *, asked: bool
    ) -> None:
        self._engine = engine
        self._session = session
        self._frame = frame
        self._reader = reader
        self._follower = follower
        self._log = follower.out
        self._start: int | None = None
        self._prompt: Mark | None = None
        self._asked = asked
        self._outer: int | None = None
        self._blind = 0

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
        """Take in the marks that have come; the end, if one of them is that."""
        for mark in await self._reader.marks():
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
        """The end of a command that cannot tell it: the shell says that it prompts, and the kernel that it does."""
        if self._prompt is None:
            return None
        look = await self._look()
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
        left = "outer" if self._outer is not None else "interrupted" if _is_known(self._prompt) else "replaced"
        return Outcome(
            how="inside" if inside else left,
            start=self._start,
            end=self._prompt.start,
            upto=self._prompt.end,
            status=None if inside else self._prompt.status if self._outer is None else self._outer,
        )

    def _ended(self, mark: Mark) -> Outcome:
        said = ended(mark)
        return Outcome(
            how="ended",
            start=mark.start if self._start is None else self._start,
            end=mark.start,
            upto=mark.end,
            status=said.status,
            cwd=said.cwd,
            left=said.left,
        )

    def _so_far(self, how: How) -> Outcome:
        at = self._reader.at
        return Outcome(how=how, start=at if self._start is None else self._start, end=at, upto=at)

    async def _over(self) -> Outcome:
        session = await self._engine.wait(self._session.id, up_to=_END_S)
        done = await self._taken()
        if done is not None:
            return done
        end = self._log.size()
        status = session.end.exit_code if session.end else None
        return Outcome(how="gone", start=end if self._start is None else self._start, end=end, upto=end, status=status)

    async def _waits(self) -> bool:
        look = await self._look()
        if look is None or self._start is None:
            return False
        since = max(self._start, self._log.size() - _SHOWN)
        found = judged(look, decoded(without(self._log.piece(since, _SHOWN))).split("\n"))
        return found is not None and found.sure

    async def _look(self) -> Look | None:
        return await look_at(self._engine, self._session)


def _is_known(prompt: Mark) -> bool:
    return prompt.said.endswith(b";" + KNOWN)


async def look_at(engine: Engine, session: Session) -> Look | None:
    """What a session does at this moment; None where nobody can tell."""
    try:
        return await engine.supervised.look(session.id)
    except ExecError:
        return None
