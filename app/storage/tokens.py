"""Tokens by which clients over HTTP prove who they are, until they expire or are revoked. Times are the database's.

Only the SHA-256 of a token is kept. A token has 256 random bits, so that no one finds it by its digest, and so a look
for its digest tells nothing by the time that it takes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.errors import TokenRefused
from shellback.storage.tables import tokens

PREFIX: Final = "sbk_"
"""How a token begins, so that people and scanners of secrets know one."""
LIMIT: Final = 500
"""Tokens in force at once."""
KEPT_S: Final = 30 * 86_400.0
"""How long a token that has ended stays listed."""
_NAME_CHARS: Final = 100

State = Literal["active", "expired", "revoked"]
Kind = Literal["mcp", "api"]
"""What a token opens: the tools, whose calls ask a person, or what a person does. None opens both: with it a client
would allow what it has asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token allows. `conversations` None: all; `groups` None: the default; `left_s` None: it does not expire."""

    digest: str
    name: str
    kind: Kind
    conversations: tuple[str, ...] | None
    groups: tuple[str, ...] | None
    owner: str
    created_at: float
    expires_at: float | None
    state: State
    left_s: float | None
    revoked_at: float | None = None
    revoked_by: str | None = None

    def may(self, conversation: str) -> bool:
        """Whether it is for this conversation."""
        return self.conversations is None or conversation in self.conversations


def add(
    conn: sa.Connection,
    name: str,
    *,
    kind: Kind,
    conversations: Collection[str] | None,
    groups: Collection[str] | None = None,
    lasts_s: float | None,
    owner: str,
) -> tuple[str, Token]:
    """Make a token; its text is returned here and never again.

    Raises:
        TokenRefused: The name is empty, too long or that of a token in force, or there are too many of them.
    """
    if not (name.strip() and name.isprintable() and len(name) <= _NAME_CHARS):
        raise TokenRefused(f"a token needs a name of 1 to {_NAME_CHARS} printable characters")
    rows.lock_name(conn, "shellback tokens")
    now = rows.now(conn)
    conn.execute(
        sa.delete(tokens).where(sa.or_(tokens.c.revoked_at < now - KEPT_S, tokens.c.expires_at < now - KEPT_S))
    )
    there = find(conn)
    if any(one.name == name for one in there):
        raise TokenRefused(
            f"a token named {name!r} is in force: revoke it first (`shellback tokens revoke`), or give another name"
        )
    if len(there) >= LIMIT:
        raise TokenRefused(f"{LIMIT} tokens are in force; revoke one first: `shellback tokens list`")
    text = PREFIX + secrets.token_urlsafe(32)
    row = {
        "digest": digest_of(text), "name": name, "kind": kind,
        "conversations": None if conversations is None else [*conversations],
        "groups": None if groups is None else [*groups], "owner": owner[:_NAME_CHARS], "created_at": now,
        "expires_at": None if lasts_s is None else now + lasts_s,
    }  # fmt: skip
    conn.execute(sa.insert(tokens).values(row))
    return text, _token(conn.execute(sa.select(tokens).where(tokens.c.digest == row["digest"])).one(), now)


def digest_of(text: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def find(conn: sa.Connection, *, everything: bool = False) -> list[Token]:
    """The tokens in force, oldest first; with `everything` also those that have ended lately."""
    now = rows.now(conn)
    found = [_token(row, now) for row in conn.execute(sa.select(tokens).order_by(tokens.c.created_at, tokens.c.name))]
    return [one for one in found if everything or one.state == "active"]


def of_digests(conn: sa.Connection, digests: Collection[str]) -> dict[str, Token]:
    """The tokens with these digests, in force or not."""
    now = rows.now(conn)
    query = sa.select(tokens).where(tokens.c.digest.in_(digests))
    return {row.digest: _token(row, now) for row in conn.execute(query)}


def revoke(conn: sa.Connection, name: str, *, by: str) -> Token:
    """Revoke the token in force with this name.

    Raises:
        TokenRefused: None has it.
    """
    rows.lock_name(conn, "shellback tokens")
    token = next((one for one in find(conn) if one.name == name), None)
    if token is None:
        raise TokenRefused(f"no token in force has the name {name!r}; `shellback tokens list` shows them")
    rows.change(conn, tokens, token.digest, revoked_at=rows.now(conn), revoked_by=by[:_NAME_CHARS])
    return of_digests(conn, [token.digest])[token.digest]


def _token(row: sa.Row[Any], now: float) -> Token:
    left_s = None if row.expires_at is None else row.expires_at - now
    ended: State | None = "revoked" if row.revoked_at is not None else None
    return Token(
        digest=row.digest,
        name=row.name,
        kind=row.kind,
        conversations=None if row.conversations is None else tuple(row.conversations),
        groups=None if row.groups is None else tuple(row.groups),
        owner=row.owner,
        created_at=row.created_at,
        expires_at=row.expires_at,
        state=ended or ("active" if left_s is None or left_s > 0 else "expired"),
        left_s=left_s,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
    )
