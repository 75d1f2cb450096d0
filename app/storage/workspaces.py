"""Containers in the database: one row for each name on a host, kept for a while after the container is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.identity import workspace_scope
from shellback.exec.core.model import PodmanWorkspace, Session
from shellback.exec.core.ports import WorkspaceStore
from shellback.storage.db import Database
from shellback.storage.rows import change_some, given, insert_new
from shellback.storage.session_rows import from_row
from shellback.storage.tables import calls, sessions, workspaces

TOUCH_S: Final = 60.0
"""A use is recorded at most once in this time."""


class SqlWorkspaceStore(WorkspaceStore):
    """A `WorkspaceStore` on a `Database`, for one host."""

    def __init__(self, database: Database, host_id: str) -> None:
        self._database = database
        self._host_id = host_id
        self._touched: dict[str, float] = {}

    async def made(self, workspace: PodmanWorkspace) -> None:
        self._touched[workspace.name] = workspace.last_used_at
        await self._database.write(made, self._host_id, workspace)

    async def started(self, name: str, at: float) -> None:
        self._touched[name] = at
        await self._database.write(changed, self._host_id, name, state="running", last_used_at=at)

    async def touched(self, name: str, at: float) -> None:
        before = self._touched.get(name)
        if before is not None and 0 <= at - before < TOUCH_S:
            return
        self._touched[name] = at  # before the commit, so that concurrent calls do not repeat it
        await self._database.write(changed, self._host_id, name, last_used_at=at)

    async def stopped(self, name: str, at: float) -> None:
        self._touched.pop(name, None)
        await self._database.write(changed, self._host_id, name, state="stopped", last_used_at=at)

    async def removed(self, name: str, at: float) -> None:
        self._touched.pop(name, None)
        await self._database.write(changed, self._host_id, name, state="removed", removed_at=at)

    async def list(self, *, scope: str | None = None, live: bool | None = None) -> Sequence[PodmanWorkspace]:
        return await self._database.read(find, host_id=self._host_id, scope=scope, live=live)


def made(conn: sa.Connection, host_id: str, workspace: PodmanWorkspace) -> None:
    """Record a container, replacing the row of an earlier container with its name on this host."""
    row = {**asdict(workspace), "env": list(workspace.env), "host_id": host_id}
    if not insert_new(conn, workspaces, row):
        change_some(conn, workspaces, *_named(host_id, workspace.name), **row)


def changed(conn: sa.Connection, host_id: str, name: str, **values: Any) -> None:
    """Change the row of a container, unless it is removed."""
    change_some(conn, workspaces, *_named(host_id, name), workspaces.c.state != "removed", **values)


def find(
    conn: sa.Connection, *, host_id: str | None = None, scope: str | None = None, live: bool | None = None
) -> list[PodmanWorkspace]:
    """Containers, oldest first; of one host, one scope, or all; with `live`, only existing or only removed ones."""
    whose = given((workspaces.c.host_id, host_id), (workspaces.c.scope, scope))
    query = sa.select(workspaces).where(*whose).order_by(workspaces.c.created_at, workspaces.c.id)
    if live is not None:
        query = query.where((workspaces.c.state != "removed") if live else (workspaces.c.state == "removed"))
    return [_workspace(row) for row in conn.execute(query).mappings()]


def changes(conn: sa.Connection, scope: str, *, limit: int) -> list[dict[str, Any]]:
    """The last files that tools wrote, edited or removed in the workspace of a conversation, oldest first.

    `did` is `unknown` if the worker died during the call, `refused` if nothing was changed.
    """
    query = sa.select(calls.c.created_at, calls.c.outcome).where(
        calls.c.session_id == workspace_scope(scope), calls.c.kind == "changed"
    )
    found = conn.execute(query.order_by(calls.c.created_at.desc(), calls.c.call_key).limit(limit)).all()
    return [_change(row.created_at, row.outcome or {}) for row in reversed(found)]


def evaluations(conn: sa.Connection, scope: str, command: str, *, limit: int) -> list[Session]:
    """The last sessions of a conversation that ran this command, oldest first."""
    query = sa.select(sessions).where(sessions.c.conversation_id == scope, sessions.c.command == command)
    found = conn.execute(query.order_by(sessions.c.created_at.desc(), sessions.c.id).limit(limit)).all()
    return [from_row(row) for row in reversed(found)]


def _change(at: float, outcome: dict[str, Any]) -> dict[str, Any]:
    did = "refused" if "refused" in outcome else outcome.get("did", "unknown")
    return {"at": at, "did": did, **{key: outcome.get(key) for key in ("path", "bytes", "sha256")}}


def _named(host_id: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return workspaces.c.host_id == host_id, workspaces.c.name == name


def _workspace(row: sa.RowMapping) -> PodmanWorkspace:
    values: dict[str, Any] = dict(row)
    del values["id"]
    return PodmanWorkspace(**{**values, "env": tuple(values["env"])})  # pyright: ignore[reportArgumentType]
