"""Rows of what is on record, as tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

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
