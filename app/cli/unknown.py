"""Shared by the commands about unknown processes: those that the database does not know."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shellback.cli.shared import Columns, Refused, asked, table_lines, the_one
from shellback.client.processes import how
from shellback.exec.core import limits
from shellback.exec.core.display import age
from shellback.exec.core.errors import SessionNotFound, SupervisorAbsent
from shellback.exec.core.ports import SupervisorPort

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.unknown import Unknown

_COLUMNS: Columns[Unknown] = {
    "SESSION": "id",
    "STATE": "state",
    "END": lambda one: None if one.end is None else how(one.end),
    "PID": "pid",
    "AGE": lambda one: None if one.since is None else age(max(0.0, time.time() - one.since)),
    "COMMAND": "command",
}


def listed(where: Place) -> list[Unknown]:
    """Processes that the supervisor has and the database does not, oldest first."""
    from shellback.work.hosts import unknown as strangers

    return asked(where, lambda client: strangers.unknown(client, where.database))


def lines(found: Sequence[Unknown]) -> list[str]:
    """The list for people."""
    if not found:
        return ["no unknown processes: the database knows every process of the supervisor"]
    return table_lines(found, _COLUMNS)


def find(where: Place, given: str) -> Unknown:
    """The unknown process whose id is `given` or begins with it; Refused if there is none, or no supervisor answers."""
    try:
        return chosen(listed(where), given)
    except Refused as refused:
        if isinstance(refused.__cause__, SupervisorAbsent):
            raise Refused(f"no session {given!r}: `shellback ps --all` lists them") from None
        raise


def chosen(found: Sequence[Unknown], given: str) -> Unknown:
    """The one whose id is `given` or begins with it; Refused if no or several ids match."""
    by_id: dict[str, Unknown] = {one.id: one for one in found}
    name = the_one(by_id, given, "unknown processes")
    if name is None:
        raise Refused(
            f"no session {given!r} and no unknown process: `shellback ps --all` and `shellback ps --unknown` list them"
        )
    return by_id[name]


def end(where: Place, one: Unknown) -> list[int]:
    """End the tree of an unknown process and acknowledge its record; returns the pids that survived SIGKILL."""

    async def ended(client: SupervisorPort) -> list[int]:
        try:
            left = await client.kill(one.id, grace_s=limits.KILL_GRACE_S, ended_by="person")
        except SessionNotFound:
            raise Refused(f"{one.id} has just ended. Nothing was signalled") from None
        if not left and not await client.ack(one.id):
            status = await client.status(one.id)
            if "record" in status and not status.get("acknowledged"):
                raise Refused(
                    f"{one.id} has ended, but the disk has no room for its exit record: free space, then repeat"
                )
        return list(left)

    return asked(where, ended)
