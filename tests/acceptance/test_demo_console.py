"""The demo on a terminal offers the console at its end, and takes it away again."""

from __future__ import annotations

import httpx2
import pytest

from tests.commands import PROGRAM
from tests.consoles import PASSWORD
from tests.panes import pane
from tests.stage import stage

QUESTION = r"(\[Y/n\]: *|^Show it in a browser\? \[y/N\]: *)\n*\Z"
"""A question of the demo, at the end of the pane."""


def test_on_a_terminal_it_offers_the_console_which_is_there_until_enter() -> None:
    with stage() as on, pane(on, rows=50, cols=160) as shown:
        shown.line(" ".join([*PROGRAM, "demo"]))
        while "Show it in a browser?" not in shown.until(QUESTION).splitlines()[-1]:
            shown.keys("y", "Enter", shows=r"(?<!\[Y/n\]: )(?<!\[Y/n\]: y)\n*\Z")
        link = shown.does("y", r"^Open (http://127\.0\.0\.1:\d+/console/first/\S+)$").partition("Open ")[2].split()[0]
        base = link.partition("/console/")[0]
        with httpx2.Client(base_url=base, headers={"origin": base}, trust_env=False) as web:
            entered = web.post(link, data={"password": PASSWORD, "again": PASSWORD})
            assert entered.headers["location"] == "/console/"
            assert "decided in a browser" in web.get("/console/conversations/tour").text
            shown.keys("Enter", shows=r"^person:\s*\Z")
            with pytest.raises(httpx2.ConnectError):
                web.get("/console/")
