"""A wish to be told of a session before it ends: what is waited for, and how often it may wake."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Kind = Literal["pattern", "idle", "after", "input"]

PER_SESSION: Final = 8
PER_CONVERSATION: Final = 64
"""Watches that may be on at a time."""
APART_S: Final = 15.0
"""What is left between two hits of one watch; what comes meanwhile is told with the next."""
STRIKES: Final = 3
"""Hits in a row without a call about the session in between, after which a watch is switched off."""
LIFE: Final = 8
"""Hits of one watch, ever."""

FIRED: Final = "fired"
UNHEEDED: Final = "strikes"
USED_UP: Final = "life"
BY_THE_AGENT: Final = "agent"
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One watch, as the store knows it.

    `id` is derived from the call that asked for it. `seconds` belongs to `idle` and `after`. `offset` is up to where
    the output has been looked at, by us or the agent, for the others how much there was when it fired. `strikes` are
    the hits in a row that nobody heeded. Times are wall-clock seconds.
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
    """A watch is about to fire, `number` being its next hit; it goes on at `offset`, or is over for `why_off`.

    `upto` is where the output ends that it tells of; None where it tells of something else.
    """

    number: int
    offset: int
    at: float
    upto: int | None = None
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    why_off: str | None = None


def after(watch: Watch, hit: Hit) -> Watch:
    """The watch once it has fired, switched off where that was its last hit."""
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
    """Whether the agent has read what the hit tells: then it is no news."""
    return hit.upto is not None and hit.upto <= watch.offset


def past(watch: Watch, hit: Hit) -> Watch:
    """The watch past a hit that is no news: nothing is counted."""
    return replace(
        watch,
        offset=max(watch.offset, hit.offset),
        state="off" if hit.why_off else "on",
        why_off=hit.why_off,
    )
