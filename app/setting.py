"""What one setting is: a field with what it takes, and what is said when its value cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Problem:
    """One variable that cannot be used; `value` has its secrets taken out."""

    variable: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r} cannot be used; allowed is {self.allowed}"


class SettingsError(ValueError):
    """Raised when settings cannot be used; names every wrong one, its value and what is allowed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def setting(default: object, allowed: str, *, secret: bool = False, **bounds: Any) -> Any:
    """A field with its default; `allowed` says what it takes, `secret` keeps it out of representations."""
    return Field(default, description=allowed, repr=not secret, validate_default=True, **bounds)


def count(default: int, low: int, high: int) -> Any:
    """A field for a whole number."""
    return setting(default, f"a whole number from {low} to {high}", ge=low, le=high)


def seconds(default: float, low: float, high: float, unit: str = "seconds") -> Any:
    """A field for a time."""
    return setting(default, f"{unit} from {low:g} to {high:g}", ge=low, le=high, allow_inf_nan=False)


def shown_url(url: str) -> str:
    """Take every password out of a database address, also out of one that cannot be parsed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest:
        credentials, _, place = rest.rpartition("@")
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:***@{place}" if colon else f"{user}@{place}"
    return re.sub(r"(?i)(\b\w*pass\w*\s*=\s*)[^&\s]+", r"\1***", f"{scheme}{separator}{rest}")


def default_home(given: Mapping[str, str]) -> Path:
    """The state directory where none is named."""
    state = given.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # the XDG rules have a relative one ignored
        state = f"{given.get('HOME') or Path.home()}/.local/state"
    return Path(state) / "shellback"


def default_cache(given: Mapping[str, str]) -> Path:
    """Where workspaces are kept where nothing is named; by another name it may be."""
    named = given.get("WEAKINCENTIVES_CACHE", "").strip()
    return Path(named).expanduser().absolute() if named else Path(given.get("HOME") or Path.home()) / ".cache/shellback"
