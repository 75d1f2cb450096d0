"""What must not depend on anybody being alive at the right moment: compared with the truth every few seconds.

The sweep frees conversations whose turn died, gives unread rows an item, expires approvals and
hands over what a dead turn was waiting for. Each finding is acted on in a transaction of its own that
looks again under the conversation's lock, so that two sweeps, or a sweep and a turn, cannot both act.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa

from app.exec.model import Delivery, SessionId, SessionState
from app.exec.supervisor.crashpoints import reach
from app.storage import rows
from app.storage.db import Database
from app.storage.tables import approvals as approval_rows
from app.storage.tables import conversations, mailbox, sessions, turns, workers
from app.work import approvals, claims, stopping, stream
from app.work import mailbox as box
from app.work.errors import ApprovalSettled
from app.work.items import ItemType
from app.work.notices import SILENT, Outbox
from app.work.queues import Enqueuer
from app.work.watching import TurnWatch, Unwatched

if TYPE_CHECKING:
    from dbos import DBOSClient

log = logging.getLogger(__name__)

STRIKES: Final = 3
"""Failed turns in a row after which a conversation is set aside."""
YOUNG_S: Final = 3.0
"""What is younger may still be on its way."""
HEARTBEAT_DEAD_S: Final = 30.0
BATCH: Final = 200
WAITING: Final = frozenset({"ENQUEUED", "DELAYED", "PENDING"})


class Processes(Protocol):
    """What the sweep asks of the exec engine."""

    async def reconcile(self) -> None:
        """Compare sessions with the supervisor and with records; deliver what is missing."""
        ...

    async def hand_over(self, session_id: SessionId) -> bool:
        """Let the end of a session that nobody waits for any more become a callback."""
        ...

    async def abandon(self, session_id: SessionId) -> None:
        """Make sure that a claimed session which never started never will."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What DBOS knows of one work item."""

    status: str
    executor_id: str | None
    version: str | None


class Sweep:
    """Runs one comparison at a time; constructed by wiring, called by the worker `me` (executor id, version)."""

    def __init__(
        self,
        database: Database,
        enqueuer: Enqueuer,
        client: DBOSClient,
        processes: Processes,
        host_id: str,
        me: tuple[str, str],
        watch: TurnWatch | None = None,
        outbox: Outbox = SILENT,
    ) -> None:
        self._db = database
        self._enqueuer = enqueuer
        self._client = client
        self._processes = processes
        self._host_id = host_id
        self._me = me
        self._watch = watch or Unwatched()
        self._outbox = outbox

    async def once(self) -> None:
        """Compare and repair, each thing on its own: what cannot be done now is logged and tried by the next sweep."""
        reach("sweep.scanning")
        for repair in (
            self._expire_approvals,
            self._free_dead_turns,
            self._wake_the_forgotten,
            self._prune_events,
            self._processes.reconcile,
            self._settle_what_dead_turns_left,
        ):
            try:
                await repair()
            except Exception:
                log.exception("a part of the sweep failed; the next one tries again")
        self._outbox.ring()

    async def _prune_events(self) -> None:
        while await self._db.write(stream.prune) == stream.PRUNED_AT_ONCE:
            pass

    async def _expire_approvals(self) -> None:
        for request_id in await self._db.read(approvals.overdue):
            with contextlib.suppress(ApprovalSettled):
                await self._db.write(
                    approvals.decide,
                    self._enqueuer,
                    request_id,
                    "expired",
                    by="clock",
                    surface="sweep",
                    note="nobody decided in time",
                )

    async def _alive(self) -> set[tuple[str, str]]:
        # We are, whatever a clock that jumped makes of our heartbeat.
        return await self._db.read(_alive) | {self._me}

    async def _statuses(self, ids: Sequence[str]) -> Mapping[str, Status]:
        if not ids:
            return {}
        found = await asyncio.to_thread(
            self._client.list_workflows, workflow_ids=list(ids), load_input=False, load_output=False
        )
        return {
            entry.workflow_id: Status(status=entry.status, executor_id=entry.executor_id, version=entry.app_version)
            for entry in found
        }

    async def _free_dead_turns(self) -> None:
        claimed = await self._db.read(_claimed, self._host_id)
        statuses = await self._statuses([row.claimed_by for row in claimed])
        alive = await self._alive()
        for row in claimed:
            reason = _why_dead(statuses.get(row.claimed_by), alive)
            if reason is None:
                continue
            came = await self._db.write(
                _fail_if_still, self._enqueuer, row.id, row.claimed_by, row.epoch, reason, self._outbox
            )
            if came is None:
                continue
            self._watch.failed(came)
            log.warning(
                "freed conversation %s: %s; %s",
                row.id,
                reason,
                came,
                extra={"conversation": row.id, "work_item": row.claimed_by},
            )
            # Only now: cancelled before, a turn that a worker has just taken up again would die of it.
            status = statuses.get(row.claimed_by)
            if status is not None and status.status in WAITING:
                await asyncio.to_thread(self._client.cancel_workflow, row.claimed_by)

    async def _wake_the_forgotten(self) -> None:
        forgotten = await self._db.read(_with_unread_rows, self._host_id)
        waiting = await self._db.read(_open_items, [row.id for row in forgotten])
        statuses = await self._statuses([item for items in waiting.values() for item in items])
        alive = await self._alive()
        for row in forgotten:
            items = [statuses[item] for item in waiting.get(row.id, []) if item in statuses]
            if any(_will_run(status, alive) for status in items):
                continue
            if await self._db.write(_wake_if_still, self._enqueuer, row.id, row.epoch):
                log.warning(
                    "conversation %s had news and no item; enqueued one", row.id, extra={"conversation": row.id}
                )

    async def _settle_what_dead_turns_left(self) -> None:
        for session in await self._db.read(_left_behind, self._host_id):
            if session.delivery == Delivery.INLINE:
                await self._processes.hand_over(SessionId(session.id))
            if session.state == SessionState.CLAIMED:
                await self._processes.abandon(SessionId(session.id))


