"""Settles what a host left when its lease ended: its processes are given up, its conversations move.

`give_up` and `move` are one transaction per conversation. It locks the row of the silent host, for which that host's
next heartbeat waits, then the conversation's row, and checks both again. Repeats do nothing, also if the host returns.
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
from shellback.storage.rows import CLOCK, change, change_some
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
    """The host that acts for another one, with its ports."""

    host_id: str
    name: str
    lease_s: float
    enqueuer: Enqueuer
    sink: ExitSink
    outbox: Outbox = SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A conversation that moved here: the number of lost processes, and items that must not run any more."""

    conversation_id: str
    lost: int
    items: list[str]


def give_up(conn: sa.Connection, here: Here, host_id: str, conversation_id: str) -> int | None:
    """End a silent host's sessions of a conversation as lost(host_unreachable), with one alarm for each silence.

    The alarm repeats if the silence lasts longer than events are kept (a day). Returns the number of sessions; None if
    the host is heard of again, or another worker settles it.
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
    """Move a conversation here from a host whose lease has ended, or from any host with `force`.

    Its sessions there become lost(host_unreachable), the turn that held it fails, its items on that host's queues end,
    and unread rows or decisions get an item here. None if there is nothing to move: the host is heard of again, or the
    conversation has moved already.
    """
    host = hosts.held(conn, host_id, wait=wait)
    if host is None or (host.holds(here.lease_s) and not force):
        return None
    row = box.lock(conn, conversation_id)
    if row is None or row.host_id != host_id or host_id == here.host_id:
        return None
    change(conn, conversations, conversation_id, host_id=here.host_id, placed=None)
    row = box.lock(conn, conversation_id)  # read again: what follows is put on our queues
    assert row is not None
    items = _end_items(conn, row)
    lost = _lose(conn, here, host, conversation_id, all_inline=True)
    suffix = f":moved:{int(time.time())}"
    text = (
        f"continued on host {here.name}; host {host.name}, where it was, {host.heard}."
        f" {lost} process(es) there are given up as lost (host_unreachable)"
    )
    stream.note(conn, conversation_id, "", 0, "alarm", {"text": text})
    if not wait:  # no person asked for it
        _announce(conn, here, host, "continue on other hosts")
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
    """Conversations of a silent host that have live sessions there, or wait and were not told; a page."""
    name = conversations.c.id
    theirs = sa.select(name).where(conversations.c.host_id == host.host_id)
    # A union, because one combined condition took Postgres a quarter of a second for each silent host.
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
    """The number of live sessions of these conversations on a host, by our records."""
    live = sa.select(sessions.c.conversation_id).where(sessions.c.host_id == host_id, sessions.c.state.in_(LIVE))
    wanted = set(conversation_ids)
    return sum(name in wanted for name in conn.execute(live).scalars())


def _announce(conn: sa.Connection, here: Here, host: Host, left: str) -> None:
    """Mark a silent host, whose row is locked, as given up, and send an alarm, once for each silence."""
    if host.given_up:
        return
    hosts.note_given_up(conn, host)
    text = (
        f"host {host.name} ({host.host_id}) {host.heard}: its processes are given up as lost (host_unreachable), its"
        f" conversations {left}"
    )
    here.outbox.put(conn, "alarm", "", f"host:{host.silence}", text)


def _lose(conn: sa.Connection, here: Here, host: Host, conversation_id: str, *, all_inline: bool = False) -> int:
    """End live sessions and make inline deliveries callbacks; with `all_inline` also of earlier ended sessions."""
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
    """End items on the other host's queues; a worker that finds one there later skips it."""
    waiting = sa.and_(
        turns.c.conversation_id == row.id,
        turns.c.outcome.is_(None),
        turns.c.id != ((row.claimed_by if row.state == "claimed" else None) or ""),
    )
    items = list(conn.execute(sa.select(turns.c.id).where(waiting)).scalars())
    change_some(conn, turns, turns.c.id.in_(items), outcome=MOVED, ended_at=CLOCK)
    return items


def _told(host: Host, conversation_id: sa.ColumnElement[str] | str) -> sa.Exists:
    return sa.exists().where(
        events.c.conversation_id == conversation_id,
        events.c.kind == "alarm",
        events.c.payload["silence"].as_string() == host.silence,
    )


log = logging.getLogger(__name__)

WATCHED_S: Final = 15.0
"""We observe a silence for this long: after an outage of the database each host needs time for a heartbeat."""
SETTLED_S: Final = 60.0
"""How often we check a silent host of which everything is settled."""


@dataclass(eq=False, repr=False)
class Neighbours:
    """Settles what silent hosts left, one conversation at a time; `once` is a part of the sweep.

    With `shared` their conversations move here. Otherwise the ends of their sessions are told, and the conversations
    wait for their host or for `adopt`.
    """

    database: Database
    client: DBOSClient
    here: Here
    shared: bool
    watched_s: float = WATCHED_S
    _due: dict[str, float] = field(init=False, default_factory=dict[str, float])

    async def once(self) -> None:
        """Settle what silent hosts left. After a cancellation the next sweep of any host does the rest."""
        found = await self.database.read(hosts.others, self.here.host_id, self.here.lease_s)
        now = time.monotonic()
        self._due = {host.silence: self._due.get(host.silence, now + self.watched_s) for host in found}
        for host in found:
            if now >= self._due[host.silence] and not await self._settle(host):
                self._due[host.silence] = now + SETTLED_S

    async def _settle(self, host: Host) -> bool:
        """Settle one host; False if there was nothing to settle."""
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
        """Move a conversation of that host here; None if it lives elsewhere, or the lease still runs. Blocks."""
        moved = self.database.write_now(move, self.here, host_id, conversation_id, wait=True, force=force)
        if moved is not None:
            cancel(self.client, moved.items)
        return moved


def cancel(client: DBOSClient, items: Sequence[str]) -> None:
    """Cancel items on the queues of a silent host; a worker that finds one that is left skips it."""
    with contextlib.suppress(Exception):
        for entry in listed(client, items):
            if entry.status in WAITING:
                client.cancel_workflow(entry.workflow_id)
