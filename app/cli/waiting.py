"""Waiting for what becomes of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from shellback.work.approvals import approvals, sending

if TYPE_CHECKING:
    from shellback.storage.db import Database
    from shellback.work.approvals.approvals import Request
    from shellback.work.approvals.sending import Sent

Fate = Literal["answered", "failed", "stopped", "denied", "out_of_budget", "pending_approval", "set_aside"]


class Waiting:
    """Looks where one message is, without being misled by what its conversation was blocked for before it."""

    def __init__(self, database: Database, sent: Sent) -> None:
        self._database = database
        self._sent = sent
        self._aside_before = sent.blocked == "set_aside"
        self.answer: str | None = None
        self.requests: list[Request] = []

    def look(self) -> Fate | None:
        """What became of it; None while it is waiting or being worked on. Sets `answer` or `requests`."""
        fate: Fate | None = self._database.read_now(self._look)
        return fate

    def _look(self, conn: Any) -> Fate | None:
        heard = sending.heard(conn, self._sent.item_id, self._sent.conversation_id)
        if heard.answer is not None and heard.outcome is not None:
            self.answer = heard.answer
            match heard.outcome:
                case "stopped":
                    return "stopped"
                case "failed":
                    return "out_of_budget" if heard.out_of_budget else "failed"
                case _:
                    return "denied" if heard.denied else "answered"
        if heard.blocked == "approval":
            # Decided calls leave it blocked until their turn begins; then nobody is waited for.
            self.requests = approvals.find(conn, conversation_id=self._sent.conversation_id, state="pending")
            return "pending_approval" if self.requests else None
        if heard.blocked == "set_aside":
            return None if self._aside_before else "set_aside"
        self._aside_before = False
        return None
