"""`--watch`: a list that is shown again when it changes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from shellback.cli.output import drawn, undrawn
from shellback.cli.shared import chosen_fields, show, stamp, wants_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

WATCH_S: Final = 0.5
"""The interval between two reads. Rows are compared, because the start of a process, for example, is no event."""
REDRAW_S: Final = 2.0
"""A screen is drawn again after this time, because its ages change."""

watch_option = click.option(
    "--watch", "watching", is_flag=True, help="Show the list again whenever it changes, until Ctrl-C."
)


def watch(
    look: Callable[[], Sequence[T]],
    key: Callable[[T], str],
    lines: Callable[[Sequence[T]], Sequence[str]],
    line: Callable[[T], str],
) -> NoReturn:
    """Show the result of `look` until Ctrl-C, which raises KeyboardInterrupt here.

    A terminal shows `lines` in place. A pipe gets a `line`, or with --json an object, for each item that is new,
    changed or gone.
    """
    if chosen_fields():
        raise click.UsageError("-o excludes --watch, which shows whole rows")
    if sys.stdout.isatty() and not wants_json():
        _on_a_screen(look, lines)
    before: dict[str, T] = {}
    while True:
        now = {key(one): one for one in look()}
        for change, one in _changes(before, now):
            show({"change": change, **asdict(one)}, [f"{stamp(time.time())}  {change:7}  {line(one)}"])
        before = now
        time.sleep(WATCH_S)


def _changes(before: dict[str, T], now: dict[str, T]) -> list[tuple[str, T]]:
    gone = [("gone", one) for name, one in before.items() if name not in now]
    return gone + [
        ("changed" if name in before else "new", one) for name, one in now.items() if before.get(name) != one
    ]


def _on_a_screen(look: Callable[[], Sequence[Any]], lines: Callable[[Sequence[Any]], Sequence[str]]) -> NoReturn:
    before: Sequence[Any] | None = None
    drawn_at = 0.0
    click.echo(drawn("\x1b[2J"), nl=False)
    while True:
        now = look()
        if now != before or time.monotonic() - drawn_at >= REDRAW_S:
            _draw(lines(now))
            before, drawn_at = now, time.monotonic()
        time.sleep(WATCH_S)


def _draw(lines: Sequence[str]) -> None:
    room = shutil.get_terminal_size()
    held = list(lines[: max(1, room.lines - 1)])
    if len(held) < len(lines):
        held[-1] = f"… {len(lines) - len(held) + 1} more lines: a taller window shows them"
    text = "".join(_fitting(one, room.columns) + drawn("\x1b[K") + "\n" for one in held)
    click.echo(drawn("\x1b[H") + text + drawn("\x1b[J"), nl=False)


def _fitting(text: str, columns: int) -> str:
    # A line that wraps would move all below it.
    plain = undrawn(text)
    return text if len(plain) <= columns else plain[: columns - 1] + "…"
