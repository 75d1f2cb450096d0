"""`shellback network`: what the commands of conversations connected to, and what a list of hosts would need."""

from __future__ import annotations

import ipaddress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from shellback.cli.options import conversation_option
from shellback.cli.shared import Columns, json_option, load_settings, show, stamp, table_lines, wide_option
from shellback.exec.core.display import visible_line
from shellback.exec.wire.hosts import USUAL, entry, is_address, is_public

if TYPE_CHECKING:
    from shellback.exec.reports.connections import Connection

SHOWN: Final = 500


@click.command()
@conversation_option
@click.option("--suggest", is_flag=True, help="Print `hosts` for [network] of shellback.toml with what is missing.")
@wide_option
@json_option
def network(conversation: str | None, suggest: bool) -> None:
    """Show the newest 500 connections of commands with NETWORK=list, oldest first: those made, and those refused.

    --suggest prints `hosts` with what is listed now and what commands asked for in vain: keep what the work needs.

    \b
      shellback network -c build
      shellback network -c build --suggest
      shellback network --json | jq -r 'map(select(.refused == ""))[].host' | sort -u
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.policy.rules.file import listed_in
    from shellback.exec.reports.connections import connections

    settings = load_settings()
    found = connections(settings.shellback_home, conversation)
    if suggest:
        listed = listed_in(settings.policy).words
        hosts = [one for one in wanted(found) if one not in listed]
        lines = [f'    "{visible_line(one)}",' for one in (*listed, *hosts)]
        show({"hosts": hosts}, ["hosts = [", *lines, "]"])
        return
    found = found[-SHOWN:]
    table: Columns[Connection] = {
        "WHEN": lambda one: stamp(one.at),
        "CONVERSATION": lambda one: one.scope,
        "SESSION": lambda one: one.session or "-",
        "HOST": lambda one: f"{one.host}:{one.port}" if one.host else "-",
        "ADDRESS": lambda one: one.address or "-",
        "SENT": lambda one: one.up,
        "RECEIVED": lambda one: one.down,
        "STATE": _state,
    }
    show([asdict(one) for one in found], table_lines(found, table))


def wanted(found: list[Connection]) -> list[str]:
    """The entries that would have allowed what was refused because no entry did; none for private addresses."""
    asked = {(one.host, one.port) for one in found if one.refused and not one.rule}
    texts = [(f"[{host}]" if ":" in host else host) + ("" if port in USUAL else f":{port}") for host, port in asked]
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
    return ("open, or cut off" if one.seconds is None else f"{one.seconds:.1f} s, by {one.rule}") + lent
