"""`shellback ps` and `kill`: the operator's view of processes; it sees every conversation's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from app.cli.shared import Refused, age, json_option, load_settings, opened, print_json, table

if TYPE_CHECKING:
    from app.exec.model import Session
    from app.settings import Settings
    from app.wiring import Place


@click.command()
@click.option("--conversation", "-c", metavar="NAME", help="Only of one conversation.")
@click.option("--all", "everything", is_flag=True, help="Also what has ended.")
@json_option
def ps(conversation: str | None, everything: bool, as_json: bool) -> None:
    """List processes that the agents started, and conversations whose news waits behind a block.

    \b
      shellback ps                 what runs
      shellback ps --all -c build  also what has ended, of one conversation
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        from app.storage import sessions

        found = where.database.read_now(sessions.find, conversation_id=conversation, live=None if everything else True)
        waiting = where.database.read_now(_behind_blocks)
    if as_json:
        print_json({"sessions": [asdict(session) for session in found], "blocked": waiting})
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
        "command": session.command,
    }


def ending(session: Session) -> str:
    """How a session ended, in a few words."""
    end = session.end
    if end is None:
        return "not yet"
    if end.exit_code is not None:
        return f"exit {end.exit_code}"
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"errno {end.errno}" if end.errno is not None else str(end.evidence or "not known")


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


def find_session(where: Place, given: str) -> Session:
    """The one session whose id is `given` or begins with it, on this host.

    Raises:
        Refused: None or several do, or it belongs to another host.
    """
    from app.storage import sessions

    matching = [s for s in where.database.read_now(sessions.find) if given and s.id.startswith(given)]
    exact = [s for s in matching if s.id == given] or matching
    if not exact:
        raise Refused(f"no session {given!r}: `shellback ps --all` lists them")
    if len(exact) > 1:
        raise Refused(f"{given!r} is the beginning of {len(exact)} sessions: give more of it")
    if exact[0].host_id != where.host_id:
        raise Refused(f"session {exact[0].id} runs on host {exact[0].host_id}: do it there, or with its SHELLBACK_HOME")
    return exact[0]


@click.command()
@click.argument("session_id", metavar="ID")
@json_option
def kill(session_id: str, as_json: bool) -> None:
    """End a process and everything it started: SIGTERM, two seconds later SIGKILL. The agent hears of it.

    ID may be the beginning of one. A session that has ended is left alone: exit code 2, and how it ended.

    \b
      shellback kill xtmc
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    settings = load_settings()
    with opened(settings) as where:
        session = find_session(where, session_id)
        if not session.live:
            raise Refused(f"session {session.id} has ended already: {ending(session)}. Nothing was signalled")
        survivors = asyncio.run(_kill(settings, session))
    if as_json:
        print_json({"session_id": session.id, "survivors": survivors})
    if survivors:
        raise Refused(f"still there after SIGKILL: {', '.join(map(str, survivors))}; only the kernel holds them now")
    if not as_json:
        click.echo(f"{session.id} is gone, with everything it started")


async def _kill(settings: Settings, session: Session) -> list[int]:
    from app import wiring
    from app.exec import limits
    from app.exec.errors import SessionNotFound, SupervisorUnreachable, TaskCompleted

    client = wiring.supervisor_client(settings, spawn=False)
    try:
        await client.connect()
        record: dict[str, Any] | None = (await client.status(session.id)).get("record")
        if record is not None:
            how = f"exit {record['exit_code']}" if record.get("exit_code") is not None else f"signal {record['signal']}"
            raise Refused(
                f"session {session.id} has ended already: {how}. Nothing was signalled; the next worker tells the agent"
            )
        answer = await client.kill(session.id, grace_s=limits.KILL_GRACE_S, ended_by="person")
    except (SessionNotFound, SupervisorUnreachable) as error:
        raise Refused(
            f"no supervisor on this host runs session {session.id}, so nothing was signalled: start a worker "
            f"(shellback worker), which finds out how it ended ({error})"
        ) from None
    except TaskCompleted:
        raise Refused(f"session {session.id} has ended this moment. Nothing was signalled") from None
    finally:
        await client.close()
    return list(answer.survivors)
