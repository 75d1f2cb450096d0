"""The console as a browser sees it: who gets in, who may do what, and that what is decided is what was shown."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import hashlib
import html
import io
import json
import re
import threading
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pytest
import sqlalchemy as sa
from starlette.routing import BaseRoute
from starlette.routing import Mount as Below

from shellback.client.caller import Caller
from shellback.client.deciding import edited
from shellback.client.local import SEARCHES, Local
from shellback.client.operations import Asking
from shellback.console import site
from shellback.console.access import COOKIE, Page
from shellback.console.changes import Changes
from shellback.console.pages import markdown
from shellback.console.passwords import FREE, Attempts
from shellback.console.terminal import Terminals
from shellback.console.waiting import LISTED, WHOLE
from shellback.settings import Settings, SettingsError
from shellback.storage import accounts, rules, sessions, tables
from shellback.storage.accounts import ROLES, Role
from shellback.work.approvals import approvals, audit, sending
from shellback.work.hosts.placing import Wanted
from shellback.work.notices.notices import Outbox
from shellback.work.queue import stream
from shellback.work.queue.stream import Event
from tests.commands import facts, shellback, told
from tests.consoles import PASSWORD, Crowd, Visitor, asked, invited
from tests.databases import TEMPLATE
from tests.serving import Served, served, token
from tests.sessions import a_session
from tests.stage import Stage, stage

STATIC = Path(site.__file__).parent / "static"
HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
"""Of dist/htmx.min.js in version 4.0.1 of the package htmx.org of npm."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Generator[Stage]:
    url = None
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres_server")
        url = postgres.url(postgres.create(TEMPLATE))
    with stage(url) as made:
        yield made


@pytest.fixture(scope="module")
def server(place: Stage) -> Generator[Served]:
    with served(place) as made:
        yield made


@pytest.fixture(scope="module")
def crowd(place: Stage, server: Served) -> Generator[Crowd]:
    made = Crowd(place, server)
    yield made
    made.close()


@pytest.fixture(scope="module")
def people(crowd: Crowd) -> dict[Role, Visitor]:
    return {role: crowd.person(f"the-{role}", role) for role in ROLES}


def all_routes(place: Stage) -> list[BaseRoute]:
    local = Local(lambda: contextlib.nullcontext(place.where))
    return site.routes(place.where, local, Changes(local), Terminals(place.where), secure=False)


def all_pages(place: Stage) -> list[Page]:
    return [one for one in all_routes(place) if isinstance(one, Page)]


def test_a_person_comes_in_by_a_link_once_and_by_the_password_from_then_on(place: Stage, crowd: Crowd) -> None:
    made = facts(shellback(place, "users", "add", "grace", "--role", "viewer", "--url", crowd.server.base, "--json"))
    link = str(made["link"]).removeprefix(f"{crowd.server.base}/console")
    person = crowd.browser()
    to_login = person.get("/conversations?x=1")
    assert (to_login.status_code, to_login.headers["location"]) == (
        303, "/console/login?next=%2Fconsole%2Fconversations%3Fx%3D1",
    )  # fmt: skip
    assert "grace" in person.get(link).text
    for password, again, said in (("short", "short", "12 to"), (PASSWORD, "different", "differ")):
        refused = person.post(link, csrf="", password=password, again=again)
        assert (refused.status_code, said in refused.text) == (400, True)
    entered = person.post(link, csrf="", password=PASSWORD, again=PASSWORD)
    assert entered.status_code == 303
    cookie = entered.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/console"):
        assert part in cookie
    assert person.get("/").status_code == 200
    for again in (person.get(link), person.post(link, csrf="", password=PASSWORD, again=PASSWORD)):
        assert again.status_code in {403, 410}
    other = crowd.browser()
    assert other.get(link).status_code == 410
    assert other.enter("grace", "a wrong password").status_code == 403
    assert other.enter("nobody", PASSWORD).status_code == 403
    assert other.landed(other.enter("grace")) == "/console/"
    assert "grace" in other.get("/").text
    assert other.post("/logout").status_code == 303
    assert other.get("/").status_code == 303


def test_after_a_login_no_other_site_is_opened(place: Stage, crowd: Crowd) -> None:
    invite = invited(place, "hal", "viewer")
    crowd.browser().post(invite, csrf="", password=PASSWORD, again=PASSWORD)
    for then, there in (
        ("/console/processes?all=yes", "/console/processes?all=yes"),
        ("https://evil.example/", "/console/"),
        ("//evil.example/console/", "/console/"),
        ("/console/\r\nset-cookie: a=b", "/console/"),
    ):
        form = {"name": "hal", "password": PASSWORD, "next": then}
        person = crowd.browser()
        assert person.landed(person.web.post("/console/login", data=form)) == there


def test_wrong_passwords_of_one_name_have_to_wait_whether_or_not_it_has_an_account(place: Stage, crowd: Crowd) -> None:
    crowd.browser().post(invited(place, "ida", "viewer"), csrf="", password=PASSWORD, again=PASSWORD)
    for name in ("ida", "nobody-of-that-name"):
        guesses = [crowd.browser().enter(name, f"guess {number}").status_code for number in range(FREE + 1)]
        assert guesses == [403] * FREE + [429]
        late = crowd.browser().enter(name)
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) >= 0


