"""The exec engine: starts each granted command at most once and never loses how it ended.

Life of a call::

    claim (committed) ──▶ start (the supervisor's mark decides) ──▶ running recorded ──▶ end recorded ──▶ told

Every step may be repeated: a call that is executed again finds its session by the derived id and goes
on where it is. Waiting is on futures that exits resolve; nothing polls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.inspection.inspector import Inspector
from shellback.exec.core import limits as bounds
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import CommandDenied, ExecError, InvalidCommand, SupervisorUnreachable
from shellback.exec.core.identity import session_id as session_id_of
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import (
    WORK,
    CallOrigin,
    CommandSpec,
    Delivery,
    Evidence,
    Session,
    SessionId,
    SessionState,
)
from shellback.exec.core.ports import SessionStore, SessionWatch, SupervisorPort, Unwatched
from shellback.exec.engine.ends import Ends, Losses, Recovery
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.engine.waiting import Outcome, Waiting, give_up, joined, takes_input, waiting
from shellback.exec.link.supervised import Supervised
from shellback.exec.log.links import LogLinks, SoonLinked
from shellback.exec.log.output import OutputLog
from shellback.exec.policy.commands import CHANGED, fixed
from shellback.exec.policy.policy import Grant
from shellback.exec.wire import layout
from shellback.exec.wire.crashpoints import reach
from shellback.log import about

log = logging.getLogger(__name__)

GIVE_UP_S: Final = 15.0
"""How long after its timeout the end of a foreground command is still waited for."""
SHORT_S: Final = 0.1
"""A foreground command that ends sooner is never recorded as running: that would be a commit for nobody."""


class Engine:
    """Runs commands of one backend through one supervisor, with their sessions in one store."""

    def __init__(  # noqa: PLR0913
        self,
        store: SessionStore,
        supervisor: SupervisorPort,
        backend: Backend,
        *,
        home: str | Path,
        host_id: str = "local",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        watch: SessionWatch | None = None,
        absence_tells: Callable[[Session], bool] = lambda _: True,
        links: Callable[[Path, Path], LogLinks] = LogLinks,
        inspector: Inspector | None = None,
    ) -> None:
        self.store, self.backend = store, backend
        self.limits = limits or Limits()
        self.workspace = backend.workspace
        self.registry = ExecRegistry(store, clock=clock)
        self.links = links(self.workspace, Path(home) / layout.SESSIONS)
        self.supervised = Supervised(supervisor)
        self._sessions = f"{home}/{layout.SESSIONS}"
        self.host_id, self._clock = host_id, clock
        self._watch = watch or Unwatched()
        self.inspector = inspector
        self._losses = Losses(inspector, store.get)
        self._ends = Ends(
            store, self.registry, self.supervised.port.ack, self._watch, self.links.forgotten, self._losses.ended
        )
        self._recovery = Recovery(store, self.supervised, self._ends, host_id, absence_tells)
        self._unsure: set[SessionId] = set()
        self._later: set[asyncio.Task[Any]] = set()
        self._unlinked = SoonLinked(self.links, self._do_later)
        self.started = False

    async def start(self) -> None:
        """Check the backend, reach the supervisor and record what happened before; starting twice is fine.

        Raises:
            BackendUnavailable: Commands cannot run here.
            WorkspaceUnusable: The workspace is missing or not writable.
            SupervisorUnreachable: The supervisor neither answers nor can be started.
        """
        if self.started:
            return
        if self.inspector is not None:
            self.inspector.resume(await self.store.list(live=True), self.host_id)
        self.backend.check()
        later, heard = self._do_later, self._losses.heard
        await self.supervised.connect(self._ends.received, self._reconnected, lambda one, lost: later(heard(one, lost)))
        self.started = True
        await self.reconcile()
        await self._ends.settled()

    async def stop(self) -> None:
        """Let go of the supervisor; processes go on. Stopping twice, or without a start, is fine."""
        if not self.started:
            return
        self.started = False
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        await self._ends.stop()
        await self.supervised.port.close()
        self._unlinked.close()

    async def __aenter__(self) -> Engine:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def run(
        self, grant: Grant, origin: CallOrigin, *, yield_after: float | None = None, until_input: bool = False
    ) -> Outcome:
        """Run a command to its end, or hand it over to the background after `yield_after` seconds.

        With `until_input` also when it waits for input: nobody could answer it before the call returns.

        A repeat of the call goes on with the same process or returns its recorded end. Cancelling ends
        only the waiting: the process runs on and a callback will tell its end.

        Raises:
            CommandDenied: What would run is not what was granted any more.
            LimitReached: The conversation has its live sessions.
            SupervisorUnreachable: Not known whether it started; if so, a callback will tell its end.
        """
        session, wanted = await self._claimed(grant, origin, Delivery.INLINE)
        with about(session=session.id):
            return await self._joined(session, wanted, yield_after, until_input)

    async def launch(self, grant: Grant, origin: CallOrigin) -> Session:
        """Start a command in the background and return its session at once; a callback tells its end.

        A repeat of the call returns the same session as it is by then. Cancelling leaves a session that is
        claimed or running; a claimed one is started by the repeat of the call, or given up by `abandon`.

        Raises what `run` does.
        """
        session, wanted = await self._claimed(grant, origin, Delivery.CALLBACK)
        with about(session=session.id):
            return session if session.end is not None else await self._running(session, wanted)

    async def settled(self, session: Session) -> Session | None:
        """A claimed session that nothing shall start any more, as it is then; None where nothing ever has."""
        session = await self._recovery.abandon(session)
        return None if session.end is not None and session.end.evidence is Evidence.NEVER_STARTED else session

    async def resumed(self, session: Session) -> Outcome:
        """Go on with a recorded session whose call would no longer be accepted; like the repeat of `run`."""
        return await self._joined(session, None)

    def output(self, session: Session, *, err: bool = False) -> OutputLog:
        """The log of a session; `err` is its second stream where the streams are apart."""
        return OutputLog(f"{self._sessions}/{session.id}", session.id, err=err, end=session.end)

    def streams(self, session: Session) -> tuple[OutputLog, OutputLog | None]:
        """The log of a session, and that of its second stream where the streams are apart."""
        return self.output(session), self.output(session, err=True) if session.separate_stderr else None

    async def wait(self, session_id: SessionId, *, up_to: float) -> Session:
        """The session once it has ended, or as it is after `up_to` seconds. Cancelling ends only the waiting.

        Raises:
            SessionNotFound: There is none.
        """
        ended = self._ends.expect(session_id)
        timer = asyncio.get_running_loop().call_later(up_to, give_up, ended)
        try:
            session = await self.registry.get(session_id)
            if session.end is None:
                session = await ended or await self.registry.get(session_id)
        finally:
            timer.cancel()
            self._ends.forget(session_id, ended)
        return session

    async def hand_over(self, session_id: SessionId) -> bool:
        """Let a callback tell the end that nobody waits for any more; whether it will."""
        return await self.store.hand_over(session_id)

    @property
    def awaited(self) -> bool:
        """Whether a call waits for the end of any session."""
        return bool(self._ends.awaited)

    def give_up(self, session_id: SessionId) -> None:
        """Let every call that waits for this session return now; one that started it leaves it to a callback."""
        self._ends.give_up(session_id)

    async def abandon(self, session_id: SessionId) -> None:
        """Make sure that a claimed session which never started never will; one that has is left to run.

        Raises:
            SessionNotFound: There is none.
        """
        await self._recovery.abandon(await self.registry.get(session_id))
        self._unsure.discard(session_id)

    async def reconcile(self) -> None:
        """Compare the live sessions of this host with the supervisor and record what is missing."""
        # Where one cannot be reached the others can; it stays, and is tried again with the next comparison.
        await asyncio.gather(*map(self.abandon, list(self._unsure)), return_exceptions=True)
        await self._recovery.reconcile()

    async def _claimed(self, grant: Grant, origin: CallOrigin, delivery: Delivery) -> tuple[Session, Grant | None]:
        if not self.started:
            await self.start()
        wanted = self._session(grant, origin, delivery)
        reach("claim.before")
        session = _of_call(await self.store.claim(wanted), grant.spec)
        reach("claim.committed")
        self.registry.add(session)
        if session.state is SessionState.CLAIMED and session.digest != grant.digest:
            # Nothing else than what the claim says, and in no other profile, is started with it.
            if (started := await self.settled(session)) is None:
                raise CommandDenied(CHANGED)
            return started, None
        return session, grant

    def _session(self, grant: Grant, origin: CallOrigin, delivery: Delivery) -> Session:
        spec = grant.spec
        return Session(
            id=(session_id := session_id_of(origin)), conversation_id=origin.conversation_id,
            tool_call_id=origin.tool_call_id, turn_id=origin.turn_id, epoch=origin.epoch, host_id=self.host_id,
            boot_id=self.supervised.boot_id, uid=self.backend.uid, backend=self.backend.name, profile=spec.profile,
            command=spec.command, cwd=spec.cwd, workspace=str(self.workspace), pty=spec.pty is not None,
            background=spec.background, separate_stderr=spec.separate_stderr,
            stdin_open=spec.keep_stdin_open or spec.pty is not None, lifetime=spec.lifetime, on_exit=spec.on_exit,
            kind=spec.kind, delivery=delivery, state=SessionState.CLAIMED, log_path=self.links.path(session_id),
            approval_id=grant.approval_id, digest=grant.digest, granted_by=grant.by, created_at=self._clock(),
            traceparent=self._watch.context(),
        )  # fmt: skip

    async def _joined(
        self, session: Session, wanted: Grant | None, yield_after: float | None = None, until_input: bool = False
    ) -> Outcome:
        """Start the session if nobody has, wait for its end if nobody was told to wait for the callback."""
        if session.end is not None or session.delivery is not Delivery.INLINE:
            return await self._told(session, await waiting(self, session) if until_input else None)
        ended = self._ends.expect(session.id)
        self._ends.inline.add(session.id)
        try:
            session = await self._running(session, wanted)
            if session.end is None:
                most = ((wanted.spec.timeout_s if wanted else 0.0) or bounds.FOREGROUND_TIMEOUT_MAX_S) + GIVE_UP_S
                patience_s = most if yield_after is None else min(yield_after, most)
                asks = until_input and takes_input(session)
                end, waits = await joined(self, session, ended, patience_s=patience_s, until_input=asks)
                if end is None:
                    return await self._handed_over(session, waits)
                session = end
        except asyncio.CancelledError:
            if self.started:  # else nobody is left to do it: a repeat of the call waits again, as after a crash
                self._do_later(self._left(session))
            raise
        finally:
            self._ends.inline.discard(session.id)
            self._ends.forget(session.id, ended)
        return await self._told(session)

    async def _running(self, session: Session, wanted: Grant | None) -> Session:
        """Start a claimed session; one that an earlier execution has started is read again, as it may have ended."""
        if wanted is None or session.state is not SessionState.CLAIMED:
            return await self.store.get(session.id) or session
        try:
            plan = await self.backend.plan(wanted.spec, session.conversation_id)
            reach("start.sent")
            if not 0 <= self._clock() - session.created_at < bounds.FRESH_S:
                session = await self.store.get(session.id) or session
                if session.end is not None:
                    return session
            if self.inspector is not None and session.profile == WORK:
                await self.inspector.begun(session.id, session.conversation_id)
            seen = await self.supervised.start(session, wanted.spec, await fixed(plan, wanted, self.backend))
        except ExecError as error:
            session = await self._given_up(session, error)
            if session.delivery is not Delivery.SETTLED:
                raise
            # Its end has come all the same, and is recorded as told by this call.
            return session
        reach("start.answered")
        self._unlinked.add(session)
        if seen.pid is None:
            return await self._recovery.follow(session, seen) or session
        began = seen.started_at or self._clock()
        session = replace(session, state=SessionState.RUNNING, pid=seen.pid, started_at=began)
        self._watch.started(session)
        if session.id in self._ends.inline:
            asyncio.get_running_loop().call_later(SHORT_S, self._still_running, session)
        else:
            await self._note_running(session)
        return session

    async def _given_up(self, session: Session, error: ExecError) -> Session:
        if not isinstance(error, SupervisorUnreachable):
            return await self._recovery.abandon(session)
        self._unsure.add(session.id)
        await self.store.hand_over(session.id)
        return await self.store.get(session.id) or session

    def _still_running(self, session: Session) -> None:
        if session.id in self._ends.inline and self.started:
            self._do_later(self._note_running(session))

    async def _note_running(self, session: Session) -> None:
        if session.pid is not None and session.started_at is not None:
            await self.store.started(session.id, pid=session.pid, started_at=session.started_at)
            reach("started.recorded")

    async def _left(self, session: Session) -> None:
        """Nobody waits for it any more: a callback tells its end."""
        await self._note_running(session)
        await self.store.hand_over(session.id)

    async def _handed_over(self, session: Session, waits: Waiting | None) -> Outcome:
        self._ends.inline.discard(session.id)
        await self._left(session)
        return await self._told(await self.store.get(session.id) or session, waits)

    async def _told(self, session: Session, waits: Waiting | None = None) -> Outcome:
        self.registry.add(session)
        handed_over = session.delivery is Delivery.CALLBACK
        if session.end is not None and session.delivery is Delivery.INLINE:
            # Somebody may have handed it over meanwhile: then the callback tells it, here it is only shown.
            handed_over = not await self.store.settle_inline(session.id)
        out, err = self.streams(session)
        return Outcome(
            session=session,
            output=await out.ends(),
            err=None if err is None else await err.ends(),
            handed_over=handed_over,
            waiting=waits if session.live else None,
            findings=(*(session.end.findings if session.end else ()), *self.untold(session.conversation_id)),
        )

    def untold(self, conversation_id: str) -> tuple[str, ...]:
        """What was found of a conversation's commands that no result has told yet, in sentences; it is told now."""
        return () if self.inspector is None else self.inspector.untold(conversation_id)

    def _reconnected(self) -> None:
        self._do_later(self.reconcile())

    def _do_later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._done_later)

    def _done_later(self, task: asyncio.Task[Any]) -> None:
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("left to the next sweep: %s", error)


def _of_call(session: Session, spec: CommandSpec) -> Session:
    """The recorded session of a call, which is to have run what is wanted now."""
    if (session.command, session.cwd, session.pty) != (spec.command, spec.cwd, spec.pty is not None):
        raise InvalidCommand(
            f"another call of the same response has the id {session.tool_call_id!r} and has run; "
            "make one call at a time"
        )
    return session
