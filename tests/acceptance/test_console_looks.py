"""How each page of the console looks: nothing that axe-core objects to, nothing too wide, all of it by keys alone.

With SHELLBACK_PICTURES=DIRECTORY each page is a picture there, in two widths, light and dark, and a sheet has them all.
The sheets are kept in docs/pictures.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from shellback.exec.policy.rules.rule import Match, Rule
from shellback.storage import rules
from shellback.storage.tables import hosts
from tests.browsers import WIDTHS, chromium, come_in, fits, page_of
from tests.consoles import PASSWORD, invited
from tests.nodes import AXE, script_of
from tests.serving import Served, served
from tests.stage import Stage, working

LONG = "$ " + " && ".join(f"cp 'report of {month}.txt' archive/" for month in range(30))


@pytest.fixture(scope="module")
def place() -> Generator[Stage]:
    with working() as made:
        yield made


@pytest.fixture(scope="module")
def browser(place: Stage) -> Generator[Browser]:  # it is closed before, as its loop has to be
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def server(place: Stage) -> Generator[Served]:
    with served(place) as made:
        yield made


@pytest.fixture(scope="module")
def paths(place: Stage) -> dict[str, str]:
    """The path of each page, with something on it."""
    build = 'for step in configure compile link; do echo "[$step] done"; done; sleep 1000'
    call = json.dumps({"command": build, "background": True})
    session = place.started(f"!execute_pty {call}", "for step in", "shop")
    place.answer(place.send("Is the **build** still running?\n\n| step | state |\n|-|-|\n| link | done |", "shop"))
    request = place.started("$ echo 'a note' > note.txt", "a note", "notes", rest=True)
    place.send("$ rm -rf archive && mkdir archive", "shop")
    waiting = place.pending("shop")
    place.send(LONG, "long")
    long = place.pending("long")
    now = time.time()
    for name, at, given_up in (("build-2.example.org", now - 5000, None), ("old", now - 90000, now - 80000)):
        place.change(sa.insert(hosts).values(host_id=name, name=name, heartbeat_at=at, given_up_at=given_up))
    assert request.approval_id is not None
    match = Match(prefix=("npm", "test"), exact=True, conversation_id="shop")
    place.write(rules.add, [Rule(effect="allow", match=match, owner="grace", note="before each commit")])
    return {
        "waiting": "/", "request": f"/requests/{waiting.id}", "long request": f"/requests/{long.id}",
        "decided request": f"/requests/{request.approval_id}",
        "change": f"/requests/{waiting.id}/change", "conversations": "/conversations",
        "conversation": "/conversations/shop", "processes": "/processes?all=yes",
        "process": f"/processes/{session.id}?text=link", "terminal": f"/processes/{session.id}/terminal",
        "rules": "/rules", "audit": "/audit", "costs": "/costs", "queue": "/queue", "health": "/health",
        "account": "/account", "nothing": "/nothing", "rule": f"/requests/{waiting.id}/rule?days=7",
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_accessible_and_fits(
    place: Stage, server: Served, browser: Browser, paths: dict[str, str], width: int, dark: bool
) -> None:
    axe = script_of(AXE).read_text()
    with page_of(browser, server, width=width, dark=dark, breaks=True) as page:
        page.goto(f"{server.base}/console{invited(place, f'first-{width}-{dark}', 'viewer')}")
        wrong = _looked_at(page, axe, "first", width, dark)
        page.goto(f"{server.base}/console/login")
        wrong += _looked_at(page, axe, "login", width, dark)
        come_in(page, place, server)
        for name, path in paths.items():
            page.goto(f"{server.base}/console{path}")
            if name == "terminal":
                expect(page.locator(".xterm-rows")).to_contain_text("link")
            if name == "waiting":
                page.keyboard.press("?")
                wrong += _looked_at(page, axe, "keys", width, dark)
                page.keyboard.press("Escape")
            wrong += _looked_at(page, axe, name, width, dark)
    assert wrong == []
    if kept := os.environ.get("SHELLBACK_PICTURES"):
        _sheet(browser, Path(kept), f"{width}-{'dark' if dark else 'light'}")


def _sheet(browser: Browser, kept: Path, kind: str) -> None:
    """Puts all pictures of this kind on one, at half their size."""
    shown = [
        f"<p>{one.stem}<br><img src='data:image/png;base64,{base64.b64encode(one.read_bytes()).decode()}'></p>"
        for one in sorted(kept.glob(f"*-{kind}.png"))
    ]
    style = "body { display: flex; flex-wrap: wrap; zoom: 0.5; background: #888; font: 24px serif } p { margin: 9px }"
    sheet = browser.new_page(viewport={"width": 2100, "height": 100})
    sheet.set_content(f"<style>{style}</style>{''.join(shown)}")
    sheet.screenshot(path=kept / f"pages-{kind}.jpg", full_page=True, quality=35, type="jpeg")
    sheet.close()


def _looked_at(page: Page, axe: str, name: str, width: int, dark: bool) -> list[str]:
    """What is wrong with the page that is open."""
    fits(page)
    page.evaluate(axe)
    # What xterm.js draws is not ours: for readers of screens it has a live region, which is looked at.
    found: dict[str, Any] = page.evaluate("axe.run({exclude: ['.xterm-screen', '.xterm-helpers']})")
    if kept := os.environ.get("SHELLBACK_PICTURES"):
        picture = f"{name.replace(' ', '-')}-{width}-{'dark' if dark else 'light'}.png"
        page.screenshot(path=Path(kept) / picture, full_page=True)
    return [f"{name}: {one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]]


def test_a_person_comes_in_looks_around_and_decides_by_keys_alone(
    place: Stage, server: Served, browser: Browser
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(page_of(browser, server))
        name = come_in(first, place, server)
        page = stack.enter_context(page_of(browser, server))
        page.goto(f"{server.base}/console/conversations")
        page.keyboard.type(name)
        page.keyboard.press("Tab")
        page.keyboard.type(f"{PASSWORD}\n")
        expect(page.locator("h1")).to_have_text("Conversations")
        place.send("$ touch by-keys", "keys")
        _tab_to(page, "Processes")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Processes")
        page.goto(f"{server.base}/console/requests/{place.pending('keys').id}")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.keyboard.press("j")
        page.keyboard.press("n")
        page.keyboard.type("not by keys\n")
        place.until("the denial", lambda: not [one for one in place.requests() if one.conversation_id == "keys"])
        expect(page.get_by_role("region", name="Decided lately")).to_contain_text(f"denied by {name}")


def _tab_to(page: Page, text: str) -> None:
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"Tab does not lead to {text}")
