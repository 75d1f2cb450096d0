"""What a client is told while a call waits: the last line that its process has printed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from shellback.exec.core.display import visible
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session, SessionId
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower

REST_S: Final = 1.0
"""At most so often a line is told."""
BEAT_S: Final = 10.0
"""So often the last line is told again: a client may give up a call of which it hears nothing."""
CHARS: Final = 200


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
