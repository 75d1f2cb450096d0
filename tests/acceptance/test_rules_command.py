"""`shellback rules`: what is said beforehand is shown before it holds, is found again, and is taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    """A place without a worker."""
    with stage() as made:
        told(made, "migrate")
        yield made


def added(place: Stage, *args: str) -> str:
    return facts(told(place, "rules", "add", "--json", *args))["id"]


def said(place: Stage, command: str, *args: str) -> dict[str, object]:
    return facts(told(place, "rules", "test", "--json", *args, command))


def test_a_rule_is_saved_tried_listed_and_revoked(place: Stage) -> None:
    shown = told(place, "rules", "add", "allow", "--note", "builds", "--", "npm", "test", "--silent")
    rule_id = shown.stdout.split()[0]
    assert "exactly `npm test --silent`" in shown.stdout
    assert "every conversation" in shown.stdout
    assert "until 20" in shown.stdout

    assert said(place, "npm test --silent")["rules"] == [rule_id]
    for other in ("npm test", "npm test --silent x", "npm test --silent && rm -rf x", "npm test --silent > x"):
        assert said(place, other)["effect"] is None, other

    listed = told(place, "rules", "list").stdout
    assert rule_id in listed
    assert "used 0 times" in listed
    assert "(builds)" in listed

    revoked = told(place, "rules", "revoke", rule_id[:6])
    assert f"{rule_id} revoked" in revoked.stdout
    assert said(place, "npm test --silent")["effect"] is None
    assert rule_id not in told(place, "rules", "list").stdout
    ended = {one["id"]: one for one in facts(told(place, "rules", "list", "--all", "--json"))}
    assert ended[rule_id]["state"] == "revoked"
    assert ended[rule_id]["revoked_by"]


def test_adding_and_revoking_are_in_the_audit(place: Stage) -> None:
    rule_id = added(place, "deny", "--", "terraform", "destroy")
    told(place, "rules", "revoke", rule_id)
    entries = [json.loads(line) for line in told(place, "audit", "--json").stdout.splitlines()]
    assert [one["event"] for one in entries if one["rule"] == rule_id] == ["rule_added", "rule_revoked"]


def test_a_deny_holds_for_whatever_follows_and_for_good(place: Stage) -> None:
    rule_id = added(place, "deny", "--", "git", "push")
    try:
        hit = said(place, "ls && sudo git -C x push --force")
        assert (hit["effect"], hit["source"]) == ("deny", "saved")
        assert (
            next(one for one in facts(told(place, "rules", "list", "--json")) if one["id"] == rule_id)["expires_at"]
            is None
        )
    finally:
        told(place, "rules", "revoke", rule_id)


def test_the_file_and_the_saved_ones_are_listed_and_hold_together(place: Stage) -> None:
    file = place.root / "rules.toml"
    file.write_text('[[rules]]\neffect = "ask"\nprefix = ["npm"]\nnote = "watch it"\n')
    file.chmod(0o600)
    allow = added(place, "allow", "--", "npm", "ci")
    try:
        listed = told(place, "rules", "list", POLICY_FILE=str(file)).stdout
        assert f"{file}:1  ask `npm` and whatever follows" in listed
        assert allow in listed
        tried = told(place, "rules", "test", "npm ci", POLICY_FILE=str(file))
        assert tried.stdout.startswith(f"ask: rule {file}:1")
        assert told(place, "rules", "test", "npm ci").stdout.startswith(f"allow: rule saved {allow}")
    finally:
        told(place, "rules", "revoke", allow)


def test_nothing_changes_a_denial(place: Stage) -> None:
    rule_id = added(place, "allow", "--prefix", "--", "rm", "-rf")
    try:
        tried = told(place, "rules", "test", "rm -rf /")
        assert tried.stdout.startswith(
            "no rule can change this verdict; the command is refused, because it would remove /"
        )
    finally:
        told(place, "rules", "revoke", rule_id)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("add", "allow", "--prefix", "--", "bash"), ("would allow any code", "add the words")),
        (("add", "allow", "--", "*"), ("the program is any word",)),
        (("add", "allow", "--", "npm test"), ("one word with a blank",)),
        (("add", "allow", "--path", "a/**/../b", "--", "rm"), ("--path", "leads anywhere")),
        (("add", "maybe", "--", "ls"), ("maybe",)),
        (("add", "allow"), ("give the words of a command, or --connect",)),
        (("add", "allow", "--days", "1000", "--", "make"), ("--days",)),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(place: Stage, args: tuple[str, ...], parts: tuple[str, ...]) -> None:
    assert_refused(told(place, "rules", *args), *parts)


@pytest.mark.parametrize("rule_id", ["nothere", ""])
def test_an_unknown_rule_cannot_be_revoked(place: Stage, rule_id: str) -> None:
    refused = shellback(place, "rules", "revoke", rule_id)
    assert_refused(refused, f"no saved rule has the id '{rule_id}'", "shellback rules list")


@pytest.mark.parametrize("command", ["rules list", "rules test ls", "worker"])
def test_a_wrong_file_stops_every_use_of_it(place: Stage, command: str) -> None:
    file = place.root / "wrong.toml"
    file.write_text('[[rules]]\neffect = "alow"\nprefix = ["make"]\n')
    file.chmod(0o600)
    refused = shellback(place, *command.split(), POLICY_FILE=str(file))
    assert_refused(refused, f"{file}:2: effect: it is 'alow'", "allow, ask, deny")
