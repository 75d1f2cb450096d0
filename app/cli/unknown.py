"""Shared by the commands about unknown processes: those that the database does not know."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shellback.cli.shared import Columns, Refused, age, asked, table_lines, the_one
from shellback.exec.core import limits
from shellback.exec.core.errors import SessionNotFound, SupervisorAbsent
from shellback.exec.core.model import Session, SessionEnd
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.log.output import OutputLog
from shellback.exec.wire import layout

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.unknown import Unknown
    from shellback.work.queue.callbacks import CallbackSink

_COLUMNS: Columns[Unknown] = {
    "SESSION": "id",
    "STATE": "state",
    "END": lambda one: None if one.end is None else how(one.end),
    "PID": "pid",
    "AGE": lambda one: None if one.since is None else age(max(0.0, time.time() - one.since)),
    "COMMAND": "command",
}


def listed(where: Place) -> list[Unknown]:
    """Processes that the supervisor has and the database does not, oldest first."""
    from shellback.work.hosts import unknown as strangers

    return asked(where, lambda client: strangers.unknown(client, where.database))


def lines(found: Sequence[Unknown]) -> list[str]:
    """The list for people."""
    if not found:
        return ["no unknown processes: the database knows every process of the supervisor"]
    return table_lines(found, _COLUMNS)


def how(end: SessionEnd) -> str:
    """The end of a process in a few words."""
    if end.exit_code is not None:
        return f"exit {end.exit_code}"
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"errno {end.errno}" if end.errno is not None else str(end.evidence or "not known")


def find(where: Place, given: str) -> Unknown:
    """The unknown process whose id is `given` or begins with it; Refused if there is none, or no supervisor answers."""
    try:
        return chosen(listed(where), given)
    except Refused as refused:
        if isinstance(refused.__cause__, SupervisorAbsent):
            raise Refused(f"no session {given!r}: `shellback ps --all` lists them") from None
        raise


def chosen(found: Sequence[Unknown], given: str) -> Unknown:
    """The one whose id is `given` or begins with it; Refused if no or several ids match."""
    by_id: dict[str, Unknown] = {one.id: one for one in found}
    name = the_one(by_id, given, "unknown processes")
    if name is None:
        raise Refused(
            f"no session {given!r} and no unknown process: `shellback ps --all` and `shellback ps --unknown` list them"
        )
    return by_id[name]


def end(where: Place, one: Unknown) -> list[int]:
    """End the tree of an unknown process and acknowledge its record; returns the pids that survived SIGKILL."""

    async def ended(client: SupervisorPort) -> list[int]:
        try:
            left = await client.kill(one.id, grace_s=limits.KILL_GRACE_S, ended_by="person")
        except SessionNotFound:
            raise Refused(f"{one.id} has just ended. Nothing was signalled") from None
        if not left and not await client.ack(one.id):
            status = await client.status(one.id)
            if "record" in status and not status.get("acknowledged"):
                raise Refused(
                    f"{one.id} has ended, but the disk has no room for its exit record: free space, then repeat"
                )
        return list(left)

    return asked(where, ended)


def give_up(where: Place, session: Session) -> bool:
    """Record a session as lost that a restored, older state directory does not know; False if none was restored.

    Raises:
        Refused: A process of the session runs.
    """
    from shellback.work.hosts import generation
    from shellback.work.hosts import unknown as strangers

    if generation.absence_tells(where.home, session.created_at):
        return False
    if alive := strangers.marked(session.id):
        raise Refused(
            f"this state directory has no record of session {session.id}, but its process "
            f"{', '.join(map(str, alive))} runs. Restore the state directory that started it "
            "(`shellback doctor`: leftovers). If it is lost, end the process with `kill`. Then repeat"
        )
    with callbacks(where) as sink:
        where.database.write_now(strangers.give_up, session.id, sink)
    return True


@contextmanager
def callbacks(where: Place) -> Generator[CallbackSink]:
    """The sink that reports the end of a session of this host, as a worker does."""
    from shellback.exec.reports.callback_text import callback_payload
    from shellback.wiring import wiring
    from shellback.work.queue.callbacks import CallbackSink

    def payload(session: Session) -> dict[str, object]:
        logs = where.home / layout.SESSIONS / session.id
        err = OutputLog(logs, session.id, err=True, end=session.end) if session.separate_stderr else None
        return callback_payload(session, OutputLog(logs, session.id, end=session.end), err)

    with wiring.enqueuing(where) as enqueuer:
        yield CallbackSink(enqueuer, where.host_id, payload)


def settled(where: Place) -> None:
    """Forget the difference of the counts, if no process is left to settle."""
    from shellback.work.hosts import unknown as strangers
    from shellback.work.hosts.generation import Generation

    count = Generation(where.home, where.host_id, where.database)
    asked(where, lambda client: strangers.settle(client, where.database, where.host_id, count, where.home))
