"""Upgrades, roll-backs, models that fail and turns that die: the conversation goes on and says what happened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Session
from shellback.storage import tables
from tests.stage import Stage, stage


@pytest.fixture
def loop(database_url: str) -> Iterator[Stage]:
    with stage(database_url) as made:
        yield made


def test_items_that_waited_through_an_upgrade_and_a_roll_back_are_answered(loop: Stage) -> None:
    first = loop.send("sent before any worker")
    loop.hire("v1")
    assert "before any worker" in loop.answer(first)
    loop.workers[-1].kill()
    second = loop.send("sent between v1 and v2", "c2")
    loop.hire("v2")
    loop.until("v2 answers", lambda: loop.answers(conversation="c2"))
    loop.workers[-1].stop()
    third = loop.send("sent before the roll-back", "c3")
    loop.hire("v1")
    loop.until("v1 answers again", lambda: loop.answers(conversation="c3"))
    assert {loop.ended(item)["outcome"] for item in (first, second, third)} == {"answered"}


def test_a_turn_of_another_step_shape_is_never_replayed_but_tried_anew(loop: Stage) -> None:
    loop.arm("turn.begun")
    loop.hire("v1")
    item = loop.send("said once")
    loop.until("v1 dies in its turn", lambda: loop.workers[-1].process.poll() is not None)
    loop.hire("v2")
    assert "said once" in loop.answer(item)
    assert loop.ended(item)["outcome"] == "failed"
    loop.until("the conversation is at rest", loop.at_rest)


def test_a_process_whose_turn_died_with_its_version_still_tells_its_end(loop: Stage) -> None:
    """Started in the foreground by v1, which dies; under v2 the retried turn or a callback tells its end."""
    loop.hire("v1")
    loop.send("$ echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.05; done; exit 9")
    loop.approve()
    session = loop.session("exit 9")
    loop.workers[-1].kill()
    loop.hire("v2")
    (loop.workspace / "go").touch()
    loop.until("the end is told", lambda: "exit code 9" in "\n".join(loop.answers()))
    loop.until("the conversation is at rest", loop.at_rest)
    assert loop.callbacks() in ([], [f"EXEC_CALLBACK:{session.id}"])
    assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
    assert len(loop.sessions()) == 1


def test_a_turn_that_uses_up_its_budget_says_so_and_the_next_message_goes_on(sqlite_url: str) -> None:
    with stage(sqlite_url, TURN_MAX_REQUESTS="3") as loop:
        loop.hire()
        answer = loop.answer(loop.send("\n".join(["!process_list {}"] * 6)))
        assert "budget is used up" in answer
        again = loop.send("still there?", "c2")
        loop.until("another answer", lambda: loop.answers(conversation="c2"))
        assert loop.ended(again)["outcome"] == "answered"
        more = loop.send("and here?")
        loop.until("the same conversation answers", lambda: "and here?" in "\n".join(loop.answers(since=more)))


def test_a_message_that_waited_behind_an_approval_is_in_the_history_though_the_resumed_turn_runs_out_of_time(
    sqlite_url: str,
) -> None:
    with stage(sqlite_url, TURN_MAX_SECONDS="4") as loop:
        loop.hire()
        loop.send("$ sleep 5; echo slept")
        request = loop.pending()
        loop.send("remember the milk")
        loop.decide(request)
        answer = loop.until("the turn says that its time is up", lambda: next(iter(loop.answers()), None))
        assert "time is used up" in answer
        loop.until("the conversation is at rest", loop.at_rest)
        assert "remember the milk" in loop.history()
        assert "slept" in loop.history()


@pytest.mark.parametrize(("hours", "left"), [(None, ["168 hours less"]), ("1", [])])
def test_a_worker_that_starts_removes_logs_of_the_age_that_is_set_168_hours_by_default(
    sqlite_url: str, hours: str | None, left: list[str]
) -> None:
    with stage(sqlite_url, **({} if hours is None else {"LOG_AGE_HOURS": hours})) as loop:
        loop.hire()
        found: dict[str, Path] = {}
        for name, age in (("168 hours less", 167.9), ("168 hours more", 168.1)):
            loop.send(f"$ echo {name} &", "c1")
            loop.approve("c1")
            session = loop.session(name)
            loop.ended(f"EXEC_CALLBACK:{session.id}")
            loop.until(
                "its directory is noted", lambda session=session: (_folder(loop, session) / "acked.json").exists()
            )
            found[name] = _folder(loop, session)
            loop.write(_aged, session, age)
            moment = time.time() - age * 3600
            os.utime(found[name] / "acked.json", (moment, moment))
        loop.workers[-1].stop()
        loop.hire()
        assert [name for name, folder in found.items() if folder.exists()] == left


def _folder(loop: Stage, session: Session) -> Path:
    return loop.home / "sessions" / session.id


def _aged(conn: sa.Connection, session: Session, hours: float) -> None:
    """Let a session have ended that long ago."""
    row = tables.sessions.c
    end: dict[str, Any] = dict(conn.execute(sa.select(row.end).where(row.id == session.id)).scalar_one())
    end["ended_at"] = time.time() - hours * 3600
    conn.execute(tables.sessions.update().where(row.id == session.id).values(end=end))
