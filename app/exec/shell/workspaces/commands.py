"""One command of a workspace: a session that is waited for, read whole, and ended with whoever waited."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from pydantic_ai.workspaces import (
    CommandResult,
    WorkspaceError,
    WorkspaceOutputLimitError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import session_id
from shellback.exec.core.model import CallOrigin, CommandSpec, EndedBy, Evidence, Session, SessionId, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.outcome import Outcome
from shellback.exec.engine.sessions import Sessions
from shellback.exec.log.output import OutputLog
from shellback.exec.shell.permit import Authority, run_permitted

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


class Commands:
    """Runs commands through one engine, under one authority, in one scope."""

    def __init__(self, engine: Engine, authority: Authority, scope: str) -> None:
        self._engine = engine
        self._authority = authority
        self._scope = scope
        self._ending: set[asyncio.Task[None]] = set()

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
                raise self._too_much(await self._beginnings(key))
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
            raise self._too_much(await self._beginnings(session.id))
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

    async def _beginnings(self, key: SessionId) -> tuple[str, str]:
        return await self._texts(key, BEGINNING_BYTES)

    def _too_much(self, shown: tuple[str, str]) -> WorkspaceOutputLimitError:
        return WorkspaceOutputLimitError(
            f"the command printed more than {MOST_BYTES // 1024**2} MiB; let it print into a file, and read that",
            limit=MOST_BYTES,
            stdout=shown[0],
            stderr=shown[1],
        )
