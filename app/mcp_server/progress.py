"""What a client is told unasked: the last line that the process of its call has printed, and which processes end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from shellback.exec.core.display import visible
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session, SessionId
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.registry import CACHED
from shellback.exec.reports.blocks import in_background
from shellback.exec.wire.ring import Ring
from shellback.mcp_server.answer import Ended

REST_S: Final = 1.0
"""At most so often a line is told."""
BEAT_S: Final = 10.0
"""So often the last line is told again: a client may give up a call of which it hears nothing."""
CHARS: Final = 200
MOST: Final = 64
"""Ends that wait while a client does not read."""


def sessions_of(starts: SessionId, args: dict[str, Any]) -> list[SessionId]:
    """The sessions that a call may be about: the one that it starts, and those that its arguments name."""
    named: list[Any] = [args.get("session_id"), args.get("task_id"), *(args.get("session_ids") or ())]
    return [starts, *(SessionId(one) for one in named if isinstance(one, str))]


async def printed(engine: Engine, conversation: str, ids: Sequence[SessionId]) -> AsyncGenerator[str]:
    """The last line of output of the first of these sessions that exists, as it changes; "" while there is none."""
    waited_s = 0.0
    while (session := await _first(engine, conversation, ids)) is None:
        await asyncio.sleep(REST_S)
        waited_s += REST_S
        if waited_s >= BEAT_S:
            waited_s = 0.0
            yield ""
    follower = Follower(engine, session)
    async for _ in _grown(follower):
        lines = (await asyncio.to_thread(follower.out.last_lines, 1, CHARS)).text.splitlines()
        yield visible(lines[-1])[:CHARS] if lines else ""


async def grows(engine: Engine, conversation: str, session_id: str) -> AsyncGenerator[None]:
    """Whenever a session has printed more, at most once in `REST_S` seconds, and at its end, after which it is over."""
    session = await _first(engine, conversation, [SessionId(session_id)])
    if session is None or session.end is not None:
        return
    before = -1
    async for size in _grown(Follower(engine, session)):
        if size != before and before >= 0:
            yield
        before = size
    yield


async def ends(engine: Engine, conversation: str) -> AsyncGenerator[Ended]:
    """See `Talk.ends`. At most `MOST` wait to be told, and the oldest of them make room."""
    waiting, known, rung, since = deque[Session](maxlen=MOST), deque[SessionId](maxlen=CACHED), Ring(), time.time()
    dropped = 0

    def heard(session: Session) -> None:
        nonlocal dropped
        # What its own call tells is no news.
        if session.conversation_id != conversation or not in_background(session) or session.end is None:
            return
        if 0 < session.end.ended_at < since or session.id in known:
            return
        known.append(session.id)
        dropped += len(waiting) == MOST
        waiting.append(session)
        rung.ring()

    engine.registry.listeners.add(heard)
    try:
        while True:
            news = rung.next
            while waiting or dropped:
                missed, dropped = dropped, 0
                yield _missed(missed) if missed else _ended(waiting.popleft())
            await news.wait()
    finally:
        engine.registry.listeners.discard(heard)


def _ended(session: Session) -> Ended:
    facts: dict[str, Any] = {"session_id": session.id, "state": str(session.state)}
    if session.end is not None:
        known = {"exit_code": session.end.exit_code, "signal": session.end.signal, "evidence": session.end.evidence}
        facts |= {name: fact for name, fact in known.items() if fact is not None}
    return Ended({**facts, "next": f"process_log with {session.id} shows its output"}, facts.get("exit_code") == 0)


def _missed(count: int) -> Ended:
    return Ended({"missed": count, "next": "more processes have ended than could be told: process_list shows them"})


async def _grown(follower: Follower) -> AsyncGenerator[int]:
    """The size of a log now, when it has grown, and after `BEAT_S` seconds without; until its session has ended."""
    size, ended = follower.out.size(), False
    yield size
    while not ended:
        grown = await follower.grown(size, rest_s=REST_S, timeout_s=BEAT_S)
        size, ended = grown.size, grown.ended
        yield size


async def _first(engine: Engine, conversation: str, ids: Sequence[SessionId]) -> Session | None:
    for one in ids:
        with contextlib.suppress(ExecError):
            return await engine.registry.get(one, conversation)
    return None
