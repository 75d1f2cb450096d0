"""What every place for findings promises: in memory, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio

import pytest

from shellback.exec.core.findings import REPOSITORY, Finding, FindingSink, MemoryFindings, finding_id
from shellback.storage import findings as rows
from shellback.storage import tables as t
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.rows import names
from shellback.work.queue import stream
from shellback.work.queue.callbacks import SqlFindings

pytestmark = pytest.mark.anyio


def a_finding(name: str = "lib", session: str = "x1") -> Finding:
    path = f"/work space/{name}/.git/config"
    return Finding(
        id=finding_id(REPOSITORY, path, 7),
        kind=REPOSITORY,
        path=path,
        detail=f"{name} sets core.fsmonitor",
        session_id=session,
        conversation_id="main",
        kept="/home/kept/1",
        created_at=12.5,
    )


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sink(request: pytest.FixtureRequest) -> FindingSink:
    if request.param == "memory":
        return MemoryFindings()
    return SqlFindings(request.getfixturevalue(request.param), "here")


async def test_a_finding_reads_back_equal_and_by_its_session_alone(sink: FindingSink) -> None:
    one, other = a_finding(), a_finding("other", session="x2")
    assert list(await sink.found([one, other])) == [one, other]
    assert list(await sink.of("x1")) == [one]
    assert list(await sink.of("x3")) == []


async def test_what_was_found_before_is_not_told_again(sink: FindingSink) -> None:
    await sink.found([a_finding()])
    assert list(await sink.found([a_finding(session="x9"), a_finding("new")])) == [a_finding("new")]
    assert list(await sink.of("x9")) == []
    assert list(await sink.found([])) == []


def test_names_that_are_no_text_are_kept_as_text(sink: FindingSink) -> None:
    odd = Finding(id="f1", kind=REPOSITORY, path="/w/\udcff\udc80", detail="\udcff" * 5_000)
    assert (odd.path, len(odd.detail)) == (r"/w/\xff\x80", 1_000)
    assert list(asyncio.run(sink.found([odd]))) == [odd]


def test_an_acknowledged_finding_is_open_no_more_and_says_who(database: Database) -> None:
    one, other = a_finding(), a_finding("other")
    database.write_now(rows.record, "here", [one, other])
    assert database.read_now(rows.open_count) == 2
    assert database.write_now(rows.acknowledge, [one.id], by="me", at=99.0) == 1
    assert database.write_now(rows.acknowledge, [one.id], by="you", at=100.0) == 0
    assert database.read_now(rows.find) == [other]
    seen = database.read_now(rows.get, one.id[:8])
    assert (seen.acknowledged_by, seen.acknowledged_at, seen.open) == ("me", 99.0, False)
    still_open = t.findings.c.acknowledged_at.is_(None)
    newest = t.findings.c.created_at
    assert database.read_now(names, t.findings.c.id, "f", still_open, newest=newest, limit=9) == [other.id]


@pytest.mark.parametrize("given", ["", "f", "nothing", "%"])
def test_an_id_that_is_none_or_of_several_is_refused(database: Database, given: str) -> None:
    database.write_now(rows.record, "here", [a_finding(), a_finding("other")])
    with pytest.raises(StorageError, match=r"shellback findings list|several findings, .*: give more of it"):
        database.read_now(rows.get, given)


def test_a_new_finding_is_an_event_of_its_conversation_once(database: Database) -> None:
    sink = SqlFindings(database, "here")
    for _ in range(2):
        asyncio.run(sink.found([a_finding()]))
    (event,) = database.read_now(stream.after, "main", 0)
    assert (event.kind, event.payload["id"], event.payload["path"]) == ("finding", a_finding().id, a_finding().path)
