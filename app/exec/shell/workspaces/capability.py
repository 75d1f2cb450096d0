"""Gives an agent our workspace: whatever uses `ctx.workspace` runs where the agent's commands do, under one policy."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
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

CLOSED: Final = "tools have no workspace: ENABLE_EXECUTE is off"


class ClosedWorkspace(UnavailableWorkspace):
    """What a run has while the gate is off, also where its history names the workspace that it had before."""

    def __init__(self, ref: WorkspaceRef | None) -> None:
        super().__init__(CLOSED)
        self._ref = ref

    @property
    def ref(self) -> WorkspaceRef | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What was asked for."""
        return self._ref


def nowhere() -> int:
    """The place of commands where nothing is ever replayed."""
    return 0


@dataclass(init=False)
class WorkspaceCapability(AbstractCapability[Any]):
    """Gives runs the workspace of `engine` as `ctx.workspace`.

    Commands and files are as `policy` has them: a tool call that a person approved may change the workspace, every
    other only read it. `name` is that of the workspace in references to it; without one it follows from where it is.
    `place` tells steps of a durable engine apart whose outcome is recorded, 0 outside of one. `fenced` is entered
    around each command, `made` waited for before anything is done.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        files: Files,
        *,
        enabled: bool = True,
        name: str | None = None,
        place: Callable[[], int] = nowhere,
        fenced: Callable[[], AbstractContextManager[None]] = nullcontext,
        made: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._made = made
        self.id = "shellback_workspace"
        self._engine = engine
        self._policy = policy
        self._files = files
        self._enabled = enabled
        self._name = name or workspace_id(engine)
        self._place = place
        self._fenced = fenced

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The workspace, unless another one is asked for; one that is closed while the gate is off."""
        if ref not in {None, WorkspaceRef(provider=PROVIDER, id=self._name)}:
            return None
        if not self._open(ctx):
            return ClosedWorkspace(ref)
        scope = conversation_of(ctx)
        return ShellbackWorkspace(
            self._engine,
            ByCall(self._engine, self._policy),
            guarded(self._files, self._policy, scope),
            origin=self._names(ctx),
            scope=scope,
            name=self._name,
            ref=ref,
            # A durable engine asks at the beginning of every run: a turn goes on without a workspace, as far as it can.
            eager=self._place is nowhere,
            fenced=self._fenced,
            made=self._made,
        )

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
        **_: Any,
    ) -> Any:
        """Let what the tool does be known as this call's."""
        with calling(ctx):
            return await handler(args)

    def _open(self, ctx: RunContext[Any]) -> bool:
        recorded: object = getattr(ctx.deps, "gate", None)
        return recorded if isinstance(recorded, bool) else self._enabled

    def _names(self, ctx: RunContext[Any]) -> Callable[[], CallOrigin]:
        outside = Call(ctx)
        return lambda: (call_in_progress() or outside).origin(1 + self._place())


T = TypeVar("T")

PROVIDER: Final = "shellback"
"""Who owns a workspace, in references to it."""


def workspace_id(engine: Engine) -> str:
    """Names the workspace of an engine, without telling where it is."""
    named = f"{engine.host_id}\0{engine.workspace}"
    return "w" + hashlib.sha256(os.fsencode(named)).hexdigest()[:15]


class ShellbackWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The workspace of `engine`, for code that uses `ctx.workspace`.

    The directory is the environment; it is there before, and stays. A `ref` of another one, or of one that is gone,
    raises `WorkspaceUnavailableError` at the first operation. Commands of one `scope` share a sandbox. `origin` names
    each command: one that has the same name on a repeat is not started again. `fenced` is entered around each.
    Without `eager`, asking for the directory does not look whether it is there. `made` is waited for before anything
    is done, where it may have to be made first.
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
        self._commands = Commands(engine, authority, scope)
        self.engine = engine
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
        """`shellback` and a name that is no path; None until something was done in it."""
        return self._ref

    async def working_dir(self) -> str:
        """The directory that commands start in, as they see it; WorkspaceUnavailableError if it is gone."""
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
        """Run a command to its end: words as they are, or with `shell` a line of bash.

        Without a `timeout` it has a week. Cancelling ends it with all that it started in the foreground; where only
        the worker stops it runs on, and the repeat of the call goes on with it.

        Raises:
            TypeError: A string without `shell`, or words with it.
            ValueError: The command, an environment variable or the timeout is not acceptable.
            PermissionError: Policy refuses it.
            WorkspaceTimeoutError: It was out of time, and has been ended.
            WorkspaceOutputLimitError: It printed more than 10 MiB, and has been ended.
            WorkspaceUnavailableError: The workspace is gone, or commands cannot run here.
            WorkspaceError: It could not be started, or how it ended is not known.
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
            # The supervisor keeps all that may be returned; what is beyond ends the command.
            log_bytes=2 * MOST_BYTES,
        )
        with self._fenced(), _understood():
            return await self._commands.run(spec, self._origin(), self._there)

    async def read_bytes(self, path: str) -> bytes:
        """A file's content, at most 64 MiB."""
        return await self._on_files(self._files.read_bytes(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file through links, and make the directories that it is in."""
        await self._on_files(self._files.write_bytes(path, data))

    async def make_dir(self, path: str) -> None:
        """Make a directory and those that it is in."""
        await self._on_files(self._files.make_dir(path))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with what it holds; never the workspace itself."""
        await self._on_files(self._files.remove(path))

    async def exists(self, path: str) -> bool:
        """Whether a path names anything."""
        return await self._on_files(self._files.exists(path))

    async def realpath(self, path: str) -> str:
        """The path without links, as far as it exists."""
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
        """What a path names, links followed."""
        found = await self._on_files(self._files.stat(path))
        return FileEntry(name=found.name, path=path, is_dir=found.is_dir, size=found.size)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """What a directory holds, sorted by name."""
        found = await self._on_files(self._files.list_dir(path))
        return [FileEntry(name=one.name, path=one.path, is_dir=one.is_dir, size=one.size) for one in found]

    async def _there(self) -> None:
        async with self._first:
            self._require_ours()
            if self._made is not None:
                await self._made()
            place = await asyncio.to_thread(_place, self.engine.workspace)
            if place is None or self._place not in {None, place}:
                # Named as commands see it: this goes to a model, and to those who watch it.
                raise WorkspaceUnavailableError(f"the workspace {self.engine.backend.inner} is gone")
            self._place, self._ref = place, self._own

    def _require_ours(self) -> None:
        if self._ref not in {None, self._own}:
            raise WorkspaceUnavailableError(f"workspace {self._ref} is not the one that is here ({self._own.id})")


def _place(directory: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


@contextmanager
def _understood() -> Generator[None]:
    """Raise what those who use workspaces know: a durable engine carries only these as they are."""
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


MOST_BYTES: Final = 10 * 1024 * 1024
"""So much may a command print on both streams together."""
COMMAND_BYTES: Final = 96 * 1024
"""The kernel takes 128 KiB in one argument."""
BEGINNING_BYTES: Final = 64 * 1024
"""What an error shows of each stream."""
LOOK_S: Final = 0.5
"""How often it is looked whether a running command has printed too much or lost its workspace: nobody tells."""
AGAIN_S: Final = 0.02
END_S: Final = 15.0
"""How long a command that was ended is waited for."""
_GONE: Final = frozenset({Evidence.CONTAINER_RESTARTED, Evidence.MACHINE_REBOOTED, Evidence.HOST_UNREACHABLE})


@dataclass(slots=True, eq=False)
class Commands:
    """Runs commands through one engine, under one authority, in one scope."""

    _engine: Engine
    _authority: Authority
    _scope: str
    _ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def run(self, spec: CommandSpec, origin: CallOrigin, there: Callable[[], Awaitable[None]]) -> CommandResult:
        """Run a command to its end; `there` raises when it has lost its workspace.

        Cancelling ends it, unless the engine has been stopped: then it runs on for the repeat of the call.
        """
        if (size := len(spec.command.encode())) > COMMAND_BYTES:
            raise InvalidCommand(f"the command has {size} bytes; at most {COMMAND_BYTES} are accepted, use a file")
        check_env(spec.env)
        key = session_id(origin)
        running = asyncio.ensure_future(run_permitted(self._engine, self._authority, spec, self._scope, origin))
        try:
            outcome = await self._watched(running, key, there)
        except BaseException:
            if self._engine.started:
                with anyio.CancelScope(shield=True):
                    await self._ended(running, key)
            raise
        if outcome.session.end is None:
            # A person stopped the turn, and nobody else waits for it.
            await self._ended(running, key)
            raise WorkspaceError(f"the wait for session {key} was given up, and its command has been ended")
        result = await self._result(outcome.session, spec)
        await there()
        return result

    async def _watched(
        self, running: asyncio.Future[Outcome], key: SessionId, there: Callable[[], Awaitable[None]]
    ) -> Outcome:
        while True:
            await asyncio.wait({running}, timeout=LOOK_S)
            if running.done():
                return running.result()
            if self._printed(key) > MOST_BYTES:
                await self._ended(running, key)
                raise await self._too_much(key)
            await there()

    async def _ended(self, running: asyncio.Future[Outcome], key: SessionId) -> None:
        """End the tree of a command; goes on when this is cancelled."""
        task = asyncio.ensure_future(self._end(running, key))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def _end(self, running: asyncio.Future[Outcome], key: SessionId) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + END_S
        while clock() < deadline:
            session = await self._engine.store.get(key)
            if session is not None and session.end is None:
                session, _ = await Sessions(self._engine, None).end(session, by=EndedBy.AGENT)
            if running.done() and (session is None or session.end is not None):
                break
            # Claimed or started it may be any moment: nobody tells, and until then there is nothing to be ended.
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
            raise error(f"how session {session.id} ended is not known ({end.evidence})")
        out, err = await self._texts(session.id)
        if end.state is SessionState.TIMED_OUT:
            said = f"the command had not ended after {spec.timeout_s:g} s, and was ended"
            raise WorkspaceTimeoutError(said, stdout=out, stderr=err)
        code = 128 + (end.signal or signal.SIGKILL) if end.exit_code is None else end.exit_code
        return CommandResult(exit_code=code, stdout=out, stderr=err)

    def _log(self, key: SessionId, *, err: bool) -> OutputLog:
        return OutputLog(self._engine.links.sessions / key, key, err=err)

    def _printed(self, key: SessionId) -> int:
        return sum(self._log(key, err=err).size() for err in (False, True))

    async def _texts(self, key: SessionId, most: int = MOST_BYTES) -> tuple[str, str]:
        texts = [(await self._log(key, err=err).raw(0, most)).decode("utf-8", "replace") for err in (False, True)]
        return texts[0], texts[1]

    async def _too_much(self, key: SessionId) -> WorkspaceOutputLimitError:
        out, err = await self._texts(key, BEGINNING_BYTES)
        return WorkspaceOutputLimitError(
            f"the command printed more than {MOST_BYTES // 1024**2} MiB; let it print into a file, and read that",
            limit=MOST_BYTES,
            stdout=out,
            stderr=err,
        )
