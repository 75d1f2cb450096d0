"""Chromium, and pages of the console in it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from shellback.exec.core.runner import found
from shellback.storage.accounts import Role
from tests.consoles import PASSWORD, invited
from tests.sandboxes import program_needed
from tests.serving import Served
from tests.stage import Stage

PATIENCE_MS = 30_000
WIDTHS = (1280, 390)
"""Of a desk and of a phone, in pixels."""
_BROKEN = re.compile(r"Failed to load resource|EventSource's response")
_NAMES = itertools.count()


@contextmanager
def chromium() -> Generator[Browser]:
    """The browser; skips where it is not installed."""
    program_needed("chromium")
    with sync_playwright() as playwright:
        # As root, and in containers, Chromium has no sandbox of its own; it opens our own pages only.
        made = playwright.chromium.launch(executable_path=found("chromium"), args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def page_of(
    browser: Browser, server: Served, *, width: int = WIDTHS[0], dark: bool = False, breaks: bool = False
) -> Generator[Page]:
    """A page. What the browser complains about fails the test, unless the server `breaks`."""
    wrong = list[str]()
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", locale="en"
    )
    context.set_default_timeout(PATIENCE_MS)
    made = context.new_page()

    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not (breaks and _BROKEN.search(message.text)):
            wrong.append(message.text)

    made.on("console", said)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("request", lambda sent: None if sent.url.startswith(server.base) else wrong.append(sent.url))
    yield made
    context.close()
    assert wrong == []


def come_in(page: Page, on: Stage, server: Served, role: Role = "operator") -> str:
    """A new person opens its link, and sees the first page; the name of its account."""
    name = f"ada{next(_NAMES)}"
    page.goto(f"{server.base}/console{invited(on, name, role)}")
    page.fill("[name=password]", PASSWORD)
    page.fill("[name=again]", PASSWORD)
    page.click("button")
    page.wait_for_selector("#waiting")
    return name


def fits(page: Page) -> None:
    """Nothing is wider than the screen, and no table is cut, once the style of the page is there."""
    page.wait_for_load_state()
    wide = (
        "[document.documentElement, ...document.querySelectorAll('.scroll')].filter(x => x.scrollWidth > x.clientWidth)"
    )
    assert page.evaluate(f"{wide}.map(x => x.tagName + ' ' + x.ariaLabel)") == []
