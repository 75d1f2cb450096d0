"""The console in a browser: a request is approved by keys, its process is followed, and nothing foreign runs."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from shellback.exec.core.runner import found
from shellback.storage import accounts
from tests.browsers import PATIENCE_MS, WIDTHS, chromium, come_in, fits, page_of
from tests.consoles import PASSWORD
from tests.serving import Served, served
from tests.stage import Stage, staged

place = staged(worker=True)


@pytest.fixture(scope="module")
def server(place: Stage) -> Generator[Served]:
    with served(place) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(params=WIDTHS)
def page(place: Stage, server: Served, browser: Browser, request: pytest.FixtureRequest) -> Generator[Page]:
    """The first page, as somebody who has just come in sees it; what the browser complains about fails the test."""
    with page_of(browser, server, width=request.param) as made:
        come_in(made, place, server)
        yield made


def test_a_request_appears_is_approved_by_keys_and_its_process_is_followed_and_killed(place: Stage, page: Page) -> None:
    name = f"talk{page.viewport_size['width'] if page.viewport_size else 0}"
    go = place.workspace / f"go-{name}"
    expect(page.get_by_text("Nothing waits.")).to_be_visible()
    place.send(f"$ echo begun-{name}; while [ ! -e {go.name} ]; do sleep 0.05; done; echo seen; sleep 1000 &", name)
    # Nobody opens the page again: it is told.
    card = page.locator(".card.request")
    card.wait_for()
    expect(card).to_contain_text(f"begun-{name}")
    assert page.title().startswith("(1) ")
    fits(page)
    page.keyboard.press("j")
    page.keyboard.press("y")
    assert place.requests() != []  # a key alone decides nothing
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing waits.")).to_be_visible()
    session = place.session(f"begun-{name}")
    page.goto(f"{page.url.rstrip('/')}/processes/{session.id}")
    log = page.locator(".log")
    expect(log).to_contain_text(f"begun-{name}")
    go.touch()
    expect(log).to_contain_text("seen")
    fits(page)
    page.get_by_role("button", name="Kill").click()
    expect(page.locator("#facts")).to_contain_text("person", timeout=PATIENCE_MS)
    page.goto(f"{page.url.partition('/processes')[0]}/conversations/{name}")
    expect(page.locator(".said.call").first).to_contain_text("execute")
    fits(page)
    page.fill("textarea", "<b>hello</b> **bold**")
    page.get_by_role("button", name="Send").click()
    said = page.locator(".said.person").filter(has_text="hello")
    expect(said.locator("strong").first).to_have_text("bold", timeout=PATIENCE_MS)
    assert page.locator(".said b").count() == 0


def test_what_is_typed_stays_while_another_request_comes_and_a_decision_elsewhere_takes_its_card_away(
    place: Stage, page: Page
) -> None:
    name = f"typing{page.viewport_size['width'] if page.viewport_size else 0}"
    place.send("$ echo first > file-of-first", f"{name}-1")
    reason = page.locator(".card.request [name=reason]").first
    reason.fill("because I am")
    place.send("$ echo second > file-of-second", f"{name}-2")
    expect(page.locator(".card.request")).to_have_count(2)
    expect(reason).to_have_value("because I am")
    place.decide(place.pending(f"{name}-1"), "denied")
    expect(page.locator(".card.request")).to_have_count(1)
    expect(page.locator(".card.request")).to_contain_text("file-of-second")
    place.decide(place.pending(f"{name}-2"), "denied")
    expect(page.get_by_text("Nothing waits.")).to_be_visible()


ELSEWHERE = "http://localhost/"
"""Another site than that of the server, which is at 127.0.0.1."""


def led_to(page: Page, there: str) -> None:
    """Open a page of the console by a link on a page of another site, and by a redirect of that site."""

    def answer(route: Route) -> None:
        if route.request.url == ELSEWHERE:
            route.fulfill(content_type="text/html", body=f'<a href="{there}">one</a> <a href="/sent">two</a>')
        else:
            route.fulfill(status=303, headers={"location": there})

    page.route(f"{ELSEWHERE}**", answer)
    for link in ("one", "two"):
        page.goto(ELSEWHERE)
        page.click(f"text={link}")
        expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
        assert page.url == there


def test_who_is_logged_in_gets_the_page_that_another_site_leads_to(
    place: Stage, server: Served, browser: Browser
) -> None:
    page = browser.new_page()
    come_in(page, place, server)
    led_to(page, f"{server.base}/console/rules")
    page.close()


def test_who_is_named_by_the_proxy_gets_the_page_that_another_site_leads_to_with_one_login(
    place: Stage, browser: Browser
) -> None:
    place.write(accounts.add, "led", role="viewer", owner="test")
    with served(place, AUTH_PROXY_HEADER="X-Forwarded-User", AUTH_PROXY_FROM="127.0.0.1") as server:
        page = browser.new_page(extra_http_headers={"x-forwarded-user": "led"})
        led_to(page, f"{server.base}/console/rules")
        page.close()
    assert len(place.read(accounts.logged_in, "led")) == 1


def test_a_browser_without_cookies_logs_in_once_and_says_what_to_do(
    place: Stage, server: Served, browser: Browser, tmp_path: Path
) -> None:
    """By the word of a proxy as by a password: nothing goes round."""
    (tmp_path / "Default").mkdir()
    cookies = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    (tmp_path / "Default/Preferences").write_text(json.dumps(cookies))
    link = place.write(accounts.add, "forgetful", role="viewer", owner="test")

    def told(page: Page) -> None:
        expect(page.locator(".said")).to_contain_text("Allow cookies for this address")
        fits(page)
        assert len(place.read(accounts.logged_in, "forgetful")) == 1

    with served(place, AUTH_PROXY_HEADER="X-Forwarded-User", AUTH_PROXY_FROM="127.0.0.1") as signing_on:
        context = browser.browser_type.launch_persistent_context(
            tmp_path, executable_path=found("chromium"), args=["--no-sandbox"]
        )
        page = context.new_page()
        page.goto(f"{server.base}/console/first/{link}")
        page.fill("[name=password]", PASSWORD)
        page.fill("[name=again]", PASSWORD)
        page.click("button")
        told(page)
        page.get_by_role("link", name="Log in again").click()
        expect(page.get_by_label("Name")).to_be_visible()
        place.write(accounts.log_out, "forgetful")
        page.set_extra_http_headers({"x-forwarded-user": "forgetful"})
        page.goto(f"{signing_on.base}/console/rules")
        told(page)
        if kept := os.environ.get("SHELLBACK_PICTURES"):
            page.screenshot(path=f"{kept}/without-cookies.png")
        context.close()
