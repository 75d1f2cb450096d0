"""Two keys instead of a person: read-only by its class *and* held to reading by where it runs; anything else waits."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shellback.exec.core.model import Session
from tests.commands import facts, shellback, told
from tests.sandboxes import needed
from tests.stage import Stage, stage, working


@pytest.fixture(scope="module")
def boxed() -> Iterator[Stage]:
    needed()
    with stage(BACKEND="bubblewrap") as made:
        (made.workspace / "notes.txt").write_text("one\ntwo\n")
        made.hire()
        yield made


def waiting(place: Stage) -> list[str]:
    """What waits for a person in the first conversation."""
    return [request.id for request in place.requests() if request.conversation_id == "c1"]


def started(place: Stage, part: str) -> Session:
    """The session of the command with this part; it may have ended before it was seen to run."""
    return next(session for session in place.sessions() if part in session.command)


def test_a_command_that_only_reads_runs_at_once_and_in_the_profile_that_holds_it_to_reading(boxed: Stage) -> None:
    answer = boxed.answer(boxed.send("$ wc -l notes.txt"))
    assert "2 notes.txt" in answer
    assert not waiting(boxed)
    session = started(boxed, "wc -l")
    assert (session.profile, session.backend, session.granted_by) == ("read_only", "bubblewrap", "classifier")
    assert session.approval_id is None
    row = next(row for row in facts(told(boxed, "ps", "--all", "--json"))["sessions"] if row["id"] == session.id)
    assert row["granted_by"] == "classifier"


@pytest.mark.parametrize(
    "command",
    [
        "$ touch made.txt",
        "$ cat notes.txt > copy.txt",
        "$ ls; touch made.txt",
        "$ cat $(cat notes.txt)",
        '!execute_pty {"command": "cat notes.txt"}',
        '!execute {"command": "cat notes.txt", "env": {"A": "1"}}',
    ],
)
def test_whatever_else_waits_for_a_person(boxed: Stage, command: str) -> None:
    conversation = f"waits-{abs(hash(command))}"
    boxed.send(command, conversation)
    request = boxed.pending(conversation)
    assert request.display["profile"] == "work"
    boxed.decide(request, "denied")
    assert sorted(path.name for path in boxed.workspace.iterdir() if path.name != ".tmp") == ["notes.txt"]


def test_what_is_denied_by_default_asks_nobody_and_runs_nowhere(boxed: Stage) -> None:
    answer = boxed.answer(boxed.send("$ rm -rf /"))
    assert "refused by policy" in answer
    assert not waiting(boxed)
    assert not any("rm -rf" in session.command for session in boxed.sessions())


def test_the_person_is_shown_what_each_part_is_taken_for(boxed: Stage) -> None:
    boxed.send("$ cat notes.txt && touch made.txt", "parts")
    request = boxed.pending("parts")
    boxed.decide(request, "denied")
    display = request.display
    assert [(one["text"], one["tier"]) for one in display["segments"]] == [
        ("cat notes.txt", "read_only"),
        ("touch made.txt", "read_write"),
    ]
    assert display["tier"] == "read_write"
    assert display["reason"]


def test_a_rule_of_the_operator_comes_before_the_classification(boxed: Stage) -> None:
    policy = boxed.root / "policy.toml"
    policy.write_text(
        '[[rules]]\neffect = "deny"\nprefix = ["cat"]\n\n[[rules]]\neffect = "allow"\nprefix = ["touch"]\n'
    )
    with working(BACKEND="bubblewrap", POLICY_FILE=str(policy)) as ruled:
        assert "refused" in ruled.answer(ruled.send("$ cat notes.txt"))
        ruled.answer(ruled.send("$ touch by-rule.txt"))
        assert (ruled.workspace / "by-rule.txt").exists()
        assert started(ruled, "touch").granted_by == f"policy {policy}:5"
        assert not waiting(ruled)


def test_without_a_sandbox_the_first_key_alone_opens_nothing() -> None:
    with working(BACKEND="host") as bare:
        bare.send("$ ls")
        assert bare.pending().display["command"] == "ls"


def test_on_the_hosts_own_risk_the_classifier_is_enough_and_everybody_says_so() -> None:
    with working(BACKEND="host", TRUST_CLASSIFIER="true") as trusting:
        trusting.answer(trusting.send("$ ls"))
        session = started(trusting, "ls")
        assert (session.profile, session.granted_by) == ("work", "trusted classifier")
        trusting.send("$ touch made.txt", "c2")
        trusting.pending("c2")
        checks = facts(told(trusting, "doctor", "--json"))["checks"]
        said = next(check for check in checks if check["name"] == "classifier")
        assert said["state"] == "warn"
        assert "TRUST_CLASSIFIER" in said["text"]


def test_switched_off_every_command_waits(boxed: Stage) -> None:
    with working(BACKEND="bubblewrap", AUTO_APPROVE="off") as strict:
        strict.send("$ ls")
        assert strict.pending().display["tier"] == "read_only"


def test_a_directory_of_the_system_never_stands_for_the_workspace(boxed: Stage) -> None:
    lines = "".join(f'{{"command": "cat passwd", "cwd": "{place}"}}\n' for place in ("/etc", "/", str(boxed.workspace)))
    done = shellback(boxed, "policy", "check", typed=lines)
    assert [json.loads(line)["verdict"] for line in done.stdout.splitlines()] == [
        "needs_approval",
        "needs_approval",
        "read_only",
    ]
