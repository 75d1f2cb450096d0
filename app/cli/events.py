"""`shellback events`: events in order."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.options import conversation_option, since_option
from shellback.cli.shared import coloured, json_option, opened, show, stamp
from shellback.client.following import CALLS, Position, Tail, shown
from shellback.client.freshness import Freshness
from shellback.exec.core.display import shown_line, visible, visible_line

if TYPE_CHECKING:
    from shellback.work.queue.stream import Event

LOOK_S: Final = 0.2
KINDS: Final = (
    "message", "text", "tool_call", "tool_result", "answer", "approval", "decision", "exit", "watch", "typed",
    "output", "stopping", "stopped", "failed", "blocked", "taken_over", "alarm", "finding",
)  # fmt: skip

_WHO: Final = frozenset({"id", "tool"})


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Continue with new events until Ctrl-C.")
@conversation_option
@since_option("Only events since then")
@click.option("--kind", "-k", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind; may be repeated.")
@json_option
def events(follow: bool, conversation: str | None, since: float | None, kinds: tuple[str, ...]) -> None:
    """Show events in order: messages, tool calls, approvals, exits, answers, alarms. Events are kept for a day.

    --json prints one object per line. --follow without --since shows only new events. If a turn is executed again, its
    events appear again with a higher epoch.

    \b
      shellback events --since 10m
      shellback events -f --json | jq -c 'select(.kind == "exit")'
      shellback events -f -k approval -k alarm
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.queue import stream

    with opened() as where:
        fresh = Freshness(where)
        for said in fresh.lines() if follow or fresh.age_s() else ():
            click.echo(said, err=True)
        begin = since is not None or follow
        number = where.database.read_now(stream.last_number, since) if begin else 0
        tail = Tail(where.database, conversation, Position(number), kinds=kinds)
        while True:
            for one, _ in tail.new():
                show(_facts(one), map(line, [one]))
            if not follow:
                return
            time.sleep(LOOK_S)


def line(event: Event) -> str:
    """One event as a line for people."""
    kind = coloured(f"{event.kind:11}")
    return f"{stamp(event.created_at)}  {visible_line(event.conversation_id)}  {kind}  {_told(event)}".rstrip()


def _facts(event: Event) -> dict[str, Any]:
    facts = asdict(event)
    if (text := shown(event)) is not None:
        facts["shown"] = text
    return facts


def _told(event: Event) -> str:
    from shellback.exec.reports.callback_text import wake_line, watch_line

    payload = event.payload
    if event.kind in CALLS:
        return _call(payload)
    told = payload.get("text")
    if event.kind == "exit":
        told = wake_line(payload)
    elif event.kind == "watch":
        told = watch_line(payload)
    elif not isinstance(told, str):
        told = _in_words(payload)
    elif "tool" in payload:
        told = f"{payload['tool']}: {told}"
    text = visible(told).replace("\n", "⏎ ").replace("\t", " ")
    return text if len(text) <= 200 else text[:199] + "…"


def _call(payload: dict[str, Any]) -> str:
    """A call on one line, nothing cut: its command, then its other arguments."""
    given: dict[str, Any] = payload.get("args", payload)
    who = [str(payload[key]) for key in ("id", "tool") if key in payload]
    command = given.get("command")
    # The rest of a request are facts about it, which `approvals show` shows.
    rest = (
        {}
        if "args" not in payload and command
        else {key: value for key, value in given.items() if key not in {"command", *_WHO}}
    )
    said = [*([str(command)] if command else []), *([_in_words(rest)] if rest else [])]
    return shown_line(f"{' '.join(who)}: {'; '.join(said)}" if said else " ".join(who))


def _in_words(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in facts.items()
        if value is not None
    )
