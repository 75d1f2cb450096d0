"""How long a call waits for the command that it has started, and what it then tells.

It waits to the end, or until waiting on would be in vain.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shellback.exec.core.model import Session
from shellback.exec.engine.waiting import Looked, Waiting, until_waiting
from shellback.exec.log.output import Slice

Ended = asyncio.Future[Session | None]
"""Resolved with the session once it has ended, or with None by whoever gives up."""


async def joined(
    engine: Looked, session: Session, ended: Ended, *, patience_s: float, until_input: bool
) -> tuple[Session | None, Waiting | None]:
    """The session with its end; without one after `patience_s` or when somebody gives up.

    With `until_input` also when it waits for input, and then how that is known. Cancelling ends only the waiting.
    """
    if ended.done():
        return ended.result(), None
    timer = asyncio.get_running_loop().call_later(patience_s, give_up, ended)
    asked = asyncio.ensure_future(until_waiting(engine, session)) if until_input else None
    if asked is not None:
        asked.add_done_callback(lambda task: give_up(ended) if _found(task) else None)
    try:
        end = await ended
        return end, _found(asked) if end is None and asked is not None and asked.done() else None
    finally:
        timer.cancel()
        if asked is not None:
            asked.cancel()


def give_up(ended: Ended) -> None:
    """End the waiting, unless it is over."""
    if not ended.done():
        ended.set_result(None)


def _found(asked: asyncio.Task[Waiting | None]) -> Waiting | None:
    return None if asked.cancelled() or asked.exception() is not None else asked.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A session and its output as of now.

    `handed_over` is whether the end is told by a callback and not by this outcome. `err` is the
    second stream where the streams are apart; `warning` is about the conversation, not the command. `waiting` says that
    the call did not wait for the end because the command waits for input. `findings` are told with it, in sentences:
    those of the end, and what the look before the command found of others of the conversation.
    """

    session: Session
    output: Slice
    err: Slice | None = None
    handed_over: bool = False
    warning: str = ""
    waiting: Waiting | None = None
    findings: tuple[str, ...] = ()
