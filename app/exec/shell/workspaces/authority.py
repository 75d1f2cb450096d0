"""What the code of a tool may do: as much as a person approved its call for, else only read, and no secret."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from shellback.exec.backends.protected import Protected
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import Call, call_in_progress, call_key, origin_of
from shellback.exec.core.model import CommandSpec
from shellback.exec.core.pydantic_private import get_current_run_context
from shellback.exec.engine.engine import Engine
from shellback.exec.files.entries import Entry
from shellback.exec.files.files import Files
from shellback.exec.files.protection import Protection
from shellback.exec.policy.policy import Approval, Grant, Policy, Verdict
from shellback.exec.shell.permit import APPROVED, permit

TOOL: Final = "ctx.workspace"
"""Who asks outside of any tool call."""


def approved(call: Call) -> bool:
    """Whether a person has said yes to this very tool call; where approvals are on record, there too.

    What its code left behind has no part in that once the call is over, and no tool of another agent that it runs.
    """
    if call.over or not call.ctx.tool_call_approved:
        return False
    running = get_current_run_context()
    if running is not None and running.run_id != call.ctx.run_id:
        return False
    on_record, approval = _recorded(call)
    return not on_record or approval is not None


def _recorded(call: Call) -> tuple[bool, Approval | None]:
    """Whether approvals are on record, and the one of this call."""
    approval_for: Callable[[str], Approval | None] | None = getattr(call.ctx.deps, "approval_for", None)
    return (False, None) if approval_for is None else (True, approval_for(call_key(origin_of(call.ctx))))


def writing_refused(what: str) -> str | None:
    """Why the running code may not change `what`; None where it may."""
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
    """Lets commands of an approved tool call run as that call's; all others are held to reading.

    What policy denies is denied to both.
    """

    engine: Engine
    policy: Policy

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        """The grant for the command as it may run.

        Raises:
            CommandDenied: Policy refuses it, or nobody approved the call and nothing could hold it to reading.
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
        """All of a file as UTF-8; UnicodeDecodeError if it is something else."""
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
