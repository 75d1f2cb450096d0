"""Verdicts: denials, rules, tiers, and the two keys that replace a person; a mistake of ours asks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from app.exec import judge as judging
from app.exec.classify.model import CAPABILITIES, Judgement, Surroundings, Tier
from app.exec.errors import PathOutsideSandbox, PermissionDenied
from app.exec.judge import Judge, Keys, by_rules, judged
from app.exec.model import READ_ONLY, WORK, CommandSpec, WindowSize
from app.exec.policy import Asked, Verdict
from app.exec.rules.matching import Facts, Rules, Tiers
from app.exec.rules.rule import Match, Rule

pytestmark = pytest.mark.anyio


class Place:
    """Where commands would run."""

    name = "bubblewrap"

    def __init__(self, workspace: Path, *profiles: str) -> None:
        self.workspace = workspace
        self.profiles = frozenset(profiles or (WORK, READ_ONLY))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "a.txt").write_text("a\n")
    return Place(tmp_path)


def judge(place: Place, rules: Rules | None = None, **keys: bool) -> Judge:
    async def held(_conversation_id: str) -> Rules:
        return rules or Rules()

    return Judge(runs=place, secret=lambda path: path.name == ".env", keys=Keys(**keys), rules=held)


async def verdict(judge: Judge, command: str, **spec: object) -> Verdict:
    made = replace(CommandSpec(command=command, cwd=str(judge.runs.workspace)), **spec)
    return await judge.judge(Asked(tool="execute", conversation_id="c1", spec=made))


async def test_what_only_reads_runs_in_the_profile_that_holds_it(place: Place) -> None:
    said = await verdict(judge(place), "cat a.txt | wc -l")
    assert (said.decision, said.profile, said.by) == ("allow", READ_ONLY, "classifier")


@pytest.mark.parametrize(
    "command", ["touch b", "cat a.txt > b", "cat $(ls)", "cat .env", "cat /etc/shadow", "./cat a.txt"]
)
async def test_whatever_is_not_known_to_only_read_is_asked_for(place: Place, command: str) -> None:
    assert (await verdict(judge(place), command)).decision == "ask"


async def test_no_key_opens_for_a_terminal_or_for_an_environment(place: Place) -> None:
    assert (await verdict(judge(place), "cat a.txt", pty=WindowSize(24, 80))).decision == "ask"
    assert (await verdict(judge(place), "cat a.txt", env={"A": "1"})).decision == "ask"


async def test_the_classification_alone_opens_nothing(place: Place) -> None:
    bare = Place(place.workspace, WORK)
    assert (await verdict(judge(bare), "cat a.txt")).decision == "ask"
    trusted = await verdict(judge(bare, trust_classifier=True), "cat a.txt")
    assert (trusted.decision, trusted.profile, trusted.by) == ("allow", WORK, "trusted classifier")


async def test_the_risk_taken_for_a_host_changes_nothing_where_there_is_a_sandbox(place: Place) -> None:
    said = await verdict(judge(place, trust_classifier=True), "cat a.txt")
    assert (said.profile, said.by) == (READ_ONLY, "classifier")


async def test_switched_off_even_reading_asks(place: Place) -> None:
    assert (await verdict(judge(place, auto=False), "cat a.txt")).decision == "ask"


async def test_a_default_denial_is_beyond_any_rule(place: Place) -> None:
    anything = Rules(rules=(Rule(effect="allow", match=Match(prefix=("rm",))),))
    assert (await verdict(judge(place, anything), "rm -rf /")).decision == "deny"


async def test_deny_comes_before_ask_before_reading_before_allow(place: Place) -> None:
    def rules(*effects: str) -> Rules:
        return Rules(rules=tuple(Rule(effect=effect, match=Match(prefix=("cat",))) for effect in effects))  # type: ignore[arg-type]

    assert (await verdict(judge(place, rules("allow", "ask", "deny")), "cat a.txt")).decision == "deny"
    assert (await verdict(judge(place, rules("allow", "ask")), "cat a.txt")).decision == "ask"
    allowed = await verdict(judge(place, rules("allow")), "cat a.txt")
    assert (allowed.decision, allowed.profile, allowed.by) == ("allow", READ_ONLY, "classifier")


async def test_above_the_tier_a_strict_operator_refuses_with_both_tiers(place: Place) -> None:
    strict = Rules(tiers=Tiers(default=Tier.READ_WRITE, strict=True))
    said = await verdict(judge(place, strict), "sudo ls")
    assert said.decision == "deny"
    assert isinstance(said.error, PermissionDenied)
    assert str(said.error) == "permission denied: requires admin, have read_write"
    assert (await verdict(judge(place, strict), "touch b")).decision == "ask"


async def test_enforced_paths_refuse_what_leaves_them(place: Place) -> None:
    enforced = Rules(tiers=Tiers(strict_path_enforcement=True))
    said = await verdict(judge(place, enforced), "cat /root/secret")
    assert isinstance(said.error, PathOutsideSandbox)
    assert (await verdict(judge(place, enforced), "touch b")).decision == "ask"


async def test_input_to_a_session_passes_only_while_an_approval_stands_for_it(place: Place) -> None:
    async def stands(_conversation_id: str, session_id: str) -> str | None:
        return "a1" if session_id == "x1" else None

    told = replace(judge(place), standing=stands)
    for session_id, tool, decision in (
        ("x1", "process_write", "allow"),
        ("x1", "process_send_keys", "allow"),
        ("x1", "process_resize", "allow"),
        ("x2", "process_resize", "ask"),
        ("x2", "process_write", "ask"),
        ("x1", "process_kill", "ask"),
    ):
        said = await told.judge(Asked(tool=tool, conversation_id="c1", args={"session_id": session_id}))
        assert (session_id, tool, said.decision) == (session_id, tool, decision)


async def test_a_mistake_of_ours_asks_and_never_lets_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_command: str, _around: Surroundings) -> Judgement:
        raise RuntimeError("a bug")

    monkeypatch.setattr(judging, "classify", broken)
    said = await verdict(judge(place), "cat a.txt")
    assert (said.decision, said.shown["tier"]) == ("ask", "admin")


def test_a_rule_that_allows_makes_nothing_read_only(place: Place) -> None:
    around = judge(place).surroundings(place.workspace)
    facts = Facts(command="touch b", backend="bubblewrap", profile=WORK, conversation_id="", cwd=place.workspace)
    allow = Rules(rules=(Rule(effect="allow", match=Match(prefix=("touch",))),))
    assert by_rules(judged("touch b", around), facts, allow).verdict == "needs_approval"


def test_tiers_are_ordered_and_none_may_less_than_the_one_below() -> None:
    assert Tier.READ_ONLY < Tier.READ_WRITE < Tier.ADMIN
    given = [CAPABILITIES[tier] for tier in sorted(Tier)]
    assert all(a <= b for lower, higher in itertools.pairwise(given) for a, b in zip(lower, higher, strict=True))
    assert not given[0].fs_write
    assert not given[0].network
