"""The first page: what waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shellback.client.facts import Approval
from shellback.console.access import Page, caller_of
from shellback.console.pages import PREFIX, page
from shellback.work.approvals import approvals, showing
from shellback.work.errors import InvalidRequest

if TYPE_CHECKING:
    from shellback.client.local import Local

LISTED: Final = 30
"""So many requests are on the page. Others come up as these are decided."""
WHOLE_CHARS: Final = 1_500
"""A longer request is decided on its own page, which shows all of it."""


class Waiting:
    """Requests for approval, and decisions about them."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/", self._waiting, role="viewer"),
            Page("/requests/{id}", self._one, role="viewer"),
            Page("/requests/{id}/approve", self._approve, role="approver", method="POST"),
            Page("/requests/{id}/deny", self._deny, role="approver", method="POST"),
        ]

    async def _waiting(self, request: Request) -> Response:
        found: list[Approval] = await self._local.ask("approvals", {}, caller_of(request))
        return page(request, "waiting.html", found=[told(one) for one in found[:LISTED]], total=len(found))

    async def _one(self, request: Request) -> Response:
        given = {"id": request.path_params["id"]}
        found: Approval = await self._local.ask("approval", given, caller_of(request))
        return page(request, "request.html", one=told(found) | {"whole": True})

    async def _approve(self, request: Request) -> Response:
        form = await request.form()
        return await self._decided(request, "approve", {"scope": str(form.get("scope") or "once")})

    async def _deny(self, request: Request) -> Response:
        form = await request.form()
        return await self._decided(request, "deny", {"reason": str(form.get("reason", "")) or None})

    async def _decided(self, request: Request, decision: Literal["approve", "deny"], how: dict[str, Any]) -> Response:
        form = await request.form()
        if not (digest := str(form.get("digest", ""))):
            raise InvalidRequest("the digest of the request is missing: decide on the page that shows the request")
        given = {"id": request.path_params["id"], "digest": digest, **how}
        await self._local.ask(decision, given, caller_of(request))
        return RedirectResponse(f"{PREFIX}/", status_code=303)


def told(one: Approval) -> dict[str, Any]:
    """What a card shows of a request: its facts, and the lines that every surface shows."""
    request = approvals.Request(**{name: getattr(one, name) for name in approvals.Request.__dataclass_fields__})
    lines, details = showing.card(request, counted=False), showing.details(request)
    whole = sum(map(len, (*lines, *details))) <= WHOLE_CHARS
    return {
        "of": one,
        "lines": lines,
        "details": details,
        "first": lines if whole else "\n".join(lines)[:WHOLE_CHARS].split("\n"),
        "whole": whole,
        "for_session": one.state == "pending" and approvals.why_not_for_session(request) is None,
        "of_call": request.of_call,
    }
