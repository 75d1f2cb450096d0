"""A terminal in the console: many look at it, one types, the agent is told, and who is slow is skipped ahead."""

from __future__ import annotations

import contextlib
import hashlib
import html
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect, sync_playwright

from shellback.exec.core.model import Session
from shellback.exec.core.runner import found
from shellback.storage.tables import audit, mailbox
from tests.commands import PATIENCE_S
from tests.consoles import Crowd, Visitor
from tests.panes import Started, started
from tests.sandboxes import program_needed
from tests.serving import Served, served
from tests.stage import stage


@pytest.fixture(scope="module")
def on_stage() -> Generator[Started]:
    with stage() as made, started(made) as running:
        yield running


@pytest.fixture(scope="module")
def server(on_stage: Started) -> Generator[Served]:
    with served(on_stage.stage) as made:
        yield made


@pytest.fixture(scope="module")
def crowd(on_stage: Started, server: Served) -> Generator[Crowd]:
    with contextlib.closing(Crowd(on_stage.stage, server)) as made:
        yield made


@pytest.fixture(scope="module")
def ada(crowd: Crowd) -> Visitor:
    return crowd.person("ada")


@pytest.fixture(scope="module")
def bob(crowd: Crowd) -> Visitor:
    return crowd.person("bob")


@pytest.fixture(scope="module")
def eve(crowd: Crowd) -> Visitor:
    return crowd.person("eve", "viewer")


