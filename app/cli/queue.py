"""`shellback queue`: waiting items, running turns, conversations that are blocked or wait for a host."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shellback.cli.asking import asking
from shellback.cli.shared import Cells, Columns, json_option, laid_out, show, table_of, wants_json, wide_option
from shellback.exec.core.display import age

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.queue.standing import Backlog, Blocked, Running, Unplaced, Waiting

_REMEDIES = {
    "approval": "decide: `shellback approvals list`",
    "wake_limit": "continue with a message: `shellback send -c NAME TEXT`",
    "set_aside": "retry with a message: `shellback send -c NAME TEXT`",
}


@click.command()
@click.option("--all-hosts", is_flag=True, help="Include every host of this database.")
@wide_option
@json_option
def queue(all_hosts: bool) -> None:
    """Show waiting items by priority and age, running turns, and conversations that are blocked or wait for a host.

    A waiting item runs when a slot is free, the most urgent first. A blocked conversation takes no items until a person
    acts; the last column says what to do. A conversation waits for a host while none has its workspace, its labels and
    room; the last column says what each host lacks.

    \b
      shellback queue
      shellback queue --json | jq '.waiting[].items'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with asking() as ask:
        found = ask("queue", all_hosts=all_hosts, programs=wants_json())
    show(found, laid_out(found))


def listed(where: Place, *, all_hosts: bool, programs: bool) -> object:
    """What waits, runs and is blocked: for programs, or as parts of an answer for people."""
    from shellback.client.freshness import Freshness
    from shellback.work.queue import standing

    found = where.database.read_now(standing.backlog, None if all_hosts else where.host_id)
    fresh = Freshness(where, (one.host_id for one in (*found.waiting, *found.running, *found.blocked)))
    return asdict(found) | fresh.fact() if programs else [*_parts(found, hosts=all_hosts), *fresh.lines()]


def _parts(found: Backlog, *, hosts: bool) -> list[str | Cells]:
    now = time.time()
    host: dict[str, str] = {"HOST ID": "host_id"} if hosts else {}
    if not (found.waiting or found.running or found.blocked or found.unplaced):
        return ["no waiting items, no running turns, no blocked conversations"]
    parts: list[str | Cells] = []
    if found.waiting:
        waiting: Columns[Waiting] = {
            "WAITING": "priority",
            "ITEMS": "items",
            "OLDEST": lambda one: age(now - one.oldest),
        }
        parts.append(table_of(found.waiting, waiting | host))
    else:
        parts.append("no waiting items")
    if found.running:
        running: Columns[Running] = {
            "RUNNING": "conversation",
            "ITEM": "type",
            "PRIORITY": "priority",
            "FOR": lambda one: age(now - one.started_at),
            "NOTE": lambda one: f"{one.executions} executions" if one.executions > 1 else None,
        }
        parts += ["", table_of(found.running, running | host)]
    if found.blocked:
        blocked: Columns[Blocked] = {
            "BLOCKED": "conversation",
            "BY": "reason",
            "FOR": lambda one: None if one.since is None else age(now - one.since),
            "UNREAD": "unread",
            "WHAT TO DO": lambda one: _REMEDIES.get(one.reason),
        }
        parts += ["", table_of(found.blocked, blocked | host)]
    if found.unplaced:
        unplaced: Columns[Unplaced] = {
            "WAITS FOR A HOST": "conversation",
            "FOR": lambda one: age(now - one.since),
            "UNREAD": "unread",
            "WHY": "why",
        }
        parts += ["", table_of(found.unplaced, unplaced)]
    return parts
