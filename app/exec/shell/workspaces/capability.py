"""Our workspace as `ctx.workspace` of an agent: same place, same policy as the agent's commands."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import stat
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    UnavailableWorkspace,
    WorkspaceBackend,
    WorkspaceError,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.protocol import WorkspaceCommand, validate_timeout

from shellback.exec.core.end_text import lost_text
from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import BackendUnavailable, CommandDenied, ExecError, InvalidCommand, PermissionDenied
from shellback.exec.core.errors import WorkspaceUnusable as Unusable
from shellback.exec.core.identity import Call, call_in_progress, calling, conversation_of, session_id
from shellback.exec.core.limits import BACKGROUND_TIMEOUT_MAX_S
from shellback.exec.core.model import CallOrigin, CommandSpec, EndedBy, Evidence, Session, SessionId, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import Outcome
from shellback.exec.files.files import Files
from shellback.exec.log.output import OutputLog
from shellback.exec.policy.policy import Policy
from shellback.exec.shell.permit import Authority, run_permitted
from shellback.exec.shell.protocol import AsyncFilesystem
from shellback.exec.shell.words import line_of
from shellback.exec.shell.workspaces.authority import ByCall, guarded
from shellback.exec.shell.workspaces.ground import Ground

CLOSED: Final = "tools have no workspace: ENABLE_EXECUTE is off"


class ClosedWorkspace(UnavailableWorkspace):
    """The workspace of a run that has none, because the gate is off or for `why`, also if its history has a `ref`."""

    def __init__(self, ref: WorkspaceRef | None, why: str = CLOSED) -> None:
        super().__init__(why)
        self._ref = ref

    @property
    def ref(self) -> WorkspaceRef | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The requested reference."""
        return self._ref


def nowhere() -> int:
    """The `place` without a durable engine."""
    return 0


