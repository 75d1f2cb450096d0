"""Rows of what is on record, as tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from shellback.console.pages import path, stamp
from shellback.exec.core.display import visible

Columns = Mapping[str, str | Callable[[Any], Any]]
"""The heading of each column, with the name of a field or a function of the row."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page; `none` is said in its place if it has no rows."""

    title: str
    headings: list[str]
    rows: list[list[Any]]
    none: str
    ends: list[str | None] = field(default_factory=list[str | None])
    """For each row the address to which a form is sent that ends what is in it."""


def table_of(title: str, found: Collection[Any], columns: Columns, none: str) -> Table:
    """The table of what was found."""
    rows = [[getattr(one, of) if isinstance(of, str) else of(one) for of in columns.values()] for one in found]
    return Table(title, [*columns], rows, none)


def conversation_cell(of: str | None) -> Markup | None:
    """The cell of a conversation, which leads to it."""
    return None if of is None else Markup('<a href="%s">%s</a>') % (path("conversations", of), visible(of))


def time_cell(text: str) -> Markup:
    """The cell of a time, which stands on one line."""
    return Markup("<time>%s</time>") % text


def moment_cell(moment: float | None) -> Markup:
    """The cell of a time of the wall clock."""
    return time_cell(stamp(moment))


def state_cell(state: str) -> Markup:
    """The cell of a state, in the colour of it."""
    return Markup('<span class="state %s">%s</span>') % (state, state)
