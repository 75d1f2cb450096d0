"""The first page: what waits for a person, and what was decided lately."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shellback.client.deciding import DAYS, Deciding, editable, edited
from shellback.client.facts import Approval
from shellback.client.operations import Asking
from shellback.console.access import Page, caller_of
from shellback.console.pages import PREFIX, page, path
from shellback.exec.core.display import label
from shellback.exec.policy.rules.remember import DAYS_MAX
from shellback.storage import rows
from shellback.work.approvals import approvals, showing
from shellback.work.errors import ApprovalRefused, InvalidRequest
from shellback.work.queue import mailbox

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.client.local import Local
    from shellback.exec.policy.rules.rule import Rule

T = TypeVar("T")

LISTED: Final = 50
"""So many requests are on the page. Others come up as these are decided."""
WHOLE: Final = 15
"""So many of them can be decided there. The others are shown in brief."""
WHOLE_CHARS: Final = 1_500
"""A longer request is decided on its own page, which shows all of it."""
BRIEF_CHARS: Final = 200
LATELY_S: Final = 3_600.0
"""So long a decision is on the first page, and so long rules that were shown can be saved."""
LATELY: Final = 5


class Waiting:
    """Requests for approval, and decisions about them."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes. A rule decides about calls that nobody has seen, so it needs the role that may do most."""
        return [
            Page("", self._first, role="viewer"),
            Page("/", self._waiting, role="viewer"),
            Page("/requests/{id}", self._one, role="viewer"),
            Page("/requests/{id}/approve", self._approve, role="approver", method="POST"),
            Page("/requests/{id}/deny", self._deny, role="approver", method="POST"),
            Page("/requests/{id}/change", self._change_form, role="approver"),
            Page("/requests/{id}/change", self._change, role="approver", method="POST"),
            Page("/requests/{id}/rule", self._rule, role="operator"),
            Page("/requests/{id}/rule", self._remember, role="operator", method="POST"),
        ]

    async def _first(self, request: Request) -> Response:  # noqa: ARG002 - as of all pages
        return RedirectResponse(f"{PREFIX}/", status_code=303)

    async def _waiting(self, request: Request) -> Response:
        caller = caller_of(request)
        found, total, lately = await self._local.within(caller, _look)
        cards = [told(one, WHOLE_CHARS if number < WHOLE else BRIEF_CHARS) for number, one in enumerate(found)]
        return page(request, "waiting.html", found=cards, total=total, lately=lately)

    async def _one(self, request: Request) -> Response:
        return page(request, "request.html", one=await self._told(request))

    async def _told(self, request: Request) -> dict[str, Any]:
        found: Approval = await self._local.ask("approval", {"id": request.path_params["id"]}, caller_of(request))
        fields = approvals.Request.__dataclass_fields__
        return told(approvals.Request(**{name: getattr(found, name) for name in fields})) | {"whole": True}

    async def _approve(self, request: Request) -> Response:
        form = await request.form()
        return await self._decided(request, "approve", {"scope": str(form.get("scope") or "once")})

    async def _deny(self, request: Request) -> Response:
        form = await request.form()
        return await self._decided(request, "deny", {"reason": str(form.get("reason", "")) or None})

    async def _decided(self, request: Request, decision: Literal["approve", "deny"], how: dict[str, Any]) -> Response:
        digest = await _digest(request)
        given = {"id": request.path_params["id"], "digest": digest, **how}
        await self._local.ask(decision, given, caller_of(request))
        return RedirectResponse(f"{PREFIX}/", status_code=303)

    async def _change_form(self, request: Request) -> Response:
        one = await self._told(request)
        return page(request, "change.html", one=one, text=editable(one["of"]))

    async def _change(self, request: Request) -> Response:
        form, digest = await request.form(), await _digest(request)
        text = str(form.get("text", "")).replace("\r\n", "\n")
        one = (await self._told(request))["of"]

        def change(deciding: Deciding) -> object:
            return deciding.propose(one, edited(one, text), digest=digest)

        await self._deciding(request, change)
        return RedirectResponse(path("requests", one.id), status_code=303)

    async def _rule(self, request: Request) -> Response:
        one, at = await self._told(request), time.time()
        days, everywhere = _how(request.query_params.get)
        wanted = one["of"]
        rules = await self._deciding(
            request, lambda deciding: deciding.rules(wanted, everywhere=everywhere, days=days, at=at)
        )
        lines = [rule.described() for rule in rules]
        return page(
            request, "rule.html", one=one, rules=lines, days=days, most=DAYS_MAX, everywhere=everywhere,
            at=at, seen=_seen(rules),
        )  # fmt: skip

    async def _remember(self, request: Request) -> Response:
        form, digest = await request.form(), await _digest(request)
        days, everywhere = _how(lambda name: str(form.get(name, "")))
        one = (await self._told(request))["of"]
        try:
            at = float(str(form.get("at", "")))
        except ValueError:
            at = 0.0

        def remember(deciding: Deciding) -> object:
            rules = deciding.rules(one, everywhere=everywhere, days=days, at=at)
            if not time.time() - LATELY_S < at <= time.time() or form.get("seen") != _seen(rules):
                raise ApprovalRefused("the rules are not those that were shown any more; look at them again")
            return deciding.approve(one.id, digest=digest, rules=rules)

        await self._deciding(request, remember)
        return RedirectResponse(f"{PREFIX}/rules", status_code=303)

    async def _deciding(self, request: Request, function: Callable[[Deciding], T]) -> T:
        """What a function returns that decides as the account of the request, in a thread."""

        def decide(at: Asking) -> T:
            return function(Deciding(where=at.where, enqueuer=at.enqueuer, by=at.caller.by, surface=at.caller.surface))

        return await self._local.within(caller_of(request), decide)