def _claimed(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any]]:
    query = (
        sa.select(conversations)
        .where(
            conversations.c.state == "claimed",
            conversations.c.host_id == host_id,
            conversations.c.claimed_at < time.time() - YOUNG_S,
        )
        .limit(BATCH)
    )
    return conn.execute(query).all()


def _alive(conn: sa.Connection) -> set[tuple[str, str]]:
    query = sa.select(workers.c.executor_id, workers.c.version).where(
        workers.c.stopped_at.is_(None), workers.c.heartbeat_at > rows.now(conn) - HEARTBEAT_DEAD_S
    )
    return {(row.executor_id, row.version) for row in conn.execute(query)}


def _why_dead(status: Status | None, alive: set[tuple[str, str]]) -> str | None:  # noqa: PLR0911 - a table
    if status is None:
        return "its work item is gone"
    match status.status:
        case "ERROR":
            return "it ended in an error"
        case "CANCELLED":
            return "it was cancelled"
        case "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
            return "it broke its worker too often"
        case "SUCCESS":
            return "it ended without closing"
        case "PENDING" if (status.executor_id, status.version) not in alive:
            return "no living worker runs its version"
        case _ if not _will_run(status, alive):
            return "it waits for a version that no living worker runs"
        case _:
            return None


def _will_run(status: Status, alive: set[tuple[str, str]]) -> bool:
    if status.status == "PENDING":
        return (status.executor_id, status.version) in alive
    versions = {version for _, version in alive}
    return status.status in WAITING and (status.version is None or status.version in versions)


def _fail_if_still(
    conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str, turn_id: str, epoch: int, reason: str, outbox: Outbox
) -> str | None:
    row = box.lock(conn, conversation_id)
    if row is None or row.state != "claimed" or row.claimed_by != turn_id or row.epoch != epoch:
        return None
    return fail(conn, enqueuer, row, reason=reason, outbox=outbox)


