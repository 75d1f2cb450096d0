"""Files of a workspace for the code of tools: no secrets are read, and nothing is changed that nobody approved."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shellback.exec.backends.protected import Protected
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import call_in_progress
from shellback.exec.files import Entry, Files, Protection
from shellback.exec.policy.policy import Policy
from shellback.exec.shell.workspaces.authority import writing_refused

Withheld = Callable[[], Awaitable[Callable[[Path], str | None]]]
"""Makes what says why a file, as this machine names it, is not shown; None where it is."""


@dataclass(frozen=True, slots=True)
class GuardedFiles:
    """`files` as far as the running code may have them.

    Paths are as commands see them, or relative to the workspace. Besides what `Files` raises, each method raises
    `CommandDenied`, a `PermissionError`: for what may be a secret, and for a change that nobody approved.
    """

    files: Files
    refused: Callable[[str], str | None]
    withheld: Withheld

    async def read_bytes(self, path: str) -> bytes:
        """All of a file, at most 64 MiB."""
        return await self.files.read_bytes(path, check=await self._shown(path))

    async def read_text(self, path: str) -> str:
        """All of a file as UTF-8.

        Raises:
            UnicodeDecodeError: It is something else.
        """
        return (await self.read_bytes(path)).decode()

    async def write_bytes(self, path: str, data: bytes) -> Entry:
        """Write all of a file and make the directories that it is in; a repeat changes nothing."""
        self._change(path)
        return await self.files.write_bytes(path, data, check=await self._shown(path))

    async def write_text(self, path: str, text: str) -> Entry:
        """Write a file as UTF-8."""
        return await self.write_bytes(path, text.encode())

    async def stat(self, path: str) -> Entry:
        """What is there, links followed."""
        return await self.files.stat(path)

    async def list_dir(self, path: str = ".") -> Sequence[Entry]:
        """What a directory holds, sorted by name."""
        return await self.files.list_dir(path)

    async def exists(self, path: str) -> bool:
        """Whether there is something."""
        return await self.files.exists(path)

    async def realpath(self, path: str) -> str:
        """The path without links."""
        return await self.files.realpath(path)

    async def make_dir(self, path: str) -> None:
        """Make a directory and those that it is in; one that is there is left."""
        self._change(path)
        await self.files.make_dir(path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all that it holds; never the workspace."""
        self._change(path)
        await self.files.remove(path, check=await self._shown(path))

    async def close(self) -> None:
        """Let go of its threads."""
        await self.files.close()

    def _change(self, path: str) -> None:
        if why := self.refused(path):
            raise CommandDenied(why)

    async def _shown(self, path: str) -> Callable[[str, int | None], None]:
        """Refuses what is found there once nobody can put something else there, where it is a secret."""
        withheld = await self.withheld()
        inner = PurePosixPath(self.files.inner)

        def check(found: str, _descriptor: int | None) -> None:
            if why := withheld(self.files.workspace / PurePosixPath(found).relative_to(inner)):
                raise CommandDenied(f"{path} is left alone: {why}")

        return check


def files_of(backend: Backend) -> Files:
    """The files that commands of a backend work on, reached as whoever runs these; what it protects is not changed."""
    protected: Protected | None = getattr(backend, "protected", None)
    # Where commands run as somebody else of our group, what we make has to be theirs to change.
    shared = os.geteuid() not in {0, backend.uid}
    return Files(
        backend.workspace,
        inner=backend.inner,
        uid=backend.uid,
        umask=0o002 if shared else 0o022,
        forbidden=None if protected is None else Protection(protected, backend.workspace, inner=backend.inner),
    )


def guarded(files: Files, policy: Policy, conversation_id: str, *, owned: bool = False) -> GuardedFiles:
    """Files for the code of tools of one conversation; with `owned`, code outside of a tool call does as it likes."""

    def free() -> bool:
        return owned and call_in_progress() is None

    def refused(what: str) -> str | None:
        return None if free() else writing_refused(what)

    async def withheld() -> Callable[[Path], str | None]:
        return (lambda _: None) if free() else await policy.withheld(conversation_id)

    return GuardedFiles(files, refused, withheld)
