"""`shellback ps`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.asking import asking
from shellback.cli.options import conversation_option
from shellback.cli.shared import Cells, Columns, laid_out, lists, opened, show, table_of, wants_facts
from shellback.cli.watching import watch, watch_option
from shellback.exec.core.display import age, shown_line, visible_line

if TYPE_CHECKING:
    from shellback.exec.core.model import Session, SessionEnd
    from shellback.exec.reports.connections import Connection
    from shellback.wiring.wiring import Place


@click.command()
@conversation_option
@click.option("--all", "everything", is_flag=True, help="Include ended processes.")
@click.option(
    "--unknown", "strangers", is_flag=True, help="List processes that the supervisor has and the database does not."
)
@watch_option
@lists("sessions")
def ps(conversation: str | None, everything: bool, strangers: bool, watching: bool) -> None:
    """List processes that agents started, their open connections, and blocked conversations with unread news.

    \b
      shellback ps                 running processes
      shellback ps --all -c build  all processes of one conversation, ended ones too
      shellback ps --watch         update in place on a terminal; elsewhere one line per change
      shellback ps --unknown       after the database was restored: processes that it does not know
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if strangers and (conversation or everything or watching):
        raise click.UsageError("--unknown excludes --all, --watch and --conversation: it lists unknown processes only")
    if strangers:
        _unknown()
    elif watching:
        _watch(conversation, everything=everything)
    else:
        with asking(here=everything) as ask:
            found = ask("processes", conversation=conversation, everything=everything, programs=wants_facts())
        show(found, laid_out(found))


def _unknown() -> None:
    from shellback.cli import unknown

    with opened() as where:
        found = unknown.listed(where)
    show([asdict(one) for one in found], unknown.lines(found))


def _watch(conversation: str | None, *, everything: bool) -> None:
    with opened() as where:
        watch(
            lambda: _found(where, conversation, everything=everything),
            lambda one: one.id,
            lambda found: [*laid_out(_parts(where, found, conversation, everything=everything))],
            _line,
        )


def listed(where: Place, *, conversation: str | None, everything: bool, programs: bool) -> object:
    """The processes and what belongs to them: for programs, or as parts of an answer for people."""
    from shellback.client.freshness import Freshness
    from shellback.storage import findings

    found = _found(where, conversation, everything=everything)
    if not programs:
        return _parts(where, found, conversation, everything=everything)
    fresh = Freshness(where, (one.host_id for one in found))
    return {
        "sessions": [asdict(one) | fresh.fact(one.host_id) for one in found],
        "blocked": where.database.read_now(_behind_blocks),
        "findings": [asdict(one) for one in where.database.read_now(findings.find, conversation_id=conversation)],
        "connections": [asdict(one) for one in _connections(where, conversation)],
    } | fresh.fact()


def _found(where: Place, conversation: str | None, *, everything: bool) -> list[Session]:
    from shellback.storage import sessions

    return where.database.read_now(sessions.find, conversation_id=conversation, live=None if everything else True)


def _parts(where: Place, found: Sequence[Session], conversation: str | None, *, everything: bool) -> list[str | Cells]:
    from shellback.cli.findings import open_line
    from shellback.client.freshness import Freshness

    columns = dict(_COLUMNS)
    if named := where.database.read_now(_workspaces):
        columns["WORKSPACE"] = lambda one: named.get(one.conversation_id, "default")
        columns["COMMAND"] = columns.pop("COMMAND")
    none = "no processes" if everything else "no running processes (--all includes ended ones)"
    waiting = where.database.read_now(_behind_blocks)
    said = open_line(where, conversation)
    connected = _connections(where, conversation)
    return [
        table_of(found, columns) if found else none,
        *([table_of(connected[-CONNECTIONS:], _OPEN)] if connected else []),
        *([f"{more} more open connections" for more in [len(connected) - CONNECTIONS] if more > 0]),
        *(
            f"{row['unread']} unread in {visible_line(row['conversation'])}, blocked: {row['reason']}"
            for row in waiting
        ),
        *Freshness(where, (one.host_id for one in found if one.live)).lines(),
        *([said] if said else []),
    ]


def _connections(where: Place, conversation: str | None) -> list[Connection]:
    from shellback.exec.reports.connections import open_ones

    return open_ones(where.home, conversation)


def _workspaces(conn: Any) -> dict[str, str]:
    from shellback.work.queue import standing

    return standing.named_workspaces(conn)


def _how(end: SessionEnd) -> str:
    from shellback.client.processes import how

    return how(end)


_COLUMNS: Final[Columns[Session]] = {
    "SESSION": "id",
    "CONVERSATION": "conversation_id",
    "STATE": lambda one: one.state.value,
    "END": lambda one: None if one.end is None else _how(one.end),
    "BACKEND": lambda one: f"{one.backend}/{one.profile}",
    "ALLOWED BY": lambda one: one.granted_by or None,
    "AGE": lambda one: age(time.time() - (one.started_at or one.created_at)),
    "COMMAND": "command",
}


CONNECTIONS: Final = 50
"""So many open ones are shown to people, the newest."""
_OPEN: Final[Columns[Connection]] = {
    "CONNECTED": lambda one: one.session or "-",
    "CONVERSATION": "scope",
    "HOST": "goal",
    "AGE": lambda one: age(time.time() - one.at),
    "SENT": "up",
    "RECEIVED": "down",
}


def _line(one: Session) -> str:
    end = "" if one.end is None else f"  {_how(one.end)}"
    return visible_line(f"{one.id}  {one.conversation_id}  {one.state.value}{end}  ") + shown_line(one.command)


def _behind_blocks(conn: Any) -> list[dict[str, Any]]:
    import sqlalchemy as sa

    from shellback.storage.tables import conversations, mailbox

    query = (
        sa.select(conversations.c.id, conversations.c.blocked_reason, sa.func.count(mailbox.c.id))
        .join(mailbox, mailbox.c.conversation_id == conversations.c.id)
        .where(conversations.c.state == "blocked", mailbox.c.state == "unread")
        .group_by(conversations.c.id, conversations.c.blocked_reason)
    )
    return [{"conversation": row[0], "reason": row[1], "unread": row[2]} for row in conn.execute(query)]
