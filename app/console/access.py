"""Who may open which page. Each route says the role that it needs, and nothing else decides about it.

    Page("/processes/{id}/kill", kill, role="operator", method="POST")

The function of a route finds the account in `request.state.account`. A request that changes something brings the token
of the forms of its login (`request.state.csrf`, which `base.html` and `form` of `macros.html` write); without it, or
from another origin, it is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, Literal
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from shellback.client.caller import Caller
from shellback.client.failures import logged
from shellback.console.pages import PREFIX, asked_for, message
from shellback.serving.application import in_cookie, person
from shellback.storage.accounts import Account, Login, Role

COOKIE: Final = "shellback_console"
FORM_FIELDS: Final = 20
_OF_ADDRESSES: Final = ":/%#?=@[]!$&'()*+,;"
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
            said = facts["error"]["message"]
            return sorry(request, said) if status == 503 else message(request, said, status=status)

    async def _refusal(self, request: Request) -> Response | None:
        login = login_of(request)
        request.state.account = None if login is None else login.account
        request.state.csrf = None if login is None else csrf_of(secret_of(request.headers) or "")
        if login is None and _led_here(request):
            return leading_on(request, "This page opens.")
        if self.role is not None:
            if login is None:
                return _to_login(request)
            if not login.account.may(self.role):
                said = f"This needs the role {self.role}; {login.name} is {login.account.role}. Nothing was done."
                return message(request, said, status=403)
        if request.method == "POST" and not await self._of_our_page(request):
            said = "This form is not of a page of this login. Nothing was done. Open the page again, and repeat it."
            return message(request, said, status=403)
        return None

    async def _of_our_page(self, request: Request) -> bool:
        # The application has refused an origin that is not this server; browsers leave it out of no POST.
        if "origin" not in request.headers:
            return False
        form = await request.form(max_fields=FORM_FIELDS, max_files=0)
        given = form.get("csrf")
        # Who comes in may have had no login when the form was written, and one from another tab now.
        wanted = request.state.csrf if self.role is not None else None
        return wanted is None or (isinstance(given, str) and hmac.compare_digest(given.encode(), wanted.encode()))


def login_of(request: Request) -> Login | None:
    """The login of a request, unless a trusted proxy names somebody else, or not any more whom it named."""
    login, named = person(request.scope), named_by_proxy(request)
    if login is None or named == login.name:
        return login
    return login if named is None and not login.by_proxy else None


def named_by_proxy(request: Request) -> str | None:
    """The account that a trusted proxy names; None if there is no such proxy, or it names nobody."""
    proxy: SignOn | None = request.app.state.sign_on
    return None if proxy is None else proxy.account(request)


@dataclass(frozen=True, slots=True)
class SignOn:
    """A proxy in front of this server that knows who asks, and says so in a header."""

    header: str
    trusted: Collection[IPv4Network | IPv6Network]

    def account(self, request: Request) -> str | None:
        """Whom it names, in a request that it has passed on itself."""
        if request.client is None:
            return None
        try:
            peer = ip_address(request.client.host)
        except ValueError:
            return None
        given = request.headers.getlist(self.header)
        return given[0].strip() or None if len(given) == 1 and any(peer in one for one in self.trusted) else None


def leading_on(request: Request, said: str, to: str = "") -> Response:
    """A page that opens another one by itself, or itself again. A redirect would be a part of what led to it."""
    answer = message(request, said, more=[("Open it", to or asked_for(request))])
    answer.headers["refresh"] = f"0; url={quote(to, safe=_OF_ADDRESSES)}" if to else "0"
    return answer


def sorry(request: Request, said: str) -> Response:
    """A page that says why nothing can be shown now; it asks again by itself."""
    answer = message(request, said, status=503)
    if request.method == "GET":
        answer.headers["refresh"] = "5"
    return answer


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


def _by_script(request: Request) -> bool:
    return "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", "")


def _led_here(request: Request) -> bool:
    """Whether another site began what opens a page, so that the browser keeps its cookie to itself."""
    by_site = request.headers.get("sec-fetch-site") == "cross-site"
    return by_site and request.method == "GET" and not _by_script(request)


def _to_login(request: Request) -> Response:
    if request.method == "POST" or _by_script(request):
        return message(request, "You are not logged in any more. Nothing was done. Log in, and repeat it.", status=401)
    return RedirectResponse(f"{PREFIX}/login?next={quote(asked_for(request), safe='')}", status_code=303)
