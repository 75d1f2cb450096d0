"""What a host left behind whose lease has ended: its processes are given up, its conversations move.

`give_up` and `move` are one transaction for one conversation. It holds the row of the host that is gone, which that
host's next heartbeat waits for, then the conversation's, and looks again at both: two that do the same, or a
host that returns meanwhile, find nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from shellback.exec.core.model import Delivery, Evidence, SessionEnd, SessionId, SessionState
from shellback.exec.core.ports import ExitSink
from shellback.exec.core.watch import ENDED
from shellback.storage import sessions as store
from shellback.storage import watches
from shellback.storage.db import Database
from shellback.storage.rows import change, change_some
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, events, mailbox, sessions, turns
from shellback.work.approvals import approvals as requests
from shellback.work.hosts import hosts
from shellback.work.hosts.hosts import Host
from shellback.work.hosts.sweep import WAITING, listed
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import mailbox as box
from shellback.work.queue import stream
from shellback.work.queue.items import MOVED
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import claims

if TYPE_CHECKING:
    from dbos import DBOSClient

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Here:
    """The host that acts for another one, and through what it does so."""

    host_id: str
    name: str
    lease_s: float
    enqueuer: Enqueuer
    sink: ExitSink
    outbox: Outbox = SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A conversation that goes on here: processes given up, and items that nobody is to run any more."""

    conversation_id: str
    lost: int
    items: list[str]


def give_up(conn: sa.Connection, here: Here, host_id: str, conversation_id: str) -> int | None:
    """End what a host ran for a conversation as lost(host_unreachable), and say so there, once for each silence.

    One that outlasts the events of a day is said again. Returns how many processes that were; None where the host is
    heard of, or is settled by somebody else.
    """
    host = hosts.held(conn, host_id, wait=False)
    if host is None or host.holds(here.lease_s):
        return None
    box.lock(conn, conversation_id)
    lost = _lose(conn, here, host, conversation_id)
    if lost or not conn.execute(sa.select(_told(host, conversation_id))).scalar_one():
        text = (
            f"host {host.name} has not been heard of for {host.silent_s or 0:.0f} s: its {lost} process(es) of this"
            " conversation are given up as lost (host_unreachable). The conversation waits for that host;"
            f" `shellback adopt conversation {conversation_id}` continues it on another one"
        )
        stream.note(conn, conversation_id, "", 0, "alarm", {"text": text, "silence": host.silence})
        _announce(conn, here, host, f"wait for it; `shellback adopt host {host_id[:12]}` continues them on another one")
    return lost


def move(
    conn: sa.Connection, here: Here, host_id: str, conversation_id: str, *, wait: bool = False, force: bool = False
) -> Moved | None:
    """Let a conversation of a host whose lease has ended, or of any with `force`, go on here.

    Its processes there are lost(host_unreachable), the turn that held it has failed, what is unread or decided has
    an item of ours, and the items of that host's queues are over. None where there is nothing to move: the host is
    heard of, or somebody else was first.
    """
    host = hosts.held(conn, host_id, wait=wait)
    if host is None or (host.holds(here.lease_s) and not force):
        return None
    row = box.lock(conn, conversation_id)
    if row is None or row.host_id != host_id or host_id == here.host_id:
        return None
    change(conn, conversations, conversation_id, host_id=here.host_id)
    row = box.lock(conn, conversation_id)  # as it is now: what follows is put on our queues
    assert row is not None
    items = _end_items(conn, row)
    lost = _lose(conn, here, host, conversation_id, all_inline=True)
    suffix = f":moved:{int(time.time())}"
    text = (
        f"continued on host {here.name}; host {host.name}, where it was, {host.heard}."
        f" {lost} process(es) there are given up as lost (host_unreachable)"
    )
    stream.note(conn, conversation_id, "", 0, "alarm", {"text": text})
    if not wait:  # nobody asked for it
        _announce(conn, here, host, "go on on other hosts")
    if row.state == "claimed":
        items.append(row.claimed_by)
        reason = f"it ran on host {host.name}, and the conversation is continued on {here.name}"
        claims.fail(conn, here.enqueuer, row, reason=reason, outbox=here.outbox)
    elif row.state == "free":
        claims.follow_up(conn, here.enqueuer, row, suffix=suffix)
    elif row.blocked_reason == "approval" and not box.undecided(conn, conversation_id):
        requests.resume(conn, here.enqueuer, row, suffix)
    return Moved(conversation_id=conversation_id, lost=lost, items=items)


