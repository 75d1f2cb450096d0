"""Checks of the database: tables, workers, and rows that wait, are blocked or are stuck."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from shellback.checks import machine
from shellback.checks.check import Check
from shellback.checks.filesystems import filesystem
from shellback.exec.core.display import age, visible
from shellback.settings import Settings, words
from shellback.storage import findings, rows, schema
from shellback.storage.errors import StorageError
from shellback.storage.tables import approvals, conversations, mailbox, workers
from shellback.wiring.wiring import Place
from shellback.work.hosts import roster
from shellback.work.hosts.sweep import HEARTBEAT_DEAD_S
from shellback.work.notices import notices
from shellback.work.queue import dead_letters
from shellback.work.queue.mailbox import waking

STUCK_S: Final = 60.0
"""News that is older, while no turn runs and none is heard, is stuck."""
_NAMED: Final = 5


def directory(where: Place) -> list[Check]:
    """The file system of a SQLite file outside the state directory."""
    if where.database.dialect != "sqlite":
        return []
    folder = Path(str(where.database.url.database)).absolute().parent
    return [] if folder == where.home else [filesystem("database directory", folder)]


def tables(where: Place) -> Check:
    """Whether the tables fit this program; other checks need fitting tables."""
    shown = where.settings.shown_database
    try:
        state = schema.check(where.database)
        if state is schema.SchemaState.BEHIND and where.database.dialect == "sqlite":
            return Check("database", "ok", f"{shown}: missing or old tables; the first command migrates them")
        schema.require_current(where.database)
    except StorageError as error:
        return Check("database", "fail", str(error))
    return Check("database", "ok", f"{shown}, tables current")


def looked_up(where: Place) -> list[Check]:
    """All checks of rows."""
    found = where.database.read_now(lambda conn: [look(conn, where.host_id) for look in _LOOKS])
    return [*found, where.database.read_now(_notified, where.settings)]


def _notified(conn: sa.Connection, settings: Settings) -> Check:
    if not (settings.notify_command or settings.notify_webhook):
        return Check("notifications", "ok", "off: neither NOTIFY_COMMAND nor NOTIFY_WEBHOOK is set")
    target = "a webhook" if settings.notify_webhook else words(settings.notify_command)[0]
    told = notices.told(conn)
    last = "none sent yet" if told.sent_at is None else f"last sent {age(time.time() - told.sent_at)} ago"
    text = f"{target}; {last}, {told.waiting} to send, {told.given_up} given up"
    if settings.notify_command and shutil.which(target) is None:
        return Check("notifications", "warn", f"{text}; program {target} was not found", "give its full path")
    if told.error:
        remedy = "repair the target; .env.example describes its input"
        return Check("notifications", "warn", f"{text}; last error: {told.error}", remedy)
    return Check("notifications", "ok", text)


def _worker(conn: sa.Connection, host_id: str) -> Check:
    found = roster.there(conn, host_id)
    if not found:
        return Check("worker", "warn", "none of this host runs", "start one: shellback worker")
    silent = [one for one in found if one.state == "silent"]
    if silent:
        named = ", ".join(f"{one.executor_id} (pid {one.pid}) for {age(one.quiet_s)}" for one in silent[:_NAMED])
        remedy = "the worker hangs or is paused: see its log, then end it and start it again (`shellback workers`)"
        return Check("worker", "warn", f"no heartbeat: {named}", remedy)
    return Check("worker", "ok", ", ".join(f"{one.executor_id} (pid {one.pid}, {one.version})" for one in found))


def _set_aside(conn: sa.Connection, _host_id: str) -> Check:
    blocked = conn.execute(
        sa.select(conversations.c.id, conversations.c.blocked_reason).where(
            conversations.c.state == "blocked", conversations.c.blocked_reason != "approval"
        )
    ).all()
    if blocked:
        named = ", ".join(f"{row.id} ({row.blocked_reason})" for row in blocked[:10])
        return Check("conversations", "warn", f"{len(blocked)} blocked: {named}", "send a message to retry one")
    return Check("conversations", "ok", "none is set aside")


def _waiting(conn: sa.Connection, _host_id: str) -> Check:
    count, oldest = conn.execute(
        sa.select(sa.func.count(), sa.func.min(approvals.c.created_at)).where(approvals.c.state == "pending")
    ).one()
    if not count:
        return Check("approvals", "ok", "nothing waits")
    text = f"{count} wait, the oldest for {age(time.time() - oldest)}"
    return Check("approvals", "warn", text, "shellback approvals list")


def _findings(conn: sa.Connection, host_id: str) -> Check:
    found = findings.find(conn, host_id=host_id)
    if not found:
        return Check("findings", "ok", "none is open")
    named = ", ".join(f"{one.id} ({one.kind}, {visible(one.path)})" for one in found[:_NAMED])
    remedy = "`shellback findings show ID` says what to do; then `shellback findings ack ID`"
    return Check("findings", "warn", f"{len(found)} open: {named}", remedy)


def _news(conn: sa.Connection, _host_id: str) -> Check:
    oldest_s = _oldest_news(conn)
    if oldest_s > STUCK_S:
        text = f"unread news of a free conversation is {age(oldest_s)} old"
        remedy = "start a worker if none runs: its sweep delivers it; `shellback hosts` names what waits for a host"
        return Check("mailbox", "warn", text, remedy)
    return Check("mailbox", "ok", "no news is stuck")


def _oldest_news(conn: sa.Connection, *of: sa.ColumnElement[bool]) -> float:
    """Age in seconds of the oldest unread news of free conversations; 0 if there is none."""
    oldest = conn.execute(
        sa.select(sa.func.min(mailbox.c.created_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(waking(), conversations.c.state == "free", *of)
    ).scalar_one()
    return 0.0 if oldest is None else time.time() - oldest


def _callbacks(conn: sa.Connection, _host_id: str) -> Check:
    dead = dead_letters.callbacks(conn)
    if not dead:
        return Check("callbacks", "ok", "none was given up while its news is unread")
    named = ", ".join(f"{one.session_id} for {one.conversation_id} ({one.status})" for one in dead[:_NAMED])
    number = f"{len(dead)} or more" if len(dead) == dead_letters.LISTED else str(len(dead))
    remedy = "a worker's sweep enqueues the news again; a message (`shellback send`) does so at once"
    return Check("callbacks", "warn", f"{number} given up while the news is unread: {named}", remedy)


def _queues(conn: sa.Connection, host_id: str) -> Check:
    stranded = dead_letters.for_nobody(conn, host_id)
    if not stranded:
        return Check("queues", "ok", "no item waits for an unknown host")
    named = ", ".join(f"{number} for {host}" for host, number in list(stranded.items())[:_NAMED])
    remedy = (
        "start a worker with that host's state directory, or take its conversations over: `shellback adopt host ID`"
    )
    return Check("queues", "warn", f"items wait for unknown hosts: {named}", remedy)


_LOOKS: Final[tuple[Callable[[sa.Connection, str], Check], ...]] = (
    machine.clock,
    _worker,
    _set_aside,
    _waiting,
    _findings,
    _news,
    _callbacks,
    _queues,
)


def heart(conn: sa.Connection, executor_id: str) -> Check:
    """The last heartbeat of this worker."""
    row = conn.execute(
        sa.select(workers.c.heartbeat_at, workers.c.stopped_at).where(workers.c.executor_id == executor_id)
    ).one_or_none()
    if row is None or row.stopped_at is not None:
        return Check("worker", "fail", f"{executor_id} does not run", "start it: shellback worker")
    quiet_s = rows.now(conn) - row.heartbeat_at
    text = f"{executor_id}: last heartbeat {age(quiet_s)} ago"
    if quiet_s > HEARTBEAT_DEAD_S:
        return Check("worker", "fail", text, "see its log, and restart it")
    return Check("worker", "ok", text)


def backlog(conn: sa.Connection, host_id: str) -> Check:
    """Whether news waits although no turn runs."""
    of_host = conversations.c.host_id == host_id
    oldest_s = _oldest_news(conn, of_host)
    if oldest_s <= STUCK_S:
        return Check("queues", "ok", "nothing waits longer than it should")
    running = conn.execute(
        sa.select(sa.func.count()).select_from(conversations).where(of_host, conversations.c.state == "claimed")
    ).scalar_one()
    heard = conn.execute(
        sa.select(sa.func.max(mailbox.c.heard_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(of_host)
    ).scalar_one()
    if running or (heard is not None and time.time() - heard < STUCK_S):
        return Check("queues", "ok", f"the oldest news waits for {age(oldest_s)}; {running} turn(s) run")
    return Check(
        "queues", "fail", f"news waits for {age(oldest_s)} and no turn runs", "see the worker's log, and restart it"
    )