def fail(
    conn: sa.Connection, enqueuer: Enqueuer, conversation: sa.Row[Any], *, reason: str, outbox: Outbox = SILENT
) -> str:
    """Free a conversation whose turn died: its rows are unread again and a new item tries, or it is set aside.

    `conversation` is the locked row, still claimed by the dead turn. Returns `retried`, `set_aside`, or
    `released` for a turn that had closed after all.
    """
    turn_id, failures = conversation.claimed_by, conversation.failures + 1
    box.give_back(conn, turn_id, apart=stopping.wish_of(conversation, turn_id) is not None)
    died = conn.execute(
        sa.update(turns)
        .where(turns.c.id == turn_id, turns.c.outcome.is_(None))
        .values(outcome="failed", error=reason, ended_at=time.time())
    )
    if not died.rowcount:
        claims.release(conn, enqueuer, conversation)
        return "released"
    # Nobody waits for these any more; an end that is recorded already is handed over by the next sweep.
    conn.execute(
        sa.update(sessions)
        .where(
            sessions.c.turn_id == turn_id, sessions.c.delivery == Delivery.INLINE.value, sessions.c.end.is_(sa.null())
        )
        .values(delivery=Delivery.CALLBACK.value)
    )
    conn.execute(sa.update(conversations).where(conversations.c.id == conversation.id).values(failures=failures))
    aside = failures >= STRIKES
    text = (
        f"{failures} turns in a row failed ({reason}); this conversation is set aside. "
        "Nothing is lost: write to try again."
        if aside
        else f"A turn failed ({reason}); it is tried again."
    )
    stream.note(conn, conversation.id, turn_id, conversation.epoch, "alarm" if aside else "failed", {"text": text})
    if aside:
        outbox.put(conn, "set_aside", conversation.id, f"{conversation.id}:{conversation.epoch}", text)
    box.add_row(
        conn,
        conversation.id,
        kind="turn_failed",
        priority=100,
        payload={"reason": reason, "started": _started_by(conn, turn_id)},
        dedupe_key=f"turn_failed:{conversation.id}:{conversation.epoch}",
    )
    claims.release(conn, enqueuer, conversation, blocked="set_aside" if aside else None, follow=ItemType.RETRY)
    if not aside:
        stopping.pass_on(conn, enqueuer, conversation)
    return "set_aside" if aside else "retried"


def _started_by(conn: sa.Connection, turn_id: str) -> list[dict[str, Any]]:
    query = sa.select(sessions).where(sessions.c.turn_id == turn_id).order_by(sessions.c.created_at).limit(50)
    return [{"session_id": row.id, "state": row.state, "command": row.command[:500]} for row in conn.execute(query)]


def _with_unread_rows(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any]]:
    """Free conversations with news, and those that only wait for an APPROVAL item, old enough to be forgotten."""
    unread = (
        sa.select(mailbox.c.id)
        .where(
            mailbox.c.conversation_id == conversations.c.id,
            mailbox.c.state == "unread",
            mailbox.c.created_at < time.time() - YOUNG_S,
        )
        .exists()
    )
    pending = (
        sa.select(approval_rows.c.id)
        .where(approval_rows.c.conversation_id == conversations.c.id, approval_rows.c.state == "pending")
        .exists()
    )
    resumable = sa.and_(
        conversations.c.state == "blocked", conversations.c.blocked_reason == "approval", sa.not_(pending)
    )
    query = (
        sa.select(conversations)
        .where(
            conversations.c.host_id == host_id,
            sa.or_(sa.and_(conversations.c.state == "free", unread), resumable),
        )
        .limit(BATCH)
    )
    return conn.execute(query).all()


def _open_items(conn: sa.Connection, conversation_ids: Sequence[str]) -> dict[str, list[str]]:
    query = sa.select(turns.c.id, turns.c.conversation_id).where(
        turns.c.conversation_id.in_(conversation_ids), turns.c.outcome.is_(None)
    )
    found: dict[str, list[str]] = {}
    for row in conn.execute(query):
        found.setdefault(row.conversation_id, []).append(row.id)
    return found


def _wake_if_still(conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str, epoch: int) -> bool:
    row = box.lock(conn, conversation_id)
    if row is None or row.epoch != epoch:
        return False
    suffix = f":{int(time.time())}"
    if row.state == "blocked" and row.blocked_reason == "approval":
        if box.undecided(conn, conversation_id):
            return False
        approvals.resume(conn, enqueuer, row, suffix)
        return True
    return row.state == "free" and claims.follow_up(conn, enqueuer, row, suffix=suffix)


def undelivered(conn: sa.Connection) -> list[str]:
    """Sessions whose end somebody has yet to hear; their logs stay."""
    query = sa.select(mailbox.c.dedupe_key).where(mailbox.c.heard_at.is_(None), mailbox.c.kind == "exit")
    return [key.removeprefix("exit:") for key in conn.execute(query).scalars()]


def _left_behind(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any]]:
    """Sessions whose turn is over: foreground ones nobody waits for, claims that were never started."""
    waiting = sessions.c.delivery == Delivery.INLINE.value
    unstarted = sessions.c.state == SessionState.CLAIMED.value
    query = (
        sa.select(sessions)
        .join(turns, turns.c.id == sessions.c.turn_id)
        .where(
            sessions.c.host_id == host_id,
            sa.or_(waiting, unstarted),
            turns.c.ended_at < time.time() - YOUNG_S,
        )
        .limit(BATCH)
    )
    return conn.execute(query).all()
