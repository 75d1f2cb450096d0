"""Exit codes of the command line: one table, for `--help`, the documents and whoever calls it from a script."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
CANNOT: Final = 2
PENDING: Final = 3
SET_ASIDE: Final = 4
FAILED: Final = 5
STOPPED: Final = 6
DENIED: Final = 7
OUT_OF_BUDGET: Final = 8
INTERRUPTED: Final = 130

MEANING: Final = {
    DONE: "done, or answered",
    CANNOT: "cannot be done; the message says why and what to do",
    PENDING: "a call waits for approval",
    SET_ASIDE: "the conversation is set aside",
    FAILED: "the turn failed; the answer says why",
    STOPPED: "a person stopped the turn",
    DENIED: "answered, but a call of it was denied, by a person, a rule or in time",
    OUT_OF_BUDGET: "the turn's requests, tokens or time are used up",
    INTERRUPTED: "ended by Ctrl-C",
}
OF_A_FATE: Final = {
    "pending_approval": PENDING,
    "set_aside": SET_ASIDE,
    "failed": FAILED,
    "stopped": STOPPED,
    "denied": DENIED,
    "out_of_budget": OUT_OF_BUDGET,
}
"""Of what became of a message (`shellback.cli.waiting.Fate`); all else is 0."""
