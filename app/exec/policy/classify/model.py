"""The nouns of a judgement: tiers, segments, and where a command would run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, NamedTuple

from shellback.exec.core.secrets import Secrets


class Tier(IntEnum):
    """How much a command may do; ordered (spec 002)."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3

    def __str__(self) -> str:
        """The name that people and JSON see."""
        return self.name.lower()


class Capabilities(NamedTuple):
    """What a command of a tier is thought to need, in words for people. It holds nothing: the profile does that."""

    fs_read: bool
    fs_write: bool
    network: bool
    process_spawn: bool


CAPABILITIES: Final[Mapping[Tier, Capabilities]] = {
    Tier.READ_ONLY: Capabilities(fs_read=True, fs_write=False, network=False, process_spawn=True),
    Tier.READ_WRITE: Capabilities(fs_read=True, fs_write=True, network=False, process_spawn=True),
    Tier.ADMIN: Capabilities(fs_read=True, fs_write=True, network=True, process_spawn=True),
}
"""An explanation of the tiers. What a command can do is what its profile lets it do: `read_only` neither writes nor
connects, `work` writes the workspace and connects if `NETWORK` says so, of whatever tier the command was thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a command would run. Paths are absolute.

    `allowed` are the directories that it may name, symlinks resolved; `secret` says whether a path may be a
    secret. `sandboxed` is False on the host, where a repository's own configuration could run programs. `home` is what
    `~` stands for. `state` is our own state directory, which no command may name. `held` opens a directory that whoever
    looks cannot reach by its path. `search` is the PATH that a program's name is looked up in.
    """

    cwd: Path
    allowed: tuple[Path, ...]
    secret: Secrets
    home: Path
    sandboxed: bool = True
    state: Path | None = None
    held: Callable[[str], int] | None = None
    search: tuple[str, ...] = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One command of the line, with what is known of it.

    `words` are what the program gets, its name first; empty where that is not known. `paths` are the files that it
    names; one with a slash at its end stands for all below it. `reason` says why it has its tier, in words that follow
    "because".
    """

    text: str
    words: tuple[str, ...]
    tier: Tier
    reason: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a command line is. `read_only` only where each of its segments is, and nothing in it is unknown."""

    verdict: Literal["read_only", "needs_approval", "deny"]
    tier: Tier
    reason: str
    segments: tuple[Segment, ...] = ()


class Asks(Exception):
    """Why a command is not known to be read-only, in words that follow "because"; and how much it may do."""

    def __init__(self, reason: str, tier: Tier = Tier.READ_WRITE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tier = tier
