"""Processes that only the supervisor knows, and sessions that only the database knows. A person settles them.

The first come from a restored database, the second from a restored state directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import (
    CONVERSATION,
    Delivery,
    EndedBy,
    Evidence,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.supervised import end_of
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import ExitRecord, Message
from shellback.storage import sessions as session_rows
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.tables import conversations, sessions
from shellback.work.errors import WorkError
from shellback.work.hosts import generation
from shellback.work.hosts.generation import Generation
from shellback.work.queue import mailbox
from shellback.work.queue.callbacks import CallbackSink

log = logging.getLogger(__name__)

NOT_KNOWN: Final = "(not known: the process had ended before it was adopted)"
_MANY: Final = 1_000_000
"""No bound: adopted processes run already."""
_SOME: Final = 500


class AdoptionRefused(WorkError):
    """Raised when a process cannot be adopted for that conversation. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A process without a session, or its end. `command` is what it executes now, as the kernel says."""

    id: SessionId
    state: str
    pid: int | None = None
    since: float | None = None
    command: str | None = None
    cwd: str = ""
    uid: int | None = None
    pty: bool = False
    separate_stderr: bool = False
    boot_id: str = ""
    end: SessionEnd | None = None


async def unknown(port: SupervisorPort, database: Database) -> list[Unknown]:
    """Processes of the supervisor, running or ended and not acknowledged, without a session; oldest first.

    Raises:
        SupervisorUnreachable: The supervisor does not answer.
    """
    boot_id = str((await port.connect())["boot_id"])
    running, ended = await port.list()
    ends = {record["session_id"]: record for record in ended}
    lives = {str(status["session_id"]): status for status in running if status["session_id"] not in ends}
    known = await database.read(_known, [*ends, *lives])
    found = [_ended(record) for name, record in ends.items() if name not in known]
    found += [_running(status, boot_id) for name, status in lives.items() if name not in known]
    return sorted(found, key=lambda one: (one.since or 0.0, one.id))


async def missing(port: SupervisorPort, database: Database, host_id: str) -> list[Session]:
    """Sessions that run on this boot of this host by the database, but that the supervisor does not know.

    Raises:
        SupervisorUnreachable: The supervisor does not answer.
    """
    boot_id = (await port.connect())["boot_id"]
    live = await database.read(session_rows.find, live=True)
    return [
        one
        for one in live
        if one.host_id == host_id and one.boot_id == boot_id and one.state is SessionState.RUNNING
        if (await port.status(one.id))["state"] == "unknown"
    ]


def _known(conn: sa.Connection, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for at in range(0, len(names), _SOME):
        found |= set(conn.execute(sa.select(sessions.c.id).where(sessions.c.id.in_(names[at : at + _SOME]))).scalars())
    return found


def _running(status: Message, boot_id: str) -> Unknown:
    pid, start = int(status["pid"]), int(status["starttime"])
    command, cwd, uid = None, "", None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        uid = os.stat(f"/proc/{pid}").st_uid
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        words = []
    # Checked after reading: the pid may have been reused.
    if words and procfs.alive(pid, start):
        command = shlex.join(word.decode("utf-8", "replace") for word in words)
    return Unknown(
        id=SessionId(status["session_id"]),
        state=SessionState.RUNNING.value,
        pid=pid,
        since=status["started_at"],
        command=command,
        cwd=cwd if command else "",
        uid=uid if command else None,
        pty=bool(status["pty"]),
        boot_id=boot_id,
    )


def _ended(record: ExitRecord) -> Unknown:
    end = end_of(record)
    return Unknown(
        id=SessionId(record["session_id"]),
        state=end.state.value,
        pid=record["pid"],
        since=record["started_at"],
        boot_id=record["boot_id"],
        end=end,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The common fields of adopted sessions."""

    host_id: str
    uid: int
    backend: str
    profile: str
    workspace: str
    log_path: Callable[[str], str]
    sessions: Path


