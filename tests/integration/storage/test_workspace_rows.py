"""The record of containers: what every store of it promises, what it costs, and when rows and containers go."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import Delivery, PodmanWorkspace
from shellback.exec.core.ports import WorkspaceStore
from shellback.exec.engine.memory_store import MemoryWorkspaceStore
from shellback.storage import retention, sessions, workspaces
from shellback.storage import tables as t
from shellback.storage.db import Database
from shellback.storage.rows import names
from shellback.storage.workspaces import TOUCH_S, SqlWorkspaceStore
from shellback.work.worker.retention import DAY_S, Ages, Retention
from tests.sessions import EXITED, a_session, a_workspace

pytestmark = pytest.mark.anyio
NOW = a_workspace().created_at


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> WorkspaceStore:
    if request.param == "memory":
        return MemoryWorkspaceStore("host1")
    return SqlWorkspaceStore(request.getfixturevalue(request.param), "host1")


async def only(store: WorkspaceStore) -> PodmanWorkspace:
    (found,) = await store.list()
    return found


async def test_what_was_made_reads_back_equal(store: WorkspaceStore) -> None:
    first, second = a_workspace("a"), a_workspace("b", created_at=NOW + 1, scope="other", profile="read_only")
    await store.made(second)
    await store.made(first)
    assert await store.list() == [first, second]
    assert await store.list(scope="other") == [second]


async def test_a_name_that_is_made_again_has_one_row(store: WorkspaceStore) -> None:
    await store.made(a_workspace(env=("OLD",)))
    await store.removed("shellback-a", NOW + 5)
    again = a_workspace(container_id="beef", created_at=NOW + 9, last_used_at=NOW + 9)
    await store.made(again)
    assert await store.list() == [again]


async def test_it_is_stopped_started_and_removed_for_good(store: WorkspaceStore) -> None:
    await store.made(a_workspace())
    await store.stopped("shellback-a", NOW + 10)
    assert await only(store) == a_workspace(state="stopped", last_used_at=NOW + 10)
    await store.started("shellback-a", NOW + 20)
    assert await only(store) == a_workspace(last_used_at=NOW + 20)
    await store.removed("shellback-a", NOW + 30)
    gone = a_workspace(state="removed", last_used_at=NOW + 20, removed_at=NOW + 30)
    for late in (store.touched, store.started, store.stopped, store.removed):
        await late("shellback-a", NOW + 99)
    assert await only(store) == gone
    assert await store.list(live=True) == []
    assert await store.list(live=False) == [gone]


async def test_a_name_that_nobody_made_changes_nothing(store: WorkspaceStore) -> None:
    for call in (store.touched, store.started, store.stopped, store.removed):
        await call("nobody", NOW)
    assert await store.list() == []


async def test_uses_within_a_minute_cost_no_commit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlWorkspaceStore(database, "host1")
    await store.made(a_workspace())
    written: list[float] = []
    changed = workspaces.changed

    def counting(conn: sa.Connection, host_id: str, name: str, **values: Any) -> None:
        written.append(values["last_used_at"])
        changed(conn, host_id, name, **values)

    monkeypatch.setattr(workspaces, "changed", counting)
    for second in range(0, 190, 10):
        await store.touched("shellback-a", NOW + second)
    assert written == [NOW + TOUCH_S, NOW + 2 * TOUCH_S, NOW + 3 * TOUCH_S]
    await store.stopped("shellback-a", NOW + 185)
    assert (await only(store)).last_used_at == NOW + 185  # exact, once it matters to nobody's speed
    await store.touched("shellback-a", NOW - 3600)  # a clock that was set back is believed
    assert written[-1] == NOW - 3600


async def test_a_host_sees_its_own_and_names_are_completed(database: Database) -> None:
    mine, theirs = SqlWorkspaceStore(database, "host1"), SqlWorkspaceStore(database, "host2")
    await mine.made(a_workspace())
    await theirs.made(a_workspace(container_id="other"))
    await mine.made(a_workspace("shellback-b", created_at=NOW + 1))
    await mine.removed("shellback-b", NOW + 2)
    assert [one.container_id for one in await theirs.list()] == ["other"]
    assert await theirs.list() == [a_workspace(container_id="other", host_id="host2")]
    assert len(await mine.list()) == 2
    there = t.workspaces.c.state != "removed"
    assert database.read_now(names, t.workspaces.c.name, "shell", there, limit=10) == ["shellback-a"]


class Nobody:
    """A client of a DBOS that has nothing."""

    def list_workflows(self, **_: object) -> list[Any]:
        return []


def prunes(database: Database, gone: list[str], failing: str = "") -> Retention:
    async def teardown(name: str) -> None:
        if name == failing:
            raise BackendUnavailable("podman is away")
        gone.append(name)
        await SqlWorkspaceStore(database, "host1").removed(name, time.time())

    ages = Ages(rows=30 * DAY_S, logs=7 * DAY_S, conversations=90 * DAY_S)
    client: Any = Nobody()
    return Retention(database, client, lambda _: True, "host1", ages, teardown=teardown)


async def test_rows_of_what_is_gone_go_after_a_while(database: Database) -> None:
    store, now = SqlWorkspaceStore(database, "host1"), time.time()
    for name, removed_at in (("old", now - 31 * DAY_S), ("young", now - 29 * DAY_S)):
        await store.made(a_workspace(name, created_at=now, last_used_at=now))
        await store.removed(name, removed_at)
    cut = retention.Cut(host_id="host1", rows=now - 30 * DAY_S, sessions=now - 30 * DAY_S, conversations=None)
    assert database.write_now(retention.delete_some, "workspaces", cut) == 1
    assert [one.name for one in await store.list()] == ["young"]


async def test_containers_of_a_host_that_is_gone_for_good_are_forgotten(database: Database) -> None:
    now = time.time()
    long_ago = now - 60 * DAY_S
    theirs = SqlWorkspaceStore(database, "host2")
    await theirs.made(a_workspace(last_used_at=long_ago))
    cut = retention.Cut(host_id="host1", rows=now - 30 * DAY_S, sessions=now - 30 * DAY_S, conversations=None)
    host = {"host_id": "host2", "name": "there", "heartbeat_at": now}
    database.write_now(lambda conn: conn.execute(sa.insert(t.hosts).values(host)))
    assert database.write_now(retention.delete_some, "workspaces", cut) == 0
    database.write_now(lambda conn: conn.execute(sa.update(t.hosts).values(heartbeat_at=long_ago)))
    assert database.write_now(retention.delete_some, "hosts", cut) == 0  # its container tells of it
    assert database.write_now(retention.delete_some, "workspaces", cut) == 1
    assert database.write_now(retention.delete_some, "hosts", cut) == 1


async def test_a_container_goes_when_nothing_of_its_conversation_is_left(database: Database) -> None:
    store, now = SqlWorkspaceStore(database, "host1"), time.time()
    long_ago = now - 40 * DAY_S
    await store.made(a_workspace("busy", scope="busy", last_used_at=now))
    await store.made(a_workspace("has", scope="has", last_used_at=long_ago))
    await store.made(a_workspace("old", scope="old", last_used_at=long_ago))
    await store.made(a_workspace("stays", scope="stays", last_used_at=long_ago))
    session = a_session(1, conversation_id="has", backend="podman", host_id="host1", delivery=Delivery.SETTLED)
    database.write_now(sessions.claim, session)
    gone: list[str] = []
    assert (await prunes(database, gone).planned())["containers"] == 2
    assert (await prunes(database, gone, failing="stays").once())["containers"] == 1
    assert gone == ["old"]  # what podman would not take away is left to the next time, and keeps nothing else
    database.write_now(sessions.finish, session.id, replace(EXITED, ended_at=long_ago))
    assert (await prunes(database, gone).planned())["containers"] == 2
    pruned = await prunes(database, gone).once()
    assert (pruned["sessions"], pruned["containers"]) == (1, 2)
    assert {one.name: one.state for one in await store.list()} == {
        "busy": "running",
        "has": "removed",
        "old": "removed",
        "stays": "removed",
    }
