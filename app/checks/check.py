"""One check: what was looked at, how it stands, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """How one thing stands. `remedy` is empty when there is nothing to do."""

    name: str
    state: State
    text: str
    remedy: str = ""
