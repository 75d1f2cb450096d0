"""`shellback conversations`: list them, read one, take one away as JSON."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from shellback.cli.freshness import Freshness, waits
from shellback.cli.options import conversation_names
from shellback.cli.shared import Columns, Refused, age, json_option, opened, show, table_lines
from shellback.cli.transcripts import Export, lines_of
from shellback.exec.core.display import visible_line
from shellback.storage import transcript
from shellback.wiring.wiring import Place
from shellback.work.approvals.typed import unheard
from shellback.work.queue import standing
from shellback.work.queue.standing import Standing

CUT: Final = 500
ADOPT: Final = "`shellback adopt conversation NAME` continues what lives there on this one"


@click.group()
def conversations() -> None:
    """List conversations, read one, or export one whole.

    \b
      shellback conversations list
      shellback conversations show build -n 20
      shellback conversations export build -o build.json
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@conversations.command("list")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=200, show_default=True, help="How many.")
@json_option
def list_(limit: int) -> None:
    """List conversations, the one that was active last first."""
    with opened() as where:
        found = where.database.read_now(standing.look, limit=limit)
        fresh = Freshness(where, (one.host_id for one in found))
    silent, now = fresh.silent, time.time()
    columns: Columns[Standing] = {
        "CONVERSATION": "id",
        "STATE": "state",
        "BLOCKED BY": "blocked_reason",
        "ACTIVE": lambda one: age(max(0.0, now - one.active_at)) + " ago",
        "UNREAD": "unread",
        "APPROVALS": "pending_approvals",
        "PROCESSES": "live_sessions",
    }
    if silent:
        columns["HOST"] = lambda one: f"{silent[one.host_id].name}, silent" if one.host_id in silent else None
    lines = [*table_lines(found, columns), *fresh.lines(), *([ADOPT] if silent else [])]
    none = ["no conversations yet: `shellback chat` begins one"]
    facts = [{**asdict(one), "host_silent": one.host_id in silent, **fresh.fact(one.host_id)} for one in found]
    show(facts, lines if found else none)


@conversations.command("show")
@click.argument("name", shell_complete=conversation_names)
@click.option("--last", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many messages.")
@click.option("--full", is_flag=True, help="Do not cut what tools were given and said.")
@json_option
def show_(name: str, last: int, full: bool) -> None:
    """Show the last messages of a conversation, as the model has them: requests, answers, calls, results.

    With --json: how it stands, and the messages as Pydantic AI writes them.
    """
    with opened() as where:
        stands = find_conversation(where, name)
        fresh = Freshness(where, [stands.host_id])
        said = waits(name, fresh.silent.get(stands.host_id))

        def look(conn: Any) -> tuple[int, list[dict[str, Any]]]:
            record = transcript.summary(conn, name)
            head = record["head_id"] if record is not None else None
            return len(transcript.line(conn, head)), transcript.messages(conn, transcript.line(conn, head, last))

        total, messages = where.database.read_now(look)
        typed = where.database.read_now(unheard, name)

    def lines() -> Iterator[str]:
        yield visible_line(_heading(stands, total))
        yield from [said] if said else fresh.lines()
        if total > len(messages):
            yield f"[{total - len(messages):,} messages before these; --last shows more]"
        for message in messages:
            yield from lines_of(message, cut=None if full else CUT)
        yield from (f"not heard yet: {visible_line(text)}" for text in typed)

    told = {"conversation": asdict(stands), "messages_total": total, "messages": messages}
    show(told | fresh.fact(stands.host_id), lines())


@conversations.command()
@click.argument("name", shell_complete=conversation_names)
@click.option("--output", "-o", metavar="FILE", help="Write it there, 0600, whole or not at all; otherwise printed.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def export(name: str, output: str | None, force: bool) -> None:
    """Export all of a conversation as one JSON document: messages, sessions and approvals, nothing cut.

    `messages` is what Pydantic AI's ModelMessagesTypeAdapter reads. The bytes that processes printed are not
    in it: `shellback logs --raw ID` has them as long as they are kept.

    \b
      shellback conversations export build -o build.json
      shellback conversations export build | jq '.sessions[].command'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        made = Export(where, find_conversation(where, name))
        if output is None:
            made.to(sys.stdout)
        else:
            made.to_file(output, replace=force)
            click.echo(f"{made.counted()} in {visible_line(output)}", err=True)


def find_conversation(where: Place, name: str) -> Standing:
    """The conversation with this name.

    Raises:
        Refused: There is none; names that are alike are given.
    """
    found = where.database.read_now(standing.one, name)
    if found is None:
        alike = difflib.get_close_matches(name, where.database.read_now(standing.names, name[:1], 1000), 3)
        hint = f"did you mean {', '.join(alike)}? " if alike else ""
        raise Refused(f"no conversation {visible_line(name)!r}: {hint}`shellback conversations list` lists them")
    return found


def _heading(one: Standing, total: int) -> str:
    blocked = f", blocked: {one.blocked_reason}" if one.blocked_reason else ""
    return (
        f"conversation {one.id}: {one.state}{blocked}; {total:,} messages, "
        f"{one.unread} unread, {one.pending_approvals} approvals pending, {one.live_sessions} processes"
    )
