"""The sweep: every few seconds it repairs what a worker missed because it was dead or late.

It frees conversations whose turn died, gives unread rows an item, expires approvals and hands over what a dead turn
was waiting for. Each repair is a transaction of its own that checks again under the conversation's lock, so that two
sweeps, or a sweep and a turn, cannot both act. One statement says which repairs may have something to do, so a database
at rest is asked for little more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa

from shellback.exec.core.model import Delivery, SessionId, SessionState
from shellback.exec.wire.crashpoints import reach
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals as approval_rows
from shellback.storage.tables import conversations, events, hosts, mailbox, sessions, turns, watches, workers
from shellback.work.approvals import approvals
from shellback.work.errors import ApprovalSettled
from shellback.work.hosts import roster
from shellback.work.hosts.clock import since_boot
from shellback.work.hosts.hosts import SILENT_S
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import dead_letters, stream
from shellback.work.queue import mailbox as box
from shellback.work.queue.items import ItemType
from shellback.work.queue.mailbox import NOWHERE
from shellback.work.queue.queues import Enqueuer, queues_of
from shellback.work.turn import claims
from shellback.work.turn.lifetimes import LATE_S
from shellback.work.turn.watching import TurnWatch

if TYPE_CHECKING:
    from dbos import DBOSClient, WorkflowStatus

log = logging.getLogger(__name__)

YOUNG_S: Final = 3.0
"""Younger rows may still be in progress."""
HEARTBEAT_DEAD_S: Final = 30.0
BATCH: Final = 200
WAITING: Final = frozenset({"ENQUEUED", "DELAYED", "PENDING"})

Alive = dict[tuple[str | None, str | None], list[str]]
"""The hosts whose turns living workers run, each by its executor id and version."""


Repair = tuple[Set[str], Callable[[], Awaitable[object]]]
"""A repair, and the signs of which one is needed for it."""
ALWAYS: Final[Set[str]] = frozenset()


class Processes(Protocol):
    """What the sweep asks of the exec engine; see `Engine`."""

    async def reconcile(self, *, live: bool = True) -> None: ...

    async def hand_over(self, session_id: SessionId) -> bool: ...

    async def abandon(self, session_id: SessionId) -> None: ...


@dataclass(eq=False, repr=False)
class Sweep:
    """The sweep of the worker `me` (executor id, version)."""

    database: Database
    enqueuer: Enqueuer
    client: DBOSClient
    processes: Processes
    host_id: str
    me: tuple[str, str]
    watch: TurnWatch = field(default_factory=TurnWatch)
    outbox: Outbox = SILENT
    also: Sequence[Repair] = ()
    _until: dict[str, float] = field(init=False, default_factory=dict[str, float])
    _looked_to: str = field(init=False, default="")
    _before: set[str] = field(init=False, default_factory=set[str])
    """Signs of the last sweep: a repair runs once more without them, to forget what it keeps in memory."""
    _since: float = field(init=False, default=0.0)

    async def once(self) -> None:
        """Run all repairs. A repair that fails is logged and tried again by the next sweep."""
        reach("sweep.scanning")
        signs, now = await self.database.read(_signs, self.host_id, self._since)
        due, self._before = signs | self._before, signs
        self._since = now - LATE_S
        for needs, repair in (
            ({"asked"}, self._expire_approvals),
            ({"claimed"}, self._free_dead_turns),
            ({"open"}, self._close_what_never_began),
            ({"unread", "blocked"}, self._wake_the_forgotten),
            ({"old"}, self._prune_events),
            (ALWAYS, partial(self.processes.reconcile, live="live" in due)),
            ({"live", "inline"}, self._settle_what_dead_turns_left),
            *self.also,
        ):
            if needs and not needs & due:
                continue
            try:
                await repair()
            except Exception:
                log.exception("a part of the sweep failed; the next one tries again")
                self._before |= needs
        self.outbox.ring()

    async def _prune_events(self) -> None:
        while await self.database.write(stream.prune) == stream.PRUNED_AT_ONCE:
            pass

    async def _expire_approvals(self) -> None:
        now = since_boot()
        left = await self.database.read(approvals.left, self.host_id)
        # By the time since boot: a wall clock that is set back must not give a request more time.
        self._until = {one: min(self._until.get(one, math.inf), now + seconds) for one, seconds in left.items()}
        for request_id in [one for one, until in self._until.items() if until <= now]:
            with contextlib.suppress(ApprovalSettled):
                how: dict[str, Any] = {"by": "clock", "surface": "sweep", "note": "nobody decided in time"}
                await self.database.write(approvals.decide, self.enqueuer, request_id, "expired", **how)

    async def _alive(self) -> Alive:
        # This worker is alive, even if a clock that jumped makes its heartbeat look old.
        return await self.database.read(_alive) | {self.me: [self.host_id]}

    async def _statuses(self, ids: Sequence[str]) -> Mapping[str, WorkflowStatus]:
        found = await asyncio.to_thread(listed, self.client, ids)
        return {entry.workflow_id: entry for entry in found}

    async def _free_dead_turns(self) -> None:
        claimed = await self.database.read(_claimed, self.host_id)
        statuses = await self._statuses([row.claimed_by for row in claimed])
        alive = await self._alive()
        for row in claimed:
            reason = self._why_dead(statuses.get(row.claimed_by), alive)
            if reason is None:
                continue
            came = await self.database.write(
                _fail_if_still, self.enqueuer, row.id, row.claimed_by, row.epoch, reason, self.outbox
            )
            if came is None:
                continue
            self.watch.failed(came)
            log.warning(
                "freed conversation %s: %s; %s",
                row.id,
                reason,
                came,
                extra={"conversation": row.id, "work_item": row.claimed_by},
            )
            # Only now: an earlier cancel could end a turn that a worker has just resumed.
            status = statuses.get(row.claimed_by)
            if status is not None and status.status in WAITING:
                await asyncio.to_thread(self.client.cancel_workflow, row.claimed_by)

    async def _close_what_never_began(self) -> None:
        waiting = await self.database.read(_waiting_turns, self.host_id)
        statuses = await self._statuses([turn.id for turn in waiting])
        for turn in waiting:
            status = statuses.get(turn.id)
            if status is None or status.status not in WAITING:
                await self.database.write(
                    _close_unbegun, turn.conversation_id, turn.id, self._why_dead(status, {}) or ""
                )

    async def _wake_the_forgotten(self) -> None:
        forgotten = await self.database.read(_with_unread_rows, self.host_id, self._looked_to)
        # One page per sweep, so that a long backlog does not hide later conversations.
        self._looked_to = forgotten[-1].id if len(forgotten) == BATCH else ""
        waiting = await self.database.read(_open_items, [row.id for row in forgotten])
        statuses = await self._statuses([item for items in waiting.values() for item in items])
        alive = await self._alive()
        for row in forgotten:
            items = [statuses[item] for item in waiting.get(row.id, []) if item in statuses]
            if any(self._will_run(status, alive) for status in items):
                continue
            if await self.database.write(_wake_if_still, self.enqueuer, row.id, row.epoch):
                log.warning(
                    "conversation %s had news but no item; enqueued one", row.id, extra={"conversation": row.id}
                )
                for item in waiting.get(row.id, []):
                    if item in statuses and dead_letters.is_one(item, statuses[item].status):
                        log.error("callback %s was given up by its queue; another item tells its news", item)

    async def _settle_what_dead_turns_left(self) -> None:
        for session in await self.database.read(_left_behind, self.host_id):
            if session.delivery == Delivery.INLINE:
                await self.processes.hand_over(SessionId(session.id))
            if session.state == SessionState.CLAIMED:
                await self.processes.abandon(SessionId(session.id))

    def _why_dead(self, status: WorkflowStatus | None, alive: Alive) -> str | None:
        if status is None:
            return "its work item is gone"
        if status.status in _OVER:
            return _OVER[status.status]
        if self._will_run(status, alive):
            return None
        pending = status.status == "PENDING"
        return "no living worker runs its version" if pending else "it waits for a version that no living worker runs"

    def _will_run(self, status: WorkflowStatus, alive: Alive) -> bool:
        ours = status.queue_name in queues_of(self.host_id)
        here = {version for (_, version), serves in alive.items() if ours and self.host_id in serves}
        here.discard(roster.NO_TURNS)
        if status.status == "PENDING":
            # On SQLite a host has one worker, so none takes over from it.
            versions = here if self.database.dialect != "sqlite" else ()
            return (status.executor_id, status.app_version) in alive or status.app_version in versions
        # Where no worker serves this host now, one of any version may come back.
        versions = here or {version for _, version in alive}
        return status.status in WAITING and (status.app_version is None or status.app_version in versions)


_SIGNS: Final = {
    "asked": sa.exists().where(approval_rows.c.state == rows.literal("pending")),
    "claimed": sa.exists().where(conversations.c.state == rows.literal("claimed")),
    "blocked": sa.exists().where(conversations.c.state == rows.literal("blocked")),
    "open": sa.exists().where(turns.c.outcome.is_(None)),
    "ended": sa.exists().where(turns.c.ended_at >= sa.bindparam("since")),
    "unread": sa.exists().where(mailbox.c.state == rows.literal("unread")),
    "live": sa.exists().where(sessions.c.state.in_([rows.literal(state) for state in LIVE])),
    "inline": sa.exists().where(sessions.c.delivery == rows.literal(Delivery.INLINE.value)),
    "watched": sa.exists().where(watches.c.state == rows.literal("on")),
    "silent": sa.exists().where(hosts.c.host_id != sa.bindparam("host"), hosts.c.heartbeat_at < rows.CLOCK - SILENT_S),
    "unplaced": sa.exists().where(conversations.c.host_id == rows.literal(NOWHERE)),
    "old": sa.exists().where(events.c.created_at < sa.bindparam("kept")),
}
_LOOK: Final = sa.select(rows.CLOCK.label("now"), *(there.label(sign) for sign, there in _SIGNS.items()))


def _signs(conn: sa.Connection, host_id: str, since: float) -> tuple[set[str], float]:
    """The signs of something to repair, and the time; `ended` is of turns since then. Each is found by an index."""
    given = {"host": host_id, "since": since, "kept": time.time() - stream.KEEP_S}
    row = conn.execute(_LOOK, given).mappings().one()
    return {sign for sign in _SIGNS if row[sign]}, row["now"]


def _old(conn: sa.Connection, at: sa.Column[float]) -> sa.ColumnElement[bool]:
    """Whether a time is long ago, or in the future because the clock was set back."""
    now = rows.now(conn)
    return sa.or_(at < now - YOUNG_S, at > now + YOUNG_S)


def _claimed(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any]]:
    held = (
        conversations.c.state == "claimed",
        conversations.c.host_id == host_id,
        _old(conn, conversations.c.claimed_at),
    )
    query = sa.select(conversations).where(*held)
    return conn.execute(query.order_by(conversations.c.claimed_at).limit(BATCH)).all()


def _alive(conn: sa.Connection) -> Alive:
    now = rows.now(conn)
    query = sa.select(workers).where(
        workers.c.stopped_at.is_(None),
        # A time further ahead was written before the clock was set back; a living worker updates it soon.
        workers.c.heartbeat_at.between(now - HEARTBEAT_DEAD_S, now + HEARTBEAT_DEAD_S),
    )
    return {(row.executor_id, row.version): roster.hosts_of(row.host_id, row.offer) for row in conn.execute(query)}


_OVER: Final = {
    "ERROR": "it ended in an error",
    "CANCELLED": "it was cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": claims.POISON,
    "SUCCESS": "it ended without closing",
}


def listed(client: DBOSClient, ids: Sequence[str]) -> list[WorkflowStatus]:
    """What DBOS has of these items. Blocks."""
    return client.list_workflows(workflow_ids=list(ids), load_input=False, load_output=False) if ids else []


def _fail_if_still(
    conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str, turn_id: str, epoch: int, reason: str, outbox: Outbox
) -> str | None:
    row = box.lock(conn, conversation_id)
    if row is None or row.state != "claimed" or row.claimed_by != turn_id or row.epoch != epoch:
        return None
    return claims.fail(conn, enqueuer, row, reason=reason, outbox=outbox, poison=reason == claims.POISON)


def _waiting_turns(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any, Any]]:
    """Open turns that have not begun and are not new; their item may be gone."""
    query = (
        sa.select(turns.c.id, turns.c.conversation_id)
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(
            turns.c.outcome.is_(None),
            turns.c.started_at.is_(None),
            conversations.c.host_id == host_id,
            _old(conn, turns.c.created_at),
        )
        .order_by(turns.c.created_at)
        .limit(BATCH)
    )
    return conn.execute(query).all()


def _close_unbegun(conn: sa.Connection, conversation_id: str, turn_id: str, reason: str) -> None:
    box.lock(conn, conversation_id)
    # Left open, it would make later messages wait for it, and its conversation would never be pruned.
    claims.ended(conn, turn_id, turns.c.started_at.is_(None), outcome="failed", error=reason)


def _with_unread_rows(conn: sa.Connection, host_id: str, after: str) -> Sequence[sa.Row[Any]]:
    """Free conversations with old news, and those that only wait for an APPROVAL item; a page after `after`."""
    of_it = mailbox.c.conversation_id == conversations.c.id
    unread = sa.exists().where(of_it, box.waking(), _old(conn, mailbox.c.created_at))
    waits = sa.and_(approval_rows.c.conversation_id == conversations.c.id, approval_rows.c.state == "pending")
    resumable = sa.and_(
        conversations.c.state == "blocked", conversations.c.blocked_reason == "approval", ~sa.exists().where(waits)
    )
    query = sa.select(conversations).where(
        conversations.c.id > after,
        conversations.c.host_id == host_id,
        sa.or_(sa.and_(conversations.c.state == "free", unread), resumable),
    )
    return conn.execute(query.order_by(conversations.c.id).limit(BATCH)).all()


def _open_items(conn: sa.Connection, conversation_ids: Sequence[str]) -> dict[str, list[str]]:
    """Open items that would be admitted, by conversation. One that waits for its APPROVAL item admits no other."""
    query = (
        sa.select(turns.c.id, turns.c.conversation_id)
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(
            conversations.c.id.in_(conversation_ids),
            turns.c.outcome.is_(None),
            sa.or_(conversations.c.state == "free", turns.c.item_type == ItemType.APPROVAL.value),
        )
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
    """Sessions whose end no turn has heard yet; their logs stay."""
    query = sa.select(mailbox.c.dedupe_key).where(mailbox.c.heard_at.is_(None), mailbox.c.kind == "exit")
    return [key.removeprefix("exit:") for key in conn.execute(query).scalars()]


def _left_behind(conn: sa.Connection, host_id: str) -> Sequence[sa.Row[Any]]:
    """Sessions of finished turns that are still inline, or claimed and never started."""
    waiting = sessions.c.delivery == Delivery.INLINE.value
    unstarted = sessions.c.state == SessionState.CLAIMED.value
    query = sa.select(sessions).join(turns, turns.c.id == sessions.c.turn_id)
    left = (sessions.c.host_id == host_id, sa.or_(waiting, unstarted), _old(conn, turns.c.ended_at))
    return conn.execute(query.where(*left).limit(BATCH)).all()
