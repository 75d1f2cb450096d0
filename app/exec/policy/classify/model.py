"""The nouns of a judgement: tiers, segments, and where a command would run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, NamedTuple

from shellback.exec.core.secrets import Secrets


class Tier(IntEnum):
    """How much a command may do, in order (spec 002)."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3

    def __str__(self) -> str:
        """The name in texts and JSON."""
        return self.name.lower()


class Capabilities(NamedTuple):
    """An explanation of a tier for people. It enforces nothing; the profile does."""

    fs_read: bool
    fs_write: bool
    network: bool
    process_spawn: bool


CAPABILITIES: Final[Mapping[Tier, Capabilities]] = {
    Tier.READ_ONLY: Capabilities(fs_read=True, fs_write=False, network=False, process_spawn=True),
    Tier.READ_WRITE: Capabilities(fs_read=True, fs_write=True, network=False, process_spawn=True),
    Tier.ADMIN: Capabilities(fs_read=True, fs_write=True, network=True, process_spawn=True),
}
"""An explanation of the tiers. The profile decides, whatever the tier: `read_only` neither writes nor connects, `work`
writes the workspace and connects if `NETWORK` is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a command would run. Paths are absolute.

    `allowed` are the directories that it may name, without symlinks; `secret` tells whether a path may be a secret.
    `sandboxed` is False on the host, where a repository's configuration could run programs. `home` is the value of `~`.
    `state` is our state directory, which no command may name. `held` opens a directory that this user cannot reach by
    its path. `search` is the PATH for programs.
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
    """One command of the line.

    `words` are the program's name and arguments; empty if unknown. `paths` are the files that it names; a slash at the
    end stands for everything below. `reason` explains its tier, to follow "because".
    """

    text: str
    words: tuple[str, ...]
    tier: Tier
    reason: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The classification of a command line. `read_only`: each segment is, and nothing in the line is unknown."""

    verdict: Literal["read_only", "needs_approval", "deny"]
    tier: Tier
    reason: str
    segments: tuple[Segment, ...] = ()


class Asks(Exception):
    """The reason why a command is not known to be read-only, to follow "because", and its tier."""

    def __init__(self, reason: str, tier: Tier = Tier.READ_WRITE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tier = tier
