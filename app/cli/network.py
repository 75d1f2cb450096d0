"""`shellback network`: what the commands of conversations connected to, and what a list of hosts would need."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import conversation_names, conversation_option
from shellback.cli.shared import Columns, Commands, json_option, lists, opened, show, stamp, table_lines
from shellback.exec.core.display import age, visible_line
from shellback.exec.wire.hosts import USUAL, Hosts, entry, is_address, is_public

if TYPE_CHECKING:
    from shellback.exec.reports.connections import Connection
    from shellback.wiring.wiring import Place

SHOWN: Final = 500
READ: Final = 5000
"""Rows that are looked at."""
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]+")
"""What a name of a set would have to be quoted for."""


@click.group(cls=Commands, invoke_without_command=True)
@conversation_option
@lists()
@click.pass_context
def network(ctx: click.Context, conversation: str | None) -> None:
    """Show the newest 500 connections of commands with NETWORK=list or ask, oldest first: made, and refused ones.

    \b
      shellback network -c build
      shellback network suggest build
      shellback network --json | jq -r 'map(select(.refused == ""))[].host' | sort -u
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if ctx.invoked_subcommand is not None:
        return
    with opened() as where:
        found = _known(where, conversation)[-SHOWN:]
    table: Columns[Connection] = {
        "WHEN": lambda one: stamp(one.at),
        "CONVERSATION": lambda one: one.scope,
        "SESSION": lambda one: one.session or "-",
        "HOST": "goal",
        "ADDRESS": lambda one: one.address or "-",
        "SENT": lambda one: one.up,
        "RECEIVED": lambda one: one.down,
        "STATE": _state,
    }
    none = "no connections are known: those of commands with NETWORK=list or NETWORK=ask are listed"
    show([asdict(one) for one in found], table_lines(found, table) if found else [none])


@network.command()
@click.argument("conversation", shell_complete=conversation_names)
@json_option
def suggest(conversation: str) -> None:
    """Print a set for [network.sets] of shellback.toml: the hosts that commands of CONVERSATION need beside the list.

    It has what they asked for in vain, and what a person allowed; not what was denied, and no private address. Read it
    before you copy it: a command chose these names.
    """
    from shellback.exec.policy.rules.file import listed_in
    from shellback.work.queue.mailbox import Workspace, workspace_of

    with opened() as where:
        workspace = where.database.read_now(workspace_of, conversation) or Workspace()
        hosts = wanted(_known(where, conversation), listed_in(where.settings.policy, workspace=workspace.name))
    name = _ODD.sub("-", conversation)
    lines = [f'# hosts of [network] gets "@{name}"', "[network.sets]", f"{name} = ["]
    lines += [*(f'    "{visible_line(one)}",' for one in hosts), "]"]
    none = f"commands of {visible_line(conversation)} asked for no host that is not listed"
    show({"set": name, "hosts": hosts}, lines if hosts else [none])


def _known(where: Place, conversation: str | None) -> list[Connection]:
    """The newest connections, oldest first: the rows, and those of this host that are none yet."""
    from shellback.exec.reports.connections import connections
    from shellback.work.approvals import connected

    # In this order: what becomes a row in between is in both.
    waiting = connections(where.home, conversation)
    found = {one.id: one for one in (*waiting, *where.database.read_now(connected.find, conversation, READ))}
    return sorted(found.values(), key=lambda one: one.at)


def wanted(found: Iterable[Connection], listed: Hosts) -> list[str]:
    """Entries for what was asked for and is not listed; none for what was denied, and for private addresses."""
    asked = {(one.host, one.port): one.decision for one in found if one.host and one.port}
    open_to = [place for place, decision in asked.items() if decision != "deny" and not listed.allowing(*place)]
    texts = [(f"[{host}]" if ":" in host else host) + ("" if port in USUAL else f":{port}") for host, port in open_to]
    return sorted({text for text in texts if _is_entry(text)})


def _is_entry(text: str) -> bool:
    try:
        host = entry(text).host
    except ValueError:
        return False
    return not is_address(host) or is_public(ipaddress.ip_address(host))


def _state(one: Connection) -> str:
    if one.refused:
        return f"refused: {one.refused}"
    lent = f", with {one.credential}" if one.credential else ""
    return (
        f"open for {age(time.time() - one.at)}" if one.seconds is None else f"{one.seconds:.1f} s, by {one.rule}"
    ) + lent
