"""What a call that ran something tells: the session, what it printed, and who tells the end."""

from __future__ import annotations

from dataclasses import dataclass

from app.exec.model import Session
from app.exec.output import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A session and its output as of now.

    `handed_over` is whether the end is told by a callback and not by this outcome. `err` is the
    second stream where the streams are apart; `warning` is about the conversation, not the command.
    """

    session: Session
    output: Slice
    err: Slice | None = None
    handed_over: bool = False
    warning: str = ""
