"""Findings: things in a workspace that a person must check, and where they are reported.

A finding says what was found and where, never the contents of a file. It stays open until a person acknowledges it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from shellback.exec.core.identity import digest_of

REPOSITORY: Final = "repository"
"""A command made a repository whose configuration or hooks would run programs."""
GITLINK: Final = "gitlink"
"""A command added a nested repository to the index of a protected one: git outside reads that one too."""
HARD_LINK: Final = "hard_link"
"""A protected file has another name, by which a command could write it."""
LOST_MOUNT: Final = "lost_mount"
"""A file lost the protection of its mount while a command ran."""
UNSEEN: Final = "unseen"
"""Some files that a command made could not be inspected."""
KINDS: Final = (REPOSITORY, GITLINK, HARD_LINK, LOST_MOUNT, UNSEEN)

DETAIL_CHARS: Final = 1_000
PATH_CHARS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A thing in a workspace that a person must check.

    `id` is derived from the facts (`finding_id`), so a repeated inspection finds the same. `path` is this machine's.
    `detail` is one sentence; it names settings and files, and quotes no contents. `kept` is where a removed file was
    moved, or None. `session_id` is the session that may have caused it, or "".
    """

    id: str
    kind: str
    path: str
    detail: str
    session_id: str = ""
    conversation_id: str = ""
    kept: str | None = None
    created_at: float = field(default_factory=time.time)
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None

    def __post_init__(self) -> None:
        """Replace bytes that are not UTF-8, which names of files may have and stores refuse."""
        for name, most in (("path", PATH_CHARS), ("detail", DETAIL_CHARS), ("kept", PATH_CHARS)):
            value = getattr(self, name)
            if value is not None:
                text = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                object.__setattr__(self, name, text[:most])

    @property
    def open(self) -> bool:
        """Whether it is not acknowledged yet."""
        return self.acknowledged_at is None

    @property
    def sentence(self) -> str:
        """What was found and what was done about it, for a person or an agent."""
        return f"{self.detail} (finding {self.id})"


def finding_id(kind: str, path: str, *what: object) -> str:
    """The id of a finding; `what` distinguishes findings of a kind at one path: an inode, a session, a time."""
    return "f" + digest_of(kind, path, *map(str, what))[:15]


class FindingSink(Protocol):
    """Records findings."""

    async def found(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """Record the findings with new ids, and return them; others stay unchanged. Cancelling records all or none."""
        ...

    async def of(self, session_id: str) -> Sequence[Finding]:
        """The findings of this session, oldest first."""
        ...


class MemoryFindings(FindingSink):
    """Keeps findings in memory."""

    def __init__(self) -> None:
        self.all: dict[str, Finding] = {}

    async def found(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        new = [one for one in findings if one.id not in self.all]
        self.all |= {one.id: one for one in new}
        return new

    async def of(self, session_id: str) -> Sequence[Finding]:
        return [one for one in self.all.values() if one.session_id == session_id]
