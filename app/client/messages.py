"""Messages of a client: stored once, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shellback.client.freshness import home_of, waits, worker_lives

if TYPE_CHECKING:
    from shellback.storage.db import Database
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request
    from shellback.work.approvals.sending import Heard, Sent
    from shellback.work.queue.queues import Enqueuer


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A stored message. `waits` says why nobody reads it soon; `alone`: no worker of this host runs."""

    sent: Sent
    waits: str | None
    alone: bool


def deliver(
    where: Place,
    enqueuer: Enqueuer,
    *,
    conversation: str,
    text: str,
    priority: str,
    workspace: str | None = None,
    needs: Sequence[str] = (),
    **how: Any,
) -> Delivered:
    """Store a message. `priority` is the name of one; `workspace` and `needs` (labels) are of a new conversation.

    It begins on this host. With `needs`, or where this machine takes none, it begins on the host that fits best.

    Raises:
        InvalidRequest: The name or the text is not acceptable, or the conversation began elsewhere.
        WorkspaceUnusable: There is no such workspace here, where it would begin.
    """
    from shellback.work.approvals import sending
    from shellback.work.queue.items import Priority

    if needs or not takes_new(where):
        from shellback.work.hosts.placing import Wanted
        from shellback.work.queue.mailbox import DEFAULT, Workspace

        how["place"] = Wanted(here=where.host_id, needs=tuple(needs), workspace=workspace or DEFAULT)
        how["workspace"] = None if workspace is None else Workspace(workspace)
    elif workspace is not None:
        from shellback.wiring.spaces import bound

        how["workspace"] = bound(where.settings, workspace)
    sent = sending.deliver(
        where.database, enqueuer, conversation, text, host_id=where.host_id, priority=Priority[priority], **how
    )
    home = home_of(where, conversation)
    return Delivered(sent=sent, waits=waits(conversation, home), alone=home is None and not worker_lives(where))


def takes_new(where: Place) -> bool:
    """Whether conversations that begin here may begin on this host. On SQLite there is no other."""
    if where.database.dialect == "sqlite":
        return True
    from shellback.work.hosts.placing import is_host

    return where.database.read_now(is_host, where.host_id)


Fate = Literal["answered", "failed", "stopped", "denied", "out_of_budget", "pending_approval", "set_aside"]


class Waiting:
    """Reads the outcome of one message, or of turn `turn_id`, ignoring a block that its conversation had before."""

    def __init__(self, database: Database, sent: Sent, turn_id: str | None = None) -> None:
        self._database = database
        self._sent = sent
        self._turn_id = turn_id
        self.heard: Heard | None = None
        """What the last look has found."""
        self._aside_before = sent.blocked == "set_aside"
        self.answer: str | None = None
        self.requests: list[Request] = []

    def look(self) -> Fate | None:
        """The outcome; None while the message waits or its turn runs. Sets `answer` or `requests`."""
        fate: Fate | None = self._database.read_now(self._look)
        return fate

    def _look(self, conn: Any) -> Fate | None:
        from shellback.work.approvals import approvals, sending

        self.heard = heard = sending.heard(conn, self._sent.item_id, self._sent.conversation_id, self._turn_id)
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
            # After the decision it stays blocked until its turn begins, but no request is pending.
            self.requests = approvals.find(
                conn, conversation_id=self._sent.conversation_id, state="pending", of_calls=True
            )
            return "pending_approval" if self.requests else None
        if heard.blocked == "set_aside":
            return None if self._aside_before else "set_aside"
        self._aside_before = False
        return None
