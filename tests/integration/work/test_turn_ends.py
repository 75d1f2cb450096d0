"""A process of lifetime `turn` ends with its turn: at the close, after calls to approve, and where a worker died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import EndedBy, Session, SessionEnd, SessionState
from shellback.storage.db import Database
from shellback.storage.session_rows import to_row
from shellback.storage.tables import conversations, sessions, turns
from shellback.work.turn.lifetimes import due
from tests.commands import facts, told
from tests.sessions import a_session
from tests.stage import Stage, stage

NOW = 1000.0


@pytest.fixture
def place() -> Iterator[Stage]:
    with stage() as made:
        yield made


def start(name: str, lifetime: str, command: str = "exec sleep 600", on_exit: str = "always") -> str:
    args = {"command": f": {name}; {command}", "background": True, "lifetime": lifetime, "on_exit": on_exit}
    return f"!execute {json.dumps(args)}"


def ended(place: Stage, name: str) -> Session:
    """A session, once its end is recorded."""

    def look() -> Session | None:
        found = place.session(f": {name};")
        return found if found.end is not None else None

    return place.until(f"{name} has ended", look)


def by_lifetime(session: Session) -> bool:
    return session.end is not None and session.end.ended_by is EndedBy.LIFETIME


def left_running(session: Session) -> bool:
    """Whether something that a session has left lives on."""
    assert session.end is not None
    return any(Path(f"/proc/{pid}").exists() for pid in session.end.survivors)


LEAVES = "(sleep 600 >/dev/null 2>&1 & echo $!)"


def test_what_a_turn_started_for_itself_ends_with_it_but_not_while_calls_wait_for_a_person(place: Stage) -> None:
    place.hire()
    lines = (
        start("mine", "turn"), start("left", "turn", LEAVES), start("talks", "conversation"), start("free", "detached"),
    )  # fmt: skip
    place.send("\n".join([*lines, "$ echo last > x"]))
    for _ in lines:
        request = place.approve()
        assert request.args["lifetime"] in str(request.display)
    # The turn that started the last of them has closed, with a call to approve.
    request = place.pending()
    assert "echo last" in request.args["command"]
    assert place.session(": mine;").live
    assert left_running(ended(place, "left"))
    place.decide(request)
    assert by_lifetime(ended(place, "mine"))
    place.until("what it left has ended", lambda: not left_running(place.session(": left;")))
    place.until("all is at rest", place.at_rest)
    rows = facts(told(place, "ps", "--json"))["sessions"]
    assert {row["command"].split(";")[0]: row["lifetime"] for row in rows} == {
        ": talks": "conversation", ": free": "detached",
    }  # fmt: skip
    # The end is on record as an item, and woke nobody.
    mine = place.session(": mine;").id
    assert any(mine in item for item in place.callbacks())
    assert mine not in place.history().rpartition("echo last")[2]
    stopped = facts(told(place, "stop", "c1", "--kill", "--json"))
    assert sorted(stopped["killed"]) == sorted(row["id"] for row in rows)


def test_a_worker_that_dies_at_the_close_leaves_the_end_to_the_next_and_stop_ends_what_was_left(place: Stage) -> None:
    worker = place.hire()
    place.send("\n".join([start("mine", "turn"), start("left", "conversation", LEAVES, "never")]))
    place.approve()
    place.pending()
    place.arm("turn.closed")
    place.approve()
    place.until("the worker is gone", lambda: worker.process.poll() is not None)
    assert place.session(": mine;").live
    place.kill_supervisor()
    place.hire()
    assert by_lifetime(ended(place, "mine"))
    left = ended(place, "left")
    assert left_running(left)
    assert facts(told(place, "stop", "c1", "--kill", "--json"))["killed"] == [left.id]
    place.until("what it left has ended", lambda: not left_running(left))


def test_which_turns_are_over_and_left_something(database: Database) -> None:
    def put(conn: sa.Connection, name: str, outcome: str | None, at: float, talk: str = "free", **more: Any) -> None:
        blocked = "approval" if talk == "blocked" else None
        row = {"id": name, "host_id": "h", "state": talk, "blocked_reason": blocked, "epoch": 1, "created_at": at}
        conn.execute(sa.insert(conversations).values(**row))
        turn = {"id": f"t-{name}", "conversation_id": name, "item_type": "CHAT", "outcome": outcome, "ended_at": at}
        conn.execute(sa.insert(turns).values(created_at=at, priority=1, **turn))
        made = a_session(1, id=name, conversation_id=name, turn_id=f"t-{name}", **{"lifetime": "turn", **more})
        conn.execute(sa.insert(sessions).values(**to_row(made)))

    def fill(conn: sa.Connection) -> None:
        left = SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=NOW, survivors=(7,))
        none = replace(left, survivors=())
        gone: dict[str, Any] = {"state": SessionState.EXITED, "end": left}
        put(conn, "live", "answered", NOW - 500)
        put(conn, "failed", "failed", NOW)
        put(conn, "left", "answered", NOW, **gone)
        put(conn, "longago", "answered", NOW - 500, **gone)
        put(conn, "nothing", "answered", NOW, **dict[str, Any](gone, end=none))
        put(conn, "open", None, NOW)
        put(conn, "asks", "pending_approval", NOW, "blocked")
        put(conn, "goeson", "pending_approval", NOW, "claimed")
        put(conn, "decided", "pending_approval", NOW - 500, "claimed", **gone)
        after: dict[str, Any] = {"id": "after", "conversation_id": "decided", "outcome": "answered"}
        conn.execute(sa.insert(turns).values(created_at=NOW, ended_at=NOW, priority=1, item_type="APPROVAL", **after))
        put(conn, "talks", "answered", NOW, lifetime="conversation")
        put(conn, "elsewhere", "answered", NOW, host_id="other")

    database.write_now(fill)
    assert database.read_now(due, "h", NOW - 60) == ["t-decided", "t-failed", "t-left", "t-live"]
    assert database.read_now(due, "h", NOW - 60, "left") == ["t-left"]
    assert database.read_now(due, "h", 0.0, "longago") == ["t-longago"]
