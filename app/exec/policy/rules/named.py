"""What the operator's file says of a named workspace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ORIGINS: Final = ("empty", "copy", "clone", "worktree")
"""What the directory of a conversation is made from."""
KEEPS: Final = ("work", "always", "never")
"""Whether it stays when its conversation is pruned: if it has work that is nowhere else, always, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkspace:
    """A named workspace; `path` is absolute, as it is written.

    With `per_conversation` each conversation has a directory of its own in `path`, made from `origin`: from nothing, or
    from the directory or repository `source`.
    """

    path: Path
    per_conversation: bool = False
    origin: str = ORIGINS[0]
    source: Path | None = None
    keep: str = KEEPS[0]
