"""What the code of a tool may do: change things if its call was approved, else only read, without secrets."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from shellback.exec.backends.protected import Protected
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import Call, call_in_progress, call_key, origin_of
from shellback.exec.core.model import APPROVED, CommandSpec
from shellback.exec.core.pydantic_private import get_current_run_context
from shellback.exec.engine.engine import Engine
from shellback.exec.files.entries import Entry
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Approval, Grant, Policy, Verdict
from shellback.exec.shell.permit import permit

TOOL: Final = "ctx.workspace"
"""The tool name outside of any tool call."""


def approved(call: Call) -> bool:
    """Whether this tool call was approved, also on record if there are records.

    False after the call is over, and for tools of another agent that it runs.
    """
    if call.over or not call.ctx.tool_call_approved:
        return False
    running = get_current_run_context()
    if running is not None and running.run_id != call.ctx.run_id:
        return False
    on_record, approval = _recorded(call)
    return not on_record or approval is not None


def _recorded(call: Call) -> tuple[bool, Approval | None]:
    """Whether approvals are recorded, and that of this call."""
    approval_for: Callable[[str], Approval | None] | None = getattr(call.ctx.deps, "approval_for", None)
    return (False, None) if approval_for is None else (True, approval_for(call_key(origin_of(call.ctx))))


def writing_refused(what: str) -> str | None:
    """Why the running code may not change `what`; None if it may."""
    call = call_in_progress()
    if call is not None and approved(call):
        return None
    tool = "code outside of a tool call" if call is None else f"this call of {call.ctx.tool_name}"
    return (
        f"{what} is not changed: nobody approved {tool}, so it may only read. Give the tool requires_approval=True, or"
        " let it raise ApprovalRequired before it changes anything"
    )


@dataclass(frozen=True, slots=True)
class ByCall:
    """Permits the commands of an approved tool call; all others may only read. Denials of policy hold for both."""

    engine: Engine
    policy: Policy

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        """The grant for the command as it may run.

        Raises:
            CommandDenied: Policy denies it, or the call is not approved and the backend has no read-only profile.
            PermissionDenied: The tier is too low.
        """
        call = call_in_progress()
        tool = (call.ctx.tool_name if call is not None else None) or TOOL
        if call is None or not approved(call):
            return await permit(self.engine, self.policy, spec, scope, tool=tool)
        _, approval = _recorded(call)
        yes = Verdict(
            decision="allow",
            reason="its tool call was approved",
            by=APPROVED,
            approval_id=None if approval is None else approval.id,
        )
        return await permit(self.engine, self.policy, spec, scope, tool=tool, approved=yes)


Withheld = Callable[[], Awaitable[Callable[[Path], str | None]]]
"""Makes a function that says why a file is withheld, by its path on this machine; None if it is shown."""


@dataclass(frozen=True, slots=True)
class GuardedFiles:
    """The part of `files` that the running code may use. Paths are inner paths, or relative to the workspace.

    Besides the errors of `Files`, methods raise `CommandDenied` (a PermissionError) for possible secrets and for
    unapproved changes.
    """

    files: Files
    refused: Callable[[str], str | None]
    withheld: Withheld

    async def read_bytes(self, path: str) -> bytes:
        """All of a file, at most 64 MiB."""
        return await self.files.read_bytes(path, check=await self._shown(path))

    async def read_text(self, path: str) -> str:
        """All of a file as UTF-8; UnicodeDecodeError for anything else."""
        return (await self.read_bytes(path)).decode()

    async def write_bytes(self, path: str, data: bytes) -> Entry:
        """Write a file and make its parent directories; idempotent."""
        self._change(path)
        return await self.files.write_bytes(path, data, check=await self._shown(path))

    async def write_text(self, path: str, text: str) -> Entry:
        """Write a file as UTF-8."""
        return await self.write_bytes(path, text.encode())

    async def stat(self, path: str) -> Entry:
        """The entry at a path; follows symlinks."""
        return await self.files.stat(path)

    async def list_dir(self, path: str = ".") -> Sequence[Entry]:
        """The entries of a directory, sorted by name."""
        return await self.files.list_dir(path)

    async def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return await self.files.exists(path)

    async def realpath(self, path: str) -> str:
        """The path without symlinks."""
        return await self.files.realpath(path)

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents, unless they exist."""
        self._change(path)
        await self.files.make_dir(path)

    async def remove(self, path: str) -> None:
        """Remove a file, a symlink or a directory tree; never the workspace."""
        self._change(path)
        await self.files.remove(path, check=await self._shown(path))

    async def close(self) -> None:
        """End its threads."""
        await self.files.close()

    def _change(self, path: str) -> None:
        if why := self.refused(path):
            raise CommandDenied(why)

    async def _shown(self, path: str) -> Callable[[str, int | None], None]:
        """A check, for after the path is pinned, that refuses a secret."""
        withheld = await self.withheld()
        inner = PurePosixPath(self.files.inner)

        def check(found: str, _descriptor: int | None) -> None:
            if why := withheld(self.files.workspace / PurePosixPath(found).relative_to(inner)):
                raise CommandDenied(f"{path} is left alone: {why}")

        return check


def files_of(backend: Backend) -> Files:
    """The workspace of a backend, accessed as its command user; protected files are not changed."""
    protected: Protected | None = getattr(backend, "protected", None)
    # If commands run as another user of our group, they must be able to change what we make.
    shared = os.geteuid() not in {0, backend.uid}
    return Files(
        backend.workspace,
        inner=backend.inner,
        uid=backend.uid,
        umask=0o002 if shared else 0o022,
        forbidden=None if protected is None else partial(protected.forbids, backend.inner),
    )


def guarded(files: Files, policy: Policy, conversation_id: str, *, owned: bool = False) -> GuardedFiles:
    """Files for the code of tools of one conversation; with `owned`, code outside of a tool call is not restricted."""

    def free() -> bool:
        return owned and call_in_progress() is None

    def refused(what: str) -> str | None:
        return None if free() else writing_refused(what)

    async def withheld() -> Callable[[Path], str | None]:
        return (lambda _: None) if free() else await policy.withheld(conversation_id)

    return GuardedFiles(files, refused, withheld)
