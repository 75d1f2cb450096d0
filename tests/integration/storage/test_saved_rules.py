"""Saved rules on both databases: one of a kind, bounded, counted with the claim, ended for good."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import CommandDenied, InvalidCommand, LimitReached
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.storage import rules as store
from shellback.storage.db import Database
from shellback.storage.rows import now
from shellback.storage.tables import rules


def wanted(database: Database, *prefix: str, days: float | None = 1.0, **match: Any) -> Rule:
    expires_at = None if days is None else database.read_now(now) + days * 86_400
    return Rule(
        effect="allow",
        match=Match(prefix=prefix, exact=True, **match),
        owner="ann",
        expires_at=expires_at,
        saved=True,
    )


def save(database: Database, *given: Rule) -> list[Rule]:
    return database.write_now(store.add, given)


def test_a_rule_comes_back_as_it_was_saved(database: Database) -> None:
    rule = wanted(
        database, "rm", "-r", "\\*", tier=Tier.READ_WRITE, paths=("/ws/build/**",), piped=True, cwd="/ws",
        backend="bubblewrap", profile="work", conversation_id="c1", agent="builder",
    )  # fmt: skip
    (saved,) = save(database, replace(rule, note="why"))
    (found,) = database.read_now(store.live, "c1")
    assert found == saved
    assert found == replace(rule, note="why", id=saved.id, created_at=saved.created_at)


def test_a_conversation_sees_its_own_rules_and_those_of_every_one(database: Database) -> None:
    save(database, wanted(database, "a", conversation_id="c1"), wanted(database, "b"))
    assert {rule.match.prefix for rule in database.read_now(store.live, "c1")} == {("a",), ("b",)}
    assert {rule.match.prefix for rule in database.read_now(store.live, "c2")} == {("b",)}
    assert len(database.read_now(store.live, None)) == 2


def test_the_same_rule_again_is_one_and_lasts_as_long_as_the_longer(database: Database) -> None:
    short = wanted(database, "make")
    long = wanted(database, "make", days=9)
    (first,) = save(database, short)
    (second,) = save(database, long)
    (third,) = save(database, short)
    assert first.id == second.id == third.id
    assert third.expires_at == long.expires_at
    assert len(database.read_now(store.find)) == 1


def test_a_revoked_rule_is_gone_for_good_and_says_by_whom(database: Database) -> None:
    (rule,) = save(database, wanted(database, "make"))
    ended = database.write_now(store.revoke, rule.id[:5], by="bob")
    again = database.write_now(store.revoke, rule.id, by="eve")
    assert (ended.state, ended.revoked_by, again.revoked_by) == ("revoked", "bob", "bob")
    assert database.read_now(store.live, None) == ()
    assert database.read_now(store.find) == []
    assert [one.rule.id for one in database.read_now(store.find, everything=True)] == [rule.id]
    assert save(database, wanted(database, "make"))[0].id != rule.id


@pytest.mark.parametrize("rule_id", ["", "x", "%", "r_"])
def test_a_rule_is_revoked_by_a_name_that_is_its_own(database: Database, rule_id: str) -> None:
    save(database, wanted(database, "make"), wanted(database, "build"))
    with pytest.raises(InvalidCommand, match="no saved rule has the id"):
        database.write_now(store.revoke, rule_id, by="bob")
    with pytest.raises(InvalidCommand, match="the beginning of more than one"):
        database.write_now(store.revoke, "r", by="bob")


def test_a_use_is_counted_in_the_transaction_that_it_is_part_of(database: Database) -> None:
    (rule,) = save(database, wanted(database, "make"))

    def undone(conn: sa.Connection) -> None:
        store.use(conn, [rule.id])
        raise RuntimeError("the claim came to nothing")

    database.write_now(store.use, [rule.id, rule.id])
    with pytest.raises(RuntimeError):
        database.write_now(undone)
    (found,) = database.read_now(store.find)
    assert found.rule.uses == 1
    assert found.used_at is not None


def test_uses_at_once_are_all_counted(database: Database) -> None:
    saved = save(database, wanted(database, "a"), wanted(database, "b"))
    ids = [rule.id for rule in saved]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(database.write_now, store.use, order) for order in (ids, ids[::-1]) * 20]:
            done.result()
    assert [one.rule.uses for one in database.read_now(store.find)] == [40, 40]


def test_a_rule_that_ended_meanwhile_lets_nothing_start(database: Database) -> None:
    revoked, expired = save(database, wanted(database, "a"), wanted(database, "b", days=-0.1))
    database.write_now(store.revoke, revoked.id, by="bob")
    with pytest.raises(CommandDenied, match="was revoked meanwhile; nothing was started"):
        database.write_now(store.use, [revoked.id])
    with pytest.raises(CommandDenied, match="has expired meanwhile"):
        database.write_now(store.use, [expired.id])
    with pytest.raises(CommandDenied, match="was revoked meanwhile"):
        database.write_now(store.use, ["rnever"])
    assert database.read_now(store.live, None) == ()


def test_rules_are_bounded_all_or_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SAVED", 3)
    save(database, wanted(database, "a"), wanted(database, "b"))
    with pytest.raises(LimitReached, match=r"3 rules are in force; revoke one"):
        save(database, wanted(database, "c"), wanted(database, "d"))
    assert len(database.read_now(store.live, None)) == 2
    save(database, wanted(database, "c"))
    save(database, wanted(database, "a"))


def test_what_ended_long_ago_is_forgotten_by_the_next_that_is_saved(database: Database) -> None:
    save(database, wanted(database, "old", days=-31), wanted(database, "lately", days=-29))
    save(database, wanted(database, "new"))
    found = database.read_now(store.find, everything=True)
    assert sorted(one.rule.match.prefix for one in found) == [("lately",), ("new",)]
    assert database.read_now(lambda conn: conn.execute(sa.select(sa.func.count()).select_from(rules)).scalar_one()) == 2