@pytest.mark.parametrize("role", [None, *ROLES])
def test_each_route_is_refused_to_those_whose_role_is_too_low(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor], role: Role | None
) -> None:
    who = people[role] if role is not None else crowd.browser()
    for one in all_pages(place):
        (method,) = one.methods - {"HEAD"} if one.methods else {""}
        path = re.sub(r"\{\w+(:path)?\}", "none", one.path).removeprefix("/console")
        if path in {"/changes", "/logout"}:
            continue  # a stream, and the end of this login: both have tests of their own
        answer = who.get(path) if method == "GET" else who.post(path)
        may = one.role is None or (role is not None and ROLES.index(role) >= ROLES.index(one.role))
        refused = answer.status_code == 403 or (
            answer.status_code in {401, 303} and role is None and one.role is not None
        )
        if method == "POST" and one.path == "/console/login":
            continue  # the wrong password
        assert refused is not may, f"{method} {path} answered {role} with {answer.status_code}"


def test_every_route_says_its_role(place: Stage) -> None:
    others = [one for one in all_routes(place) if not isinstance(one, Page)]
    assert [one.path for one in others if isinstance(one, Below)] == ["/console/static"]
    assert len(others) == 1
    open_to_all = {one.path for one in all_pages(place) if one.role is None}
    assert open_to_all == {"/console/login", "/console/first/{link}"}
    for one in all_pages(place):
        assert one.methods in ({"GET", "HEAD"}, {"POST"})
        if one.methods == {"POST"}:
            assert one.role != "viewer" or one.path in {"/console/logout", "/console/account/logins/{id}/end"}


