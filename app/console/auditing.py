"""The page of the audit, and the audit as a file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shellback.client.operations import Asking
from shellback.console.access import Page, caller_of
from shellback.console.pages import page
from shellback.console.tables import Columns, conversation_cell, moment_cell, table_of
from shellback.work.approvals import audit
from shellback.work.approvals.audit import Entry
from shellback.work.approvals.event import EVENTS

if TYPE_CHECKING:
    from shellback.client.local import Local

_ALL: Final = 2**53
_NAMES: Final = [one.name for one in fields(Entry)]
# Behind `;` and line ends too: a spreadsheet may separate cells by `;`, and then sees no quotes of ours.
_FORMULA: Final = re.compile(r"(?:\A|(?<=[;\r\n]))(?=[ \t\"]*[=+\-@])|\A(?=[\t\r])")


class Auditing:
    """Who allowed or refused what."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/audit", self._audit, role="viewer"),
            Page("/audit/export.csv", self._csv, role="viewer"),
            Page("/audit/export.jsonl", self._json, role="viewer"),
        ]

    async def _audit(self, request: Request) -> Response:
        given = _given(request)
        before = request.query_params.get("before", "")
        found = await self._found(request, before=int(before[:15]) if before.isdecimal() else _ALL)
        older = str(found[-1].id) if len(found) == audit.PAGE else ""
        tables = [table_of("", found, _ENTRIES, "There is nothing on record.")]
        return page(request, "audit.html", title="Audit", tables=tables, events=EVENTS, given=given, older=older)

    async def _csv(self, request: Request) -> Response:
        return await self._file(request, "csv", "text/csv", _as_csv, _row(_NAMES))

    async def _json(self, request: Request) -> Response:
        return await self._file(request, "jsonl", "application/jsonl", _as_json, "")

    async def _file(
        self, request: Request, end: str, kind: str, lines: Callable[[Sequence[Entry]], str], head: str
    ) -> Response:
        """All that is asked for, oldest first; memory holds one page of it."""
        first = await self._found(request, after=0)

        async def parts() -> AsyncGenerator[str]:
            yield head
            found = first
            while found:
                yield lines(found)
                found = await self._found(request, after=found[-1].id)

        headers = {"content-disposition": f'attachment; filename="audit.{end}"'}
        return StreamingResponse(parts(), media_type=kind, headers=headers)

    async def _found(self, request: Request, **where: int) -> list[Entry]:
        given = _given(request)

        def look(at: Asking) -> list[Entry]:
            return at.where.database.read_now(
                audit.find, conversation_id=given["conversation"] or None, by=given["by"] or None,
                events=(given["event"],) if given["event"] in EVENTS else (), **where,
            )  # fmt: skip

        return await self._local.within(caller_of(request), look)


def _given(request: Request) -> dict[str, str]:
    """What the page is to be narrowed to."""
    return {name: request.query_params.get(name, "").replace("\x00", "") for name in ("event", "conversation", "by")}


def _as_json(found: Sequence[Entry]) -> str:
    return "".join(f"{json.dumps(asdict(one))}\n" for one in found)


def _as_csv(found: Sequence[Entry]) -> str:
    return "".join(_row([_cell(getattr(one, name)) for name in _NAMES]) for one in found)


def _cell(value: Any) -> Any:
    """What a spreadsheet takes for a text or a number, and for no formula."""
    if isinstance(value, dict):
        value = json.dumps(value)
    return _FORMULA.sub("'", value) if isinstance(value, str) else value


def _row(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()


_ENTRIES: Final[Columns] = {
    "at": lambda one: moment_cell(one.at),
    "event": "event",
    "by": lambda one: f"{one.done_by} through {one.surface}" if one.surface else one.done_by,
    "conversation": lambda one: conversation_cell(one.conversation_id),
    "tool": "tool",
    "reason": "reason",
    "command": "command",
}
