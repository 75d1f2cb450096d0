"""`shellback users`: the accounts of people who use the console of `shellback serve`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Columns, Commands, json_option, lists, opened, show, stamp, table_lines, utf8
from shellback.client.caller import me
from shellback.exec.core.display import shown_line

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.storage.accounts import Account, Login
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.event import Event

URL: Final = "http://127.0.0.1:8765"
"""The address of `serve` without options."""
SERVER = click.option("--url", help=f"The address of the server, as in browsers. Default: CONSOLE_URL, or {URL}.")


@click.group(cls=Commands)
def users() -> None:
    """Make, list or remove the accounts of people who use the console of `shellback serve`.

    A role allows: viewer, to read everything; approver, also to decide; operator, also to send, stop and kill.

    \b
      shellback users add ada --role operator
      shellback users list
      shellback users logins
      shellback users remove ada
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@users.command()
@click.argument("name")
@click.option("--role", required=True, type=click.Choice(["viewer", "approver", "operator"]), help="What it may do.")
@SERVER
@json_option
def add(name: str, role: Any, url: str | None) -> None:
    """Make an account, and print its one-time link on standard output, once.

    Whoever opens the link within 15 minutes chooses the password. The database keeps a hash of both.
    """
    from shellback.storage import accounts

    name = utf8(name, "the name")

    def make(conn: sa.Connection) -> str:
        secret = accounts.add(conn, name, role=role, owner=me())
        _audited(conn, "account_added", f"{name} ({role})")
        return secret

    with opened() as where:
        _print(url or where.settings.console_url or URL, where.database.write_now(make))


@users.command()
@click.argument("name")
@SERVER
@json_option
def link(name: str, url: str | None) -> None:
    """Print a new one-time link for an account, as when the password is lost.

    When it is used, the password is replaced, and all logins of the account end.
    """
    from shellback.storage import accounts

    name = utf8(name, "the name")

    def make(conn: sa.Connection) -> str:
        secret = accounts.invite(conn, name)
        _audited(conn, "account_link", name)
        return secret

    with opened() as where:
        _print(url or where.settings.console_url or URL, where.database.write_now(make))


@users.command("list")
@lists()
def list_() -> None:
    """List the accounts."""
    from shellback.storage import accounts

    with opened() as where:
        found = where.database.read_now(accounts.find)
    columns: Columns[Account] = {
        "NAME": "name",
        "ROLE": "role",
        "PASSWORD": lambda one: "yes" if one.has_password else "no, a link waits" if one.invited else "no",
        "MADE": lambda one: f"{stamp(one.created_at)} by {one.owner}",
    }
    none = "no accounts: `shellback users add NAME --role operator` makes one"
    show([asdict(one) for one in found], table_lines(found, columns) if found else [none])


@users.command()
@click.argument("name")
@json_option
def remove(name: str) -> None:
    """Remove an account for good. Its logins end at once."""
    from shellback.storage import accounts

    name = utf8(name, "the name")

    def end(conn: sa.Connection) -> None:
        accounts.remove(conn, name)
        _audited(conn, "account_removed", name)

    with opened() as where:
        where.database.write_now(end)
        _ring(where)
    show({"name": name, "removed": True}, [f"{shown_line(name)} removed"])


@users.command()
@click.argument("name", required=False)
@lists()
def logins(name: str | None) -> None:
    """List the browsers in which accounts, or one account, are logged in."""
    from shellback.storage import accounts

    name = None if name is None else utf8(name, "the name")
    with opened() as where:
        found = where.database.read_now(accounts.logged_in, name)
    columns: Columns[Login] = {
        "LOGIN": "id",
        "NAME": "name",
        "SINCE": lambda one: stamp(one.created_at),
        "USED": lambda one: stamp(one.used_at),
        "PROGRAM": "program",
    }
    facts = [
        {
            "login": one.id,
            "name": one.name,
            "created_at": one.created_at,
            "used_at": one.used_at,
            "program": one.program,
        }
        for one in found
    ]
    show(facts, table_lines(found, columns) if found else ["nobody is logged in"])


@users.command()
@click.argument("name")
@click.argument("login", required=False, default="")
@json_option
def logout(name: str, login: str) -> None:
    """End the logins of an account, or the one that `users logins` lists as LOGIN."""
    from shellback.storage import accounts

    name, login = utf8(name, "the name"), utf8(login, "the login")

    def end(conn: sa.Connection) -> int:
        count = accounts.log_out(conn, name, login)
        if count:
            _audited(conn, "logged_out", f"{name}, {count} logins")
        return count

    with opened() as where:
        count = where.database.write_now(end)
        _ring(where)
    show({"name": name, "ended": count}, [f"{count} logins ended"])


def _print(url: str, secret: str) -> None:
    from shellback.settings import CONSOLE

    whole = f"{url.rstrip('/')}{CONSOLE}/first/{secret}"
    show({"link": whole}, [shown_line(whole)])


def _ring(where: Place) -> None:
    from shellback.wiring import wiring
    from shellback.work.queue.queues import TOKENS

    wiring.a_doorbell(where).ring_all(TOKENS)


def _audited(conn: sa.Connection, event: Event, reason: str) -> None:
    from shellback.work.approvals import audit

    audit.note(conn, audit.Entry(event=event, done_by=me(), surface="cli", reason=reason))
