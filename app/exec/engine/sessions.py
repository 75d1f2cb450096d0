"""Operations on existing sessions. A change is recorded under its call key: a replay returns the recorded outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Final, cast

from shellback.exec.core import limits
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import (
    InputUnknown,
    InvalidCommand,
    LimitReached,
    PasswordWanted,
    PtyError,
    SessionNotFound,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.core.identity import act_of, call_key
from shellback.exec.core.model import CallKey, CallOrigin, EndedBy, Session, SessionState, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.waiting import check_typing
from shellback.exec.log.output import OutputLog, Slice, both_ends
from shellback.exec.policy.typed_lines import UNFINISHED, left_of, lines_of
from shellback.exec.wire.crashpoints import reach

ENDED_LISTED: Final = 100
"""Ended sessions in a list."""
_END_S: Final = 10.0
"""Seconds to wait for the exit record after a kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A session with its ages in seconds; idle since its last output or the last call about it."""

    session: Session
    uptime_s: float
    idle_s: float


def check_input(session: Session, *, terminal: bool = False) -> None:
    """Raise PtyError if `terminal` and the session has none, InvalidCommand if its stdin is not open."""
    if terminal and not session.pty:
        raise PtyError(f"session {session.id} has no terminal; use process_write, or start it with execute_pty")
    if not session.stdin_open:
        raise InvalidCommand(
            f"session {session.id} has no open stdin; start it with keep_stdin_open=true or with execute_pty"
        )


def check_size(size: WindowSize) -> None:
    """Raise InvalidCommand if rows or columns are out of range."""
    for name, value, bounds in (("rows", size.rows, limits.PTY_ROWS_RANGE), ("cols", size.cols, limits.PTY_COLS_RANGE)):
        if value not in bounds:
            raise InvalidCommand(f"{name} is {value}; it must be {bounds[0]} to {bounds[-1]}")


class Sessions:
    """The sessions of one conversation, or all (`conversation_id` None). Methods with an id raise SessionNotFound."""

    def __init__(self, engine: Engine, conversation_id: str | None) -> None:
        self._engine = engine
        self._conversation_id = conversation_id

    async def get(self, session_id: str) -> Session:
        """The session as it is now."""
        return await self._engine.registry.get(session_id, self._conversation_id)

    async def list(self) -> list[Listed]:
        """All live sessions and the newest ended ones, oldest first."""
        now = time.time()
        found = await self._engine.registry.list(self._conversation_id)
        ended = [session for session in found if not session.live]
        hidden = {session.id for session in ended[: max(0, len(ended) - ENDED_LISTED)]}
        return [self._listed(session, now) for session in found if session.id not in hidden]

    async def poll(
        self, session_id: str, origin: CallOrigin, *, most: int = limits.RESULT_CHARS
    ) -> tuple[Session, Slice, Slice | None]:
        """At most `most` bytes of output since the last poll; stderr is None unless separate.

        A replay returns the same ranges. Raises InvalidCommand for a session of another host.
        """
        session = await self.get(session_id)
        out, err = self._streams(session)
        upto = [0 if log is None else await log.readable_end(ended=session.end is not None) for log in (out, err)]
        passed = await self._engine.store.advance_poll(call_key(origin), session.id, *upto)
        if err is None:
            return session, await out.ends(passed.start, passed.end, most=most), None
        return session, *await both_ends(out, err, most, passed[:2], passed[2:])

    async def log_lines(self, session_id: str, offset: int, limit: int, *, err: bool = False) -> tuple[Session, Slice]:
        """Lines of the log or of stderr; a negative offset counts from the end. Raises InvalidCommand."""
        if not 1 <= limit <= 10_000:
            raise InvalidCommand(f"limit is {limit}; it must be 1 to 10000 lines")
        session = await self.get(session_id)
        return session, await self.readable(session, err=err).lines(offset, limit)

    async def log_bytes(self, session_id: str, offset: int, limit: int, *, err: bool = False) -> tuple[Session, Slice]:
        """Bytes of the log or of stderr, cut at a character. Raises InvalidCommand."""
        if offset < 0:
            raise InvalidCommand(f"byte_offset is {offset}; it must be 0 or more")
        if not 1 <= limit <= limits.RESULT_CHARS:
            raise InvalidCommand(f"byte_limit is {limit}; it must be 1 to {limits.RESULT_CHARS}")
        session = await self.get(session_id)
        return session, await self.readable(session, err=err).bytes(offset, limit)

    def _streams(self, session: Session) -> tuple[OutputLog, OutputLog | None]:
        if session.host_id != self._engine.host_id:
            raise InvalidCommand(
                f"session {session.id} ran on another host, where its log is ({session.host_id}:{session.log_path}); "
                f"here only its end is known: {how_it_ended(session.end) if session.end else 'none yet'}"
            )
        return self._engine.streams(session)

    def readable(self, session: Session, *, err: bool = False) -> OutputLog:
        """The log of a session or its stderr; InvalidCommand if it cannot be read here."""
        out, second = self._streams(session)
        log = second if err else out
        if log is None:
            raise InvalidCommand(f"session {session.id} has one log for both streams: leave stderr out")
        if session.end is not None and session.end.bytes_total and not log.exists():
            raise InvalidCommand(
                f"the log of session {session.id} has expired; it had "
                f"{'at least ' * session.end.uncounted}{session.end.bytes_total:,} bytes. "
                "Run the command again if you need its output"
            )
        return log

    async def write(
        self, session_id: str, data: bytes, origin: CallOrigin, *, tool: str, eof: bool = False, by_model: bool = True
    ) -> int:
        """Write once to a terminal or an open stdin; returns the bytes taken. After cancelling this may be unknown.

        Raises:
            PasswordWanted: The program asks for a password and the writer is a model (`by_model`).
            InvalidCommand: The session takes no input, or the data is too long.
            TaskCompleted: It has ended.
            InputUnknown: After a crash it is unknown whether the input arrived; it is not written again.
        """
        session = await self.get(session_id)
        if len(data) > limits.STDIN_BYTES:
            raise InvalidCommand(f"data has {len(data)} bytes; at most {limits.STDIN_BYTES} are accepted in one call")
        check_input(session)
        key, kind = call_key(origin), "typed" if by_model else "fed"
        text = lines_of(data, eof=eof)
        waiting = await self.unfinished(session, besides=key)
        unfinished = await asyncio.to_thread(left_of, waiting, text)
        before = await self._engine.store.begin_call(act_of(origin, session.id, tool, kind))
        if before is not None:
            return _written(session, before or await self._recalled(session, key))
        if session.end is not None:
            await self._engine.store.end_call(key, {"ended": how_it_ended(session.end)})
            raise TaskCompleted(session.id, how_it_ended(session.end))
        try:
            if by_model:
                await check_typing(self._engine, session, data)
            outcome: dict[str, object] = await self._engine.supervised.port.write(session.id, data, eof=eof, key=key)
        except TaskCompleted as error:
            await self._engine.store.end_call(key, {"ended": error.end})
            raise
        except (InvalidCommand, LimitReached) as error:
            kept = {UNFINISHED: waiting} if isinstance(error, PasswordWanted) else {}
            await self._engine.store.end_call(key, {"refused": str(error), **kept})
            raise
        except SupervisorUnreachable:
            raise InputUnknown(
                f"the supervisor of session {session.id} went away; not known whether the input arrived"
            ) from None
        if outcome.get("accepted") == len(data):
            outcome = {**outcome, UNFINISHED: "" if eof else unfinished}
        await self._engine.store.end_call(key, outcome)
        return _written(session, outcome)

    async def unfinished(self, session: Session, *, besides: str = "") -> str | None:
        """The unfinished line of earlier calls, except `besides`; "" if there is none, None if unknown."""
        await self._engine.behind.settled(session.id)
        before = await self._engine.store.typed_last(session.id, besides=besides)
        if before is None:
            return "" if session.pty else None  # it may have been started with input of its own
        found = before.get(UNFINISHED)
        return found if isinstance(found, str) else None

    async def _recalled(self, session: Session, key: CallKey) -> dict[str, object]:
        """The outcome of a write in the supervisor, when the worker died before recording it."""
        outcome = None
        with contextlib.suppress(TaskCompleted, SessionNotFound, SupervisorUnreachable):
            outcome = await self._engine.supervised.port.written(session.id, key)
        if outcome is not None:
            await self._engine.store.end_call(key, outcome)
        return outcome or {}

    async def resize(self, session_id: str, size: WindowSize, origin: CallOrigin | None = None) -> Session:
        """Change the size of a terminal; a replay does not undo a later change.

        Raises:
            PtyError: The session has no terminal.
            InvalidCommand: The size is out of range.
            TaskCompleted: It has ended.
        """
        session = await self.get(session_id)
        check_input(session, terminal=True)
        check_size(size)
        act = None if origin is None else act_of(origin, session.id, "process_resize", "input")
        if act is not None and await self._engine.store.begin_call(act):
            return session
        if session.end is not None:
            raise TaskCompleted(session.id, how_it_ended(session.end))
        await self._engine.supervised.port.resize(session.id, size.rows, size.cols)
        if act is not None:
            await self._engine.store.end_call(act.key, {"rows": size.rows, "cols": size.cols})
        return session

    async def pin(self, session_id: str, pinned: bool, origin: CallOrigin) -> Session:
        """Show or hide the session's block; a replay changes nothing."""
        session = await self.get(session_id)
        act = act_of(origin, session.id, "process_pin")
        if not await self._engine.store.begin_call(act):
            await self._engine.store.pin(session.id, pinned)
            await self._engine.store.end_call(act.key, {"pinned": pinned})
        return session

    async def kill(
        self, session_id: str, origin: CallOrigin, *, by: EndedBy = EndedBy.AGENT
    ) -> tuple[Session, tuple[int, ...]]:
        """End the whole tree of a session; returns the session, and survivors. A replay returns the same.

        Cancelling ends the waiting, not the kill.

        Raises:
            TaskCompleted: It had ended before; nothing was signalled.
        """
        session = await self.get(session_id)
        key = call_key(origin)
        before = await self._engine.store.begin_call(act_of(origin, session.id, "process_kill"))
        if before is None and session.end is not None:
            before = dict[str, object](ended=how_it_ended(session.end))
            await self._engine.store.end_call(key, before)
        if before and "ended" in before:
            raise TaskCompleted(session.id, str(before["ended"]))
        if before and session.end is not None:
            return session, tuple(cast("list[int]", before["survivors"]))
        session, survivors = await self.end(session, by=by)
        await self._engine.store.end_call(key, {"survivors": list(survivors)})
        return session, survivors

    async def end(self, session: Session, *, by: EndedBy) -> tuple[Session, tuple[int, ...]]:
        """Kill without a call key, for the operator and the end of a conversation."""
        if session.state is SessionState.CLAIMED:
            await self._engine.abandon(session.id)
            session = await self.get(session.id)
        if session.end is not None:
            return session, ()
        reach("kill.sent")
        survivors = await self._engine.supervised.kill(session.id, by=by)
        return await self._engine.wait(session.id, up_to=_END_S), survivors

    def _listed(self, session: Session, now: float) -> Listed:
        begun = session.started_at or session.created_at
        until = session.end.ended_at if session.end else now
        printed = (log.modified_at() for log in self._engine.streams(session) if log is not None)
        active = max(begun, *printed, self._engine.registry.touched_at(session.id))
        return Listed(session=session, uptime_s=max(0.0, until - begun), idle_s=max(0.0, now - active))


def _written(session: Session, outcome: dict[str, object]) -> int:
    if "ended" in outcome:
        raise TaskCompleted(session.id, str(outcome["ended"]))
    if "refused" in outcome:
        raise InvalidCommand(str(outcome["refused"]))
    if "accepted" not in outcome:
        raise InputUnknown(
            f"not known whether the input arrived at session {session.id}; it is not written a second time, "
            "look at the output before you send it again"
        )
    return int(str(outcome["accepted"]))
