"""Translates between the engine and a supervisor: plans to requests, messages to sessions and ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shellback.exec.core import limits as bounds
from shellback.exec.core.base import Plan
from shellback.exec.core.errors import ExecError, LimitReached, SessionNotFound, SpawnFailed, TaskCompleted
from shellback.exec.core.model import (
    CommandSpec,
    EndedBy,
    Evidence,
    Loss,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.wire.protocol import ExitRecord, Message, StartRequest, exit_record
from shellback.exec.wire.sandbox import named

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the supervisor knows about a session: its process, its end, or that it was abandoned."""

    session_id: SessionId
    pid: int | None = None
    started_at: float | None = None
    end: SessionEnd | None = None
    abandoned: bool = False


class Supervised:
    """One supervisor; requests that need no translation go to its `port`."""

    def __init__(self, port: SupervisorPort) -> None:
        self.port = port
        self.boot_id = ""
        """The boot of the machine, known once connected."""

    async def connect(
        self,
        on_end: Callable[[SessionId, SessionEnd], None],
        on_reconnect: Callable[[], None],
        on_losses: Callable[[SessionId, Sequence[Loss]], None] = lambda _session_id, _losses: None,
    ) -> None:
        """Connect; from now on the callbacks get all ends and losses, earlier ones too, and each reconnection."""
        self.port.on_losses = lambda name, found: on_losses(SessionId(name), [Loss.of(loss) for loss in found])
        self.port.on_exit = lambda record: on_end(SessionId(record["session_id"]), end_of(record))
        self.port.on_reconnect = on_reconnect
        self.boot_id = (await self.port.connect())["boot_id"]

    async def start(self, session: Session, spec: CommandSpec, plan: Plan) -> Seen:
        """Start the session's process, or find out that it was started or abandoned before.

        Raises:
            SpawnFailed: The supervisor refused; nothing was started.
            LimitReached: Descriptors or disk are used up; nothing was started.
            SupervisorUnreachable: It is unknown whether it started.
        """
        request = StartRequest(
            session_id=session.id,
            argv=plan.argv,
            env=named(plan.env, session.id),
            cwd=plan.cwd,
            boot_id=session.boot_id,
            uid=plan.uid,
            gid=plan.gid,
            pty=None if spec.pty is None else (spec.pty.rows, spec.pty.cols),
            stdin=spec.stdin,
            keep_stdin_open=session.stdin_open,
            separate_stderr=spec.separate_stderr,
            timeout_s=spec.timeout_s,
            grace_s=spec.grace_s,
            log_cap=spec.log_bytes,
            background=spec.background,
            umask=plan.umask,
            sandbox=plan.sandbox,
            fence=plan.fence,
            place=plan.place,
            lifetime=spec.lifetime,
            owner=session.turn_id,
            scope=session.conversation_id,
        )
        answer = await self.port.start(request, home=plan.home)
        if not answer["ok"]:
            raise _refused(str(answer["error"]), str(answer["message"]))
        if answer["outcome"] == "started":
            return _running(session.id, answer)
        if answer["outcome"] == "start_failed":
            return Seen(session_id=session.id, end=end_of(answer["record"]))
        seen = _seen(session.id, answer["status"])
        if seen is None:
            raise SpawnFailed(f"the supervisor says that {session.id} was started before, and does not know it")
        return seen

    async def status(self, session_id: SessionId) -> Seen | None:
        """What it knows about a session, or None."""
        return _seen(session_id, await self.port.status(session_id))

    async def list(self) -> list[Seen]:
        """All sessions whose end is not acknowledged."""
        running, ended = await self.port.list()
        return [
            *(_running(SessionId(status["session_id"]), status) for status in running),
            *(Seen(session_id=SessionId(record["session_id"]), end=end_of(record)) for record in ended),
        ]

    async def abandon(self, session_id: SessionId) -> bool:
        """Make the session impossible to start; False if it was started."""
        return (await self.port.abandon(session_id))["state"] == "abandoned"

    async def kill(self, session_id: SessionId, *, by: EndedBy) -> tuple[int, ...]:
        """End the whole tree; the pids that could not be ended. An unknown session has no tree."""
        try:
            return await self.port.kill(session_id, grace_s=bounds.KILL_GRACE_S, ended_by=by.value)
        except (SessionNotFound, TaskCompleted):
            return ()


def end_of(record: ExitRecord | dict[str, Any]) -> SessionEnd:
    """The end in an exit record; for an unreadable record, `lost` with RECORD_UNREADABLE."""
    whole = exit_record(record)
    if whole is None:
        log.error("an exit record cannot be read: %.500r", record)
        return SessionEnd(state=SessionState.LOST, evidence=Evidence.RECORD_UNREADABLE, ended_at=time.time())
    return SessionEnd.of(whole)


def _seen(session_id: SessionId, status: Message) -> Seen | None:
    if status["state"] == "unknown":
        return None
    if status["state"] == "abandoned":
        return Seen(session_id=session_id, abandoned=True)
    if "record" in status:
        return Seen(session_id=session_id, end=end_of(status["record"]))
    return _running(session_id, status)


def _running(session_id: SessionId, status: Message) -> Seen:
    return Seen(session_id=session_id, pid=status["pid"], started_at=status["started_at"])


def _refused(code: str, message: str) -> ExecError:
    if code == "descriptors":
        return LimitReached(f"no room for another process: {message} ; end one and try again")
    if code == "disk":
        return LimitReached(f"no room in the state directory: {message}; make room and try again")
    return SpawnFailed(f"the supervisor refuses: {message} ({code})")
