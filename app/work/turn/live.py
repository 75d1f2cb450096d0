"""The blocks that a running turn is shown of its processes, and what its history already tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import sqlalchemy as sa
from pydantic_ai.messages import ModelMessage, TextContent, ToolReturnPart, UserPromptPart

from shellback.exec.core.model import Session
from shellback.exec.reports import blocks
from shellback.exec.reports.blocks import ALL, MARK, Outputs, Seen, Told
from shellback.exec.reports.callback_text import ended_in
from shellback.storage import sessions as rows
from shellback.storage.session_rows import LIVE
from shellback.work.queue.mailbox import Letter
from shellback.work.turn.deps import TurnDeps

Fresh = Callable[[TurnDeps, Sequence[Session], Mapping[str, Seen], int], Told | None]
"""Tells a turn what is new in sessions since what was seen, in so many characters; blocks."""
_OVER: Final = Seen(ALL, ALL, over=True)


class LiveBlocks:
    """Reads the blocks of a turn's conversation. Their content changes, so they are read in recorded looks only.

    `fresh` reads what sessions on the host of the conversation have printed.
    """

    def __init__(self, unpin_after_s: float, fresh: Fresh) -> None:
        self._unpin_after_s = unpin_after_s
        self._fresh = fresh

    def sessions(self, conn: sa.Connection, deps: TurnDeps) -> list[Session]:
        """The sessions whose blocks are shown now; none while the gate is off."""
        if not deps.gate:
            return []
        now = time.time()
        found = rows.shown(conn, deps.conversation_id, deps.host_id, now - self._unpin_after_s)
        return [session for session in found if blocks.pinned(session, now, self._unpin_after_s)]

    def any(self, conn: sa.Connection, conversation_id: str, host_id: str) -> bool:
        """Whether the conversation has sessions on a host that may have a block."""
        return rows.any_shown(conn, conversation_id, host_id, time.time() - self._unpin_after_s)

    def news(
        self, deps: TurnDeps, messages: Sequence[ModelMessage], conn: sa.Connection, letters: Sequence[Letter] = ()
    ) -> Told | None:
        """Changes of the conversation's sessions that neither the history nor the letters tell. Reads files."""
        sessions = self.sessions(conn, deps)
        if not sessions:
            return None
        seen = seen_in(messages)
        seen |= {letter.payload["session_id"]: _OVER for letter in letters if letter.kind == "exit"}
        return self._fresh(deps, sessions, seen, blocks.TURN_CHARS - deps.shown_chars)


def fresh_of(
    outputs: Outputs, _deps: TurnDeps, sessions: Sequence[Session], seen: Mapping[str, Seen], left: int
) -> Told | None:
    """What is new in sessions whose output is on this machine: `Fresh` without its first argument."""
    return blocks.news(sessions, outputs, seen, left=left)


def appended(told: Told) -> TextContent:
    """The text as it goes into the history."""
    return TextContent(told.text, metadata={MARK: {name: list(seen) for name, seen in told.seen.items()}})


def seen_in(messages: Iterable[ModelMessage]) -> dict[str, Seen]:
    """How far a history tells of each process: in blocks, results of tools, and reports of ends."""
    found: dict[str, Seen] = {}
    for message in messages:
        for part in message.parts:
            told = _in_prompt(part) if isinstance(part, UserPromptPart) else ()
            if isinstance(part, ToolReturnPart):
                told = _in_result(part.metadata)
            for name, seen in told:
                before = found.get(name, Seen())
                found[name] = Seen(max(before.out, seen.out), max(before.err, seen.err), before.over or seen.over)
    return found


def _in_prompt(part: UserPromptPart) -> Iterator[tuple[str, Seen]]:
    for piece in [part.content] if isinstance(part.content, str) else part.content:
        if isinstance(piece, TextContent):
            if (session_id := ended_in(piece.metadata)) is not None:
                yield session_id, _OVER
            marks: object = _mapping(piece.metadata).get(MARK)
            yield from ((name, Seen(*given)) for name, given in _mapping(marks).items())


def _in_result(metadata: object) -> Iterator[tuple[str, Seen]]:
    whole = _mapping(metadata)
    for one in (whole, *map(_mapping, cast("list[object]", whole.get("sessions") or ()))):
        session_id, state = one.get("session_id"), one.get("state")
        if isinstance(session_id, str):
            upto = one.get("next_offset", one.get("bytes_total"))
            err = one.get("err_next_offset")
            over = isinstance(state, str) and state not in LIVE
            yield session_id, Seen(upto if isinstance(upto, int) else 0, err if isinstance(err, int) else 0, over)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