def in_need(conn: sa.Connection, host: Host) -> list[str]:
    """Conversations of a silent host that have yet to be told, and those it has live processes in; a page."""
    name = conversations.c.id
    theirs = sa.select(name).where(conversations.c.host_id == host.host_id)
    # Each of what they want by itself: as one condition it cost Postgres a quarter of a second for each silent host.
    wanting = sa.union(
        theirs.where(conversations.c.state == "claimed"),
        theirs.join(mailbox, mailbox.c.conversation_id == name).where(box.waking()),
        theirs.join(approvals, approvals.c.conversation_id == name).where(approvals.c.state == "pending"),
        theirs.join(turns, turns.c.conversation_id == name).where(turns.c.outcome.is_(None)),
    ).subquery()
    query = sa.union(
        sa.select(sessions.c.conversation_id).where(sessions.c.host_id == host.host_id, sessions.c.state.in_(LIVE)),
        sa.select(wanting.c.id).where(~_told(host, wanting.c.id)),
    )
    return list(conn.execute(query.order_by(sa.literal_column("1")).limit(PAGE)).scalars())


def living_there(conn: sa.Connection, host_id: str, limit: int | None = PAGE) -> list[str]:
    """Conversations of a host; a page, or all."""
    query = sa.select(conversations.c.id).where(conversations.c.host_id == host_id)
    return list(conn.execute(query.order_by(conversations.c.id).limit(limit)).scalars())


def live_there(conn: sa.Connection, host_id: str, conversation_ids: Sequence[str]) -> int:
    """How many live processes these conversations have on a host, by our records."""
    live = sa.select(sessions.c.conversation_id).where(sessions.c.host_id == host_id, sessions.c.state.in_(LIVE))
    wanted = set(conversation_ids)
    return sum(name in wanted for name in conn.execute(live).scalars())


def _announce(conn: sa.Connection, here: Here, host: Host, left: str) -> None:
    """Note that a silent host, whose row is held, is given up, and tell whoever is told of alarms, once a silence."""
    if host.given_up:
        return
    hosts.note_given_up(conn, host)
    text = (
        f"host {host.name} ({host.host_id}) {host.heard}: its processes are given up as lost (host_unreachable), its"
        f" conversations {left}"
    )
    here.outbox.put(conn, "alarm", "", f"host:{host.silence}", text)


def _lose(conn: sa.Connection, here: Here, host: Host, conversation_id: str, *, all_inline: bool = False) -> int:
    """End live sessions; ends that only a call there could tell become callbacks, those of before with `all_inline`."""
    theirs = sa.and_(sessions.c.host_id == host.host_id, sessions.c.conversation_id == conversation_id)
    live = conn.execute(sa.select(sessions.c.id).where(theirs, sessions.c.state.in_(LIVE))).scalars().all()
    end = SessionEnd(state=SessionState.LOST, evidence=Evidence.HOST_UNREACHABLE, ended_at=time.time())
    for session_id in live:
        store.finish(conn, SessionId(session_id), end, here.sink)
        watches.off(conn, session_id, ENDED)
    if all_inline:
        watches.leave(conn, host.host_id, conversation_id)
    inline = sa.select(sessions.c.id).where(theirs, sessions.c.delivery == Delivery.INLINE.value)
    for session_id in conn.execute(inline if all_inline else inline.where(sessions.c.id.in_(live))).scalars().all():
        store.hand_over(conn, SessionId(session_id), here.sink)
    return len(live)


