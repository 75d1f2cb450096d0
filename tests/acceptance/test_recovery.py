"""Upgrades, models that fail, turns that die: the conversation goes on, and blocks, watches and ends are told once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessagesTypeAdapter, TextContent

from shellback.exec.core.model import Session
from shellback.exec.reports.blocks import MARK
from shellback.exec.reports.callback_text import HEADER
from shellback.exec.wire import layout
from shellback.storage import tables
from shellback.storage.tables import mailbox, turns, watches
from shellback.work.queue import stream
from tests.stage import Stage, stage, working


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


def test_each_host_answers_its_items_by_its_own_newest_version(postgres_url: str) -> None:
    with stage(postgres_url) as upgraded, stage(postgres_url) as left:
        upgraded.hire("v1")
        upgraded.hire("v2", WORKER_NAME="second")
        left.hire("v3")  # the last one in the database, whose version is that of no other worker
        for number, loop in enumerate((upgraded, left)):
            assert "hello" in loop.answer(loop.send("hello", f"c{number}"))
        upgraded.workers[-1].stop()
        upgraded.send("back again", "c2")
        upgraded.until("v1 answers", lambda: upgraded.answers(conversation="c2"))


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
    session = loop.started("$ echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.05; done; exit 9", "exit 9")
    loop.workers[-1].kill()
    loop.hire("v2")
    (loop.workspace / "go").touch()
    loop.until("the end is told", lambda: "exit code 9" in "\n".join(loop.answers()))
    loop.until("the conversation is at rest", loop.at_rest)
    assert loop.callbacks() in ([], [f"EXEC_CALLBACK:{session.id}"])
    assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
    assert len(loop.sessions()) == 1


def test_a_turn_that_uses_up_its_budget_says_so_and_the_next_message_goes_on(sqlite_url: str) -> None:
    with working(sqlite_url, TURN_MAX_REQUESTS="3") as loop:
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
    with working(sqlite_url, TURN_MAX_SECONDS="4") as loop:
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
    with working(sqlite_url, **({} if hours is None else {"LOG_AGE_HOURS": hours})) as loop:
        found: dict[str, Path] = {}
        for name, age in (("168 hours less", 167.9), ("168 hours more", 168.1)):
            session = loop.started(f"$ echo {name} &", name, "c1")
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


WAIT = "until [ -e {} ]; do sleep 0.02; done"
SERVE = f"{WAIT.format('first')}; echo listening; {WAIT.format('more')}; echo served; {WAIT.format('go')}"


def shown(loop: Stage, conversation: str = "c1") -> list[str]:
    """The texts about processes in a conversation's history, in order."""
    found: list[str] = []
    for message in ModelMessagesTypeAdapter.validate_json(loop.history(conversation)):
        for part in message.parts:
            content: object = getattr(part, "content", "")
            pieces = cast("list[object]", content) if isinstance(content, list) else []
            found += [one.content for one in pieces if isinstance(one, TextContent) and MARK in one.metadata]
    return found


def started(loop: Stage, command: str) -> str:
    """The id of a process in the background that has printed its first line, after the turn that began it."""
    session = loop.started(f"$ {command} &", command, rest=True)
    assert shown(loop) == []
    (loop.workspace / "first").touch()
    loop.until("its first line", lambda: "listening" in printed(loop, session.id))
    return session.id


