"""Accounts of people who use the console, and their logins. Times are the database's.

Of a one-time link and of a cookie only the SHA-256 is kept, of a password its argon2id hash, which the caller makes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.errors import AccountRefused
from shellback.storage.tables import accounts, logins
from shellback.storage.tokens import digest_of

Role = Literal["viewer", "approver", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""In order: each may do what those before it may. A viewer reads; an approver decides; an operator sends and kills."""
LIMIT: Final = 200
"""Accounts at once."""
LOGINS: Final = 20
"""Logins of one account at once; a new one ends the one that was not used for longest."""
LINK_S: Final = 15 * 60.0
IDLE_S: Final = 12 * 3600.0
"""A login ends when no page was opened with it for this long."""
LOGIN_S: Final = 7 * 86_400.0
"""A login ends so long after it was made."""
SHOWN: Final = 8
"""So much of a login's digest is shown."""
USED_S: Final = 60.0
"""The use of a login is noted when the last note is this old."""
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._@-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A person who may use the console. `invited`: a link that sets its password waits to be used."""

    name: str
    role: Role
    owner: str
    created_at: float
    has_password: bool
    invited: bool

    def may(self, role: Role) -> bool:
        """Whether its role is this one, or one that may do more."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One browser that an account is logged in with. `left_s` is the time until it ends by itself.

    `by_proxy`: it was made because a proxy named the account, and not by the password.
    """

    digest: str
    account: Account
    program: str
    created_at: float
    used_at: float
    left_s: float
    idle_s: float
    by_proxy: bool
    kind: Literal["console"] = "console"

    @property
    def name(self) -> str:
        """The name of its account."""
        return self.account.name

    @property
    def state(self) -> Literal["active", "expired"]:
        """Whether it is in force."""
        return "active" if self.left_s > 0 else "expired"

    @property
    def id(self) -> str:
        """Tells it apart from the others in a list; it opens nothing."""
        return self.digest[:SHOWN]


def add(conn: sa.Connection, name: str, *, role: Role, owner: str) -> str:
    """Make an account without a password; returns the secret of its one-time link.

    Raises:
        AccountRefused: The name is taken or not acceptable, or there are too many accounts.
    """
    if not _NAME.match(name):
        raise AccountRefused("an account needs a name of 1 to 64 characters: letters, digits, and . _ @ - after one")
    rows.lock_name(conn, "shellback accounts")
    if rows.count(conn, accounts) >= LIMIT:
        raise AccountRefused(f"there are {LIMIT} accounts; remove one first: `shellback users remove`")
    values = {"name": name, "role": role, "owner": owner[:100], "created_at": rows.now(conn)}
    if not rows.insert_new(conn, accounts, values):
        raise AccountRefused(
            f"there is an account {name!r}: `shellback users link` makes a new link for it, "
            "`shellback users remove` ends it"
        )
    return invite(conn, name)


def invite(conn: sa.Connection, name: str) -> str:
    """Make a link that sets the password of an account, in place of an earlier one; returns its secret.

    Raises:
        AccountRefused: There is no such account.
    """
    secret = secrets.token_urlsafe(32)
    if not rows.change(conn, accounts, name, link=digest_of(secret), link_expires_at=rows.now(conn) + LINK_S):
        raise _unknown(name)
    return secret


def invited(conn: sa.Connection, secret: str) -> Account | None:
    """The account whose link this is, while the link is in force."""
    query = sa.select(accounts).where(accounts.c.link == digest_of(secret), accounts.c.link_expires_at > rows.CLOCK)
    row = conn.execute(query).one_or_none()
    return None if row is None else _account(row, rows.now(conn))


def accept(conn: sa.Connection, secret: str, password: str) -> Account | None:
    """Use a link up: the password's hash is this one from now on, and all logins end. None if it is not in force."""
    account = invited(conn, secret)
    mine = accounts.c.link == digest_of(secret)
    if account is None or not rows.change_some(
        conn, accounts, mine, password=password, link=None, link_expires_at=None
    ):
        return None
    log_out(conn, account.name)
    return account


def find(conn: sa.Connection) -> list[Account]:
    """All accounts, by name."""
    now = rows.now(conn)
    return [_account(row, now) for row in conn.execute(sa.select(accounts).order_by(accounts.c.name))]