def test_a_form_of_another_site_or_of_another_login_changes_nothing(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    request = asked(place, "forged", "make forged")
    person, other = people["operator"], people["approver"]
    path = f"/requests/{request.id}/approve"
    given = {"digest": request.digest}
    for csrf in ("", "0" * 64, other.csrf()):
        assert person.post(path, csrf=csrf, **given).status_code == 403
    data = {"csrf": person.csrf(), **given}
    for origin in ("https://evil.example", "null"):
        assert person.web.post(f"/console{path}", data=data, headers={"origin": origin}).status_code == 403
    del person.web.headers["origin"]
    try:
        assert person.web.post(f"/console{path}", data=data).status_code == 403
    finally:
        person.web.headers["origin"] = crowd.server.base
    rebound = person.web.get("/console/", headers={"host": "evil.example"})
    assert rebound.status_code == 421
    assert place.read(approvals.get, request.id).state == "pending"


def test_neither_a_token_nor_the_cookie_of_a_browser_opens_what_the_other_does(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    secret = token(place, "for-api", "--api", "--all-conversations")
    with_token = crowd.browser(authorization=f"Bearer {secret}", cookie=f"{COOKIE}={secret}")
    assert with_token.get("/").status_code == 303
    cookie = people["operator"].web.cookies[COOKIE]
    refused = crowd.browser(authorization=f"Bearer {cookie}").web.get("/v1/approvals")
    assert refused.status_code == 403
    assert crowd.browser(cookie=f"{COOKIE}={cookie}").web.get("/v1/approvals").status_code == 401


def test_a_decision_is_the_accounts_and_holds_for_what_was_shown_only(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    first, second = asked(place, "shown", "make one", key="1"), asked(place, "shown", "make two", key="2")
    person = people["approver"]
    page = person.get("/").text
    assert "make one" in page
    assert first.digest in page
    assert person.post(f"/requests/{first.id}/approve").status_code == 400
    changed = sa.update(tables.approvals).where(tables.approvals.c.id == first.id).values(digest="f" * 64)
    place.change(changed)
    for decision in ("approve", "deny"):
        refused = person.post(f"/requests/{first.id}/{decision}", digest=first.digest)
        assert refused.status_code == 409
        assert "has changed since you saw it" in refused.text
    assert place.read(approvals.get, first.id).state == "pending"
    assert person.post(f"/requests/{first.id}/approve", digest="f" * 64).status_code == 303
    answer = person.post(f"/requests/{second.id}/deny", digest=second.digest, reason="not on a Friday")
    assert answer.status_code == 303
    decided = [place.read(approvals.get, one.id) for one in (first, second)]
    assert [(one.state, one.decided_by, one.surface) for one in decided] == [
        ("approved", "the-approver", "console"), ("denied", "the-approver", "console"),
    ]  # fmt: skip
    assert decided[1].note == "not on a Friday"
    late = person.post(f"/requests/{second.id}/approve", digest=second.digest)
    assert late.status_code == 409
    assert "denied already by the-approver" in late.text
    gone = person.get("/").text
    assert first.digest not in gone
    assert second.digest not in gone


def test_a_long_request_is_decided_where_all_of_it_is_shown(place: Stage, people: dict[Role, Visitor]) -> None:
    long = asked(place, "long", "make " + "x" * 5_000 + " end")
    person = people["approver"]
    listed, whole = person.get("/").text, person.get(f"/requests/{long.id}").text
    assert "This is in brief" in listed
    assert f"/requests/{long.id}/approve" not in listed
    assert "x end" in whole
    assert f"/requests/{long.id}/approve" in whole
    assert person.post(f"/requests/{long.id}/deny", digest=long.digest).status_code == 303


def test_of_many_requests_the_later_ones_are_in_brief_until_they_come_up(
    place: Stage, people: dict[Role, Visitor]
) -> None:
    waits = tables.approvals.update().where(tables.approvals.c.state == "pending").values(state="superseded")
    place.change(waits)
    words = " ".join(f"part{number}" for number in range(120))
    many = [
        asked(place, f"many{number % 5}", f"make {words} {number}", key=str(number)) for number in range(LISTED + 7)
    ]
    person = people["approver"]
    before = page = person.get("/").text
    assert [one.id for one in many if f'id="request-{one.id}' in page] == [one.id for one in many[:LISTED]]
    assert f">{len(many)}</small>" in page
    assert "7 more wait." in page
    assert [one.id for one in many if f"/requests/{one.id}/approve" in page] == [one.id for one in many[:WHOLE]]
    assert page.count("This is in brief") == LISTED - WHOLE
    assert len(page) < 100_000
    person.post(f"/requests/{many[0].id}/deny", digest=many[0].digest)
    page = person.get("/").text
    assert f"/requests/{many[WHOLE].id}/approve" in page
    assert f'id="request-{many[LISTED].id}' in page
    # An open page keeps what it has of the same name, as a reason that is being typed.
    assert re.search(rf'id="request-{many[WHOLE].id}[^"]*-brief"', before)
    assert not re.search(rf'id="request-{many[WHOLE].id}[^"]*-brief"', page)
    place.change(waits)


def told_to_save(page: str) -> dict[str, str]:
    """The hidden fields of the form that saves a rule."""
    return dict(re.findall(r'name="(digest|at|seen|days|everywhere)" value="([^"]*)">', page))


def test_a_rule_is_saved_as_it_was_shown_with_the_decision_and_can_be_revoked(
    place: Stage, people: dict[Role, Visitor]
) -> None:
    request, person = asked(place, "ruled", "touch ruled"), people["operator"]
    path = f"/requests/{request.id}/rule"
    assert f'href="/console{path}"' in person.get("/").text
    assert f'href="/console{path}"' not in people["approver"].get("/").text
    page = person.get(f"{path}?days=7").text
    form = told_to_save(page)
    assert "allow exactly `touch ruled`" in page
    for changed in ({"seen": "0" * 64}, {"days": "8"}, {"everywhere": "yes"}, {"at": "1"}, {"at": "nan"}, {"at": ""}):
        refused = person.post(path, **form | changed)
        assert refused.status_code == 409
        assert "look at them again" in refused.text
    assert person.post(path, **form | {"digest": "f" * 64}).status_code == 409
    assert person.post(path, **form | {"digest": ""}).status_code == 400
    assert place.read(approvals.get, request.id).state == "pending"
    assert not place.read(rules.find)
    assert person.post(path, **form).headers["location"] == "/console/rules"
    (saved,) = place.read(rules.find)
    assert saved.rule.described() in html.unescape(page)
    assert saved.rule.owner == "the-operator"
    decided = place.read(approvals.get, request.id)
    assert (decided.state, decided.decided_by, decided.surface) == ("approved", "the-operator", "console")
    revoke = f"/rules/{saved.rule.id}/revoke"
    assert f'action="/console{revoke}"' in person.get("/rules").text
    assert f'action="/console{revoke}"' not in people["approver"].get("/rules").text
    assert person.post(revoke).status_code == 303
    assert not place.read(rules.find)
    assert "revoked by the-operator" in person.get("/rules").text
    noted = place.read(audit.find, events=("rule_added", "rule_revoked"), by="the-operator")
    assert [(one.event, one.surface) for one in noted] == [("rule_added", "console"), ("rule_revoked", "console")]
    assert person.post("/rules/none/revoke").status_code == 400


def test_a_rule_that_holds_longer_than_was_shown_is_not_taken_for_it(place: Stage, crowd: Crowd) -> None:
    person = crowd.person("who-remembers")
    long, short = (asked(place, "longer", "touch longer", key=key) for key in "12")
    for request, days, status in ((long, 30, 303), (short, 2, 409)):
        path = f"/requests/{request.id}/rule"
        answer = person.post(path, **told_to_save(person.get(f"{path}?days={days}").text))
        assert answer.status_code == status
    (saved,) = place.read(rules.find)
    assert f"the rule {saved.rule.id} is the same and ends later" in html.unescape(answer.text)
    assert place.read(approvals.get, short.id).state == "pending"
    # One that ends sooner is prolonged, as it was shown.
    path = f"/requests/{short.id}/rule"
    assert person.post(path, **told_to_save(person.get(f"{path}?days=31").text)).status_code == 303
    (prolonged,) = place.read(rules.find)
    assert prolonged.rule.id == saved.rule.id
    assert prolonged.rule.expires_at != saved.rule.expires_at
    person.post(f"/rules/{saved.rule.id}/revoke")


def test_rules_can_be_revoked_while_the_policy_file_is_broken(place: Stage, crowd: Crowd) -> None:
    request, person = asked(place, "broken", "touch broken"), crowd.person("who-revokes")
    path = f"/requests/{request.id}/rule"
    person.post(path, **told_to_save(person.get(path).text))
    (saved,) = place.read(rules.find)
    file = place.home / "shellback.toml"
    file.write_text("[[rules]\n")
    try:
        page = person.get("/rules")
        assert (page.status_code, "They cannot be read: " in page.text) == (200, True)
        assert f"/rules/{saved.rule.id}/revoke" in page.text
        assert person.post(f"/rules/{saved.rule.id}/revoke").status_code == 303
    finally:
        file.unlink()
    assert place.read(rules.find) == []


def test_what_cannot_be_remembered_is_said_and_what_only_a_client_can_change_is_refused(
    place: Stage, people: dict[Role, Visitor]
) -> None:
    request, person = asked(place, "unruled", "make x > y"), people["operator"]
    said = person.get(f"/requests/{request.id}/rule")
    assert (said.status_code, "cannot be remembered" in said.text) == (400, True)
    assert f"/requests/{request.id}/change" not in person.get("/").text
    other = person.post(f"/requests/{request.id}/change", digest="f" * 64, text="make y")
    assert (other.status_code, "has changed since you saw it" in other.text) == (409, True)
    refused = person.post(f"/requests/{request.id}/change", digest=request.digest, text="make y")
    assert (refused.status_code, "deny it with a reason" in refused.text) == (409, True)
    assert person.post(f"/requests/{request.id}/deny", digest=request.digest).status_code == 303


UNCHANGED: Final = (
    "printf '\\x41' > a", "echo 'two\nlines'\n", "\necho begins with a newline", "echo \x1b[2J \u202e &lt;"
)  # fmt: skip


@pytest.mark.parametrize("command", UNCHANGED)
def test_a_call_that_is_proposed_as_the_form_has_it_is_the_same_call(
    place: Stage, people: dict[Role, Visitor], command: str
) -> None:
    request = asked(place, "same", command, key=str(UNCHANGED.index(command)))
    place.change(sa.update(_asks).where(_asks.c.id == request.id).values(turn_id="of an agent"))
    page = people["approver"].get(f"/requests/{request.id}/change").text
    assert "\x1b" not in page
    assert "\u202e" not in page
    found = re.search(r"<textarea[^>]*>\n(.*)</textarea>", page, re.DOTALL)
    assert found is not None
    assert edited(request, html.unescape(found[1])) == request.args
    place.decide(request, "denied")


class Stream:
    """What an open page is told, read in a thread of its own."""

    def __init__(self, person: Visitor, query: str = "") -> None:
        self.lines = list[str]()
        self.ended = threading.Event()
        self._new = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(person, query), daemon=True)
        self._thread.start()

    def _read(self, person: Visitor, query: str) -> None:
        with contextlib.suppress(Exception), person.web.stream("GET", f"/console/changes{query}") as answer:
            for line in answer.iter_lines():
                with self._new:
                    self.lines.append(line)
                    self._new.notify_all()
        self.ended.set()

    def wait_for(self, line: str) -> None:
        """Return when this line has come since the last call."""
        with self._new:
            assert self._new.wait_for(lambda: line in self.lines, 30), self.lines
            self.lines.clear()


def test_an_open_page_is_told_of_a_decision_that_was_made_elsewhere(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    stream = Stream(people["viewer"])
    stream.wait_for("event: back")
    request = asked(place, "elsewhere", "make elsewhere")
    stream.wait_for("event: decisions")
    assert "make elsewhere" in people["viewer"].get("/").text
    assert told(place, "approvals", "deny", request.id).returncode == 0
    stream.wait_for("event: decisions")
    now = people["viewer"].get("/").text
    assert f"/requests/{request.id}/approve" not in now
    assert re.search(rf'id="decided-{request.id}">.*denied by [^<]+ through cli</a> <code>make elsewhere</code>', now)
    assert "denied by" in people["viewer"].get(f"/requests/{request.id}").text


class Counted(Local):
    """A client that counts the readers of all events, and says when one has looked."""

    readers = 0

    def __init__(self, place: Stage) -> None:
        super().__init__(lambda: contextlib.nullcontext(place.where))
        self.looked = asyncio.Event()

    async def news(self) -> AsyncGenerator[list[Event]]:
        self.readers += 1
        async with contextlib.aclosing(super().news()) as news:
            async for events in news:
                self.looked.set()
                yield events


async def heard(page: AsyncGenerator[bytes]) -> str:
    """The first thing that a page is told but that it has connected."""
    async with asyncio.timeout(30):
        async for line in page:
            if (name := line.decode().partition("\n")[0].removeprefix("event: ")) != "back":
                return name
    raise AssertionError


@pytest.mark.anyio
async def test_one_reader_serves_all_open_pages_and_each_hears_of_what_it_shows(place: Stage) -> None:
    local = Counted(place)
    changes = Changes(local)
    pages = [changes.told(["decisions", f"conversation page-{number}"]) for number in range(20)]
    hearing = [asyncio.create_task(heard(page)) for page in pages]
    await local.looked.wait()
    place.write(stream.note, "page-7", "", 0, "alarm", {"text": "x"})
    assert await hearing[7] == "conversation"
    place.write(stream.note, "elsewhere", "", 0, "decision", {"id": "x"})
    others = await asyncio.gather(*hearing[:7], *hearing[8:])
    assert {*others} == {"decisions"}
    assert local.readers == 1
    for page in pages:
        await page.aclose()
    await changes.close()
    await local.close()


class Failing(Local):
    """A client whose first reader of all events dies of a bug."""

    failed = False

    async def news(self) -> AsyncGenerator[list[Event]]:
        if not self.failed:
            self.failed = True
            raise RuntimeError("a bug")
        async with contextlib.aclosing(super().news()) as news:
            async for events in news:
                yield events


@pytest.mark.anyio
async def test_a_reader_that_died_of_a_bug_is_said_and_another_one_goes_on(
    place: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    local = Failing(lambda: contextlib.nullcontext(place.where))
    changes = Changes(local)
    told = changes.told(["decisions"])
    said = list[str]()
    async with asyncio.timeout(30):
        async for line in told:
            said.append(line.decode().partition("\n")[0])
            if "event: away" in said and said[-1] == "event: back":
                break
    assert "Traceback" in caplog.text
    assert "a bug" in caplog.text
    await told.aclose()
    await changes.close()
    await local.close()


def test_what_is_open_ends_with_its_login(place: Stage, crowd: Crowd) -> None:
    person = crowd.person("leaving", "viewer")
    stream = Stream(person)
    stream.wait_for("event: back")
    assert facts(shellback(place, "users", "logout", "leaving", "--json"))["ended"] == 1
    assert stream.ended.wait(30)
    assert person.get("/").status_code == 303
    assert facts(shellback(place, "users", "logins", "leaving", "--json")) == []


def test_a_login_can_be_ended_by_its_account_and_by_no_other(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    person = crowd.person("two-browsers", "viewer")
    elsewhere = crowd.browser()
    elsewhere.enter("two-browsers")
    logins = place.read(accounts.logged_in, "two-browsers")
    assert len(logins) == 2
    newest = max(logins, key=lambda one: one.created_at)
    people["operator"].post(f"/account/logins/{newest.id}/end")
    assert elsewhere.get("/").status_code == 200
    assert person.post(f"/account/logins/{newest.id}/end").status_code == 303
    assert elsewhere.get("/").status_code == 303
    assert person.get("/").status_code == 200


def test_a_browser_may_do_nothing_but_show_the_pages(people: dict[Role, Visitor]) -> None:
    for path in ("/", "/login", "/nothing", "/static/console.js", "/conversations/none"):
        headers = people["viewer"].get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    page = people["viewer"].get("/account").text
    assert re.findall(r"<script(?![^>]* src=\"/console/static/)|<style| style=| on\w+=", page) == []
    assert people["viewer"].get("/").headers["cache-control"] == "no-store"


HOSTILE: Final = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'></textarea></pre><button>Approve</button>"
    "{{ 7*7 }} [x](javascript:alert(1)) ![x](http://evil.example/a.png) \x1b[2J\x1b]0;x\x07 \u202e\u2066 \u200b"
)
"""Markup, a template, links, escapes of a terminal, and characters that turn text around or cannot be seen."""


_talks, _asks = tables.conversations, tables.approvals


def test_hostile_text_in_every_field_is_shown_and_has_no_effect(
    place: Stage, crowd: Crowd, people: dict[Role, Visitor]
) -> None:
    name = HOSTILE[:190]
    request, again = (asked(place, "hostile", HOSTILE, key=key) for key in "12")
    (row,) = place.rows(sa.select(_talks).where(_talks.c.id == "hostile"))
    values = dict(zip(_talks.c.keys(), row, strict=True)) | {"id": name, "workspace": HOSTILE[:60]}
    place.change(sa.insert(_talks).values(values))
    place.change(sa.update(_asks).where(_asks.c.id == request.id).values(tool_name=HOSTILE[:100], args={"x": HOSTILE}))
    place.change(sa.update(_asks).where(_asks.c.conversation_id == "hostile").values(conversation_id=name))
    session = a_session(
        conversation_id=name, host_id=place.where.host_id, turn_id=request.turn_id, command=HOSTILE, cwd=HOSTILE
    )
    place.write(sessions.claim, session)
    place.write(accounts.log_in, "the-operator", password=_kept(place), program=HOSTILE)
    assert people["approver"].post(f"/requests/{request.id}/deny", digest=request.digest, reason=HOSTILE).is_redirect
    person = people["operator"]
    whole = quote(name, safe="")
    for path in ("/", "/conversations", f"/conversations/{whole}", "/processes?all=yes", f"/processes/{session.id}",
                 f"/requests/{request.id}", f"/requests/{again.id}", "/account", "/audit",
                 f"/requests/{whole}", f"/login?next={whole}"):  # fmt: skip
        answer = person.get(path) if "login" not in path else crowd.browser().get(path)
        text = answer.text
        assert "alert(1)" in text or path.startswith("/requests/%"), path
        for bad in ("<script>alert", "<img", "<button>Approve</button>", "\x1b", "\x07", "\u202e", "\u2066", "\u200b"):
            assert bad not in text, f"{bad!r} at {path}"
        assert "49" not in text.split("alert(1)")[-1][:20]
    assert markdown(HOSTILE).count("<a ") == 0


def test_a_text_with_very_many_cells_is_shown_as_it_is() -> None:
    table = "|a" * 400 + "|\n" + "|-" * 400 + "|\n" + "x\n" * 400
    assert markdown(table) == f"<pre>{table}</pre>"
    assert "<table>" in markdown("|a|b|\n|-|-|\n|1|2|")


def test_a_person_who_is_logged_in_sets_a_new_password_in_the_same_browser(place: Stage, crowd: Crowd) -> None:
    person = crowd.person("edsger")
    link = f"/first/{place.write(accounts.invite, 'edsger')}"
    entered = person.post(link, password=PASSWORD[::-1], again=PASSWORD[::-1])
    assert entered.status_code == 303, entered.text
    assert person.get("/").status_code == 200


def test_a_login_form_that_is_sent_after_another_tab_has_logged_in_logs_in(crowd: Crowd) -> None:
    person = crowd.person("two-tabs", "viewer")
    assert person.landed(person.enter("two-tabs")) == "/console/"


@pytest.fixture
def behind_proxy(place: Stage) -> Generator[Crowd]:
    named = "10.0.0.0/8, 127.0.0.1"
    with (
        served(place, AUTH_PROXY_HEADER="X-Forwarded-User", AUTH_PROXY_FROM=named) as server,
        contextlib.closing(Crowd(place, server)) as made,
    ):
        yield made


def test_whom_a_trusted_proxy_names_is_logged_in_if_there_is_such_an_account(place: Stage, behind_proxy: Crowd) -> None:
    proxied = f"proxied-{place.where.database.dialect}"
    for name in (proxied, "somebody-else"):
        place.write(accounts.add, name, role="viewer", owner="test")
    person = behind_proxy.browser(**{"x-forwarded-user": proxied})
    to_login = person.get("/rules")
    assert to_login.headers["location"] == "/console/login?next=%2Fconsole%2Frules"
    entered = person.get("/login?next=%2Fconsole%2Frules")
    # A redirect would be a part of the navigation that another site may have begun, and not bring the cookie.
    there = "/console/login?entered=yes&next=%2Fconsole%2Frules"
    assert (entered.status_code, entered.headers["refresh"]) == (200, f"0; url={there}")
    assert person.web.get(there).headers["location"] == "/console/rules"
    assert proxied in person.get("/account").text
    noted = place.read(audit.find, events=("logged_in",), by=proxied)
    assert [str(one.reason)[:18] for one in noted] == ["as the proxy says:"]
    # The proxy knows better than the cookie who is at the browser now.
    person.web.headers["x-forwarded-user"] = "somebody-else"
    assert person.get("/account").status_code == 303
    person.get("/login")
    assert "somebody-else" in person.get("/account").text
    longest = "x" * 64
    place.write(accounts.add, longest, role="viewer", owner="test")
    for name in ("no-such\x7faccount", f"{longest}y"):
        unknown = behind_proxy.browser(**{"x-forwarded-user": name}).get("/login")
        assert (unknown.status_code, "There is no account" in unknown.text) == (403, True)
    assert place.read(accounts.logged_in, longest) == []
    place.write(accounts.remove, longest)
    assert behind_proxy.browser().get("/login").status_code == 200
    both = behind_proxy.browser().web.get("/console/login", headers=[("x-forwarded-user", proxied)] * 2)
    assert (both.status_code, "set-cookie" in both.headers) == (200, False)


def test_a_login_by_the_proxys_word_is_used_only_while_the_proxy_names_its_account(
    place: Stage, crowd: Crowd, behind_proxy: Crowd
) -> None:
    name = f"named-{place.where.database.dialect}"
    link = invited(place, name, "viewer")
    named = behind_proxy.browser(**{"x-forwarded-user": name})
    named.get("/login")
    assert named.get("/account").status_code == 200
    cookie = f"{COOKIE}={named.web.cookies[COOKIE]}"
    for unnamed in (behind_proxy.browser(cookie=cookie), crowd.browser(cookie=cookie)):
        assert unnamed.get("/account").status_code == 303
    crowd.browser().post(link, csrf="", password=PASSWORD, again=PASSWORD)
    by_password = crowd.browser()
    by_password.enter(name)
    elsewhere = behind_proxy.browser(cookie=f"{COOKIE}={by_password.web.cookies[COOKIE]}")
    assert elsewhere.get("/account").status_code == 200


def test_what_another_site_opens_is_opened_again_as_the_cookie_comes_only_then(
    people: dict[Role, Visitor], crowd: Crowd, behind_proxy: Crowd
) -> None:
    led = {"sec-fetch-site": "cross-site"}
    for browser in (crowd.browser(**led), behind_proxy.browser(**led, **{"x-forwarded-user": "the-viewer"})):
        for path in ("/requests/none?x=1", "/login?next=%2Fconsole%2Frules"):
            again = browser.get(path)
            assert (again.status_code, again.headers["refresh"]) == (200, "0")
            assert "set-cookie" not in again.headers
        assert "refresh" not in browser.get("/rules", headers={"sec-fetch-site": "same-origin"}).headers
        assert browser.get("/rules", headers={"hx-request": "true"}).status_code == 401
        assert browser.post("/logout", csrf="").status_code == 401
    assert people["viewer"].get("/rules", headers=led).status_code == 200


def test_a_header_of_others_than_the_named_proxies_is_nothing(place: Stage, crowd: Crowd) -> None:
    place.write(accounts.add, f"forged-{place.where.database.dialect}", role="operator", owner="test")
    headers = {"x-forwarded-user": f"forged-{place.where.database.dialect}"}
    assert "set-cookie" not in crowd.browser(**headers).get("/login").headers  # it is off by default
    with (
        served(place, AUTH_PROXY_HEADER="X-Forwarded-User", AUTH_PROXY_FROM="10.0.0.0/8") as server,
        contextlib.closing(Crowd(place, server)) as far,
    ):
        forged = far.browser(**headers).get("/login")
        assert (forged.status_code, "set-cookie" in forged.headers) == (200, False)


@pytest.mark.parametrize(
    "settings",
    [
        {"AUTH_PROXY_HEADER": "X-Forwarded-User"},
        {"AUTH_PROXY_HEADER": "X User", "AUTH_PROXY_FROM": "127.0.0.1"},
        {"AUTH_PROXY_FROM": "everywhere"},
        {"AUTH_PROXY_FROM": "10.0.0.1/8"},
        {"CONSOLE_URL": "shellback.example.org"},
        {"CONSOLE_URL": "ftp://shellback.example.org"},
        {"CONSOLE_URL": "https://shellback.example.org/x"},
        {"CONSOLE_URL": "https://shellback.example.org?x"},
    ],
)
def test_settings_of_the_console_that_mean_nothing_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        Settings.load(settings)


def test_a_notice_leads_to_its_request_after_a_login(place: Stage, crowd: Crowd) -> None:
    outbox = Outbox(on=True, console=f"{crowd.server.base}/console")
    request = asked(place, f"noticed-{place.where.database.dialect}", "make noticed", outbox=outbox)
    place.write(outbox.put, "alarm", request.conversation_id, "x", "something")
    query = sa.select(tables.notices.c.payload).where(tables.notices.c.conversation_id == request.conversation_id)
    links = [payload["link"].removeprefix(f"{crowd.server.base}/console") for payload in place.scalars(query)]
    crowd.person(f"noticed-{place.where.database.dialect}", "approver")
    person = crowd.browser()
    for link, shows in zip(links, ("make noticed", "messages"), strict=True):
        to_login = person.get(link)
        assert to_login.status_code == 303
        form = {"name": f"noticed-{place.where.database.dialect}", "password": PASSWORD}
        then = unquote(to_login.headers["location"].partition("next=")[2])
        entered = person.web.post("/console/login", data=form | {"next": then})
        page = person.web.get(person.landed(entered))
        assert (page.status_code, shows in page.text) == (200, True)
        person.post("/logout")
    assert place.read(approvals.get, request.id).state == "pending"
    place.decide(request, "denied")


def test_the_address_without_a_slash_leads_on_and_names_no_server(crowd: Crowd) -> None:
    person = crowd.person("no-slash", "viewer")
    assert person.get("").headers["location"] == "/console/"
    assert crowd.browser().get("").headers["location"] == "/console/login?next=%2Fconsole"
    assert person.get("/rules/").status_code == 404


def test_a_conversation_is_found_by_its_name_a_message_or_an_answer(place: Stage, people: dict[Role, Visitor]) -> None:
    place.send("Where is the Größe of 100% of_it?", "asks-something")
    place.send("nothing to see", "other-talk")
    turn = sa.select(tables.turns.c.id).where(tables.turns.c.conversation_id == "other-talk").scalar_subquery()
    place.change(sa.update(tables.turns).where(tables.turns.c.id == turn).values(answer="It is in the Cellar."))
    names = {"asks-something", "other-talk"}
    for text, found in (
        ("größe", {"asks-something"}), ("100% OF_IT", {"asks-something"}), ("1__% of", set[str]()),
        ("cellar", {"other-talk"}), ("-TALK", {"other-talk"}), ("no such text", set[str]()),
    ):  # fmt: skip
        page = people["viewer"].get("/conversations", params={"text": text}).text
        assert {name for name in names if f">{name}</a>" in page} == found, text
        assert 'data-hx-get="' not in page  # it reads much
    assert 'data-hx-get="/console/conversations"' in people["viewer"].get("/conversations").text


@pytest.mark.anyio
async def test_a_few_searches_run_at_once_and_decisions_do_not_wait_for_them(place: Stage) -> None:
    local, go_on, loop = (
        Local(lambda: contextlib.nullcontext(place.where)),
        threading.Event(),
        asyncio.get_running_loop(),
    )
    begun = asyncio.Semaphore(0)

    def search(_at: Asking) -> bool:
        loop.call_soon_threadsafe(begun.release)
        return go_on.wait(30)

    caller = Caller(by="ada")
    searches = [asyncio.create_task(local.within(caller, search, threads="search")) for _ in range(20)]
    try:
        async with asyncio.timeout(30):
            for _ in range(SEARCHES):
                await begun.acquire()
            assert await local.within(caller, lambda _at: "decided") == "decided"
        assert begun.locked()
    finally:
        go_on.set()
    assert await asyncio.gather(*searches) == [True] * 20
    await local.close()


def test_the_audit_is_narrowed_and_exported_whole_and_no_cell_is_a_formula(
    place: Stage, people: dict[Role, Visitor]
) -> None:
    first, second = (
        asked(place, "exported", command, key=key) for command, key in (("=1+1", "1"), ('make b;=2;\n"+3', "2"))
    )
    for one in (first, second):
        people["approver"].post(f"/requests/{one.id}/deny", digest=one.digest, reason="@SUM(1)")
    for event, by in (("denied", "the-approver"), ("asked", "")):
        query = {"conversation": "exported", "event": event, "by": by}
        page = people["viewer"].get("/audit", params=query).text
        assert f"export.csv?event={event}&amp;conversation=exported&amp;by={by}" in page
        assert page.count("<tr>") == 3
        lines = people["viewer"].get("/audit/export.jsonl", params=query).text.splitlines()
        assert [json.loads(line)["request_id"] for line in lines] == [first.id, second.id]
        rows = [*csv.DictReader(io.StringIO(people["viewer"].get("/audit/export.csv", params=query).text))]
        assert [row["command"] for row in rows] == ["'=1+1", "make b;'=2;\n'\"+3"]
        assert {row["reason"] for row in rows} == ({"'@SUM(1)"} if event == "denied" else {""})
    assert people["viewer"].get("/audit", params={"by": "nobody-at-all"}).text.count("<tr>") == 0


def cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr>((?:<td .*?</td>)+)", page)
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td .*?</td>", row)] for row in rows]


def test_the_queue_shows_what_waits_for_a_host_for_how_long_and_why(place: Stage, people: dict[Role, Visitor]) -> None:
    assert "No conversation waits for a host." in people["viewer"].get("/queue").text
    wanted = Wanted(here="client", needs=("gpu",))
    for _ in range(2):
        place.write(sending.send, place.enqueuer, "homeless", "hello", host_id="client", place=wanted)
    (why,) = place.scalars(sa.select(_talks.c.placed).where(_talks.c.id == "homeless"))
    assert why.startswith("no host fits: ")
    place.change(sa.update(_talks).where(_talks.c.id == "homeless").values(created_at=time.time() - 190))
    page = people["viewer"].get("/queue").text
    assert "No conversation waits for a host." not in page
    assert ["homeless", "3m ago", "2", why] in cells(page)
    for table in (_talks, tables.mailbox, tables.turns):
        name = _talks.c.id if table is _talks else table.c.conversation_id
        place.change(sa.delete(table).where(name == "homeless"))


def test_the_costs_of_a_conversation_and_of_a_day_are_the_sums_of_its_turns(
    place: Stage, people: dict[Role, Visitor]
) -> None:
    its, now = tables.turns, time.time()
    begun = now - now % 86_400
    same = {"item_type": "PROMPT", "priority": 1, "created_at": begun}
    for number, (name, outcome, at, spent) in enumerate((
        ("dear", "answered", begun, (2, 1_000_000, 50)), ("dear", "pending_approval", begun + 0.2, (1, 234_567, 7)),
        ("cheap", "failed", begun, (1, 5, 0)), ("cheap", "busy", begun, (None, None, None)),
        ("dear", "answered", begun - 86_400, (9, 9, 9)), ("cheap", "answered", begun - 40 * 86_400, (7, 7, 7)),
    )):  # fmt: skip
        columns = dict(zip(("requests", "tokens_in", "tokens_out"), spent, strict=True))
        row = {"id": f"cost-{number}", "conversation_id": name, "outcome": outcome}
        place.change(sa.insert(its).values(same | row | columns | {"ended_at": at, "started_at": at - 3}))
    day = time.strftime("%Y-%m-%d", time.gmtime(begun))

    found = cells(people["viewer"].get("/costs").text)
    assert [day, "2", "3", "1,234,567", "57", "6.0", "dear"] in found
    assert [day, "1", "1", "5", "0", "3.0", "cheap"] in found
    only = cells(people["viewer"].get("/costs", params={"conversation": "dear"}).text)
    assert [row[1:4] for row in only] == [["2", "3", "1,234,567"], ["1", "9", "9"]] * 2
    place.change(sa.delete(its).where(its.c.id.startswith("cost-")))


def test_what_was_not_looked_at_is_no_wrong_password() -> None:
    attempts = Attempts()
    for _ in range(FREE - 1):
        assert attempts.begin("ada") == 0
    for _ in range(20):
        assert attempts.begin("ada") == 0
        attempts.undo("ada")
    assert attempts.begin("ada") == 0
    assert attempts.begin("ada") > 0


def _kept(place: Stage) -> str:
    kept = place.read(accounts.password_of, "the-operator")
    assert kept is not None
    return kept


def test_the_script_of_others_is_the_one_that_is_named() -> None:
    assert hashlib.sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert (STATIC / "htmx.LICENSE").read_text().startswith("Zero-Clause BSD")