@dataclass(init=False)
class RunWorkspaces(AbstractCapability[Any]):
    """Gives runs a workspace as `ctx.workspace`: what `workspace` returns, or a closed one while the gate is off.

    `name` is the workspace's in references. `place` is a number for each recorded step of a durable engine, 0 outside
    of one.
    """

    def __init__(self, name: str, *, enabled: bool, place: Callable[[], int]) -> None:
        self.id = "shellback_workspace"
        self._own = WorkspaceRef(provider=PROVIDER, id=name)
        self._enabled = enabled
        self._place = place

    @abstractmethod
    def workspace(
        self, ctx: RunContext[Any], own: WorkspaceRef, ref: WorkspaceRef | None, call: Callable[[], Call]
    ) -> WorkspaceBackend:
        """The workspace of a run, whose reference is `own` after its first operation; `call` names its commands."""
        raise NotImplementedError

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The workspace, or None if `ref` is of another one; a closed one while the gate is off."""
        if ref not in {None, self._own}:
            return None
        outside = Call(ctx)
        return (
            self.workspace(ctx, self._own, ref, lambda: call_in_progress() or outside)
            if self._open(ctx)
            else ClosedWorkspace(ref)
        )

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
        **_: Any,
    ) -> Any:
        """Attribute what the tool does to this call."""
        with calling(ctx):
            return await handler(args)

    def _open(self, ctx: RunContext[Any]) -> bool:
        recorded: object = getattr(ctx.deps, "gate", None)
        return recorded if isinstance(recorded, bool) else self._enabled


@dataclass(init=False)
class WorkspaceCapability(RunWorkspaces):
    """Gives runs the workspace of `engine` as `ctx.workspace`.

    An approved tool call may change the workspace; all others only read it. `name` is the workspace's in references;
    by default it is derived from host and path. `place` is a number for each recorded step of a durable engine, 0
    outside of one. `fenced` is entered around each command; `made` is awaited before each operation. `ground` finds the
    workspace of a run, or says why it has none.
    """

    def __init__(  # noqa: PLR0913 - the parts that a workspace is put together from
        self,
        engine: Engine,
        policy: Policy,
        files: Files,
        *,
        ground: Callable[[RunContext[Any]], Ground | str] | None = None,
        enabled: bool = True,
        name: str | None = None,
        place: Callable[[], int] = nowhere,
        fenced: Callable[[], AbstractContextManager[None]] = nullcontext,
        made: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(name or workspace_id(engine), enabled=enabled, place=place)
        own = Ground(engine=engine, policy=policy, files=files)

        def here(_: RunContext[Any]) -> Ground | str:
            return own

        self._ground = ground or here
        self._fenced = fenced
        self._made = made

    def workspace(
        self, ctx: RunContext[Any], own: WorkspaceRef, ref: WorkspaceRef | None, call: Callable[[], Call]
    ) -> WorkspaceBackend:
        """See `RunWorkspaces`."""
        scope, here = conversation_of(ctx), self._ground(ctx)
        if isinstance(here, str):
            return ClosedWorkspace(ref, here)
        return ShellbackWorkspace(
            here.engine,
            ByCall(here.engine, here.policy),
            guarded(here.files, here.policy, scope),
            origin=lambda: call().origin(1 + self._place()),
            scope=scope,
            name=own.id,
            ref=ref,
            # A durable engine asks at the start of every run: a turn also runs without its workspace.
            eager=self._place is nowhere,
            fenced=self._fenced,
            made=self._made,
        )


T = TypeVar("T")

PROVIDER: Final = "shellback"
"""The provider in references to a workspace."""
MOST_BYTES: Final = 10 * 1024 * 1024
"""The most that a command may print on both streams together."""
COMMAND_BYTES: Final = 96 * 1024
"""The kernel takes 128 KiB in one argument."""
BEGINNING_BYTES: Final = 64 * 1024
"""Bytes of each stream in an error."""
LOOK_S: Final = 0.5
"""Interval of the checks whether a running command printed too much or lost its workspace."""
AGAIN_S: Final = 0.02
END_S: Final = 15.0
"""Seconds to wait for the end of a command after its kill."""
_GONE: Final = frozenset({Evidence.CONTAINER_RESTARTED, Evidence.MACHINE_REBOOTED, Evidence.HOST_UNREACHABLE})


def workspace_id(engine: Engine) -> str:
    """The name of an engine's workspace; does not reveal its path."""
    named = f"{engine.host_id}\0{engine.workspace}"
    return "w" + hashlib.sha256(os.fsencode(named)).hexdigest()[:15]


class ShellbackWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The workspace of `engine`, for code that uses `ctx.workspace`.

    The directory exists before and stays. A `ref` of another or a missing workspace raises
    `WorkspaceUnavailableError` at the first operation. Commands of one `scope` share a sandbox. `origin` names each
    command: a replay with the same name does not start it again. `fenced` is entered around each command. Without
    `eager`, `working_dir` does not check that the directory exists. `made` is awaited before each operation.
    """

    def __init__(  # noqa: PLR0913 - the parts that a workspace is put together from
        self,
        engine: Engine,
        authority: Authority,
        files: AsyncFilesystem,
        *,
        origin: Callable[[], CallOrigin],
        scope: str = "",
        name: str | None = None,
        ref: WorkspaceRef | None = None,
        eager: bool = True,
        fenced: Callable[[], AbstractContextManager[None]] = nullcontext,
        made: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._made = made
        self.engine = engine
        self._authority = authority
        self._scope = scope
        self._ending = set[asyncio.Task[None]]()
        self._files = files
        self._origin = origin
        self._own = WorkspaceRef(provider=PROVIDER, id=name or workspace_id(engine))
        self._ref = ref
        self._eager = eager
        self._fenced = fenced
        self._place: tuple[int, int] | None = None
        self._first = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The reference; None before the first operation."""
        return self._ref

    async def working_dir(self) -> str:
        """The inner path of the directory; WorkspaceUnavailableError if it is gone."""
        if self._eager:
            await self._there()
        else:
            self._require_ours()
            self._ref = self._own
        return self.engine.backend.inner

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the protocol's
    ) -> CommandResult:
        """Run a command to its end: exact words, or with `shell` a line of bash. The default timeout is a week.

        Cancelling ends its tree. If only the worker stops, it runs on, and a replay of the call waits for it.

        Raises:
            TypeError: A string without `shell`, or words with it.
            ValueError: The command, an environment variable or the timeout is not acceptable.
            PermissionError: Policy denies it.
            WorkspaceTimeoutError: It timed out, and was killed.
            WorkspaceOutputLimitError: It printed more than 10 MiB, and was killed.
            WorkspaceUnavailableError: The workspace is gone, or commands cannot run here.
            WorkspaceError: It could not be started, or its end is unknown.
        """
        validate_timeout(timeout)
        if isinstance(command, str) is not shell:
            raise TypeError("a string needs shell=True, and a sequence of words shell=False")
        await self._there()
        spec = CommandSpec(
            command=line_of(command),
            cwd=str(self.engine.workspace),
            env=dict(env or {}),
            timeout_s=min(timeout or BACKGROUND_TIMEOUT_MAX_S, BACKGROUND_TIMEOUT_MAX_S),
            separate_stderr=True,
            # The supervisor keeps all that may be returned; more output ends the command.
            log_bytes=2 * MOST_BYTES,
        )
        with self._fenced(), _understood():
            return await self._run(spec, self._origin())

    async def read_bytes(self, path: str) -> bytes:
        """A file's content, at most 64 MiB."""
        return await self._on_files(self._files.read_bytes(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file through symlinks; creates parent directories."""
        await self._on_files(self._files.write_bytes(path, data))

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        await self._on_files(self._files.make_dir(path))

    async def remove(self, path: str) -> None:
        """Remove a file or a directory tree; never the workspace itself."""
        await self._on_files(self._files.remove(path))

    async def exists(self, path: str) -> bool:
        """Whether a path exists."""
        return await self._on_files(self._files.exists(path))

    async def realpath(self, path: str) -> str:
        """The path without symlinks, as far as it exists."""
        return await self._on_files(self._files.realpath(path))

    async def _on_files(self, act: Coroutine[Any, Any, T]) -> T:
        try:
            await self._there()
        except BaseException:
            act.close()
            raise
        with _understood():
            return await act

    async def stat(self, path: str) -> FileEntry:
        """The entry at a path; follows symlinks."""
        found = await self._on_files(self._files.stat(path))
        return FileEntry(name=found.name, path=path, is_dir=found.is_dir, size=found.size)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """The entries of a directory, sorted by name."""
        found = await self._on_files(self._files.list_dir(path))
        return [FileEntry(name=one.name, path=one.path, is_dir=one.is_dir, size=one.size) for one in found]

    async def _there(self) -> None:
        async with self._first:
            self._require_ours()
            if self._made is not None:
                await self._made()
            place = await asyncio.to_thread(_place, self.engine.workspace)
            if place is None or self._place not in {None, place}:
                # The inner path: models and persons read this.
                raise WorkspaceUnavailableError(f"the workspace {self.engine.backend.inner} is gone")
            self._place, self._ref = place, self._own

    def _require_ours(self) -> None:
        if self._ref not in {None, self._own}:
            raise WorkspaceUnavailableError(f"workspace {self._ref} is not the one that is here ({self._own.id})")

    async def _run(self, spec: CommandSpec, origin: CallOrigin) -> CommandResult:
        """Run a command to its end. Cancelling kills it; if the engine was stopped, it runs on for a replay."""
        if (size := len(spec.command.encode())) > COMMAND_BYTES:
            raise InvalidCommand(f"the command has {size} bytes; at most {COMMAND_BYTES} are accepted, use a file")
        check_env(spec.env)
        key = session_id(origin)
        running = asyncio.ensure_future(run_permitted(self.engine, self._authority, spec, self._scope, origin))
        try:
            outcome = await self._watched(running, key)
        except BaseException:
            if self.engine.started:
                with anyio.CancelScope(shield=True):
                    await self._ended(running, key)
            raise
        if outcome.session.end is None:
            # A person stopped the turn, and no other call waits for it.
            await self._ended(running, key)
            raise WorkspaceError(f"the wait for session {key} was given up, and its command has been ended")
        result = await self._result(outcome.session, spec)
        await self._there()
        return result

    async def _watched(self, running: asyncio.Future[Outcome], key: SessionId) -> Outcome:
        while True:
            await asyncio.wait({running}, timeout=LOOK_S)
            if running.done():
                return running.result()
            if self._printed(key) > MOST_BYTES:
                await self._ended(running, key)
                raise await self._too_much(key)
            await self._there()

    async def _ended(self, running: asyncio.Future[Outcome], key: SessionId) -> None:
        """Kill the tree of a command, also when cancelled."""
        task = asyncio.ensure_future(self._end(running, key))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def _end(self, running: asyncio.Future[Outcome], key: SessionId) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + END_S
        while clock() < deadline:
            session = await self.engine.store.get(key)
            if session is not None and session.end is None:
                session, _ = await Sessions(self.engine, None).end(session, by=EndedBy.AGENT)
            if running.done() and (session is None or session.end is not None):
                break
            # It may be claimed or started at any moment, without a notification.
            await asyncio.sleep(AGAIN_S)
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()

    async def _result(self, session: Session, spec: CommandSpec) -> CommandResult:
        end = session.end
        assert end is not None
        if self._printed(session.id) > MOST_BYTES:
            raise await self._too_much(session.id)
        if end.state is SessionState.START_FAILED:
            raise OSError(end.errno or 0, f"the command could not be started in session {session.id}")
        if end.state is SessionState.LOST:
            error = WorkspaceUnavailableError if end.evidence in _GONE else WorkspaceError
            raise error(lost_text(session.id, end))
        out, err = await self._texts(session.id)
        if end.state is SessionState.TIMED_OUT:
            said = f"the command had not ended after {spec.timeout_s:g} s, and was ended"
            raise WorkspaceTimeoutError(said, stdout=out, stderr=err)
        code = 128 + (end.signal or signal.SIGKILL) if end.exit_code is None else end.exit_code
        return CommandResult(exit_code=code, stdout=out, stderr=err)

    def _log(self, key: SessionId, *, err: bool) -> OutputLog:
        return OutputLog(self.engine.links.sessions / key, key, err=err, mask=self.engine.mask)

    def _printed(self, key: SessionId) -> int:
        return sum(self._log(key, err=err).size() for err in (False, True))

    async def _texts(self, key: SessionId, most: int = MOST_BYTES) -> tuple[str, str]:
        out, err = [(await self._log(key, err=err).shown(0, most))[0] for err in (False, True)]
        return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    async def _too_much(self, key: SessionId) -> WorkspaceOutputLimitError:
        out, err = await self._texts(key, BEGINNING_BYTES)
        return WorkspaceOutputLimitError(
            f"the command printed more than {MOST_BYTES // 1024**2} MiB; let it print into a file, and read that",
            limit=MOST_BYTES,
            stdout=out,
            stderr=err,
        )


def _place(directory: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


@contextmanager
def _understood() -> Generator[None]:
    """Convert errors to those of the workspace protocol: a durable engine preserves only these."""
    try:
        yield
    except (CommandDenied, PermissionDenied) as error:
        raise PermissionError(str(error)) from None
    except (OSError, InvalidCommand):
        raise
    except (BackendUnavailable, Unusable) as error:
        raise WorkspaceUnavailableError(str(error)) from None
    except ExecError as error:
        raise WorkspaceError(str(error)) from None
