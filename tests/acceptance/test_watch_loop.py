"""Watches from outside: a worker that dies at the worst moment tells a hit once; some ends wake nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.storage.tables import mailbox, turns, watches
from tests.stage import stage


def watched(conn: sa.Connection) -> list[tuple[str, int]]:
    """Each watch and its hits."""
    return [(row.id, row.hits) for row in conn.execute(sa.select(watches))]


def hits(conn: sa.Connection) -> tuple[list[str], list[str]]:
    """The items of hits, and what became of their news."""
    items = sa.select(turns.c.id).where(turns.c.item_type == "EXEC_WATCH")
    news = sa.select(mailbox.c.state).where(mailbox.c.kind == "watch")
    return list(conn.execute(items).scalars()), list(conn.execute(news).scalars())


@pytest.mark.parametrize(("url", "point"), [("sqlite_url", "watch.found"), ("postgres_url", "watch.told")])
def test_a_line_wakes_the_agent_once_though_its_worker_is_killed_before_or_after_telling_it(
    request: pytest.FixtureRequest, url: str, point: str
) -> None:
    with stage(request.getfixturevalue(url)) as loop:
        worker = loop.hire()
        loop.send("$ until [ -e go ]; do sleep 0.02; done; echo it is listening; sleep 600 &")
        loop.approve()
        session = loop.session("is listening")
        loop.until("the turn that has started it is over", loop.at_rest)
        wish = {"session_id": session.id, "pattern": "is listen"}
        assert "fires on lines that match" in loop.answer(loop.send(f"!process_watch {json.dumps(wish)}"))
        ((watch, _),) = loop.read(watched)
        loop.arm(point)
        (loop.workspace / "go").touch()
        loop.until(f"{point} is reached", lambda: loop.fired(point))
        worker.kill()
        loop.hire()
        wake = loop.ended(f"EXEC_WATCH:{watch}:1")
        assert '1 line matches "is listen"' in wake["answer"]
        assert '"it is listening"' in wake["answer"]
        assert wake["priority"] == 10
        loop.until("everything is heard", loop.at_rest)
        assert loop.read(watched) == [(watch, 1)]
        assert loop.read(hits) == ([f"EXEC_WATCH:{watch}:1"], ["heard"])


def test_an_end_that_is_no_news_has_its_item_and_wakes_nobody(sqlite_url: str) -> None:
    with stage(sqlite_url) as loop:
        loop.hire()
        for code in (0, 3):
            args = {"command": f"exit {code}", "background": True, "on_exit": "failure"}
            loop.send(f"!execute {json.dumps(args)}")
            loop.approve()
        wakes: dict[int, dict[str, Any]] = {}
        for code in (0, 3):
            session = loop.session(f"exit {code}")
            wakes[code] = loop.ended(f"EXEC_CALLBACK:{session.id}")
        loop.until("at rest", loop.at_rest)
        told = "\n".join(loop.answers())
    assert wakes[0]["outcome"] in {"nothing", "busy"}
    assert wakes[0]["answer"] is None
    assert "exit code 0, after" not in told
    assert "exit code 3, after" in told
    assert "a callback tells its end if it fails" in told
