"""`shellback prune`: what the worker does each hour, now."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import click

from shellback.cli.shared import json_option, opened, show

_UNITS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_LEAST_S: Final = 3600.0


class Age(click.ParamType[float]):
    """`12h`, `30d`, `6w` as seconds; an hour at least, because turns that are being repeated need what they left."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse it; what is no age is a usage error."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,5})([hdw])", str(value).strip())
        if found is None or int(found[1]) * _UNITS[found[2]] < _LEAST_S:
            self.fail(
                f"{value!r} is no age: give hours, days or weeks, say 12h, 30d or 6w; 1h is the least", param, ctx
            )
        return int(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--older-than", type=Age(), metavar="AGE", help="Instead of RETAIN_DAYS: 12h, 30d, 6w.")
@json_option
def prune(dry_run: bool, older_than: float | None, as_json: bool) -> None:
    """Forget what is old: heard messages, ended turns and sessions, settled approvals, idle conversations.

    Nothing goes that lives, waits or has yet to be heard, and no session before its log. A worker does this by itself
    each hour; both at once is fine.

    \b
      shellback prune --dry-run          what RETAIN_DAYS would let go now
      shellback prune --older-than 7d    all but the last week
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import wiring

    with opened() as where, wiring.retention(where, rows_s=older_than) as retention:
        gone = asyncio.run(retention.planned() if dry_run else retention.once())
    said = ", ".join(f"{number} {name}" for name, number in sorted(gone.items()) if number)
    lines = [f"{'would prune' if dry_run else 'pruned'}: {said or 'nothing'}"]
    show({"dry_run": dry_run, "rows": gone}, lines, as_json=as_json)