class View:
    """A page without its drawing: what it was told of one terminal, and what it sends."""

    def __init__(self, of: Visitor, session: Session) -> None:
        self._of, self._at = of, f"/processes/{session.id}/terminal"
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._more = threading.Condition()
        self._web = http.client.HTTPConnection(urlsplit(of.base).netloc, timeout=PATIENCE_S)
        self._web.request("GET", f"/console{self._at}/output", headers={"cookie": cookies(of)})
        self._answer = self._web.getresponse()
        assert self._answer.status == 200
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.viewer = self.until(lambda: next((told["viewer"] for kind, told in self.told if kind == "hello"), None))

    def _read(self) -> None:
        kind = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := self._answer.readline().decode():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ").strip()
                elif line.startswith("data: "):
                    with self._more:
                        self.told.append((kind, json.loads(line.removeprefix("data: "))))
                        self._more.notify_all()

    def until(self, look: Callable[[], Any]) -> Any:
        with self._more:
            assert self._more.wait_for(look, PATIENCE_S), self.told[-5:]
            return look()

    @property
    def text(self) -> str:
        return "".join(told["text"] for kind, told in self.told if kind in {"fresh", "output"})

    @property
    def state(self) -> dict[str, Any]:
        return next((told for kind, told in reversed(self.told) if kind == "state"), dict[str, Any]())

    def sees(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def keyboard(self, take: str = "yes") -> int:
        return self._of.post(f"{self._at}/keyboard", viewer=self.viewer, take=take).status_code

    def type(self, data: str) -> tuple[int, str]:
        answer = self._of.post(f"{self._at}/keys", viewer=self.viewer, data=data)
        return answer.status_code, answer.text

    def size(self, rows: int, cols: int) -> int:
        return self._of.post(f"{self._at}/size", viewer=self.viewer, rows=str(rows), cols=str(cols)).status_code

    def leave(self) -> None:
        """Close the page."""
        with contextlib.suppress(OSError):
            assert self._web.sock is not None
            self._web.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._answer.close()
        self._web.close()


def cookies(of: Visitor) -> str:
    return "; ".join(f"{name}={value}" for name, value in of.web.cookies.items())


@contextmanager
def view(of: Visitor, session: Session) -> Generator[View]:
    made = View(of, session)
    try:
        yield made
    finally:
        made.leave()


def test_one_types_all_see_it_and_the_agent_is_told(
    on_stage: Started, ada: Visitor, bob: Visitor, eve: Visitor
) -> None:
    session = on_stage.start("PS1=agent: bash --norc --noprofile", conversation="typed")
    on_stage.until(session, "agent:")
    with view(ada, session) as hers, view(bob, session) as his, view(eve, session) as looks:
        for each in (hers, his, looks):
            each.sees("agent:")
            each.until(lambda each=each: each.state.get("viewers") == 3)
        assert hers.type("echo no\n") == (400, "another page has the keyboard. Nothing was typed: take it first")
        assert looks.keyboard() == 403, "a viewer only looks"
        assert hers.keyboard() == 204
        his.until(lambda: his.state["typing"] == "ada" and not his.state["mine"])
        hers.until(lambda: hers.state["mine"])
        assert his.type("echo no\n")[0] == 400
        assert looks.type("echo no\n")[0] == 403
        assert hers.size(30, 90) == 204
        assert hers.type("echo $((40+2)) at $(stty size)\n") == (204, "")
        for each in (hers, his, looks):
            each.sees("42 at 30 90")
            each.until(lambda each=each: (each.state["rows"], each.state["cols"]) == (30, 90))
        assert his.keyboard() == 204, "whoever may type can take it over"
        hers.until(lambda: hers.state["typing"] == "bob" and not hers.state["mine"])
        assert his.type("echo hi\n")[0] == 204
        assert his.keyboard("no") == 204
        looks.until(lambda: looks.state["typing"] is None)
        on_stage.stage.until("its own size again", lambda: on_stage.size(session) == (40, 120))
    payloads = on_stage.stage.scalars(sa.select(mailbox.c.payload).where(mailbox.c.kind == "typed"))
    told = [one for one in payloads if one["session_id"] == session.id]
    assert [(one["by"], one["bytes"], one["over"]) for one in told] == [("ada", 31, True), ("bob", 8, True)]
    surfaces = sa.select(audit.c.surface).where(audit.c.session_id == session.id, audit.c.event == "typed")
    assert set(on_stage.stage.scalars(surfaces)) == {"console"}


def test_who_leaves_gives_the_keyboard_back(on_stage: Started, ada: Visitor, eve: Visitor) -> None:
    session = on_stage.start("cat")
    with view(eve, session) as looks:
        with view(ada, session) as hers:
            assert hers.keyboard() == 204
            assert hers.size(20, 80) == 204
            looks.until(lambda: looks.state["typing"] == "ada")
        looks.until(lambda: looks.state["typing"] is None)
        on_stage.stage.until("its own size again", lambda: on_stage.size(session) == (40, 120))


def test_an_end_is_told_and_a_terminal_that_has_ended_is_still_shown(on_stage: Started, eve: Visitor) -> None:
    session = on_stage.start("echo here; read one; exit 3")
    with view(eve, session) as looks:
        looks.sees("here")
        on_stage.write(session, b"\n")
        looks.until(lambda: looks.told[-1] == ("end", {"said": "ended: exit 3", "again": False}))
    with view(eve, session) as later:
        later.until(lambda: later.told[-1][0] == "end")
        assert "here" in later.text
    assert eve.get(f"/processes/{session.id}/terminal").status_code == 200
    plain = on_stage.start("echo x", pty=False)
    refused = eve.get(f"/processes/{plain.id}/terminal")
    assert (refused.status_code, "has no terminal" in refused.text) == (400, True)


def test_secrets_and_what_makes_a_terminal_act_are_not_shown(on_stage: Started, eve: Visitor) -> None:
    text = "https://me:hunter2hunter2@example.org/x \\033]52;c;Zm9v\\007\\033[6n\\033[31mred\\033[m\\n"
    session = on_stage.start(f"printf '{text}'; echo over; cat")
    with view(eve, session) as looks:
        looks.sees("over")
        assert "https://me:***@example.org/x \x1b[31mred\x1b[m" in looks.text
        assert "hunter2" not in looks.text


def test_a_slow_viewer_is_skipped_ahead_and_told_while_others_see_the_end(
    on_stage: Started, server: Served, ada: Visitor, eve: Visitor
) -> None:
    session = on_stage.start("read one; seq 1 1000000; echo 'all ''done'; cat")
    with view(eve, session) as looks:
        slow = _stuck(server, ada, session)
        on_stage.write(session, b"\n")
        looks.sees("all done")
        skipped = [told["skipped"] for kind, told in looks.told if kind == "fresh"][1:]
        assert skipped
        assert all(one > 0 for one in skipped), "it is told how much"
        assert len(looks.text) < 2_000_000
        received = bytearray()
        with slow:
            while b"all done" not in received:
                received += slow.recv(1 << 20)
        assert len(received) < 4_000_000
        assert b'"skipped": 0' in received


def _stuck(server: Served, of: Visitor, session: Session) -> socket.socket:
    """A viewer who reads nothing until it is asked to."""
    at = urlsplit(server.base)
    made = socket.create_connection((at.hostname, at.port), PATIENCE_S)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.sendall(
        f"GET /console/processes/{session.id}/terminal/output HTTP/1.1\r\nHost: {at.netloc}\r\n"
        f"Cookie: {cookies(of)}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    return made


def test_the_recording_of_a_terminal_is_a_file_of_the_console(on_stage: Started, eve: Visitor) -> None:
    session = on_stage.start("echo here")
    on_stage.ended(session)
    answer = eve.get(f"/processes/{session.id}/recording")
    assert answer.headers["content-disposition"] == f'attachment; filename="{session.id}.cast"'
    header, *events = map(json.loads, answer.text.splitlines())
    assert header["version"] == 3
    assert [data for _, code, data in events if code == "o"] == ["here\r\n"]


def test_all_of_an_output_is_searched_and_downloaded_as_it_is_shown(on_stage: Started, eve: Visitor) -> None:
    token = f"ghp_{'a1B2' * 9}"
    session = on_stage.start(f"echo 'Needle \x1b[1m{token}'; seq 1 200000; echo 'the last needle'", pty=False)
    on_stage.ended(session)
    whole = eve.get(f"/processes/{session.id}/log")
    assert whole.headers["content-disposition"] == f'attachment; filename="{session.id}.log"'
    first, *numbers, last = whole.text.splitlines()
    assert numbers == [str(number) for number in range(1, 200_001)]
    assert (first[:7], last) == ("Needle ", "the last needle")
    assert token not in first
    assert "\x1b" not in first
    page = eve.get(f"/processes/{session.id}", params={"text": "NEEDLE"}).text
    found = re.search(r'<pre class="found"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found is not None
    assert html.unescape(found[1]).splitlines() == [first, last]
    many = eve.get(f"/processes/{session.id}", params={"text": "9"}).text
    assert "Lines with it in the last 16 MiB: 200, or more" in many
    none = eve.get(f"/processes/{session.id}", params={"text": "<nothing>"}).text
    assert "Lines with it in the last 16 MiB: 0." in none
    assert eve.get("/processes/none/log").status_code == 404


STATIC = Path(__file__).parents[2] / "app/console/static"
XTERM = {
    "xterm.js": "14903579ff54664cd72f8e8699e6961a6272c21863ec1c3b118cdc8af5d4a972",
    "xterm.css": "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
    "xterm.LICENSE": "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
}
"""Of lib/xterm.js, css/xterm.css and LICENSE in version 6.0.0 of the package @xterm/xterm of npm."""


def test_the_files_of_xterm_are_those_that_are_named() -> None:
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in XTERM} == XTERM


def test_a_person_types_in_the_browser_and_sees_the_echo(on_stage: Started, server: Served, ada: Visitor) -> None:
    program_needed("chromium")
    session = on_stage.start("PS1=agent: bash --norc --noprofile")
    on_stage.until(session, "agent:")
    # As root, and in containers, Chromium has no sandbox of its own; it opens our own pages only.
    options: dict[str, Any] = {"executable_path": found("chromium"), "args": ["--no-sandbox"]}
    with sync_playwright() as playwright, playwright.chromium.launch(**options) as browser:
        context = browser.new_context()
        ((name, value),) = ada.web.cookies.items()
        context.add_cookies(
            [{"name": name, "value": value, "url": f"{server.base}/console", "httpOnly": True, "sameSite": "Strict"}]
        )
        page = context.new_page()
        wrong: list[str] = []

        def noted(said: Any) -> None:
            if getattr(said, "type", "error") == "error":
                wrong.append(str(said))

        page.on("console", noted)
        page.on("pageerror", noted)
        page.goto(f"{server.base}/console/processes/{session.id}/terminal")
        shown = page.locator(".xterm-rows")
        expect(shown).to_contain_text("agent:")
        button = page.get_by_role("button", name="Take the keyboard")
        expect(button).to_be_enabled()
        page.keyboard.type("x")  # nobody has the keyboard, so this goes nowhere
        button.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("You have the keyboard")
        on_stage.stage.until("the size of the page", lambda: on_stage.size(session)[0] < 40)
        page.keyboard.type("echo $((40+2))\n")
        expect(shown).to_contain_text("agent:echo $((40+2))")
        expect(shown).to_contain_text("42agent:")
        page.keyboard.press("Control+Alt+Escape")
        expect(page.get_by_role("status").first).to_contain_text("Nobody types")
        assert page.evaluate("document.activeElement.id") == "keyboard"
        page.keyboard.type("echo lost")
        if kept := os.environ.get("SHELLBACK_PICTURES"):
            page.screenshot(path=f"{kept}/terminal.png")
    assert "lost" not in on_stage.log(session)
    assert wrong == []
