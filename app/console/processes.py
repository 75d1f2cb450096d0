"""Pages of processes: all of them, and one with its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from shellback.client.facts import Log, Session
from shellback.client.processes import ending
from shellback.console.access import Page, caller_of
from shellback.console.pages import page, path
from shellback.exec.core.display import visible
from shellback.exec.log.plain_text import without_controls
from shellback.work.errors import Deleted

if TYPE_CHECKING:
    from shellback.client.local import Local

LINES: Final = 200


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
        text = "" if log is None else without_controls(log.text)
        return page(request, "process.html", one=_told(session), log=log, text=text, note=note, err=err, lines=LINES)

    async def _more(self, request: Request) -> Response:
        """The output since an offset."""
        given = dict(request.query_params) | {"id": request.path_params["id"]}
        log: Log = await self._local.ask("logs", given, caller_of(request), texts=True)
        return JSONResponse({"text": visible(without_controls(log.text)), "offset": log.next_offset})

    async def _kill(self, request: Request) -> Response:
        session_id = request.path_params["id"]
        await self._local.ask("kill", {"id": session_id}, caller_of(request))
        return RedirectResponse(path("processes", session_id), status_code=303)


def _told(one: Session) -> dict[str, Any]:
    return {"of": one, "ending": ending(one), "live": one.live}