def adopt(
    conn: sa.Connection, one: Unknown, conversation_id: str, home: Home, sink: CallbackSink, *, by: str
) -> Session:
    """Make a process a session of this conversation, which is told of its end; an end is told at once.

    Raises:
        AdoptionRefused: The conversation lives on another host, or the session was adopted before.
    """
    host = conn.execute(sa.select(conversations.c.host_id).where(conversations.c.id == conversation_id)).scalar()
    if host is not None and host != home.host_id:
        raise AdoptionRefused(
            f"conversation {conversation_id} is of host {host}: name one of this host, or adopt that one first "
            f"(`shellback adopt conversation {conversation_id}`)"
        )
    before = session_rows.get(conn, one.id)
    if before is not None:
        raise AdoptionRefused(f"{one.id} belongs to conversation {before.conversation_id} already")
    mailbox.open_conversation(conn, conversation_id, host_id=home.host_id)
    session = session_rows.claim(conn, _session(one, conversation_id, home, by), limit=_MANY)
    return session if one.end is None else session_rows.finish(conn, one.id, one.end, sink)


def _session(one: Unknown, conversation_id: str, home: Home, by: str) -> Session:
    started_at = one.since or time.time()
    return Session(
        id=one.id,
        conversation_id=conversation_id,
        tool_call_id=f"adopted by {by}",
        turn_id="",
        epoch=0,
        host_id=home.host_id,
        boot_id=one.boot_id,
        uid=home.uid if one.uid is None else one.uid,
        backend=home.backend,
        profile=home.profile,
        command=one.command or NOT_KNOWN,
        cwd=one.cwd,
        workspace=home.workspace,
        pty=one.pty,
        background=True,
        separate_stderr=(home.sessions / one.id / layout.ERR).exists(),
        stdin_open=one.pty,
        lifetime=CONVERSATION,
        delivery=Delivery.CALLBACK,
        state=SessionState.RUNNING,
        log_path=home.log_path(one.id),
        pid=one.pid,
        created_at=started_at,
        started_at=started_at,
    )


def give_up(conn: sa.Connection, session_id: SessionId, sink: CallbackSink) -> Session:
    """Record a session that the supervisor does not know as lost, because a person says so; its agent is told."""
    end = SessionEnd(
        state=SessionState.LOST,
        evidence=Evidence.RECORD_UNREADABLE,
        ended_by=EndedBy.PERSON,
        ended_at=time.time(),
    )
    return session_rows.finish(conn, session_id, end, sink)


def marked(session_id: str) -> list[int]:
    """Pids of living processes with the marker of this session, of any state directory, that we may read."""
    mark = f"\0{layout.MARKER}={session_id}@".encode()
    found: list[int] = []
    for proc in procfs.snapshot():
        try:
            data = b"\0" + Path(f"/proc/{proc.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in data and proc.alive:
            found.append(proc.pid)
    return found


async def settle(port: SupervisorPort, database: Database, host_id: str, count: Generation, home: Path) -> int:
    """The number of processes or sessions still to settle; at 0, what was found behind is forgotten.

    Raises:
        SupervisorUnreachable: The supervisor does not answer.
    """
    behind = generation.read(home).older
    if behind is None:
        return 0
    left = await (unknown(port, database) if behind == "database" else missing(port, database, host_id))
    if not left:
        await asyncio.to_thread(count.settled)
    return len(left)


@dataclass(eq=False, repr=False)
class Alarm:
    """Logs at the start of a worker what a person has to settle."""

    port: SupervisorPort
    database: Database
    host_id: str
    count: Generation
    home: Path

    async def start(self) -> None:
        """Look once; after an error `shellback doctor` still tells."""
        try:
            strangers = await unknown(self.port, self.database)
            if strangers:
                log.error(
                    "%d process(es) of this host are unknown to this database and left alone: shellback ps --unknown",
                    len(strangers),
                )
            found = generation.read(self.home)
            left = await settle(self.port, self.database, self.host_id, self.count, self.home)
        except (ExecError, StorageError) as error:
            log.warning("could not look for processes that this database does not know: %s", error)
            return
        if left and found.older == "directory":
            log.error("%d session(s) are still to settle, because %s", left, generation.cause(found))
        elif found.older is not None and not left:
            log.warning("everything that was found when the %s was older is settled", found.older)

    async def stop(self) -> None:
        """Nothing to end."""
