"""Pages that only list: rules, costs, queue and workers, health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shellback.checks import live_checks
from shellback.client import ruling
from shellback.client.operations import Asking
from shellback.console.access import Page, caller_of
from shellback.console.pages import PREFIX, ago, day, page, path
from shellback.console.tables import (
    Columns,
    Table,
    conversation_cell,
    moment_cell,
    state_cell,
    table_of,
    time_cell,
)
from shellback.exec.core.display import age, visible
from shellback.exec.core.errors import PolicyUnusable
from shellback.exec.policy.rules.file import load
from shellback.storage import rules
from shellback.storage.rules import Saved
from shellback.work.hosts import roster
from shellback.work.hosts.loads import loads
from shellback.work.hosts.roster import Employed
from shellback.work.queue import costs, standing

if TYPE_CHECKING:
    from shellback.client.local import Local
    from shellback.exec.policy.rules.rule import Rule


class Records:
    """What is on record, as tables."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/rules", self._rules, role="viewer"),
            Page("/rules/{id}/revoke", self._revoke, role="operator", method="POST"),
            Page("/costs", self._costs, role="viewer"),
            Page("/queue", self._queue, role="viewer"),
            Page("/health", self._health, role="viewer"),
        ]

    async def _rules(self, request: Request) -> Response:
        def look(at: Asking) -> list[Table]:
            saved = at.where.database.read_now(rules.find, everything=True)
            written: Sequence[Rule] = ()
            unread = "None."
            try:
                written = load(at.where.settings.policy).rules
            except PolicyUnusable as error:
                unread = f"They cannot be read: {error}."
            none = "No rule is saved. The page of a request that waits makes one from its call."
            table = table_of("Rules that people saved", saved, _SAVED, none)
            table.ends.extend(path("rules", one.rule.id, "revoke") if one.state == "active" else None for one in saved)
            return [
                table,
                table_of(
                    "Rules of the policy file", written, {"rule": lambda one: one.described(), "note": "note"}, unread
                ),
            ]

        return page(request, "records.html", title="Rules", tables=await self._local.within(caller_of(request), look))

    async def _revoke(self, request: Request) -> Response:
        rule_id = request.path_params["id"]

        def revoke(at: Asking) -> None:
            ended = at.where.database.write_now(ruling.revoke, rule_id, by=at.caller.by, surface=at.caller.surface)
            ruling.tell(at.where, ended.rule)

        await self._local.within(caller_of(request), revoke)
        return RedirectResponse(f"{PREFIX}/rules", status_code=303)

    async def _costs(self, request: Request) -> Response:
        conversation = request.query_params.get("conversation", "").replace("\x00", "")

        def read(conn: sa.Connection) -> list[Table]:
            days, each = (costs.look(conn, each=one, conversation_id=conversation or None) for one in (False, True))
            return [
                table_of("Days", days, _COST, "No turn has ended."),
                table_of("Conversations and days", each, _EACH, "No turn has ended."),
            ]

        tables = await self._local.within(caller_of(request), lambda at: at.where.database.read_now(read))
        note = (
            f"The last {costs.DAYS} days in UTC, as long as turns are kept (RETAIN_DAYS). Tokens are those that the "
            f"models report. At most {costs.LISTED} rows."
        )
        given = {"conversation": conversation}
        return page(request, "records.html", title="Costs", tables=tables, note=note, given=given)

    async def _queue(self, request: Request) -> Response:
        def read(conn: sa.Connection, host_id: str) -> list[Table]:
            found, carried = standing.backlog(conn), loads(conn, host_id)
            names = {one.host_id: one.name for one in carried}
            workers: Columns = {**_WORKERS, "host": lambda one: _hosts_of(one, names)}
            return [
                table_of("Waiting", found.waiting, _WAITING, "Nothing waits."),
                table_of("Running", found.running, _RUNNING, "No turn runs."),
                table_of("Blocked", found.blocked, _BLOCKED, "No conversation is blocked."),
                table_of("Without a host", found.unplaced, _UNPLACED, "No conversation waits for a host."),
                table_of("Hosts", carried, _HOSTS, "No host was heard of."),
                table_of("Workers", roster.look(conn, host_id), workers, _NO_WORKER),
            ]

        def look(at: Asking) -> list[Table]:
            return at.where.database.read_now(read, at.where.host_id)

        return page(request, "records.html", title="Queue", tables=await self._local.within(caller_of(request), look))

    async def _health(self, request: Request) -> Response:
        def look(at: Asking) -> list[Table]:
            found = live_checks(at.where.settings)
            return [table_of("", found, _CHECKED, "")]

        tables = await self._local.within(caller_of(request), look)
        note = Markup("<code>shellback doctor</code> on the host checks everything.")
        return page(request, "records.html", title="Health", tables=tables, note=note)