def _end_items(conn: sa.Connection, row: sa.Row[tuple[object, ...]]) -> list[str]:
    """End what waits on the other host's queues: whoever finds such an item there later leaves it."""
    waiting = sa.and_(
        turns.c.conversation_id == row.id,
        turns.c.outcome.is_(None),
        turns.c.id != ((row.claimed_by if row.state == "claimed" else None) or ""),
    )
    items = list(conn.execute(sa.select(turns.c.id).where(waiting)).scalars())
    change_some(conn, turns, turns.c.id.in_(items), outcome=MOVED, ended_at=time.time())
    return items


def _told(host: Host, conversation_id: sa.ColumnElement[str] | str) -> sa.Exists:
    return sa.exists().where(
        events.c.conversation_id == conversation_id,
        events.c.kind == "alarm",
        events.c.payload["silence"].as_string() == host.silence,
    )


log = logging.getLogger(__name__)

WATCHED_S: Final = 15.0
"""So long we look at a silence ourselves: after an outage of the database each host has yet to beat again."""
SETTLED_S: Final = 60.0
"""How often we look for news of a host of which everything is settled: some never return, and each look costs."""


@dataclass(eq=False, repr=False)
class Neighbours:
    """Settles what silent hosts left, a conversation at a time; `once` is a part of the sweep.

    With `shared` their conversations go on here. Else the ends of their processes are told, and the
    conversations wait for their host, or for somebody who adopts them.
    """

    database: Database
    client: DBOSClient
    here: Here
    shared: bool
    watched_s: float = WATCHED_S
    _due: dict[str, float] = field(init=False, default_factory=dict[str, float])

    async def once(self) -> None:
        """Settle what silent hosts left. Cancelling leaves the rest to the next sweep, of whichever host."""
        found = await self.database.read(hosts.others, self.here.host_id, self.here.lease_s)
        now = time.monotonic()
        self._due = {host.silence: self._due.get(host.silence, now + self.watched_s) for host in found}
        for host in found:
            if now >= self._due[host.silence] and not await self._settle(host):
                self._due[host.silence] = now + SETTLED_S

    async def _settle(self, host: Host) -> bool:
        """Settle what one left; whether there is, or was, anything to settle."""
        lost = moved = told = 0
        while self.shared and (names := await self.database.read(living_there, host.host_id)):
            for name in names:
                came = await self.database.write(move, self.here, host.host_id, name)
                if came is None:
                    return True
                moved, lost = moved + 1, lost + came.lost
                await asyncio.to_thread(cancel, self.client, came.items)
        while names := await self.database.read(in_need, host):
            for name in names:
                number = await self.database.write(give_up, self.here, host.host_id, name)
                if number is None:
                    return True
                told, lost = told + 1, lost + number
        if moved or told:
            log.warning(
                "host %s %s: %d process(es) given up as lost (host_unreachable), %d conversation(s) continued here, "
                "%d told that they wait",
                *(host.name, host.heard, lost, moved, told),
            )
        return bool(moved or told)

    def adopt(self, host_id: str, conversation_id: str, *, force: bool = False) -> Moved | None:
        """Let a conversation of that host go on here; None where it lives elsewhere, or the lease runs. Blocks."""
        moved = self.database.write_now(move, self.here, host_id, conversation_id, wait=True, force=force)
        if moved is not None:
            cancel(self.client, moved.items)
        return moved


def cancel(client: DBOSClient, items: Sequence[str]) -> None:
    """Take items off the queues of a host that is gone; what cannot be taken is left alone by whoever finds it."""
    with contextlib.suppress(Exception):
        for entry in listed(client, items):
            if entry.status in WAITING:
                client.cancel_workflow(entry.workflow_id)
