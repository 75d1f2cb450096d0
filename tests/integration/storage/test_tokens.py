"""Tokens of clients: only their digest is kept, and they end once, by a person or by the clock of the database."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from shellback.storage import tables, tokens
from shellback.storage.db import Database
from shellback.storage.errors import TokenRefused


def made(database: Database, name: str, lasts_s: float | None = None) -> tuple[str, tokens.Token]:
    return database.write_now(tokens.add, name, kind="mcp", conversations=["build"], lasts_s=lasts_s, owner="me")


def test_a_token_is_found_by_its_text_and_the_database_does_not_hold_it(database: Database) -> None:
    text, token = made(database, "laptop")
    assert text.startswith(tokens.PREFIX)
    found = database.read_now(tokens.of_digests, [tokens.digest_of(text)])
    assert found == {token.digest: token}
    assert (token.state, token.may("build"), token.may("other")) == ("active", True, False)
    (row,) = database.read_now(lambda conn: conn.execute(sa.select(tables.tokens)).mappings().all())
    assert text.removeprefix(tokens.PREFIX) not in repr(dict(row))
    assert database.read_now(tokens.of_digests, [tokens.digest_of(f"{text}x")]) == {}


def test_a_revoked_token_is_in_force_no_more_and_its_name_is_free_again(database: Database) -> None:
    text, token = made(database, "laptop")
    with pytest.raises(TokenRefused, match="in force"):
        made(database, "laptop")
    assert database.write_now(tokens.revoke, "laptop", by="you").revoked_by == "you"
    with pytest.raises(TokenRefused, match="no token in force"):
        database.write_now(tokens.revoke, "laptop", by="you")
    other, _ = made(database, "laptop")
    assert other != text
    states = {one.digest: one.state for one in database.read_now(tokens.find, everything=True)}
    assert states == {token.digest: "revoked", tokens.digest_of(other): "active"}


def test_a_token_expires_by_itself_and_is_forgotten_after_a_month(database: Database) -> None:
    text, token = made(database, "laptop", lasts_s=3600.0)
    assert token.left_s == pytest.approx(3600.0)
    past = sa.update(tables.tokens).values(expires_at=time.time() - 1)
    database.write_now(lambda conn: conn.execute(past))
    assert database.read_now(tokens.of_digests, [tokens.digest_of(text)])[token.digest].state == "expired"
    assert database.read_now(tokens.find) == []
    long_past = sa.update(tables.tokens).values(expires_at=time.time() - 40 * 86_400)
    database.write_now(lambda conn: conn.execute(long_past))
    made(database, "other")
    assert [one.name for one in database.read_now(tokens.find, everything=True)] == ["other"]


def test_names_and_numbers_of_tokens_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", " ", "x" * 101, "a\nb"):
        with pytest.raises(TokenRefused, match="a name of 1 to 100"):
            made(database, name)
    monkeypatch.setattr(tokens, "LIMIT", 1)
    made(database, "one")
    with pytest.raises(TokenRefused, match="1 tokens are in force"):
        made(database, "two")
