"""What a person decides on the command line is what runs, and `audit` tells it: who, when, through which surface."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.cli.approving import Approving
from shellback.cli.shared import Refused
from shellback.exec.core.display import original
from shellback.storage import rules as saved
from shellback.storage.tables import approvals as requests
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.errors import ApprovalRefused
from tests.commands import assert_refused, facts, shellback
from tests.stage import Stage, staged

# pyright: reportPrivateUsage=false

place = staged(worker=True)


def told(place: Stage, conversation: str, *more: str) -> list[dict[str, Any]]:
    done = shellback(place, "audit", "-c", conversation, "--json", *more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def settled(place: Stage, request: Request) -> Request:
    def used() -> Request | None:
        now = place.read(approvals.get, request.id)
        return now if now.state == "used" else None

    return place.until("it is used", used)


def test_changed_arguments_are_shown_bound_and_run_and_the_audit_has_every_step(place: Stage) -> None:
    item = place.send("$ printf model > said.txt", "changed")
    request = place.pending("changed")
    instead = json.dumps({"command": "printf person > said.txt"})
    waits = shellback(place, "approvals", "approve", request.id, "--args", instead)
    assert waits.returncode == 3
    assert "? printf person > said.txt" in waits.stdout.splitlines()
    asked = place.read(approvals.get, request.id)
    assert (asked.state, asked.args["command"]) == ("pending", "printf model > said.txt")
    assert asked.digest != request.digest
    assert f"--digest {asked.digest}" in waits.stderr
    assert_refused(
        shellback(place, "approvals", "approve", request.id, "--digest", request.digest), "changed since you saw it"
    )
    assert facts(shellback(place, "approvals", "approve", request.id, "--digest", asked.digest, "--json")) == {
        "id": request.id,
        "state": "approved",
        "conversation": "changed",
    }
    settled(place, request)
    place.answer(item)
    assert (place.workspace / "said.txt").read_text() == "person"
    assert "changed your call" in place.history("changed")
    assert_refused(shellback(place, "approvals", "approve", request.id), "is used already")
    rows = told(place, "changed")
    assert [row["event"] for row in rows] == [
        "asked", "changed", "asked", "refused", "approved", "used", "refused",
    ]  # fmt: skip
    assert {row["request_id"] for row in rows} == {request.id}
    assert [(row["surface"], bool(row["done_by"])) for row in rows if row["event"] in {"changed", "approved"}] == [
        ("cli", True)
    ] * 2
    assert rows[-2]["command"] == "printf person > said.txt"
    text = shellback(place, "audit", "-c", "changed", "-e", "used").stdout
    assert "    command: printf person > said.txt" in text.splitlines()


def test_changed_arguments_with_a_yes_are_shown_and_run_at_once(place: Stage) -> None:
    place.send("$ printf model > yes.txt", "yes")
    request = place.pending("yes")
    instead = json.dumps({"command": "printf '\\x41é\\t' > yes.txt"})
    done = shellback(place, "approvals", "approve", request.id, "--args", instead, "--yes")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("? ")]
    assert original(line.removeprefix("? ")) == "printf '\\x41é\\t' > yes.txt"
    settled(place, request)


def test_a_changed_call_that_a_worker_has_proposed_already_waits_for_no_other(place: Stage) -> None:
    place.send("$ touch quick", "quick")
    proposed = place.pending("quick")
    approving = Approving(where=place.where, enqueuer=place.enqueuer, yes=True)
    assert approving._proposed(replace(proposed, state="changed")) == proposed
    place.decide(proposed, "denied")


def test_what_is_remembered_is_approved_only_as_it_was_when_its_rules_were_shown(place: Stage) -> None:
    place.send("$ touch remembered", "remembered")
    request = place.pending("remembered")
    approving = Approving(where=place.where, enqueuer=place.enqueuer, yes=True)
    digest, rules = approving.offer(request.id, digest=None, everywhere=False, days=1)
    assert [rule.match.prefix for rule in rules] == [("touch", "remembered")]
    with pytest.raises(Refused, match="changed since you saw it"):
        approving.offer(request.id, digest="0" * 64, everywhere=False, days=1)
    place.change(sa.update(requests).where(requests.c.id == request.id).values(digest="f" * 64))
    with pytest.raises(ApprovalRefused, match="changed since you saw it"):
        approving.approve(request.id, scope="once", digest=digest, rules=rules)
    assert place.read(approvals.get, request.id).state == "pending"
    assert not place.read(saved.find)
    place.decide(request, "denied")


def test_arguments_that_are_none_are_refused_before_anything_changes(place: Stage) -> None:
    place.send("$ touch nothing", "none")
    request = place.pending("none")
    for wrong, why in (("{", "not JSON"), ("[1]", "not a JSON object"), ("{}", "not a JSON object")):
        assert_refused(shellback(place, "approvals", "approve", request.id, "--args", wrong), why)
    assert place.read(approvals.get, request.id).state == "pending"
    assert_refused(shellback(place, "approvals", "approve", request.id, "--for", "session"), "no input to a session")
    assert facts(shellback(place, "approvals", "deny", request.id, "--json"))["state"] == "denied"
    assert [row["event"] for row in told(place, "none")] == ["asked", "refused", "denied"]


def test_input_approved_for_a_session_is_not_asked_about_again(place: Stage) -> None:
    session = place.started(
        '!execute {"command": "tee heard.txt", "background": true, "keep_stdin_open": true}', "tee heard.txt", "input"
    )

    def write(data: str) -> str:
        return place.send("!process_write " + json.dumps({"session_id": session.id, "data": data}), "input")

    item = write("one\n")
    request = place.pending("input")
    shown = shellback(place, "approvals", "show", request.id).stdout
    assert "    session_command: tee heard.txt" in shown.splitlines()
    done = shellback(place, "approvals", "approve", request.id, "--for", "session", "--json")
    assert facts(done)["scope"] == "session"
    place.answer(item)
    place.answer(write("two\n"))
    heard = place.workspace / "heard.txt"
    place.until("both are heard", lambda: heard.read_text() == "one\ntwo\n")
    assert "input" not in {one.conversation_id for one in place.requests()}
    uses = told(place, "input", "-e", "used")
    assert [row["request_id"] for row in uses[1:]] == [request.id] * 2
