"""Remembering offers a rule for exactly each command that was approved, and none that would allow anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules.matching import Facts, Rules
from shellback.exec.policy.rules.remember import DAY_S, rules_for
from shellback.exec.policy.rules.rule import Rule


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "run.sh").write_text("echo\n")
    return tmp_path.resolve()


def around(here: Path, *, sandboxed: bool = True) -> Surroundings:
    return Surroundings(cwd=here, allowed=(here,), secret=Secrets(), home=Path("/nonexistent"), sandboxed=sandboxed)


def facts(here: Path, command: str) -> Facts:
    return Facts(command=command, backend="bubblewrap", profile="work", conversation_id="c1", cwd=here, now=1000.0)


def offered(here: Path, command: str, *, everywhere: bool = False, days: int = 30) -> tuple[Rule, ...]:
    known = facts(here, command)
    return rules_for("execute", known, around(here), owner="ann", everywhere=everywhere, days=days)


def passes(here: Path, rules: tuple[Rule, ...], command: str, **other: Any) -> bool:
    known = replace(facts(here, command), **other)
    hit = Rules(rules).decide(classify(command, around(here)), known)
    return hit is not None and hit.effect == "allow"


@pytest.mark.parametrize(
    "command",
    ["npm test", "git push origin main", "npm ci && npm test", "touch a; touch b; touch a",
     "touch '*' '\\*' '$x' 'a b'", "git commit -m \"it's done\" 2>&1", "cat a.txt | wc -l; touch b"],
)  # fmt: skip
def test_what_is_offered_lets_exactly_this_line_run_again(here: Path, command: str) -> None:
    rules = offered(here, command)
    assert passes(here, rules, command)
    for wider in (f"{command} x", f"{command} && touch other", f"{command} > a.txt", f"A=b {command}"):
        assert not passes(here, rules, wider), wider


def test_a_rule_says_who_until_when_and_where(here: Path) -> None:
    (rule,) = offered(here, "npm test", days=7)
    assert (rule.owner, rule.created_at, rule.expires_at) == ("ann", 1000.0, 1000.0 + 7 * DAY_S)
    assert (rule.match.conversation_id, rule.match.backend, rule.match.profile) == ("c1", "bubblewrap", "work")
    assert rule.match.cwd == str(here)
    for part in ("exactly `npm test`", f"in {here}", "conversation c1", "until "):
        assert part in rule.described()


@pytest.mark.parametrize(
    "other", [{"conversation_id": "c2"}, {"backend": "host"}, {"profile": "read_only"}, {"more": True}]
)
def test_a_rule_holds_nowhere_else(here: Path, other: dict[str, object]) -> None:
    assert not passes(here, offered(here, "npm test"), "npm test", **other)


def test_a_rule_holds_in_its_directory_alone(here: Path) -> None:
    (here / "sub").mkdir()
    rules = offered(here, "npm test")
    assert not passes(here, rules, "npm test", cwd=here / "sub")
    assert not passes(here, rules, "cd sub && npm test")


def test_everywhere_is_every_conversation(here: Path) -> None:
    rules = offered(here, "npm test", everywhere=True)
    assert passes(here, rules, "npm test", conversation_id="c2")
    assert "every conversation" in rules[0].described()


def test_each_command_has_its_own_rule_and_what_only_reads_has_none(here: Path) -> None:
    rules = offered(here, "ls && git status && npm ci && rm -rf x")
    assert [rule.match.prefix for rule in rules] == [("npm", "ci"), ("rm", "-rf", "x")]
    assert not passes(here, rules[:1], "npm ci && rm -rf x")
    assert offered(here, "ls") == ()


def test_where_nothing_holds_a_command_to_reading_that_is_remembered_too(here: Path) -> None:
    (rule,) = rules_for("execute", facts(here, "ls | wc -l"), around(here, sandboxed=False), owner="ann")
    assert rule.match.prefix == ("ls",)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("bash -c 'npm test'", "bash runs whatever code"),
        ("python3 -c 'x'", "python3 runs whatever code"),
        ("python3 manage.py test", "python3 runs whatever code"),
        ("awk 'BEGIN { system(\"x\") }'", "awk runs whatever code"),
        ("xargs rm", "xargs runs another command"),
        ("env npm test", "env runs another command"),
        ("timeout 5 npm test", "timeout runs another command"),
        ("find . -exec rm {} ;", "find runs another command"),
        ("sudo npm test", "tier admin"),
        ("./run.sh", "content may change"),
        ("ssh host ls", "ssh runs another command"),
        ("eval x", "eval"),
        ("npm test > a.txt", "redirects"),
        ("A=b npm test", "sets variables"),
        ("touch *", "words that stand for others"),
        ("touch ~/x", "words that stand for others"),
        ("touch $X", "not understood"),
        ("touch $(date)", "words that stand for others"),
        ("cat a.txt | tee b", "pipe is not part of a rule"),
        ("cd sub && npm test", "changes the directory"),
        ("f() { npm test; }; f", "not understood"),
        ("npm test && bash x", "`bash x` cannot be remembered"),
    ],
)  # fmt: skip
def test_what_would_allow_anything_is_not_offered(here: Path, command: str, why: str) -> None:
    with pytest.raises(InvalidCommand, match="cannot be remembered") as refusal:
        offered(here, command)
    assert why in str(refusal.value)
    assert "approve it each time" in str(refusal.value)


def test_what_is_denied_is_not_offered(here: Path) -> None:
    with pytest.raises(InvalidCommand, match="nothing may allow it"):
        offered(here, "ls (")


def test_only_calls_of_execute_are_remembered(here: Path) -> None:
    with pytest.raises(InvalidCommand, match="a call of execute_pty cannot be remembered"):
        rules_for("execute_pty", facts(here, "npm test"), around(here), owner="ann")
    with pytest.raises(InvalidCommand, match="environment, input or a terminal"):
        rules_for("execute", replace(facts(here, "npm test"), more=True), around(here), owner="ann")


@pytest.mark.parametrize("days", [0, -1, 366])
def test_a_rule_ends_within_a_year(here: Path, days: int) -> None:
    with pytest.raises(InvalidCommand, match="1 to 365 days"):
        offered(here, "npm test", days=days)
