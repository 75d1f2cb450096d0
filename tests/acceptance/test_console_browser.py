"""The console in a browser: a request is approved by keys, its process is followed, and nothing foreign runs."""

from __future__ import annotations

import itertools
from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shellback.exec.core.runner import found
from tests.consoles import PASSWORD, invited
from tests.sandboxes import program_needed
from tests.serving import Served, served
from tests.stage import Stage, staged

place = staged(worker=True)
PATIENCE_MS = 30_000
WIDTHS = (1280, 390)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(place: Stage) -> Generator[Served]:
    with served(place) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    program_needed("chromium")
    with sync_playwright() as playwright:
        # As root, and in containers, Chromium has no sandbox of its own; it opens our own pages only.
        made = playwright.chromium.launch(executable_path=found("chromium"), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(params=WIDTHS)
def page(place: Stage, server: Served, browser: Browser, request: pytest.FixtureRequest) -> Generator[Page]:
    """The first page, as somebody who has just come in sees it; what the browser complains about fails the test."""
    wrong = list[str]()
    context = browser.new_context(viewport={"width": request.param, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    made = context.new_page()
    made.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("request", lambda sent: None if sent.url.startswith(server.base) else wrong.append(sent.url))
    made.goto(f"{server.base}/console{invited(place, f'ada{next(NUMBERS)}', 'operator')}")
    made.fill("[name=password]", PASSWORD)
    made.fill("[name=again]", PASSWORD)
    made.click("button")
    made.wait_for_selector("#waiting")
    yield made
    context.close()
    assert wrong == []


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
    _fits(page)
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
    _fits(page)
    page.get_by_role("button", name="Kill").click()
    expect(page.locator("#facts")).to_contain_text("person", timeout=PATIENCE_MS)
    page.goto(f"{page.url.partition('/processes')[0]}/conversations/{name}")
    expect(page.locator(".said.call").first).to_contain_text("execute")
    _fits(page)
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


def _fits(page: Page) -> None:
    """Nothing is wider than the screen."""
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
