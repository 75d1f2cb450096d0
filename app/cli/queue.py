"""`shellback queue`: what waits, what runs, what is blocked."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shellback.cli.freshness import Freshness
from shellback.cli.shared import age, json_option, opened, print_json, table

if TYPE_CHECKING:
    from shellback.work.queue.backlog import Backlog

_REMEDIES = {
    "approval": "`shellback approvals list`",
    "wake_limit": "a message lets it go on: `shellback send -c NAME TEXT`",
    "set_aside": "a message lets it try again: `shellback send -c NAME TEXT`",
}


@click.command()
@click.option("--all-hosts", is_flag=True, help="Of every host of this database.")
@json_option
def queue(all_hosts: bool, as_json: bool) -> None:
    """Show the backlog by priority and age, the turns that run, and the conversations that are blocked.

    An item that waits runs when a slot is free, most urgent first. A blocked conversation takes none until
    somebody acts; what to do is said beside it.

    \b
      shellback queue
      shellback queue --json | jq '.waiting[].items'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.queue import backlog

    with opened() as where:
        found = where.database.read_now(backlog.look, None if all_hosts else where.host_id)
        fresh = Freshness(where, (one.host_id for one in (*found.waiting, *found.running, *found.blocked)))
    if as_json:
        print_json(asdict(found) | fresh.fact())
        return
    _show(found, hosts=all_hosts)
    for line in fresh.lines():
        click.echo(line)


def _show(found: Backlog, *, hosts: bool) -> None:
    now = time.time()
    host = {"host": "HOST"} if hosts else {}
    if not (found.waiting or found.running or found.blocked):
        click.echo("nothing waits, nothing runs, nothing is blocked")
        return
    if found.waiting:
        rows = [
            {"host": w.host_id, "priority": w.priority, "items": w.items, "oldest": age(now - w.oldest)}
            for w in found.waiting
        ]
        table(rows, {"priority": "WAITING", "items": "ITEMS", "oldest": "OLDEST", **host})
    else:
        click.echo("nothing waits")
    if found.running:
        rows = [
            {
                "host": r.host_id,
                "conversation": r.conversation,
                "type": r.type,
                "priority": r.priority,
                "age": age(now - r.started_at),
                "again": f"{r.executions} executions" if r.executions > 1 else None,
            }
            for r in found.running
        ]
        click.echo()
        table(
            rows,
            {"conversation": "RUNNING", "type": "ITEM", "priority": "PRIORITY", "age": "FOR", "again": "NOTE", **host},
        )
    if found.blocked:
        rows = [
            {
                "host": b.host_id,
                "conversation": b.conversation,
                "reason": b.reason,
                "unread": b.unread,
                "since": None if b.since is None else age(now - b.since),
                "remedy": _REMEDIES.get(b.reason),
            }
            for b in found.blocked
        ]
        click.echo()
        table(
            rows,
            {
                "conversation": "BLOCKED",
                "reason": "BY",
                "since": "FOR",
                "unread": "UNREAD",
                "remedy": "WHAT TO DO",
                **host,
            },
        )
