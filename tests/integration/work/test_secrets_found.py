"""How many secrets output had is in the audit once, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from shellback.storage.db import Database
from shellback.storage.errors import DatabaseFull
from shellback.work.approvals import audit, secrets_found
from shellback.work.approvals.secrets_found import SecretsFound
from tests.supervisors import answered, until

pytestmark = pytest.mark.anyio


async def sums(db: Database) -> list[int]:
    return [(one.facts or {})["found"] for one in await db.read(audit.find)]


async def test_what_was_found_before_the_start_becomes_a_row(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets_found, "SUM_S", 0.01)
    found = SecretsFound(database=database, mode="names")
    found.count(3, "s")
    await found.start()
    await answered(lambda: sums(database), [3].__eq__)
    await found.stop()


async def test_an_outage_of_the_database_loses_no_count(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(secrets_found, "SUM_S", 0.01)
    found = SecretsFound(database=database, mode="names")
    await found.start()
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(secrets_found, "note", _full)
            found.count(3, "s")
            await until(lambda: "is no row of the audit yet" in caplog.text)
            found.count(4, "s")
        await answered(lambda: sums(database), lambda now: sum(now) == 7)
    await found.stop()
    assert sum(await sums(database)) == 7


async def test_an_end_while_a_row_is_added_loses_no_count_and_doubles_none(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets_found, "SUM_S", 0.01)
    found = SecretsFound(database=database, mode="names")
    write, begun, go = database.write, asyncio.Event(), asyncio.Event()

    async def slow(fn: Callable[..., Any], *args: Any) -> Any:
        begun.set()
        await go.wait()
        return await write(fn, *args)

    monkeypatch.setattr(database, "write", slow)
    await found.start()
    found.count(3, "s")
    await begun.wait()
    found.count(4, "s")
    stopping = asyncio.create_task(found.stop())
    await asyncio.sleep(0)
    go.set()
    await stopping
    assert sorted(await sums(database)) == [3, 4]
    found.count(1, "s")  # a thread that has not heard of it


def _full(*_: object) -> None:
    raise DatabaseFull("no room")
