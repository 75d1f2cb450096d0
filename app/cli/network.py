"""`shellback network`: what the commands of conversations connected to, and what a list of hosts would need."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import conversation_option
from shellback.cli.shared import Columns, json_option, load_settings, show, stamp, table_lines
from shellback.exec.core.display import visible_line
from shellback.exec.wire.hosts import USUAL, entry

if TYPE_CHECKING:
    from shellback.exec.reports.connections import Connection

SHOWN: Final = 500


@click.command()
@conversation_option
@click.option(
    "--suggest", is_flag=True, help="Print a table for shellback.toml with the hosts that were not on the list."
)
@json_option
def network(conversation: str | None, suggest: bool) -> None:
    """Show the newest 500 connections of commands with NETWORK=list, oldest first: those made, and those refused.

    --suggest prints the hosts that commands asked for in vain: read them, and keep what the work needs.

    \b
      shellback network -c build
      shellback network -c build --suggest
      shellback network --json | jq -r 'map(select(.refused == ""))[].host' | sort -u
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.reports.connections import connections

    found = connections(load_settings().shellback_home, conversation)
    if suggest:
        hosts = wanted(found)
        show({"hosts": hosts}, ["[network]", "hosts = [", *(f'    "{visible_line(one)}",' for one in hosts), "]"])
        return
    found = found[-SHOWN:]
    table: Columns[Connection] = {
        "WHEN": lambda one: stamp(one.at),
        "CONVERSATION": lambda one: one.scope,
        "HOST": lambda one: f"{one.host}:{one.port}" if one.host else "-",
        "ADDRESS": lambda one: one.address or "-",
        "SENT": lambda one: one.up,
        "RECEIVED": lambda one: one.down,
        "STATE": _state,
    }
    show([asdict(one) for one in found], table_lines(found, table))


def wanted(found: list[Connection]) -> list[str]:
    """The entries that would have allowed what was refused because no entry did."""
    asked = {(one.host, one.port) for one in found if one.refused and not one.rule}
    texts = [(f"[{host}]" if ":" in host else host) + ("" if port in USUAL else f":{port}") for host, port in asked]
    return sorted({text for text in texts if _is_entry(text)})


def _is_entry(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(entry(text))
    return False


def _state(one: Connection) -> str:
    if one.refused:
        return f"refused: {one.refused}"
    return "open, or cut off" if one.seconds is None else f"{one.seconds:.1f} s, by {one.rule}"
