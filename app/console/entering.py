"""How people come in and leave: the one-time link, the password, and the logins that they have."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

import sqlalchemy as sa
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shellback.console.access import COOKIE, Page, account_of, leading_on, login_of, named_by_proxy, secret_of
from shellback.console.pages import PREFIX, message, page
from shellback.console.passwords import LONGEST, SHORTEST, Attempts, Busy, Passwords
from shellback.exec.core.display import visible_line
from shellback.storage import accounts
from shellback.storage.tokens import digest_of
from shellback.wiring import wiring
from shellback.work.approvals import audit
from shellback.work.approvals.event import Event
from shellback.work.queue.queues import TOKENS

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

log = logging.getLogger(__name__)


class Entering:
    """Pages for those who are not logged in yet, and of logins. With `secure` cookies are sent by TLS only."""

    def __init__(self, where: Place, *, secure: bool) -> None:
        self._where = where
        self._database = where.database
        self._secure = secure
        self._passwords = Passwords()
        self._attempts = Attempts()

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/login", self._form, role=None),
            Page("/login", self._log_in, role=None, method="POST"),
            Page("/first/{link}", self._link, role=None),
            Page("/first/{link}", self._accept, role=None, method="POST"),
            Page("/account", self._account, role="viewer"),
            Page("/account/logins/{id}/end", self._end, role="viewer", method="POST"),
            Page("/logout", self._log_out, role="viewer", method="POST"),
        ]

    async def _form(self, request: Request) -> Response:
        then = request.query_params.get("next", "")
        if login_of(request) is not None:
            return RedirectResponse(_local(then), status_code=303)
        if "entered" in request.query_params:
            return self._forgotten(request, then)
        if (named := named_by_proxy(request)) is None:
            return page(request, "login.html", then=then, said="")
        # Whatever account is in the cookie: the proxy says who asks.
        answer = await self._entered(request, named, None, then) if _name(named) == named else None
        if answer is not None:
            return answer
        log.warning("a login to the console was refused: %s", visible_line(_name(named)))
        said = f"There is no account {named!r}, whom the proxy names: `shellback users add` makes one."
        return page(request, "login.html", status=403, then=then, said=said)

    async def _log_in(self, request: Request) -> Response:
        form = await request.form()
        name, password, then = (str(form.get(key, "")) for key in ("name", "password", "next"))
        name = _name(name)
        if wait_s := self._attempts.begin(name):
            said = f"Too many wrong passwords for this name. Wait {wait_s:.0f} s, or ask for a new link."
            headers = {"retry-after": f"{wait_s:.0f}"}
            return page(request, "login.html", status=429, headers=headers, then=then, said=said)
        try:
            kept = await self._database.read(accounts.password_of, name)
            right = await self._passwords.right(kept, password[:LONGEST])
        except Busy as error:
            self._attempts.undo(name)
            return page(request, "login.html", status=503, then=then, said=f"There are {error}.")
        except BaseException:
            self._attempts.undo(name)
            raise
        if kept is None or not right:
            log.warning("a login to the console was refused: %s", visible_line(name))
            said = "Name or password is wrong. An operator makes a new link with `shellback users link NAME`."
            return page(request, "login.html", status=403, then=then, said=said)
        self._attempts.right(name)
        return await self._entered(request, name, kept, then) or _meanwhile(request)

    async def _entered(self, request: Request, name: str, kept: str | None, then: str) -> Response | None:
        """Log in, by the password that is `kept` or because the proxy says so; None if there is no such account."""
        program = visible_line(request.headers.get("user-agent", ""))[:200]

        def enter(conn: sa.Connection) -> str | None:
            secret = accounts.log_in(conn, name, password=kept, program=program)
            if secret is not None:
                _audited(conn, "logged_in", name, program if kept is not None else f"as the proxy says: {program}")
            return secret

        secret = await self._database.write(enter)
        if secret is None:
            return None
        # Leads by the form, which sees whether the cookie comes back.
        there = f"{PREFIX}/login?entered=yes&next={quote(_local(then), safe='')}"
        if kept is None:
            answer = leading_on(request, f"You are logged in as {name}.", there)
        else:
            answer = RedirectResponse(there, status_code=303)
        answer.set_cookie(
            COOKIE, secret, max_age=int(accounts.LOGIN_S), path=PREFIX, secure=self._secure, httponly=True,
            samesite="strict",
        )  # fmt: skip
        return answer

    def _forgotten(self, request: Request, then: str) -> Response:
        """What is said instead of logging in again and again by the word of a proxy."""
        said = "You were logged in, but this browser did not send the cookie back. Allow cookies for this address"
        if self._secure:
            said += ", and open it with https, as the cookie is sent by TLS only"
        again = f"{PREFIX}/login?next={quote(_local(then), safe='')}"
        return message(request, f"{said}. Then log in again.", status=403, more=[("Log in again", again)])

    async def _link(self, request: Request) -> Response:
        invited = await self._database.read(accounts.invited, request.path_params["link"])
        return _used_up(request) if invited is None else self._first(request, invited.name)

    async def _accept(self, request: Request) -> Response:
        link, form = request.path_params["link"], await request.form()
        invited = await self._database.read(accounts.invited, link)
        if invited is None:
            return _used_up(request)
        password = str(form.get("password", ""))
        if not SHORTEST <= len(password) <= LONGEST:
            said = f"A password has {SHORTEST} to {LONGEST} characters."
            return self._first(request, invited.name, said)
        if password != form.get("again"):
            return self._first(request, invited.name, "The two passwords differ.")
        try:
            kept = await self._passwords.hash(password)
        except Busy as error:
            return self._first(request, invited.name, f"There are {error}.")
        if await self._database.write(accounts.accept, link, kept) is None:
            return _used_up(request)
        self._attempts.right(invited.name)
        answer = await self._entered(request, invited.name, kept, "") or _meanwhile(request)
        # After the answer: this browser may still have a login of this account, which has just ended.
        answer.background = BackgroundTask(self._ring)
        return answer

    def _first(self, request: Request, name: str, said: str = "") -> Response:
        return page(request, "first.html", status=400 if said else 200, name=name, said=said, shortest=SHORTEST)

    async def _account(self, request: Request) -> Response:
        login = login_of(request)
        mine = await self._database.read(accounts.logged_in, account_of(request).name)
        return page(request, "account.html", mine=mine, this=login.id if login else "")

    async def _end(self, request: Request) -> Response:
        return await self._ended(request, request.path_params["id"], "/account")

    async def _log_out(self, request: Request) -> Response:
        answer = await self._ended(request, digest_of(secret_of(request.headers) or ""), "/login")
        answer.delete_cookie(COOKIE, path=PREFIX, secure=self._secure, httponly=True, samesite="strict")
        return answer

    async def _ended(self, request: Request, login_id: str, then: str) -> Response:
        name = account_of(request).name

        def end(conn: sa.Connection) -> None:
            if accounts.log_out(conn, name, login_id):
                _audited(conn, "logged_out", name, login_id[:8])

        await self._database.write(end)
        # After the answer, which would end with its login.
        return RedirectResponse(PREFIX + then, status_code=303, background=BackgroundTask(self._ring))

    async def _ring(self) -> None:
        """What is open with a login that ended ends, in every server."""
        await asyncio.to_thread(functools.partial(wiring.a_doorbell(self._where).ring_all, TOKENS))


def _audited(conn: sa.Connection, event: Event, name: str, reason: str) -> None:
    audit.note(conn, audit.Entry(event=event, done_by=name, surface="console", reason=reason))


def _name(given: str) -> str:
    return given[:64].replace("\x00", "")


def _meanwhile(request: Request) -> Response:
    return message(request, "The password was changed meanwhile. Log in with the new one.", status=409)


def _local(then: str) -> str:
    """A path of the console, whatever was asked for."""
    return then if then.startswith(f"{PREFIX}/") and then.isprintable() else f"{PREFIX}/"


def _used_up(request: Request) -> Response:
    said = (
        "This link was used, or it is older than 15 minutes, or a newer one was made. "
        "`shellback users link NAME` makes another one."
    )
    return message(request, said, status=410, more=[("Log in", f"{PREFIX}/login")])
