"""Processes as spans and counts."""

from __future__ import annotations

from shellback.exec.core.model import Session, SessionState
from shellback.exec.core.ports import SessionWatch
from shellback.telemetry.telemetry import Telemetry, current_traceparent
from shellback.work.queue.tracing import process_context


class WatchedSessions(SessionWatch):
    """Makes the span of a process when its end is recorded, by whichever worker records it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counts = telemetry.counts

    def context(self) -> str | None:
        return current_traceparent()

    def started(self, session: Session) -> None:
        self._counts.starts.add(1, {"background": session.background})

    def ended(self, session: Session) -> None:
        end = session.end
        if end is None:
            return
        self._counts.ends.add(1, {"state": end.state.value, "ended_by": end.ended_by.value})
        lost = end.state is SessionState.LOST
        if lost and end.evidence is not None:
            self._counts.lost.add(1, {"reason": end.evidence.value})
        if session.traceparent is None:
            return
        # A short foreground command is never recorded as running.
        began = session.started_at or end.began_at or session.created_at
        self._telemetry.past(
            "shellback.process",
            process_context(session.id, session.traceparent),
            (began, end.ended_at),
            cause=session.traceparent,
            attributes={
                "shellback.session": session.id,
                "shellback.conversation": session.conversation_id,
                "shellback.state": end.state.value,
                "shellback.ended_by": end.ended_by.value,
                "shellback.signal": end.signal,
                "shellback.evidence": end.evidence.value if end.evidence else None,
                "shellback.background": session.background,
                "process.exit.code": end.exit_code,
                "process.pid": session.pid,
                "process.command_line": session.command if self._telemetry.content else None,
            },
            error=lost or end.state is SessionState.START_FAILED,
        )
