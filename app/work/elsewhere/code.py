"""What the code of tools has in a turn elsewhere: shell, files and workspace, whose operations its host carries out."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import anyio
from pydantic_ai import RunContext
from pydantic_ai.workspaces import (
    CommandResult,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceRef,
)
from pydantic_ai.workspaces.protocol import WorkspaceCommand

from shellback.exec.core.errors import BackendUnavailable, InvalidCommand
from shellback.exec.core.identity import Call, call_in_progress, session_id
from shellback.exec.files.entries import Entry
from shellback.exec.shell.async_shell import AsyncShell, is_name
from shellback.exec.shell.protocol import AsyncFilesystem, EnvironmentSnapshot, ExecutionResult, WhichResult
from shellback.exec.shell.running import Chunk, Running, ShellSession
from shellback.exec.shell.workspaces.authority import approved
from shellback.exec.shell.workspaces.capability import END_S, ClosedWorkspace, RunWorkspaces
from shellback.exec.shell.workspaces.ground import Described
from shellback.work.elsewhere import acting, lines, values
from shellback.work.elsewhere.link import HostLink
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.equipment import next_origin, place_in_turn
from shellback.work.turn.hearing import HostLost, fenced

log = logging.getLogger(__name__)

CANCEL_S: Final = END_S + 5.0
_ONLY_AT_ITS_HOST: Final = (
    "code of a turn that runs on another machine than its processes starts no background commands or persistent shells:"
    " let the agent call execute with background=true, or run the turn by a worker of the host"
)


@dataclass(frozen=True, slots=True)
class Code:
    """Asks the host of a turn for what the code of its tools does."""

    link: HostLink
    deps: TurnDeps

    async def ask(self, operation: str, *args: Any, **options: Any) -> Any:
        """The result of an operation that starts no command, see `acting.OPERATIONS`. Cancelling ends the wait.

        Raises:
            Exception: What the operation raises.
            Fenced: Another execution holds the conversation.
            HostLost: The host is gone.
        """
        return values.came((await self._answer(self._asked(operation, args, options)))["value"])

    async def run(self, operation: str, call: Call | None, *args: Any, **options: Any) -> Any:
        """The result of an operation that starts a command of `call`, if it starts one. Raises as `ask`.

        Cancelling cancels the operation on the host, unless the worker itself stops.
        """
        asked = self._asked(operation, args, options)
        origin = next_origin(self.deps, call)
        asked |= {"named": asdict(origin), "key": session_id(origin)}
        try:
            answer = await self._answer(asked, lambda: call is None or call.unused(origin))
        except asyncio.CancelledError:
            if self.link.open:
                with anyio.CancelScope(shield=True):
                    await self._cancel(asked)
            raise
        return values.came(answer["value"])

    async def _cancel(self, asked: lines.Message) -> None:
        try:
            await self.link.ask_within(CANCEL_S, "cancel", key=asked["key"], **self._whose)
        except (Exception, HostLost) as error:  # noqa: BLE001 - whoever cancelled it is to hear of that alone
            log.info("what code does on its host may go on: %s", error or type(error).__name__)

    @property
    def _whose(self) -> lines.Message:
        deps = self.deps
        return {"conversation": deps.conversation_id, "turn": deps.turn_id, "epoch": deps.epoch}

    def _asked(self, operation: str, args: Sequence[Any], options: Mapping[str, Any]) -> lines.Message:
        return {
            **self._whose,
            "operation": operation,
            "args": values.sent(args),
            "options": values.sent(options),
            "named": None,
            "call": _call(),
            "key": uuid.uuid4().hex,
        }

    async def _answer(self, asked: lines.Message, unused: Callable[[], object] = lambda: None) -> lines.Message:
        with fenced():
            answer: lines.Message = await self.link.ask("act", **asked)
        if not answer["used"]:
            unused()
        if "raised" in answer:
            raise values.raised(answer["raised"])
        return answer


def _call() -> lines.Message | None:
    """The running call of a tool as a host is told of it; None outside of one."""
    call = call_in_progress()
    if call is None:
        return None
    tool = call.ctx.tool_name or ""
    try:
        return {**lines.call_of(call.ctx, tool, {}), "approved": approved(call)}
    except InvalidCommand:  # no model proposed it, so nobody approved it
        return {"tool": tool, "args": {}, "approved": False, "origin": None}


class ShellElsewhere(AsyncShell):
    """The shell of a turn elsewhere. Background commands and persistent shells are refused.

    Code whose commands have to run on after their call lets the agent start them.
    """

    def __init__(self, code: Code, facts: Mapping[str, Any]) -> None:
        self._code = code
        self._facts = facts
        self.default_timeout = float(facts["default_timeout"])

    @property
    def backend_name(self) -> str:
        return self._facts["backend_name"]

    @property
    def sandboxed(self) -> bool:
        return self._facts["sandboxed"]

    @property
    def network_enabled(self) -> bool:
        return self._facts["network_enabled"]

    async def execute(self, command: str | Sequence[str], **how: Any) -> ExecutionResult:
        return await self._code.run("shell.execute", call_in_progress(), command, **how)

    async def execute_script(self, script: str, **how: Any) -> ExecutionResult:
        return await self._code.run("shell.execute_script", call_in_progress(), script, **how)

    async def which(self, command: str) -> WhichResult:
        if self.sandboxed and is_name(command):
            return await self._code.run("shell.which", call_in_progress(), command)
        return await self._code.ask("shell.which", command)

    async def env(self) -> EnvironmentSnapshot:
        return await self._code.ask("shell.env")

    async def spawn(self, command: str | Sequence[str], **_: Any) -> Running:  # noqa: ARG002 - the protocol's
        """Refuse to."""
        raise BackendUnavailable(_ONLY_AT_ITS_HOST)

    async def session(self, **_: Any) -> ShellSession:
        """Refuse to."""
        raise BackendUnavailable(_ONLY_AT_ITS_HOST)

    async def stream(self, command: str | Sequence[str], **_: Any) -> AsyncGenerator[Chunk]:
        """Refuse to."""
        async for chunk in (await self.spawn(command)).stream():
            yield chunk


class _Files:
    """Operations on files that the host carries out; at most 16 MiB are read or written at once."""

    def __init__(self, code: Code, what: str) -> None:
        self._code = code
        self._what = what

    async def _do(self, operation: str, *args: Any) -> Any:
        return await self._code.ask(f"{self._what}.{operation}", *args)

    async def read_bytes(self, path: str) -> bytes:
        return await self._do("read_bytes", path)

    async def write_bytes(self, path: str, data: bytes) -> Any:
        acting.require_size(len(data))
        return await self._do("write_bytes", path, data)

    async def stat(self, path: str) -> Any:
        return await self._do("stat", path)

    async def list_dir(self, path: str = ".") -> Sequence[Any]:
        return list(await self._do("list_dir", path))

    async def exists(self, path: str) -> bool:
        return await self._do("exists", path)

    async def realpath(self, path: str) -> str:
        return await self._do("realpath", path)

    async def make_dir(self, path: str) -> None:
        await self._do("make_dir", path)

    async def remove(self, path: str) -> None:
        await self._do("remove", path)


class FilesElsewhere(_Files, AsyncFilesystem):
    """The files of a turn elsewhere, see `GuardedFiles`."""

    def __init__(self, code: Code) -> None:
        super().__init__(code, "files")

    async def read_text(self, path: str) -> str:
        """All of a file as UTF-8; UnicodeDecodeError for anything else."""
        return (await self.read_bytes(path)).decode()

    async def write_text(self, path: str, text: str) -> Entry:
        """Write a file as UTF-8."""
        return await self.write_bytes(path, text.encode())


class WorkspaceElsewhere(_Files, WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The workspace of a turn elsewhere, see `ShellbackWorkspace`; its reference is `own`, or None at first."""

    def __init__(
        self, code: Code, inner: str, call: Callable[[], Call], own: WorkspaceRef, ref: WorkspaceRef | None
    ) -> None:
        super().__init__(code, "workspace")
        self._inner = inner
        self._call = call
        self._own = own
        self._ref = ref

    @property
    def ref(self) -> WorkspaceRef | None:
        """The reference; None before the first operation."""
        return self._ref

    async def working_dir(self) -> str:
        """The inner path of the directory."""
        self._ref = self._own
        return self._inner

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the protocol's
    ) -> CommandResult:
        """Run a command to its end. Cancelling ends its tree."""
        self._ref = self._own
        how: dict[str, Any] = {"shell": shell, "env": env, "timeout": timeout}
        return await self._code.run("workspace.run", self._call(), command, **how)

    async def _do(self, operation: str, *args: Any) -> Any:
        done = await super()._do(operation, *args)
        self._ref = self._own
        return done


class WorkspacesElsewhere(RunWorkspaces):
    """Gives turns elsewhere their workspace as `ctx.workspace`; `at` finds the link to a host."""

    def __init__(self, at: Callable[[str], HostLink], *, enabled: bool) -> None:
        super().__init__("worker", enabled=enabled, place=place_in_turn)
        self._at = at

    def workspace(
        self, ctx: RunContext[Any], own: WorkspaceRef, ref: WorkspaceRef | None, call: Callable[[], Call]
    ) -> WorkspaceBackend:
        """See `RunWorkspaces`."""
        deps: TurnDeps = ctx.deps
        if not isinstance(deps.ground, Described):
            return ClosedWorkspace(ref, str(deps.ground or "this run has no workspace"))
        return WorkspaceElsewhere(Code(self._at(deps.host_id), deps), deps.ground.inner, call, own, ref)
