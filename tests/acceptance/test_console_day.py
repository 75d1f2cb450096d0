"""The story of a day in the console, with worker and server killed in the middle."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, expect

from shellback.storage.tables import turns
from tests.browsers import PATIENCE_MS, WIDTHS, chromium, come_in, fits, page_of
from tests.databases import TEMPLATE, PostgresServer
from tests.serving import Served, served
from tests.stage import Stage, working

BUILD = """
echo "build of $1"
printf 'go on? '
read -r answer
echo "answer: $answer"
echo "1 error"
exit 3
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Generator[Stage]:
    url = None
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        url = postgres.url(postgres.create(TEMPLATE))
    with working(url) as made:
        (made.workspace / "build.sh").write_text(BUILD)
        yield made


@pytest.fixture(scope="module")
def browser(place: Stage) -> Generator[Browser]:  # it is closed before, as its loop has to be
    with chromium() as made:
        yield made


class Servers:
    """A server that is killed and comes back at its address."""

    def __init__(self, on: Stage) -> None:
        self._on, self._stack = on, ExitStack()
        self.now: Served = self._stack.enter_context(served(on))

    def kill(self) -> None:
        self.now.process.kill()
        self.now.process.wait()

    def again(self) -> None:
        port = urlsplit(self.now.base).port
        assert port is not None
        self.now = self._stack.enter_context(served(self._on, port=port))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def servers(place: Stage) -> Generator[Servers]:
    made = Servers(place)
    yield made
    made.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_story_of_a_day(place: Stage, servers: Servers, browser: Browser, width: int) -> None:
    name, base = f"{width}-{secrets.token_hex(4)}", f"{servers.now.base}/console"
    if place.workers[-1].process.poll() is not None:  # an earlier try ended after it was killed
        place.hire()
    with page_of(browser, servers.now, width=width, breaks=True) as page:
        who = come_in(page, place, servers.now)
        place.send('!execute_pty {"command": "sh build.sh debug", "background": true}', name)
        # It is read, and changed; the worker that is to propose the change is killed before.
        card = page.locator(".card.request")
        expect(card).to_contain_text("sh build.sh debug")
        card.get_by_role("link", name="Change the call").click()
        place.workers[-1].kill()
        expect(page.get_by_label("The call")).to_have_value("sh build.sh debug")
        fits(page)
        page.get_by_label("The call").fill(f"sh build.sh release-{name}")
        page.get_by_role("button", name="Propose").click()
        expect(page.locator("#waiting")).to_contain_text("A worker proposes the changed call")
        place.hire()
        expect(card).to_contain_text(f"sh build.sh release-{name}", timeout=PATIENCE_MS)
        expect(card).to_contain_text(f"changed by: {who}")
        fits(page)
        page.get_by_role("button", name="Approve once").click()
        decided = page.get_by_role("region", name="Decided lately")
        expect(decided).to_contain_text(f"by {who} through console")
        # The build runs; its terminal is watched, the server is killed, and the terminal is taken over.
        session = place.session(f"sh build.sh release-{name}")
        page.goto(f"{base}/processes/{session.id}")
        page.get_by_role("link", name="terminal").click()
        shown, status, away = page.locator(".xterm-rows"), page.locator("#said"), page.locator("#connection")
        expect(shown).to_contain_text("go on?", timeout=PATIENCE_MS)
        servers.kill()
        expect(away).to_be_visible(timeout=PATIENCE_MS)
        servers.again()
        expect(away).to_be_hidden(timeout=PATIENCE_MS)
        button = page.get_by_role("button", name="Take the keyboard")
        expect(button).to_be_enabled(timeout=PATIENCE_MS)
        place.workers[-1].kill()
        button.click()
        expect(status).to_contain_text("You have the keyboard", timeout=PATIENCE_MS)
        fits(page)
        page.keyboard.type("yes\n")
        expect(shown).to_contain_text("answer: yes")
        expect(status).to_contain_text("The process")
        # It has failed while no worker lived; the next one wakes the agent.
        place.hire()
        page.goto(f"{base}/conversations/{name}")
        expect(page.locator("#talk")).to_contain_text("exit code 3", timeout=PATIENCE_MS)
        fits(page)
        # A rule is made, holds, and is revoked.
        touch = f"touch ruled-{name}"
        place.send(f"$ {touch}", name)
        page.goto(f"{base}/")
        card.get_by_role("link", name="Make it a rule").click()
        expect(page.get_by_label("Rules to save")).to_contain_text(f"allow exactly `{touch}`")
        fits(page)
        page.get_by_role("button", name="Save this").click()
        row = page.get_by_role("row").filter(has_text=touch)
        expect(row).to_contain_text("active")
        place.answer(place.send(f"$ {touch}", name))
        assert place.requests() == []
        page.reload()
        row.get_by_role("button", name="Revoke").click()
        expect(row).to_contain_text(f"revoked by {who}")
        fits(page)
        place.send(f"$ {touch}", name)
        page.goto(f"{base}/")
        page.get_by_label("Reason").fill("the rule is gone")
        page.get_by_role("button", name="Deny").click()
        expect(decided).to_contain_text(f"denied by {who}")
        # The audit tells all of it, and the costs are those of this day.
        page.goto(f"{base}/audit?conversation={name}")
        for event in ("asked", "changed", "approved", "used", "rule_added", "rule", "rule_revoked", "denied"):
            expect(page.get_by_role("cell", name=event, exact=True).first).to_be_visible()
        fits(page)
        spent = place.rows(
            sa.select(turns.c.requests, turns.c.tokens_in).where(
                turns.c.conversation_id == name, turns.c.outcome == "answered"
            )
        )
        assert spent
        assert all(requests > 0 and tokens > 0 for requests, tokens in spent)
        page.goto(f"{base}/costs?conversation={name}")
        expect(page.get_by_role("cell", name=name).first).to_be_visible()
        fits(page)
