"""Pages of processes: all of them, and one with its output."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from shellback.client.facts import Log, Session
from shellback.client.operations import Asking, logs
from shellback.client.processes import ending
from shellback.console.access import Page, caller_of
from shellback.console.pages import page, path, searched
from shellback.exec.core.display import visible
from shellback.exec.log.plain_text import without_controls
from shellback.work.errors import Deleted

if TYPE_CHECKING:
    from shellback.client.local import Local

LINES: Final = 200
LINE_CHARS: Final = 2_000
"""So much of one line that was found is on the page."""
SEARCHED_BYTES: Final = 16 * 2**20
"""So much of the end of a log is searched."""


class Processes:
    """Processes, their output, and their end."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/processes", self._list, role="viewer"),
            Page("/processes/{id}", self._one, role="viewer"),
            Page("/processes/{id}/more", self._more, role="viewer"),
            Page("/processes/{id}/log", self._download, role="viewer"),
            Page("/processes/{id}/kill", self._kill, role="operator", method="POST"),
        ]

    async def _list(self, request: Request) -> Response:
        everything = request.query_params.get("all") == "yes"
        found: list[Session] = await self._local.ask("sessions", {"everything": everything}, caller_of(request))
        return page(request, "processes.html", found=[_told(one) for one in reversed(found)], everything=everything)

    async def _one(self, request: Request) -> Response:
        given, caller = {"id": request.path_params["id"]}, caller_of(request)
        session: Session = await self._local.ask("session", given, caller)
        err = request.query_params.get("stderr") == "yes"
        try:
            log: Log | None = await self._local.ask("logs", given | {"lines": LINES, "stderr": err}, caller)
            note = None
        except Deleted as error:
            log, note = None, str(error)
        shown, text = "" if log is None else without_controls(log.text), searched(request)
        found = None
        if log is not None and text:
            search = partial(_lines_with, session.id, text, log.bytes_total, err=err)
            found = await self._local.within(caller, search, threads="search")
        return page(
            request, "process.html", one=_told(session), log=log, shown=shown, note=note, err=err, lines=LINES,
            text=text, found=found, searched=SEARCHED_BYTES // 2**20,
        )  # fmt: skip

    async def _more(self, request: Request) -> Response:
        """The output since an offset."""
        given = dict(request.query_params) | {"id": request.path_params["id"]}
        log: Log = await self._local.ask("logs", given, caller_of(request), texts=True)
        return JSONResponse({"text": visible(without_controls(log.text)), "offset": log.next_offset})

    async def _download(self, request: Request) -> Response:
        """All of the output until now, as it is shown here."""
        session_id, caller = request.path_params["id"], caller_of(request)
        given = {"id": session_id, "stderr": request.query_params.get("stderr") == "yes"}
        first: Log = await self._local.ask("logs", given | {"offset": 0}, caller)

        async def parts() -> AsyncGenerator[str]:
            part = first
            while True:
                yield without_controls(part.text)
                if part.next_offset >= first.bytes_total or not part.text:
                    return
                part = await self._local.ask("logs", given | {"offset": part.next_offset}, caller)

        headers = {"content-disposition": f'attachment; filename="{quote(session_id, safe="")}.log"'}
        return StreamingResponse(parts(), media_type="text/plain", headers=headers)

    async def _kill(self, request: Request) -> Response:
        session_id = request.path_params["id"]
        await self._local.ask("kill", {"id": session_id}, caller_of(request))
        return RedirectResponse(path("processes", session_id), status_code=303)


def _lines_with(session_id: str, text: str, end: int, at: Asking, *, err: bool) -> list[str]:
    """The last lines of the output before `end` that have this text, in small or capital letters."""
    found, wanted, rest = deque[str](maxlen=LINES), text.casefold(), ""
    part = logs(at, id=session_id, offset=max(0, end - SEARCHED_BYTES), stderr=err)
    while True:
        *lines, rest = (rest + without_controls(part.text)).split("\n")
        found.extend(line[:LINE_CHARS] for line in lines if wanted in line.casefold())
        if part.next_offset >= end or not part.text:
            break
        part = logs(at, id=session_id, offset=part.next_offset, stderr=err)
    if wanted in rest.casefold():
        found.append(rest[:LINE_CHARS])
    return [*found]


def _told(one: Session) -> dict[str, Any]:
    return {"of": one, "ending": ending(one), "live": one.live}