def password_of(conn: sa.Connection, name: str) -> str | None:
    """The hash of the password of an account; None without one."""
    return conn.execute(sa.select(accounts.c.password).where(accounts.c.name == name)).scalar_one_or_none()


def remove(conn: sa.Connection, name: str) -> None:
    """End an account and its logins.

    Raises:
        AccountRefused: There is no such account.
    """
    if not conn.execute(sa.delete(accounts).where(accounts.c.name == name)).rowcount:
        raise _unknown(name)
    log_out(conn, name)


def log_in(conn: sa.Connection, name: str, *, password: str | None, program: str) -> str | None:
    """Make a login; returns its secret. None if the hash of the account's password is not this one any more.

    With None as `password` a proxy has said who it is; then None is returned if there is no such account.
    """
    row = rows.lock_row(conn, accounts, name)
    if row is None or password not in {None, row["password"]}:
        return None
    now, mine = rows.now(conn), logins.c.account == name
    conn.execute(sa.delete(logins).where(sa.or_(logins.c.created_at < now - LOGIN_S, logins.c.used_at < now - IDLE_S)))
    newest = sa.select(logins.c.digest).where(mine).order_by(logins.c.used_at.desc()).limit(LOGINS - 1)
    conn.execute(sa.delete(logins).where(mine, logins.c.digest.not_in(newest)))
    secret = secrets.token_urlsafe(32)
    values = {"account": name, "program": program[:200], "by_proxy": password is None}
    conn.execute(sa.insert(logins).values(digest=digest_of(secret), created_at=now, used_at=now, **values))
    return secret


def of_digests(conn: sa.Connection, digests: Collection[str]) -> dict[str, Login]:
    """The logins with these digests, in force or not."""
    return {one.digest: one for one in _found(conn, logins.c.digest.in_(digests))}


def logged_in(conn: sa.Connection, name: str | None = None) -> list[Login]:
    """The logins in force, of one account or of all, the last used one first."""
    which = rows.given((logins.c.account, name))
    return [one for one in _found(conn, *which) if one.state == "active"]


def used(conn: sa.Connection, digest: str) -> None:
    """Note that a page was opened with a login."""
    rows.change(conn, logins, digest, used_at=rows.now(conn))


def log_out(conn: sa.Connection, name: str, login_id: str = "") -> int:
    """End the logins of an account, or the one whose digest begins with `login_id`; returns how many.

    Raises:
        AccountRefused: The digests of several begin so.
    """
    its = logins.c.account == name
    if login_id:
        found = [row["digest"] for row in rows.begun(conn, logins.c.digest, login_id, its)]
        if len(found) > 1:
            raise AccountRefused(rows.candidates(login_id, "logins", [one[:SHOWN] for one in found]))
        its = sa.and_(its, logins.c.digest.in_(found))
    return conn.execute(sa.delete(logins).where(its)).rowcount


def _found(conn: sa.Connection, *which: sa.ColumnElement[bool]) -> list[Login]:
    now = rows.now(conn)
    columns = [*accounts.c, *(one.label(f"login_{one.name}") for one in logins.c)]
    query = sa.select(*columns).join(logins, logins.c.account == accounts.c.name).where(*which)
    return [_login(row, now) for row in conn.execute(query.order_by(logins.c.used_at.desc()))]


def _login(row: sa.Row[Any], now: float) -> Login:
    return Login(
        digest=row.login_digest,
        account=_account(row, now),
        program=row.login_program,
        created_at=row.login_created_at,
        used_at=row.login_used_at,
        left_s=min(row.login_created_at + LOGIN_S, row.login_used_at + IDLE_S) - now,
        idle_s=now - row.login_used_at,
        by_proxy=row.login_by_proxy,
    )


def _account(row: sa.Row[Any], now: float) -> Account:
    return Account(
        name=row.name,
        role=row.role,
        owner=row.owner,
        created_at=row.created_at,
        has_password=row.password is not None,
        invited=row.link is not None and row.link_expires_at > now,
    )


def _unknown(name: str) -> AccountRefused:
    return AccountRefused(f"there is no account {name!r}; `shellback users list` shows them")
