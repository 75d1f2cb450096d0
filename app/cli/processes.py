"""`shellback ps` and `kill`: the operator's view of processes; it sees every conversation's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from app.cli.completing import conversation_option, session_ids
from app.cli.shared import Refused, age, json_option, load_settings, opened, print_json, table_lines, visible
from app.cli.watching import watch, watch_option

if TYPE_CHECKING:
    from app.exec.model import Session
    from app.settings import Settings
    from app.wiring import Place


@click.command()
@conversation_option
@click.option("--all", "everything", is_flag=True, help="Also what has ended.")
@watch_option
@json_option
def ps(conversation: str | None, everything: bool, watching: bool, as_json: bool) -> None:
    """List processes that the agents started, and conversations whose news waits behind a block.

    \b
      shellback ps                 what runs
      shellback ps --all -c build  also what has ended, of one conversation
      shellback ps --watch         in place on a terminal; else a line for each change
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        from app.storage import sessions

        def look() -> list[Session]:
            return where.database.read_now(
                sessions.find, conversation_id=conversation, live=None if everything else True
            )

        def lines(found: Sequence[Session]) -> list[str]:
            none = "no processes" if everything else "no running processes (--all shows those that ended)"
            waiting = where.database.read_now(_behind_blocks)
            return [
                *(table_lines([_row(session) for session in found], _COLUMNS) if found else [none]),
                *(
                    f"{row['unread']} unread in {visible(row['conversation'])}, blocked: {row['reason']}"
                    for row in waiting
                ),
            ]

        if watching:
            watch(look, lambda one: one.id, lines, _line, as_json=as_json)
        found = look()
        if as_json:
            blocked = where.database.read_now(_behind_blocks)
            print_json({"sessions": [asdict(session) for session in found], "blocked": blocked})
            return
        for line in lines(found):
            click.echo(line)


_COLUMNS = {
    "id": "SESSION",
    "conversation": "CONVERSATION",
    "state": "STATE",
    "end": "END",
    "backend": "BACKEND",
    "age": "AGE",
    "command": "COMMAND",
}


def _line(one: Session) -> str:
    end = "" if one.end is None else f"  {ending(one)}"
    return visible(f"{one.id}  {one.conversation_id}  {one.state.value}{end}  {one.command}").replace("\n", "⏎ ")


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
    from app.exec.model import SessionId
    from app.storage import sessions

    matching = where.database.read_now(sessions.ids, given, limit=100) if given else []
    if len(matching) > 1 and given not in matching:
        raise Refused(f"{given!r} is the beginning of {len(matching)} sessions: give more of it")
    name = SessionId(given if given in matching else "".join(matching))
    session = where.database.read_now(sessions.get, name)
    if session is None:
        raise Refused(f"no session {given!r}: `shellback ps --all` lists them")
    if session.host_id != where.host_id:
        raise Refused(f"session {session.id} runs on host {session.host_id}: do it there, or with its SHELLBACK_HOME")
    return session


@click.command()
@click.argument("session_id", metavar="ID", shell_complete=session_ids)
@json_option
def kill(session_id: str, as_json: bool) -> None:
    """End a process and everything it started: SIGTERM, two seconds later SIGKILL. The agent hears of it.

    ID may be the beginning of one. A session that has ended is left alone: exit code 2, and how it ended.

    \b
      shellback kill xtmc
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    import asyncio

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
