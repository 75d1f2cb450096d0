"""Watches: conditions on a session that wake the agent before the session ends, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Kind = Literal["pattern", "idle", "after", "input"]

PER_SESSION: Final = 8
PER_CONVERSATION: Final = 64
"""The most watches that are on at a time."""
APART_S: Final = 15.0
"""Seconds between two hits of one watch; matches in between are reported with the next hit."""
STRIKES: Final = 3
"""Consecutive hits without a call about the session, after which a watch is switched off."""
LIFE: Final = 8
"""The most hits of one watch."""

FIRED: Final = "fired"
UNHEEDED: Final = "strikes"
USED_UP: Final = "life"
BY_THE_AGENT: Final = "agent"
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A watch, as stores keep it.

    `id` is derived from the call that placed it. `seconds` is for `idle` and `after`. `offset` is the end of the output
    that we or the agent have read; for other kinds, the size of the output at the hit. `strikes` are consecutive hits
    without a call about the session. Times are wall-clock seconds.
    """

    id: str
    session_id: str
    conversation_id: str
    turn_id: str
    host_id: str
    kind: Kind
    pattern: str | None = None
    seconds: float | None = None
    state: Literal["on", "off"] = "on"
    why_off: str | None = None
    offset: int = 0
    hits: int = 0
    strikes: int = 0
    created_at: float = 0.0
    hit_at: float | None = None

    @property
    def on(self) -> bool:
        """Whether it may still fire."""
        return self.state == "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """The next hit of a watch, with its number; the watch continues at `offset`, or ends because of `why_off`.

    `upto` is the end of the output that the hit reports; None if it reports no output.
    """

    number: int
    offset: int
    at: float
    upto: int | None = None
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    why_off: str | None = None


def after(watch: Watch, hit: Hit) -> Watch:
    """The watch after a hit; switched off if it was the last one."""
    strikes = watch.strikes + 1
    why_off = hit.why_off or (USED_UP if hit.number >= LIFE else UNHEEDED if strikes >= STRIKES else None)
    return replace(
        watch,
        hits=hit.number,
        strikes=strikes,
        offset=max(watch.offset, hit.offset),
        hit_at=hit.at,
        state="off" if why_off else "on",
        why_off=why_off,
    )


def is_read(watch: Watch, hit: Hit) -> bool:
    """Whether the agent has read the output of the hit, so that it is no news."""
    return hit.upto is not None and hit.upto <= watch.offset


def past(watch: Watch, hit: Hit) -> Watch:
    """The watch after a hit that is no news; nothing is counted."""
    return replace(
        watch,
        offset=max(watch.offset, hit.offset),
        state="off" if hit.why_off else "on",
        why_off=hit.why_off,
    )
