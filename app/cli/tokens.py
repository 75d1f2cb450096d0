"""`shellback tokens`: by which clients of `shellback serve` prove who they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shellback.cli.options import Lasting, conversation_names
from shellback.cli.shared import Columns, Commands, json_option, lists, opened, show, stamp, table_lines, utf8
from shellback.client.caller import me
from shellback.exec.core.display import shown_line

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.storage.tokens import Token
    from shellback.work.approvals.event import Event


@click.group(cls=Commands)
def tokens() -> None:
    """Make, list or revoke the tokens of clients that connect to `shellback serve`.

    A token is for one or more conversations, and either for the tools (/mcp) or for what a person does (/v1, --api). It
    is printed once; the database keeps only its SHA-256. Give each client one of its own, and an expiry.

    \b
      shellback tokens add laptop --conversation build --expires 30d
      shellback tokens add website --api --conversation orders
      shellback tokens list
      shellback tokens revoke laptop
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@tokens.command()
@click.argument("name")
@click.option(
    "--conversation", "-c", "names", multiple=True, metavar="NAME", shell_complete=conversation_names,
    help="A conversation that it is for; may be repeated.",
)  # fmt: skip
@click.option("--all-conversations", "everywhere", is_flag=True, help="For all conversations, also of agents.")
@click.option("--api", is_flag=True, help="For /v1, not for /mcp: send, approve, deny, type and kill as a person does.")
@click.option("--expires", "lasts_s", type=Lasting(), metavar="DURATION", help="How long it lasts: 2h, 30d [for ever].")
@click.option("--tools", "chosen", metavar="GROUPS", help="exec,process,session,workspace,watch [all but watch].")
@json_option
def add(
    name: str, names: tuple[str, ...], everywhere: bool, api: bool, lasts_s: float | None, chosen: str | None
) -> None:
    """Make a token and print it on standard output, once.

    Without --api it is for an MCP client: it calls tools at /mcp, where calls may wait for a person, and decides
    nothing. With --api it is for a program that people use, at /v1: it sends messages, approves and denies calls, types
    into processes and ends them, in conversations of agents. No token does both. Never give an MCP client one with
    --api.

    A client sends it as `Authorization: Bearer TOKEN`. Keep it where only the client reads it, and out of command
    lines.
    """
    from shellback.cli.mcp import groups_of
    from shellback.storage import tokens as store
    from shellback.work.approvals.sending import require_name

    if bool(names) == everywhere:
        raise click.UsageError("give --conversation, once or more, or --all-conversations")
    if api and chosen is not None:
        raise click.UsageError("--tools is for MCP clients: omit it with --api")
    groups = None if chosen is None else groups_of(chosen)
    conversations = None if everywhere else [*dict.fromkeys(names)]
    for one in names:
        require_name(one)
    name = utf8(name, "the name")

    def make(conn: sa.Connection) -> tuple[str, Token]:
        made = store.add(
            conn, name, kind="api" if api else "mcp", conversations=conversations, groups=groups, lasts_s=lasts_s,
            owner=me(),
        )  # fmt: skip
        _audited(conn, "token_added", made[1])
        return made

    with opened() as where:
        text, token = where.database.write_now(make)
    show({"token": text, **_facts(token)}, [text])


@tokens.command("list")
@click.option("--all", "everything", is_flag=True, help="Include tokens that were revoked or expired lately.")
@lists()
def list_(everything: bool) -> None:
    """List the tokens in force. What they are is kept nowhere."""
    from shellback.storage import tokens as store

    with opened() as where:
        found = where.database.read_now(store.find, everything=everything)
    columns: Columns[Token] = {
        "NAME": "name",
        "STATE": "state",
        "FOR": "kind",
        "CONVERSATIONS": lambda one: "all" if one.conversations is None else ", ".join(one.conversations),
        "TOOLS": lambda one: "-" if one.kind == "api" else ",".join(one.groups or ["default"]),
        "EXPIRES": lambda one: "never" if one.expires_at is None else stamp(one.expires_at),
        "MADE": lambda one: f"{stamp(one.created_at)} by {one.owner}",
    }
    none = "no tokens: `shellback tokens add` makes one"
    show([_facts(one) for one in found], table_lines(found, columns) if found else [none])


@tokens.command()
@click.argument("name")
@json_option
def revoke(name: str) -> None:
    """Revoke a token for good: it is refused from now on, and what is open with it ends.

    Processes that its client has started keep running.
    """
    from shellback.storage import tokens as store
    from shellback.wiring import wiring
    from shellback.work.queue.queues import TOKENS

    name = utf8(name, "the name")

    def end(conn: sa.Connection) -> Token:
        ended = store.revoke(conn, name, by=me())
        _audited(conn, "token_revoked", ended)
        return ended

    with opened() as where:
        ended = where.database.write_now(end)
        wiring.a_doorbell(where).ring_all(TOKENS)
    show(_facts(ended), [f"{shown_line(ended.name)} revoked"])


def _audited(conn: sa.Connection, event: Event, token: Token) -> None:
    from shellback.work.approvals import audit

    of = "all conversations" if token.conversations is None else ", ".join(token.conversations)
    audit.note(conn, audit.Entry(event=event, done_by=me(), surface="cli", reason=f"{token.name} ({token.kind}): {of}"))


def _facts(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "state": token.state,
        "kind": token.kind,
        "conversations": token.conversations,
        "tools": token.groups,
        "owner": token.owner,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
    }