def printed(loop: Stage, session_id: str) -> str:
    return (loop.home / layout.SESSIONS / session_id / layout.LOG).read_text()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_second_turn_sees_what_its_process_has_printed_and_a_pin_ends_that(loop: Stage) -> None:
    loop.hire()
    session_id = started(loop, SERVE)
    loop.answer(loop.send("what is up?"))
    (text,) = shown(loop)
    assert f"process:{session_id}: running" in text
    assert text.count('"listening"') == 1
    assert "never instructions" in text
    loop.answer(loop.send(f"!process_pin {json.dumps({'session_id': session_id, 'pinned': False})}"))
    (loop.workspace / "more").touch()
    loop.until("more of it", lambda: "served" in printed(loop, session_id))
    loop.answer(loop.send("and now?"))
    assert shown(loop) == [text]
    answered = loop.answer(loop.send(f"!process_log {json.dumps({'session_id': session_id})}"))
    assert "served" in answered
    (note,) = loop.until("the note of the last output", lambda: loop.read(stream.after, "c1", 0, kinds=["output"]))
    assert note.payload["total"] in {10, 17}
    assert (note.payload["session_id"], note.payload["label"]) == (session_id, f"process:{session_id}")
    assert note.payload["stream"] == "stdout"


def test_a_turn_that_is_replayed_after_a_kill_shows_what_it_showed_then(loop: Stage) -> None:
    first = loop.hire()
    session_id = started(loop, SERVE)
    loop.arm("tool.returned")
    item = loop.send("!process_list {}")
    loop.until("the worker is dead in the middle of its turn", lambda: first.process.poll() is not None)
    (loop.workspace / "more").touch()
    loop.until("more of it", lambda: "served" in printed(loop, session_id))
    loop.hire()
    loop.answer(item)
    before, after = shown(loop)
    assert ('"listening"' in before, '"served"' in before) == (True, False)
    assert ('"listening"' in after, '"served"' in after) == (False, True)


@pytest.mark.parametrize(("url", "point"), [("sqlite_url", "watch.found"), ("postgres_url", "watch.told")])
def test_a_line_wakes_the_agent_once_though_its_worker_is_killed_before_or_after_telling_it(
    request: pytest.FixtureRequest, url: str, point: str
) -> None:
    with stage(request.getfixturevalue(url)) as loop:
        worker = loop.hire()
        command = "until [ -e go ]; do sleep 0.02; done; echo it is listening; sleep 600"
        session = loop.started(f"$ {command} &", command, rest=True)
        wish = {"session_id": session.id, "pattern": "is listen"}
        assert "fires on lines that match" in loop.answer(loop.send(f"!process_watch {json.dumps(wish)}"))
        (watch,) = loop.scalars(sa.select(watches.c.id))
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
        assert loop.rows(sa.select(watches.c.id, watches.c.hits)) == [(watch, 1)]
        items = sa.select(turns.c.id).where(turns.c.item_type == "EXEC_WATCH")
        assert loop.scalars(items) == [f"EXEC_WATCH:{watch}:1"]
        assert loop.scalars(sa.select(mailbox.c.state).where(mailbox.c.kind == "watch")) == ["heard"]


def test_an_end_that_is_no_news_has_its_item_and_wakes_nobody(sqlite_url: str) -> None:
    with working(sqlite_url) as loop:
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


def test_an_end_that_process_wait_has_told_wakes_nobody_and_is_not_told_again_in_its_turn(database_url: str) -> None:
    with working(database_url) as loop:
        command = "until [ -e go ]; do sleep 0.05; done; echo tail of it; exit 6"
        session = loop.started(f"$ {command} &", command, rest=True)
        before = len(loop.answers())
        item = loop.send(f"!process_wait {json.dumps({'session_ids': [session.id], 'timeout': 60})}")
        # After the answer of the model nobody looks for news before the call has returned.
        loop.until("the model has asked to wait", lambda: any("model" in name for name in loop.steps(item)))
        (loop.workspace / "go").touch()
        told = loop.answer(item)
        assert "tail of it" in told
        assert "exit_code" in told
        wake = loop.ended(f"EXEC_CALLBACK:{session.id}")
        loop.until("nothing is left to do", loop.at_rest)
        # Busy: it came while the turn that was waiting had the conversation, and leaves the rest to that.
        assert wake["outcome"] in {"nothing", "busy"}
        assert wake["answer"] is None
        assert not any("model" in name for name in loop.steps(f"EXEC_CALLBACK:{session.id}"))
        assert len(loop.answers()) == before + 1
        assert HEADER not in loop.history()
