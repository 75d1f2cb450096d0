"""Accounts and logins: only hashes are kept, a link is used once, and logins end by themselves and by a person."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from shellback.storage import accounts, tables
from shellback.storage.db import Database
from shellback.storage.errors import AccountRefused
from shellback.storage.tokens import digest_of


def made(database: Database, name: str = "ada") -> str:
    """The secret of the link of a new account."""
    return database.write_now(accounts.add, name, role="approver", owner="test")


def login(database: Database, name: str = "ada") -> str | None:
    return database.write_now(accounts.log_in, name, password="hash", program="a browser")


def entered(database: Database, name: str = "ada") -> str:
    """The secret of a login of a new account."""
    assert database.write_now(accounts.accept, made(database, name), "hash") is not None
    secret = login(database, name)
    assert secret is not None
    return secret


def found(database: Database, secret: str) -> accounts.Login | None:
    return database.read_now(accounts.of_digests, [digest_of(secret)]).get(digest_of(secret))


def everything(conn: sa.Connection, table: sa.Table) -> list[sa.Row[Any]]:
    return [*conn.execute(sa.select(table))]


def test_a_link_sets_a_password_once_and_the_database_holds_no_secret(database: Database) -> None:
    link = made(database)
    invited = database.read_now(accounts.invited, link)
    assert invited is not None
    assert (invited.name, invited.role, invited.has_password, invited.invited) == ("ada", "approver", False, True)
    assert database.write_now(accounts.accept, link, "hash") is not None
    assert database.write_now(accounts.accept, link, "another") is None
    assert database.read_now(accounts.password_of, "ada") == "hash"
    secret = login(database)
    assert secret is not None
    for table in (tables.accounts, tables.logins):
        held = repr(database.read_now(everything, table))
        assert link not in held
        assert secret not in held


def test_a_link_is_not_in_force_after_fifteen_minutes_or_when_a_newer_one_was_made(database: Database) -> None:
    old = made(database)
    new = database.write_now(accounts.invite, "ada")
    assert database.read_now(accounts.invited, old) is None
    assert database.write_now(accounts.accept, old, "hash") is None
    past = sa.update(tables.accounts).values(link_expires_at=tables.accounts.c.link_expires_at - accounts.LINK_S - 1)
    database.write_now(lambda conn: conn.execute(past))
    assert database.write_now(accounts.accept, new, "hash") is None
    assert [one.invited for one in database.read_now(accounts.find)] == [False]


@pytest.mark.parametrize(
    ("column", "age_s"), [("used_at", accounts.IDLE_S), ("created_at", accounts.LOGIN_S)], ids=["unused", "old"]
)
def test_a_login_ends_by_itself(database: Database, column: str, age_s: float) -> None:
    secret = entered(database)
    there = found(database, secret)
    assert there is not None
    assert (there.state, there.name) == ("active", "ada")
    of = tables.logins.c[column]
    database.write_now(lambda conn: conn.execute(sa.update(tables.logins).values({column: of - age_s - 1})))
    ended = found(database, secret)
    assert ended is not None
    assert ended.state == "expired"
    assert database.read_now(accounts.logged_in) == []
    login(database)
    assert found(database, secret) is None


def test_a_login_that_is_used_ends_later(database: Database) -> None:
    secret = entered(database)
    past = sa.update(tables.logins).values(used_at=tables.logins.c.used_at - 3600)
    database.write_now(lambda conn: conn.execute(past))
    before = found(database, secret)
    database.write_now(accounts.used, digest_of(secret))
    after = found(database, secret)
    assert before is not None
    assert after is not None
    assert after.left_s - before.left_s == pytest.approx(3600, abs=60)


def test_a_new_password_ends_all_logins_and_so_does_the_end_of_the_account(database: Database) -> None:
    secret, other = entered(database), entered(database, "bob")
    link = database.write_now(accounts.invite, "ada")
    assert found(database, secret) is not None
    assert database.write_now(accounts.accept, link, "new") is not None
    assert found(database, secret) is None
    # Whoever was asked for the old password meanwhile does not get in by it.
    assert login(database) is None
    database.write_now(accounts.remove, "bob")
    assert found(database, other) is None
    with pytest.raises(AccountRefused, match="no account 'bob'"):
        database.write_now(accounts.remove, "bob")


def test_one_login_or_all_of_an_account_are_ended(database: Database) -> None:
    first, other = entered(database), entered(database, "bob")
    second = login(database)
    assert second is not None
    assert database.write_now(accounts.log_out, "bob", digest_of(first)) == 0
    assert database.write_now(accounts.log_out, "ada", digest_of(first)[:8]) == 1
    assert found(database, first) is None
    assert found(database, second) is not None
    assert database.write_now(accounts.log_out, "ada") == 1
    assert [one.name for one in database.read_now(accounts.logged_in)] == ["bob"]
    assert found(database, other) is not None


def test_accounts_names_and_logins_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", " ada", "a b", "x" * 65, "a\n", "../a", "é"):
        with pytest.raises(AccountRefused, match="a name of 1 to 64"):
            made(database, name)
    monkeypatch.setattr(accounts, "LOGINS", 2)
    first = entered(database)
    assert [login(database), login(database)].count(None) == 0
    assert found(database, first) is None
    with pytest.raises(AccountRefused, match="there is an account 'ada'"):
        made(database)
    monkeypatch.setattr(accounts, "LIMIT", 1)
    with pytest.raises(AccountRefused, match="there are 1 accounts"):
        made(database, "bob")


def test_a_role_may_do_what_those_before_it_may(database: Database) -> None:
    made(database)
    (ada,) = database.read_now(accounts.find)
    assert [ada.may(role) for role in accounts.ROLES] == [True, True, False]
