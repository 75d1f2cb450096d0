"""What policy let happen, or refused, without a person is in the audit, with the claim or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import workspace_scope
from shellback.exec.core.model import READ_ONLY, Act, CallKey, CommandSpec
from shellback.exec.policy.judge import CLASSIFIER, TRUSTED
from shellback.exec.policy.policy import Asked, Verdict, Withheld
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.storage import rules, sessions
from shellback.storage.db import Database
from shellback.work.approvals import audit, verdicts
from tests.sessions import a_session

pytestmark = pytest.mark.anyio


class Says:
    """A policy that denies everything."""

    asking = "Nothing runs."

    async def judge(self, asked: Asked) -> Verdict:
        return Verdict(decision="deny", reason="no")

    async def withheld(self, conversation_id: str) -> Withheld:
        return lambda _: None

    async def refused(self, asked: Asked, why: Exception) -> None:
        raise AssertionError("whoever keeps the audit notes it")


def told(database: Database) -> list[tuple[str, str | None]]:
    return [(one.event, one.done_by) for one in database.read_now(audit.find)]


def test_a_saved_rule_is_used_with_the_claim_that_it_allows_or_nothing_is_claimed(database: Database) -> None:
    rule = Rule(effect="allow", match=Match(prefix=("make",)), owner="ann", saved=True)
    (saved,) = database.write_now(rules.add, [rule])
    session = replace(a_session(1), granted_by=f"rule {saved.id}")
    database.write_now(sessions.claim, session, within=verdicts.claim)
    (found,) = database.read_now(rules.find)
    assert found.rule.uses == 1
    database.write_now(rules.revoke, saved.id, by="ann")
    late = replace(a_session(2), granted_by=f"rule {saved.id}")
    with pytest.raises(CommandDenied, match="was revoked meanwhile"):
        database.write_now(sessions.claim, late, within=verdicts.claim)
    assert [one.id for one in database.read_now(sessions.find)] == [session.id]
    assert told(database) == [("rule", f"rule {saved.id}")]


def test_a_saved_rule_is_used_with_the_call_that_it_allows_or_nothing_is_begun(database: Database) -> None:
    (saved,) = database.write_now(rules.add, [Rule(effect="allow", match=Match(prefix=("write_file",)), saved=True)])
    act = Act(
        key=CallKey("k1"),
        session_id=workspace_scope("c1"),
        tool="write_file",
        conversation_id="c1",
        granted_by=f"rule {saved.id}",
    )
    assert database.write_now(sessions.begin, act, verdicts.begun) is None
    assert [one.rule.uses for one in database.read_now(rules.find)] == [1]
    database.write_now(rules.revoke, saved.id, by="ann")
    with pytest.raises(CommandDenied, match="was revoked meanwhile"):
        database.write_now(sessions.begin, replace(act, key=CallKey("k2")), verdicts.begun)
    assert database.read_now(sessions.recalled, CallKey("k2")) is None
    assert told(database) == [("rule", f"rule {saved.id}")]


def test_who_let_a_command_run_without_a_person_is_in_the_audit(database: Database) -> None:
    for number, by in enumerate((CLASSIFIER, TRUSTED, "policy /etc/shellback.toml:3"), 1):
        session = replace(a_session(number), granted_by=by, profile=READ_ONLY)
        database.write_now(sessions.claim, session, within=verdicts.claim)
    assert sorted(told(database)) == [
        ("auto_approved", CLASSIFIER),
        ("auto_approved", TRUSTED),
        ("rule", "policy /etc/shellback.toml:3"),
    ]


async def test_what_policy_refuses_is_in_the_audit_once_for_each_call(database: Database, tmp_path: Path) -> None:
    audited = verdicts.Audited(Says(), database)
    asked = Asked(
        tool="execute", conversation_id="c1", call_key="k1", spec=CommandSpec(command="rm -rf /", cwd=str(tmp_path))
    )
    assert (await audited.judge(asked)).decision == "deny"
    for _ in range(2):
        await audited.refused(asked, CommandDenied("refused by policy"))
    (entry,) = database.read_now(audit.find)
    assert (entry.event, entry.tool, entry.reason) == ("refused", "execute", "refused by policy")
