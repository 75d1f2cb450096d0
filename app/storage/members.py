"""The machines that run turns for a host elsewhere: invited once, known by their certificates, until they are revoked.

The database is the authority: a certificate is trusted while its row says so. Times are the database's.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.errors import MemberRefused
from shellback.storage.tables import members
from shellback.storage.tokens import digest_of

PREFIX: Final = "shi_"
"""How an invitation begins, so that people and scanners of secrets know one."""
LASTS_S: Final = 3600.0
LIMIT: Final = 200
"""Machines of one host, and invitations in force."""
_HOST: Final = ""
State = Literal["invited", "expired", "joined", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine that is invited to run turns for a host, or has joined it."""

    host_id: str
    name: str
    state: State
    created_at: float
    expires_at: float | None
    joined_at: float | None
    revoked_at: float | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a host listens for its workers elsewhere, and its certificate (PEM)."""

    address: str
    certificate: str


def listen(conn: sa.Connection, host_id: str, address: str, certificate: str) -> None:
    """Tell machines that join where this host listens."""
    its = {"certificate": certificate, "fingerprint": None, "address": address, "revoked_at": None}
    rows.put(conn, members, _id(host_id, _HOST), host_id=host_id, name=_HOST, created_at=rows.now(conn), **its)


def listening(conn: sa.Connection, host_id: str) -> Listening | None:
    """Where a host listens; None if it never did."""
    row = conn.execute(sa.select(members).where(members.c.id == _id(host_id, _HOST))).one_or_none()
    return None if row is None else Listening(row.address, row.certificate)


def invite(conn: sa.Connection, host_id: str, name: str, *, lasts_s: float = LASTS_S) -> tuple[str, Member]:
    """Invite a machine under a name; the text of the invitation is returned here and never again.

    It replaces an invitation of this name that was not used, and one that was revoked.

    Raises:
        MemberRefused: A machine has joined under this name, or there are too many.
    """
    now, key = rows.now(conn), _id(host_id, name)
    before = rows.lock_row(conn, members, key)
    if before is not None and before["certificate"] is not None and before["revoked_at"] is None:
        raise MemberRefused(
            f"a machine has joined as {name!r}: give another name, or revoke it first (`shellback hosts revoke {name}`)"
        )
    if sum(one.state in {"joined", "invited"} for one in of_host(conn, host_id)) >= LIMIT:
        raise MemberRefused(f"this host has {LIMIT} machines; `shellback hosts members` lists them")
    text = PREFIX + secrets.token_urlsafe(32)
    row: dict[str, Any] = {
        "host_id": host_id, "name": name, "invitation": digest_of(text), "expires_at": now + lasts_s,
        "certificate": None, "fingerprint": None, "created_at": now, "joined_at": None, "revoked_at": None,
    }  # fmt: skip
    rows.put(conn, members, key, **row)
    return text, _member(conn.execute(sa.select(members).where(members.c.id == key)).one(), now)


def join(conn: sa.Connection, text: str, certificate: str, fingerprint: str) -> Member:
    """Use an invitation: from now on the machine with this certificate is trusted.

    Raises:
        MemberRefused: It is not known in this database, was used, has expired or was revoked, or the machine has
            joined already.
    """
    query = sa.select(members).where(members.c.invitation == digest_of(text.strip())).with_for_update()
    row, now = conn.execute(query).one_or_none(), rows.now(conn)
    again = "; `shellback hosts invite NAME` on the host prints another one"
    if row is None:
        raise MemberRefused(f"this invitation was used or replaced, or is not of this database (DATABASE_URL){again}")
    if row.revoked_at is not None or row.expires_at < now:
        raise MemberRefused(f"this invitation {'was revoked' if row.revoked_at is not None else 'has expired'}{again}")
    if trusts(conn, row.host_id, fingerprint):
        raise MemberRefused("this machine has joined that host already: `shellback hosts members` there lists its name")
    values = {"certificate": certificate, "fingerprint": fingerprint, "joined_at": now, "invitation": None}
    rows.change(conn, members, row.id, **values)
    return _member(conn.execute(sa.select(members).where(members.c.id == row.id)).one(), now)


def revoke(conn: sa.Connection, host_id: str, name: str) -> Member:
    """Trust a machine no more, or let its invitation be used no more.

    Raises:
        MemberRefused: None of this host has the name.
    """
    key, now = _id(host_id, name), rows.now(conn)
    if not name or rows.lock_row(conn, members, key) is None:
        raise MemberRefused(f"no machine of this host is named {name!r}; `shellback hosts members` lists them")
    rows.change_some(conn, members, members.c.id == key, members.c.revoked_at.is_(None), revoked_at=now)
    return _member(conn.execute(sa.select(members).where(members.c.id == key)).one(), now)


def of_host(conn: sa.Connection, host_id: str) -> list[Member]:
    """The machines of a host, in the order of their names."""
    query = sa.select(members).where(members.c.host_id == host_id, members.c.name != _HOST).order_by(members.c.name)
    now = rows.now(conn)
    return [_member(row, now) for row in conn.execute(query)]


def hosts_of(conn: sa.Connection, fingerprint: str) -> set[str]:
    """The hosts that trust the machine with this certificate now."""
    its = members.c
    known = its.name != _HOST, its.fingerprint == fingerprint, its.revoked_at.is_(None)
    return set(conn.execute(sa.select(its.host_id).where(*known)).scalars())


def trusts(conn: sa.Connection, host_id: str, fingerprint: str) -> bool:
    """Whether the machine with this certificate is trusted now."""
    its = members.c
    known = its.host_id == host_id, its.name != _HOST, its.fingerprint == fingerprint, its.revoked_at.is_(None)
    return rows.exists(conn, sa.select(sa.literal(1)).where(*known))


def trusted(conn: sa.Connection, host_id: str) -> dict[str, str]:
    """The certificates (PEM) that are trusted now, by their fingerprints."""
    its = members.c
    query = sa.select(its.fingerprint, its.certificate).where(
        its.host_id == host_id, its.name != _HOST, its.fingerprint.is_not(None), its.revoked_at.is_(None)
    )
    return {row.fingerprint: row.certificate for row in conn.execute(query)}


def _id(host_id: str, name: str) -> str:
    return f"{host_id}/{name}"


def _member(row: sa.Row[Any], now: float) -> Member:
    state: State = "joined" if row.certificate is not None else "invited"
    if state == "invited" and row.expires_at < now:
        state = "expired"
    return Member(
        host_id=row.host_id,
        name=row.name,
        state="revoked" if row.revoked_at is not None else state,
        created_at=row.created_at,
        expires_at=row.expires_at,
        joined_at=row.joined_at,
        revoked_at=row.revoked_at,
        fingerprint=row.fingerprint,
    )
