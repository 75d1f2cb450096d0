"""`shellback ps`, `logs` and `kill`: the operator's view of processes; it sees every conversation's."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from app.cli.shared import age, json_option, load_settings, opened, print_json, table, visible

if TYPE_CHECKING:
    from app.exec.model import Session
    from app.wiring import Place


@click.command()
@click.option("--conversation", "-c", metavar="NAME", help="Only of one conversation.")
@click.option("--all", "everything", is_flag=True, help="Also what has ended.")
@json_option
def ps(conversation: str | None, everything: bool, as_json: bool) -> None:
    """List processes that the agents started, and conversations whose news waits behind a block."""
    with opened() as where:
        from app.storage import sessions

        found = where.database.read_now(sessions.find, conversation_id=conversation, live=None if everything else True)
        waiting = where.database.read_now(_behind_blocks)
    if as_json:
        print_json({"sessions": [_facts(session) for session in found], "blocked": waiting})
        return
    if found:
        table([_row(session) for session in found], _COLUMNS)
    else:
        click.echo("no processes" if everything else "no running processes (--all shows those that ended)")
    for row in waiting:
        click.echo(f"{row['unread']} unread in {row['conversation']}, blocked: {row['reason']}")


_COLUMNS = {
    "id": "SESSION",
    "conversation": "CONVERSATION",
    "state": "STATE",
    "end": "END",
    "backend": "BACKEND",
    "age": "AGE",
    "command": "COMMAND",
}


def _row(session: Session) -> dict[str, Any]:
    end = session.end
    return {
        "id": session.id,
        "conversation": session.conversation_id,
        "state": session.state.value,
        "end": None if end is None else ending(session),
        "backend": f"{session.backend}/{session.profile}",
        "age": age(time.time() - (session.started_at or session.created_at)),
        "command": session.command.replace("\n", "⏎ "),
    }


def ending(session: Session) -> str:
    """How a session ended, in a word."""
    end = session.end
    assert end is not None
    if end.exit_code is not None:
        return f"exit {end.exit_code}"
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"errno {end.errno}" if end.errno is not None else str(end.evidence or "unknown")


def _facts(session: Session) -> dict[str, Any]:
    return asdict(session)


def _behind_blocks(conn: Any) -> list[dict[str, Any]]:
    import sqlalchemy as sa

    from app.storage.tables import conversations, mailbox

    query = (
        sa.select(conversations.c.id, conversations.c.blocked_reason, sa.func.count(mailbox.c.id))
        .join(mailbox, mailbox.c.conversation_id == conversations.c.id)
        .where(conversations.c.state == "blocked", mailbox.c.state == "unread")
        .group_by(conversations.c.id, conversations.c.blocked_reason)
    )
    return [{"conversation": row[0], "reason": row[1], "unread": row[2]} for row in conn.execute(query)]


def _find(where: Place, given: str) -> Session:
    from app.exec.errors import SessionNotFound
    from app.storage import sessions

    matching = [s for s in where.database.read_now(sessions.find) if s.id.startswith(given)]
    exact = [s for s in matching if s.id == given] or matching
    if len(exact) != 1:
        raise (
            SessionNotFound(given)
            if not exact
            else click.UsageError(f"{given!r} is the beginning of {len(exact)} sessions; give more of it")
        )
    return exact[0]


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the process ends.")
@click.option("--lines", "-n", type=click.IntRange(1, 100_000), default=200, show_default=True, help="How many.")
@click.option("--raw", is_flag=True, help="The bytes as they are, control characters too.")
def logs(session_id: str, follow: bool, lines: int, raw: bool) -> None:
    """Show the last lines of what a process printed; ID may be the beginning of one."""
    from app.cli.following import follow_log, last_part

    with opened() as where:
        session = _find(where, session_id)
        position = last_part(where, session, lines, _writer(raw=raw))
        if follow:
            follow_log(where, session, position, _writer(raw=raw))


def _writer(*, raw: bool) -> Any:
    def write(data: bytes) -> None:
        if raw:
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(visible(data.decode("utf-8", "replace")))
        sys.stdout.flush()

    return write


@click.command()
@click.argument("session_id", metavar="ID")
@json_option
def kill(session_id: str, as_json: bool) -> None:
    """End a process and everything it started: SIGTERM, two seconds later SIGKILL. The agent hears of it."""
    from app.exec.errors import TaskCompleted

    settings = load_settings()
    with opened(settings) as where:
        session = _find(where, session_id)
        if not session.live:
            raise TaskCompleted(session.id, ending(session))
        answer = asyncio.run(_kill(settings, session.id))
    if as_json:
        print_json({"session_id": session.id, **answer})
    elif answer["survivors"]:
        raise click.ClickException(f"still there after SIGKILL: {', '.join(map(str, answer['survivors']))}")
    else:
        click.echo(f"{session.id} is gone, with everything it started")


async def _kill(settings: Any, session_id: str) -> dict[str, Any]:
    from app import wiring
    from app.exec import limits

    client = wiring.supervisor_client(settings, spawn=False)
    try:
        await client.connect()
        answer = await client.kill(session_id, grace_s=limits.KILL_GRACE_S, ended_by="person")
    finally:
        await client.close()
    return {"killed": True, "survivors": list(answer.survivors)}
