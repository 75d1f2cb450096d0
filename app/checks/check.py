"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `remedy` is empty if there is nothing to do."""

    name: str
    state: State
    text: str
    remedy: str = ""
