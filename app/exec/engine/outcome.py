"""What a call that ran something tells: the session, what it printed, and who tells the end."""

from __future__ import annotations

from dataclasses import dataclass

from shellback.exec.core.model import Session
from shellback.exec.engine.waiting import Waiting
from shellback.exec.log.output import Slice


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