async def _digest(request: Request) -> str:
    """The digest of what was shown; without one, nothing is decided."""
    if digest := str((await request.form()).get("digest", "")):
        return digest
    raise InvalidRequest("the digest of the request is missing: decide on the page that shows the request")


def _how(given: Callable[[str], str | None]) -> tuple[int, bool]:
    """How long a rule holds, in days, and whether everywhere."""
    days = given("days") or ""
    wanted = int(days) if days.isdecimal() and len(days) < 9 else DAYS
    return min(max(wanted, 1), DAYS_MAX), given("everywhere") == "yes"


def _seen(rules: Sequence[Rule]) -> str:
    """What is the same only for rules that read the same."""
    return hashlib.sha256("\n".join(rule.described() for rule in rules).encode()).hexdigest()


def _look(at: Asking) -> tuple[list[approvals.Request], int, list[dict[str, Any]]]:
    """The requests of the page, how many there are, and what was decided lately."""

    def look(conn: sa.Connection) -> tuple[list[approvals.Request], int, list[approvals.Request]]:
        lately = approvals.decided_last(conn, since=rows.now(conn) - LATELY_S, limit=LATELY)
        return approvals.find(conn, state="pending", limit=LISTED), approvals.pending(conn), lately

    found, total, lately = at.where.database.read_now(look)
    return (
        found,
        total,
        [{"of": one, "state": _state(one), "what": label(showing.headline(one))} for one in lately],
    )


def _state(of: approvals.Request) -> str:
    """What was decided. A call that was approved is used in a moment, which is no news here."""
    return "approved" if of.state == "used" else of.state


def told(of: approvals.Request, at_most: int = WHOLE_CHARS) -> dict[str, Any]:
    """What a card shows of a request: its facts, and the lines that every surface shows, or so much of them."""
    lines, details = showing.card(of, counted=False), showing.details(of)
    whole, text = sum(map(len, (*lines, *details))) <= at_most, "\n".join(lines)
    first = text if len(text) <= at_most else f"{text[:at_most]} …"
    return {
        "of": of,
        "state": _state(of),
        "lines": lines,
        "details": details,
        "first": first.split("\n"),
        "whole": whole,
        "for_session": of.state == "pending" and approvals.why_not_for_session(of) is None,
        "of_call": of.of_call,
        "changes": of.of_call and mailbox.driver_of(of.turn_id) == mailbox.AGENT,
    }
