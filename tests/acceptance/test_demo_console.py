"""The demo offers the console at its end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from subprocess import PIPE

import httpx2
import pytest

from shellback.settings import plain_environment
from tests.commands import PROGRAM
from tests.consoles import PASSWORD
from tests.panes import pane
from tests.stage import stage
from tests.supervisors import run_to_end

QUESTION = r"(\[Y/n\]: *|^Show it in a browser\? \[y/N\]: *)\n*\Z"
"""A question of the demo, at the end of the pane."""


@contextlib.contextmanager
def _entered(base: str, link: str) -> Generator[httpx2.Client]:
    with httpx2.Client(base_url=base, headers={"origin": base}, trust_env=False) as web:
        entered = web.post(link, data={"password": PASSWORD, "again": PASSWORD})
        assert web.get(entered.headers["location"]).headers["location"] == "/console/"
        yield web


def test_on_a_terminal_it_offers_the_console_which_is_there_until_enter() -> None:
    with stage() as on, pane(on, rows=50, cols=160) as shown:
        shown.line(" ".join([*PROGRAM, "demo"]))
        while "Show it in a browser?" not in shown.until(QUESTION).splitlines()[-1]:
            shown.keys("y", "Enter", shows=r"(?<!\[Y/n\]: )(?<!\[Y/n\]: y)\n*\Z")
        link = shown.does("y", r"^Open (http://127\.0\.0\.1:\d+/console/first/\S+)$").partition("Open ")[2].split()[0]
        base = link.partition("/console/")[0]
        with _entered(base, link) as web:
            assert "decided in a browser" in web.get("/console/conversations/tour").text
            shown.keys("Enter", shows=r"^person:\s*\Z")
            with pytest.raises(httpx2.ConnectError):
                web.get("/console/")


def test_without_a_terminal_it_ends_in_a_command_that_shows_its_console_whatever_is_set_there(tmp_path: Path) -> None:
    done = run_to_end(*PROGRAM, "demo", "--keep", env=plain_environment(), stdin=subprocess.DEVNULL, timeout=120)
    offer, kept = done.stdout.splitlines()[-2:]
    command = offer.partition("In a browser, by the link that this prints: ")[2]
    environ = {**plain_environment(), "SHELLBACK_HOME": str(tmp_path), "DATABASE_URL": "mysql://not/used"}
    try:
        # Twice: a link that nobody opened in time is no way in.
        for _ in range(2):
            with subprocess.Popen([command, "--port", "0"], env=environ, stdout=PIPE, stderr=PIPE, text=True) as server:
                assert server.stdout is not None
                assert server.stderr is not None
                link = server.stdout.readline().strip()
                base = next(line.split()[1] for line in server.stderr if line.startswith("ready "))
                with _entered(base, base + link.removeprefix("http://127.0.0.1:8765")) as web:
                    assert "note.txt" in web.get("/console/conversations/tour").text
                server.terminate()
    finally:
        shutil.rmtree(kept.removeprefix("kept in "))
