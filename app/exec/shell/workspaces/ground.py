"""What code works with in one workspace."""

from __future__ import annotations

from dataclasses import dataclass

from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One workspace: `engine` runs commands in it, `policy` judges them, `files` are its files."""

    engine: Engine
    policy: Policy
    files: Files


@dataclass(frozen=True, slots=True)
class Described:
    """A workspace on another machine, as `text` describes it to a model; `inner` is its path for commands."""

    text: str
    inner: str
