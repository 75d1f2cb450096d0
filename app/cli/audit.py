"""`shellback audit`: who allowed or refused each call, when, and through which surface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shellback.cli.options import conversation_option, since_option
from shellback.cli.shared import coloured, json_option, opened, show, stamp
from shellback.exec.core.display import request_lines, visible_line
from shellback.work.approvals.event import EVENTS

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.audit import Entry


@click.command()
@conversation_option
@since_option("Only entries since then")
@click.option(
    "--event", "-e", "wanted", multiple=True, type=click.Choice(EVENTS), help="Only this kind; may be repeated."
)
@json_option
def audit(conversation: str | None, since: float | None, wanted: tuple[str, ...]) -> None:
    """Show all calls that were asked for, approved, denied, used or refused, and by whom; oldest first, texts not cut.

    Entries are never changed; `prune` deletes those older than RETAIN_DAYS. --json prints one object per line.

    \b
      shellback audit --since 1d
      shellback audit -c build -e used
      shellback audit --json -e refused | jq -r .reason
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.queue.standing import named_workspaces

    with opened() as where:
        named = where.database.read_now(named_workspaces)
        for entry in _rows(where, conversation, since, wanted):
            place = named.get(entry.conversation_id or "")
            show({**asdict(entry), "workspace": place}, _lines(entry, place))


def _rows(where: Place, conversation: str | None, since: float | None, wanted: tuple[str, ...]) -> Iterator[Entry]:
    from shellback.work.approvals import audit as rows

    number = 0
    while True:
        found = where.database.read_now(
            rows.find, conversation_id=conversation, events=wanted, since=since, after=number
        )
        yield from found
        if len(found) < rows.PAGE:
            return
        number = found[-1].id


def _lines(entry: Entry, workspace: str | None) -> list[str]:
    by = f"by {visible_line(entry.done_by)}" if entry.done_by else ""
    through = f"through {entry.surface}" if entry.surface else ""
    place = f"in {workspace}" if workspace else ""
    what = (entry.conversation_id, place, entry.request_id or entry.rule, entry.session_id, entry.tool, by, through)
    head = f"{stamp(entry.at)}  {coloured(f'{entry.event:13}')}  {'  '.join(visible_line(one) for one in what if one)}"
    told = {"because": entry.reason, **(entry.facts or {})}
    lines = [head.rstrip()]
    if entry.command:
        first, *more = entry.command.split("\n")
        lines += [f"    command: {first}", *(f"             {line}" for line in more)]
    return lines + request_lines({key: value for key, value in told.items() if value})
