"""Shells that stay, in a real worker: asked about, approved for all of a shell, and run once wherever a worker dies."""

from __future__ import annotations

import json
import re
from typing import Any

from shellback.exec.core.model import SHELL, Session
from tests.commands import facts, shellback, told
from tests.stage import Stage, staged, working

place = staged(worker=True, SHELL_TOOL="on")


def call(tool: str, **args: Any) -> str:
    return f"!{tool} {json.dumps(args)}"


def shell_of(place: Stage, conversation: str) -> Session:
    """The shell of a conversation that runs."""

    def look() -> Session | None:
        live = [one for one in place.sessions(live=True) if one.conversation_id == conversation]
        return next((one for one in live if one.kind == SHELL), None)

    return place.until("a shell runs", look)


def answer(place: Stage, item: str) -> str:
    """What is said once an item has been heard, with JSON as it is written without blanks."""
    return place.answer(item).replace('": ', '":')


def ask(place: Stage, conversation: str, shell: Session, command: str) -> str:
    """Let the model run a command in a shell; the item that it hears of it with."""
    return place.send(call("shell_session", action="exec", session_id=shell.id, command=command), conversation)


def approve(place: Stage, conversation: str, item: str, *more: str) -> str:
    """Approve what an item has led to; the answer."""
    done = shellback(place, "approvals", "approve", place.pending(conversation).id, *more, "--json")
    assert facts(done)["state"] == "approved"
    return answer(place, item)


def test_a_shell_is_approved_once_and_from_then_on_for_all_its_input(place: Stage) -> None:
    item = place.send(call("shell_session", action="start"), "talk")
    assert place.pending("talk").display["command"].startswith("exec bash ")
    said = approve(place, "talk", item)
    shell = shell_of(place, "talk")
    assert f'"session_id":"{shell.id}"' in said
    item = ask(place, "talk", shell, "export A=kept; cd /tmp")
    shown = told(place, "approvals", "show", place.pending("talk").id).stdout
    assert re.search(r"^\? export A=kept; cd /tmp$", shown, re.MULTILINE)
    assert re.search(r"^ +session_command: exec bash ", shown, re.MULTILINE)
    approve(place, "talk", item, "--for", "session")
    assert '"output":"kept\\n"' in answer(place, ask(place, "talk", shell, "echo $A"))
    assert place.requests() == []
    ask(place, "talk", shell, "sudo ls")
    request = place.pending("talk")
    refused = shellback(place, "approvals", "approve", request.id, "--for", "session")
    assert "of tier admin" in refused.stderr
    place.decide(request, "denied")


def test_the_tool_of_one_shell_asks_once_for_the_shell_and_its_first_command(place: Stage) -> None:
    item = place.send(call("shell", op="execute", command="cd /tmp; echo one"), "one")
    request = place.pending("one")
    assert (request.display["command"], request.display["tier"]) == ("cd /tmp; echo one", "read_write")
    assert '"stdout":"one\\n"' in approve(place, "one", item)
    shell = shell_of(place, "one")
    assert shell.granted_by == "approved call"
    item = place.send(call("shell", op="execute", command="echo two"), "one")
    assert place.pending("one").session_id == shell.id
    assert '"stdout":"two\\n"' in approve(place, "one", item, "--for", "session")
    item = place.send(call("shell", op="execute", command="echo three"), "one")
    assert '"stdout":"three\\n"' in answer(place, item)


def test_run_shell_waits_for_a_person_and_returns_its_four_keys(place: Stage) -> None:
    item = place.send(call("run_shell", command="echo hi; touch made", timeout_ms=20_000), "login")
    shown = place.pending("login").display
    assert shown.items() >= {"command": "echo hi; touch made", "login": True, "timeout_s": 20.0}.items()
    said = approve(place, "login", item)
    assert json.loads(said[said.index('{"status"') :]) == {
        "status": "ok", "exit_code": 0, "stdout": "hi\n", "stderr": "",
    }  # fmt: skip


def test_switched_off_there_are_none_of_them() -> None:
    with working(SESSION_TOOLS="off") as made:
        said = made.answer(made.send("\n".join([call("run_shell", command="ls"), call("shell", op="status")])))
        assert "there is no tool 'run_shell'" in said
        assert "there is no tool 'shell'" in said
