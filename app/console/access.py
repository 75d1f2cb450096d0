"""Who may open which page. Each route says the role that it needs, and nothing else decides about it.

    Page("/processes/{id}/kill", kill, role="operator", method="POST")

The function of a route finds the account in `request.state.account`. A request that changes something brings the token
of the forms of its login (`request.state.csrf`, which `base.html` and `form` of `macros.html` write); without it, or
from another origin, it is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Final, Literal
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from shellback.client.caller import Caller
from shellback.client.failures import logged
from shellback.console.pages import PREFIX, message
from shellback.serving.application import in_cookie, person
from shellback.storage.accounts import Account, Role

COOKIE: Final = "shellback_console"
FORM_FIELDS: Final = 20
secret_of: Final = in_cookie(COOKIE)
"""The secret of the login that the headers of a request bring."""

Handler = Callable[[Request], Awaitable[Response]]


class Page(Route):
    """A route for accounts with this role, or one that may do more; with None, for everybody.

    `path` is below `PREFIX`.
    """

    def __init__(
        self, path: str, handler: Handler, *, role: Role | None, method: Literal["GET", "POST"] = "GET"
    ) -> None:
        self.role: Role | None = role
        self._handler = handler
        super().__init__(PREFIX + path, self._admit, methods=[method])

    async def _admit(self, request: Request) -> Response:
        try:
            return await self._refusal(request) or await self._handler(request)
        except (ClientDisconnect, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - the person is told of each
            status, facts = logged(error)
            return message(request, facts["error"]["message"], status=status)

    async def _refusal(self, request: Request) -> Response | None:
        login = person(request.scope)
        request.state.account = None if login is None else login.account
        request.state.csrf = None if login is None else csrf_of(secret_of(request.headers) or "")
        if self.role is not None:
            if login is None:
                return _to_login(request)
            if not login.account.may(self.role):
                said = f"This needs the role {self.role}; {login.name} is {login.account.role}. Nothing was done."
                return message(request, said, status=403)
        if request.method == "POST" and not await _of_our_page(request):
            said = "This form is not of a page of this login. Nothing was done. Open the page again, and repeat it."
            return message(request, said, status=403)
        return None


def account_of(request: Request) -> Account:
    """The account of a request that was let in by its role."""
    account = request.state.account
    assert isinstance(account, Account)
    return account


def caller_of(request: Request) -> Caller:
    """Who asks, for the operations of the client."""
    return Caller(by=account_of(request).name, surface="console")


def csrf_of(secret: str) -> str:
    """What the forms of a login bring. Whoever reads it has no cookie by it."""
    return hmac.new(secret.encode(), b"forms of the console", hashlib.sha256).hexdigest()


async def _of_our_page(request: Request) -> bool:
    # The application has refused an origin that is not this server; browsers leave it out of no POST.
    if "origin" not in request.headers:
        return False
    form = await request.form(max_fields=FORM_FIELDS, max_files=0)
    given = form.get("csrf")
    wanted = request.state.csrf
    return wanted is None or (isinstance(given, str) and hmac.compare_digest(given.encode(), wanted.encode()))


def _to_login(request: Request) -> Response:
    by_script = "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", "")
    if request.method == "POST" or by_script:
        return message(request, "You are not logged in any more. Nothing was done. Log in, and repeat it.", status=401)
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{PREFIX}/login?next={quote(where, safe='')}", status_code=303)
