"""The workspace tools in a real worker: reads pass, writes wait for a person, and a crash makes none of them twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.identity import workspace_scope
from shellback.exec.core.model import SessionState
from shellback.exec.tools.short_commands import PYTHON
from shellback.storage.tables import calls
from shellback.work.approvals import approvals
from tests.commands import facts, told
from tests.filetrees import give
from tests.stage import Stage, stage, working


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    with stage() as made:
        put(made, "notes.txt", "one\ntwo\n")
        (made.workspace / "read").mkdir(mode=0o755)
        put(made, "read/notes.txt", "one\ntwo\n")
        put(made, ".env", "KEY=value\n")
        made.hire()
        yield made


def put(place: Stage, name: str, text: str) -> Path:
    """A file that commands may change."""
    file = place.workspace / name
    file.write_text(text)
    give(file)
    return file


def call(tool: str, **args: Any) -> str:
    return f"!{tool} {json.dumps(args)}"


def recorded(place: Stage, conversation: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a conversation that changed files, with what is recorded of them."""
    query = sa.select(calls.c.tool, calls.c.outcome).where(calls.c.session_id == workspace_scope(conversation))
    return place.rows(query.order_by(calls.c.created_at))


def test_reading_passes_and_a_secret_waits(place: Stage) -> None:
    reads = [call("ls", path="read"), call("read_file", path="read/notes.txt"), call("grep", pattern="t", path="read")]
    said = place.answer(place.send("\n".join(reads)))
    assert "notes.txt  8" in said
    assert "one\n  two" in said
    assert "read/notes.txt:2: two" in said
    place.send(call("read_file", path=".env"))
    request = place.pending()
    assert "may be a secret" in request.display["reason"]
    item = place.decide(request, "denied")
    assert item.state == "denied"
    place.until("the denial is told", lambda: "Denied" in place.answers()[-1])
    assert "KEY=value" not in place.history()


def test_a_change_waits_is_shown_and_is_recorded(place: Stage) -> None:
    place.send(call("edit_file", path="notes.txt", old_string="two", new_string="three"), "edits")
    request = place.pending("edits")
    assert "-two\n+three" in request.display["diff"]
    shown = "\n".join(facts(told(place, "approvals", "show", request.id, "--json"))["shown"].split("\n"))
    assert "replaces 1 place, line 2" in shown
    place.decide(request)
    place.until("the edit is told", lambda: place.answers(conversation="edits"))
    assert (place.workspace / "notes.txt").read_text() == "one\nthree\n"
    ((tool, outcome),) = recorded(place, "edits")
    assert (tool, outcome["did"], outcome["path"], outcome["conversation_id"]) == (
        "edit_file", "edited", "notes.txt", "edits",
    )  # fmt: skip
    assert place.read(approvals.get, request.id).state == "used"


def test_what_was_changed_meanwhile_is_not_overwritten(place: Stage) -> None:
    file = put(place, "shared.txt", "mine\n")
    place.send(call("write_file", path="shared.txt", content="agent's\n"), "swaps")
    request = place.pending("swaps")
    file.write_text("a person's\n")
    place.decide(request)
    said = place.until("the refusal is told", lambda: place.answers(conversation="swaps"))[-1]
    assert "is not what it was when this was approved" in said
    assert file.read_text() == "a person's\n"


def test_short_commands_and_python_are_sessions_like_any_other(place: Stage) -> None:
    place.send(call("shell_execute", command=["echo", "a  b", "$HOME"]), "short")
    request = place.pending("short")
    assert request.display["command"] == "'echo' 'a  b' '$HOME'"
    place.decide(request)
    said = place.until("the result is told", lambda: place.answers(conversation="short"))[-1]
    assert '"stdout":"a  b $HOME\\n"' in said.replace('": "', '":"')
    place.send(call("evaluate_python", code="print(6 * 7)"), "python")
    request = place.pending("python")
    assert request.display["code"] == "print(6 * 7)"
    place.decide(request)
    assert "42" in place.until("the result is told", lambda: place.answers(conversation="python"))[-1]
    # A short command may have ended before it was seen to run.
    session = next(session for session in place.sessions() if session.command == PYTHON)
    assert (session.state, session.granted_by) == (SessionState.EXITED, "approval")


def test_switched_off_there_are_none_of_them() -> None:
    with working(WORKSPACE_TOOLS="off") as made:
        assert "there is no tool 'ls'" in made.answer(made.send(call("ls")))
