"""The exec engine: starts each granted command at most once and never loses how it ended.

Life of a call::

    claim (committed) ──▶ start (the supervisor's mark decides) ──▶ running recorded ──▶ end recorded ──▶ told

Every step may be repeated: a replayed call finds its session by the derived id and continues from its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
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
from shellback.exec.core.threads import cancelled
from shellback.exec.engine.behind import Behind
from shellback.exec.engine.ends import Ends, Losses, Recovery
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.engine.waiting import Outcome, Waiting, give_up, joined, takes_input, waiting
from shellback.exec.link.supervised import Supervised
from shellback.exec.log.links import LogLinks, SoonLinked
from shellback.exec.log.mask import FRESH_S, UNMASKED, Mask
from shellback.exec.log.output import OutputLog
from shellback.exec.policy.commands import CHANGED, fixed
from shellback.exec.policy.policy import Grant
from shellback.exec.wire import layout
from shellback.exec.wire.crashpoints import reach
from shellback.log import about

log = logging.getLogger(__name__)

GIVE_UP_S: Final = 15.0
"""Seconds after its timeout during which a call still waits for the end of a foreground command."""
SHORT_S: Final = 0.1
"""A foreground command that ends sooner is never recorded as running; this saves a commit."""


Elsewhere = Callable[[str], tuple[Backend, Inspector | None, Limits]]
"""What runs and inspects the commands of another workspace, and their limits. Raises an ExecError."""


@dataclass(slots=True)
class Whole:
    """What the views of an engine share: where another one works, which there are, and whether they are connected."""

    elsewhere: Elsewhere | None
    views: dict[str, Engine]
    started: bool = False
    fresh: asyncio.Task[Any] | None = None
    """What asks for the secrets that are known, if it was asked."""


class Engine:
    """Runs commands through one supervisor, with their sessions in one store.

    Its commands run in the workspace of its backend; `at` gives the same engine for another workspace.
    """

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
        elsewhere: Elsewhere | None = None,
        mask: Mask = UNMASKED,
    ) -> None:
        self.store, self.backend, self.mask = store, backend, mask
        self.limits = limits or Limits()
        self.workspace = backend.workspace
        self.registry = ExecRegistry(store, clock=clock)
        self.behind = Behind(store)
        self._links_of = links
        self.links = links(self.workspace, Path(home) / layout.SESSIONS)
        self.supervised = Supervised(supervisor)
        self._sessions = f"{home}/{layout.SESSIONS}"
        self.host_id, self._clock = host_id, clock
        self._watch = watch or Unwatched()
        self.inspector = inspector
        self.whole = Whole(elsewhere, {str(self.workspace): self})
        self._losses = Losses(self._inspectors, self._inspector_of, store.get)
        self._ends = Ends(
            store, self.registry, self.supervised.port.ack, self._watch, self.links.forgotten, self._losses.ended
        )
        self._recovery = Recovery(store, self.supervised, self._ends, host_id, absence_tells)
        self._unsure: set[SessionId] = set()
        self._later: set[asyncio.Task[Any]] = set()
        self.unlinked = SoonLinked(self.links, self._do_later)

    def at(self, workspace: str) -> Engine:
        """This engine for commands in `workspace`, a path without symlinks: one store, supervisor and stream of ends.

        It is made once, with what `elsewhere` returns or raises. Without `elsewhere` it is always this one.
        """
        views, elsewhere = self.whole.views, self.whole.elsewhere
        if workspace not in views and elsewhere is not None:
            made = copy.copy(self)
            made.backend, made.inspector, made.limits = elsewhere(workspace)
            made.workspace = made.backend.workspace
            made.links = self._links_of(made.workspace, self.links.sessions)
            made.unlinked = SoonLinked(made.links, self._do_later)
            if str(made.workspace) != workspace:
                return made  # the path leads elsewhere now, which may be mended
            views[workspace] = made
        return views.get(workspace, self)

    @property
    def started(self) -> bool:
        """Whether it is connected, in all workspaces."""
        return self.whole.started

    def _inspectors(self) -> list[Inspector]:
        return [one.inspector for one in self.whole.views.values() if one.inspector is not None]

    def _inspector_of(self, session: Session) -> Inspector | None:
        with contextlib.suppress(ExecError):  # no command runs there now; whoever makes a call there is told why
            return self.at(session.workspace or str(self.workspace)).inspector
        return None

    async def start(self) -> None:
        """Check the backend, connect to the supervisor and reconcile the sessions. Idempotent.

        Raises:
            BackendUnavailable: Commands cannot run here.
            WorkspaceUnusable: The workspace is missing or not writable.
            SupervisorUnreachable: The supervisor neither answers nor can be started.
        """
        if self.started:
            return
        if self.inspector is not None:
            for session in await self.store.list(live=True):
                if session.host_id == self.host_id and (inspector := self._inspector_of(session)) is not None:
                    inspector.resume([session], self.host_id)
        self.backend.check()
        later, heard = self._do_later, self._losses.heard
        await self.supervised.connect(self._ends.received, self._reconnected, lambda one, lost: later(heard(one, lost)))
        self.whole.started = True
        await self.reconcile()
        await self._ends.settled()

    async def stop(self) -> None:
        """Disconnect from the supervisor; processes go on. Idempotent."""
        if not self.started:
            return
        self.whole.started = False
        await cancelled(self._later)
        await self.behind.stop()
        await self._ends.stop()
        await self.supervised.port.close()
        for one in self.whole.views.values():
            one.unlinked.close()

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

        With `until_input` it is also handed over when it waits for input. A replay of the call waits for the same
        process or returns its recorded end. After cancelling, the process runs on and a callback reports its end.

        Raises:
            CommandDenied: What would run has changed since it was granted.
            LimitReached: The conversation has too many live sessions.
            SupervisorUnreachable: It is unknown whether it started; if it did, a callback reports its end.
        """
        session, wanted = await self._claimed(grant, origin, Delivery.INLINE)
        with about(session=session.id):
            return await self._joined(session, wanted, yield_after, until_input)

    async def launch(self, grant: Grant, origin: CallOrigin) -> Session:
        """Start a command in the background and return its session; a callback reports its end.

        A replay returns the same session. After cancelling, the session is running, or claimed: then the replay of the
        call starts it, or `abandon` gives it up. Raises what `run` does.
        """
        session, wanted = await self._claimed(grant, origin, Delivery.CALLBACK)
        with about(session=session.id):
            return session if session.end is not None else await self._running(session, wanted)

    async def settled(self, session: Session) -> Session | None:
        """Give up a claimed session. Returns it as it is then; None if it was never started."""
        session = await self._recovery.abandon(session)
        return None if session.end is not None and session.end.evidence is Evidence.NEVER_STARTED else session

    async def resumed(self, session: Session) -> Outcome:
        """Wait for a recorded session whose call would no longer be accepted; like a replay of `run`."""
        return await self._joined(session, None)

    def output(self, session: Session, *, err: bool = False) -> OutputLog:
        """The log of a session; with `err` that of its separate stderr."""
        return OutputLog(f"{self._sessions}/{session.id}", session.id, err=err, end=session.end, mask=self.mask)

    def streams(self, session: Session) -> tuple[OutputLog, OutputLog | None]:
        """The log of a session, and that of stderr if it is separate."""
        return self.output(session), self.output(session, err=True) if session.separate_stderr else None

    async def wait(self, session_id: SessionId, *, up_to: float) -> Session:
        """Wait for the end of a session; after `up_to` seconds return it as it is. Raises SessionNotFound."""
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
        """Have a callback report the end, because no call waits for it any more; returns whether one will."""
        return await self.store.hand_over(session_id)

    async def recorded(self, conversation_id: str) -> None:
        """Wait until the ends that calls of a conversation were told are recorded: whoever keeps an answer does."""
        await self._ends.recorded(conversation_id)

    @property
    def awaited(self) -> bool:
        """Whether a call waits for the end of any session."""
        return bool(self._ends.awaited)

    def give_up(self, session_id: SessionId) -> None:
        """Make every call that waits for this session return now; a callback reports the end to its starter."""
        self._ends.give_up(session_id)

    async def abandon(self, session_id: SessionId) -> None:
        """Make a claimed session impossible to start; a started one runs on. Raises SessionNotFound."""
        await self._recovery.abandon(await self.registry.get(session_id))
        self._unsure.discard(session_id)

    async def reconcile(self, *, live: bool = True) -> None:
        """Compare the live sessions of this host with the supervisor and record what the store lacks.

        Without `live` the store is known to have none.
        """
        # One that cannot be reached stays, and is tried again at the next comparison.
        await asyncio.gather(*map(self.abandon, list(self._unsure)), return_exceptions=True)
        await self._recovery.reconcile(live=live)

    async def _claimed(self, grant: Grant, origin: CallOrigin, delivery: Delivery) -> tuple[Session, Grant | None]:
        if not self.started:
            await self.start()
        await self._values_known()
        wanted = self._session(grant, origin, delivery)
        reach("claim.before")
        session = _of_call(await self.store.claim(wanted, limit=self.limits.sessions), grant.spec)
        reach("claim.committed")
        self.registry.add(session)
        if session.state is SessionState.CLAIMED and session.digest != grant.digest:
            # A claim starts only what it recorded, in the profile that it recorded.
            if (started := await self.settled(session)) is None:
                raise CommandDenied(CHANGED)
            return started, None
        return session, grant

    async def _values_known(self) -> None:
        """Have the mask know the values of now, which the command may print; not for longer than `FRESH_S`."""
        if self.mask.due:
            self.whole.fresh = self._begun(asyncio.to_thread(self.mask.refresh))
        if (fresh := self.whole.fresh) is not None and not fresh.done():
            await asyncio.wait([fresh], timeout=FRESH_S)

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
        """Start the session unless it was started; wait for its end unless a callback reports it."""
        if session.end is not None or session.delivery is not Delivery.INLINE:
            return await self._told(session, await waiting(self, session) if until_input else None)
        ended = self._ends.expect(session.id)
        self._ends.inline[session.id] = session
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
            if self.started:  # else a replay of the call waits again, as after a crash
                self._do_later(self._left(session))
            raise
        finally:
            self._ends.inline.pop(session.id, None)
            self._ends.forget(session.id, ended)
        return await self._told(session)

    async def _running(self, session: Session, wanted: Grant | None) -> Session:
        """Start a claimed session; one that was started before is read again, because it may have ended."""
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
            # Its end has arrived all the same, and is recorded as reported by this call.
            return session
        reach("start.answered")
        self.unlinked.add(session)
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
        await self._ends.recorded(session.conversation_id)
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
            if session.id in self._ends.inline:
                self._ends.inline[session.id] = session
            reach("started.recorded")

    async def _left(self, session: Session) -> None:
        """Record that no call waits for it: a callback reports its end."""
        await self._note_running(session)
        await self.store.hand_over(session.id)

    async def _handed_over(self, session: Session, waits: Waiting | None) -> Outcome:
        self._ends.inline.pop(session.id, None)
        await self._left(session)
        return await self._told(await self.store.get(session.id) or session, waits)

    async def _told(self, session: Session, waits: Waiting | None = None) -> Outcome:
        self.registry.add(session)
        handed_over = session.delivery is Delivery.CALLBACK
        if session.end is not None and session.delivery is Delivery.INLINE:
            # If it was handed over meanwhile, the callback reports the end; here it is only shown.
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
        """Findings of a conversation that no result has reported yet, in sentences; counts them as reported."""
        return () if self.inspector is None else self.inspector.untold(conversation_id)

    def _reconnected(self) -> None:
        self._do_later(self.reconcile())

    def _do_later(self, work: Coroutine[Any, Any, Any]) -> None:
        self._begun(work)

    def _begun(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._done_later)
        return task

    def _done_later(self, task: asyncio.Task[Any]) -> None:
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("left to the next sweep: %s", error)


def _of_call(session: Session, spec: CommandSpec) -> Session:
    """The recorded session of a call; InvalidCommand if it ran another command."""
    if (session.command, session.cwd, session.pty) != (spec.command, spec.cwd, spec.pty is not None):
        raise InvalidCommand(
            f"another call with the id {session.tool_call_id!r} has already run in this response; "
            "make one call at a time"
        )
    return session