def _ended(one: Saved) -> str:
    return f"{one.state} by {one.revoked_by}" if one.revoked_by else one.state


_SAVED: Final[Columns] = {
    "rule": lambda one: one.rule.described(),
    "state": _ended,
    "note": lambda one: one.rule.note,
    "saved by": lambda one: Markup("%s, %s") % (visible(one.rule.owner), moment_cell(one.rule.created_at)),
    "ends": lambda one: moment_cell(one.rule.expires_at),
    "used": lambda one: one.rule.uses,
    "id": lambda one: one.rule.id,
}
_COST: Final[Columns] = {
    "day": lambda one: time_cell(day(one.day)),
    "turns": "turns",
    "requests": "requests",
    "tokens in": lambda one: f"{one.tokens_in:,}",
    "tokens out": lambda one: f"{one.tokens_out:,}",
    "seconds": lambda one: f"{one.seconds:,.1f}",
}
_EACH: Final[Columns] = {**_COST, "conversation": lambda one: conversation_cell(one.conversation)}
_WAITING: Final[Columns] = {"priority": "priority", "items": "items", "oldest": lambda one: ago(one.oldest)}
_RUNNING: Final[Columns] = {
    "conversation": lambda one: conversation_cell(one.conversation),
    "type": "type",
    "priority": "priority",
    "begun": lambda one: ago(one.started_at),
    "executions": "executions",
}
_BLOCKED: Final[Columns] = {
    "conversation": lambda one: conversation_cell(one.conversation),
    "by": "reason",
    "since": lambda one: ago(one.since),
    "unread": "unread",
}
_UNPLACED: Final[Columns] = {
    "conversation": lambda one: conversation_cell(one.conversation),
    "since": lambda one: ago(one.since),
    "unread": "unread",
    "why": "why",
}
_HOSTS: Final[Columns] = {
    "host": "name",
    "state": lambda one: state_cell(one.state),
    "workers": "workers",
    "running": "running",
    "waiting": "waiting",
    "free slots": "free_slots",
    "processes": "processes",
    "conversations": "conversations",
    "labels": lambda one: ", ".join(one.labels) or None,
    "last heard of": lambda one: None if one.silent_s is None else f"{age(one.silent_s)} ago",
}
_CHECKED: Final[Columns] = {
    "check": "name",
    "state": lambda one: state_cell(one.state),
    "is": "text",
    "remedy": "remedy",
}
_NO_WORKER: Final = Markup("No worker has run: <code>shellback worker</code> starts one.")
_WORKERS: Final[Columns] = {
    "worker": lambda one: one.executor_id.removeprefix(f"{one.host_id}."),
    "state": lambda one: state_cell(one.state),
    "host": "host_id",
    "process": "pid",
    "version": "version",
    "begun": lambda one: ago(one.started_at),
    "last heartbeat": lambda one: ago(one.heartbeat_at),
}


def _hosts_of(worker: Employed, names: Mapping[str, str]) -> str:
    return ", ".join(names.get(one, one) for one in worker.serves) or worker.host_id
