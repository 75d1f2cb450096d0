"""The records of a proxy, from their beginning to their row: none is lost, doubled or left, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.proxy import journal
from shellback.exec.proxy.journal import Journal, Record
from shellback.exec.reports.connections import CUT, connections
from shellback.exec.wire import layout
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseFull
from shellback.work.approvals import audit, collector, connected
from shellback.work.approvals.audit import Entry
from shellback.work.approvals.collector import Collector
from shellback.work.queue.doorbell import Doorbell
from tests.supervisors import answered, until

pytestmark = pytest.mark.anyio

OTHER = """
import asyncio, sys
from shellback.exec.proxy.journal import Journal
async def main():
    with Journal(sys.argv[1]) as journal:
        facts = {"scope": "a", "host": "x.example", "port": 443, "refused": "", "address": "192.0.2.1"}
        for name in ("open", "over"):
            record = journal.begin("a", {"id": name, "at": 1000.0, **facts})
            record.add(3, 40)
        journal.end(record, {"id": name, "at": 1000.0, **facts, "seconds": 2.0})
        journal.sum_up("a", 5, 6, 1)
        print("ready", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
"""A proxy that has a record that is open, one that has ended, and a sum."""


class Scene:
    """A state directory with a database, and the collectors that a test starts."""

    def __init__(self, home: Path, db: Database) -> None:
        self.home = home
        self.db = db
        self.collectors: list[Collector] = []

    async def collect(self) -> Collector:
        made = Collector(home=self.home, database=self.db, doorbell=Doorbell(self.home, "h", self.db))
        self.collectors.append(made)
        await made.start()
        return made

    async def rows(self, count: int) -> list[Entry]:
        async def enough() -> bool:
            return len(await self.db.read(audit.find)) >= count

        await answered(enough)
        return await self.db.read(audit.find)

    async def proxy(self) -> asyncio.subprocess.Process:
        """`OTHER`, which is ready."""
        pipe = asyncio.subprocess.PIPE
        made = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER, str(self.home), stdout=pipe)
        assert made.stdout is not None
        assert await made.stdout.readline() == b"ready\n"
        return made

    @property
    def left(self) -> list[Path]:
        return [path for path in (self.home / layout.NETWORK).rglob("*") if path.is_file()]


@pytest.fixture
async def scene(tmp_path: Path, database: Database) -> AsyncGenerator[Scene]:
    found = Scene(tmp_path, database)
    yield found
    for one in found.collectors:
        await one.stop()


def record(writer: Journal, name: str, scope: str = "a", **more: object) -> tuple[Record | None, dict[str, object]]:
    facts = {"id": name, "at": 1000.0, "scope": scope, "host": "x.example", "port": 443, "refused": "", **more}
    return writer.begin(scope, facts), facts


async def test_a_record_becomes_a_row_as_soon_as_its_connection_has_ended(scene: Scene) -> None:
    await scene.collect()
    with Journal(str(scene.home)) as writer:
        made, facts = record(writer, "one", session="s1", address="192.0.2.1", decision="allow", rule="*.example")
        assert made is not None
        made.add(3, 40)
        (shown,) = connections(scene.home, "a")
        assert (shown.up, shown.down, shown.seconds) == (3, 40, None)
        writer.end(made, facts | {"seconds": 2.5})
        (row,) = await scene.rows(1)
    assert (row.event, row.conversation_id, row.session_id, row.rule, row.command, row.at) == (
        "connected", "a", "s1", "*.example", "x.example:443", 1002.5,
    )  # fmt: skip
    assert row.facts == {
        "began": "1970-01-01T00:16:40.000+00:00", "seconds": 2.5, "decision": "allow", "host": "x.example",
        "port": 443, "address": "192.0.2.1", "sent": 3, "received": 40,
    }  # fmt: skip
    (found,) = await scene.db.read(connected.find, "a", 10)
    assert found == shown.__class__(**{**facts, "up": 3, "down": 40, "seconds": 2.5})  # type: ignore[arg-type]
    await until(lambda: not scene.left)


async def test_a_proxy_that_is_killed_leaves_whole_records_with_all_bytes(scene: Scene) -> None:
    proxy = await scene.proxy()
    await scene.collect()
    (row,) = await scene.rows(1)
    assert (row.call_key, row.reason) == ("connection:over", None)
    assert {one.id for one in connections(scene.home) if one.seconds is None} >= {"open"}
    proxy.kill()
    await proxy.wait()
    with Journal(str(scene.home)):  # its successor rings
        _, *others = await scene.rows(3)
    found = {one.command: (one.reason, (one.facts or {})["sent"], (one.facts or {})["received"]) for one in others}
    assert found == {"x.example:443": (CUT, 3, 40), None: (CUT, 5, 6)}
    await until(lambda: not [*(scene.home / layout.NETWORK).iterdir()])


async def test_a_record_that_two_collect_or_that_is_brought_again_is_one_row(scene: Scene) -> None:
    with Journal(str(scene.home)) as writer:
        for number in range(450):
            made, facts = record(writer, f"r{number}")
            assert made is not None
            writer.end(made, facts | {"seconds": 0.1})
        again = connections(scene.home)
        await scene.collect()
        await scene.collect()
        await scene.rows(450)
        await until(lambda: not scene.left)
        await scene.db.write(connected.note, again)
    numbers: list[str] = []
    after = 0
    while found := await scene.db.read(audit.find, after=after):
        numbers += [one.call_key or "" for one in found]
        after = found[-1].id
    assert sorted(numbers) == sorted(f"connection:r{number}" for number in range(450))


async def test_a_database_that_fails_leaves_the_records(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseFull("no room")

    with Journal(str(scene.home)) as writer:
        made, facts = record(writer, "one")
        assert made is not None
        writer.end(made, facts | {"seconds": 0.1})
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(connected, "note", fail)
            failing = await scene.collect()
            await until(lambda: "no rows of the audit yet" in caplog.text)
            await failing.stop()
        assert len(scene.left) == 1
        await scene.collect()
        assert len(await scene.rows(1)) == 1


async def test_a_record_that_no_row_can_be_made_of_holds_up_no_other_and_is_set_aside(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "KEPT", 2)
    with Journal(str(scene.home)) as writer:
        for number in range(9):
            # Times that no row can have, and a text that none can have.
            wrong: dict[str, Any] = {1: {"at": 1e300}, 4: {"session": "\ud800"}, 7: {"at": -1e300}}.get(number, {})
            made, facts = record(writer, f"r{number}", **wrong)
            assert made is not None
            writer.end(made, facts | {"seconds": 0.1})
        with caplog.at_level(logging.WARNING):
            await scene.collect()
            rows = await scene.rows(6)
            await until(lambda: not scene.left)
    assert {one.call_key for one in rows} == {f"connection:r{number}" for number in (0, 2, 3, 5, 6, 8)}
    assert caplog.text.count("its record is set aside as") == 3
    assert len([*(scene.home / layout.ASIDE).iterdir()]) == 2


def ended(writer: Journal, name: str, **more: Any) -> None:
    made, facts = record(writer, name, **more)
    assert made is not None
    writer.end(made, facts | {"seconds": 0.1})


async def test_those_are_kept_that_were_set_aside_last_however_old_they_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "KEPT", 2)
    aside = scene.home / layout.ASIDE
    with Journal(str(scene.home)) as writer:
        for name, at in (("first", time.time() + 3600), ("second", 1.0), ("third", 2.0)):
            ended(writer, name, at=1e300)
            (found,) = scene.left
            os.utime(found, (at, at))
            one = await scene.collect()
            await until((aside / found.name).exists)
            await one.stop()
    assert {path.name for path in aside.iterdir()} == {"second", "third"}


async def test_a_record_that_cannot_be_set_aside_holds_up_no_other_and_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collector, "AGAIN_S", 0.05)
    aside = scene.home / layout.ASIDE
    aside.touch()
    with Journal(str(scene.home)) as writer, caplog.at_level(logging.WARNING):
        for name, at in (("a", 1000.0), ("b", 1e300), ("c", 1000.0)):
            ended(writer, name, at=at)
        await scene.collect()
        await until(lambda: [path.name for path in scene.left] == ["b"] and "it is tried again" in caplog.text)
        assert len(await scene.rows(2)) == 2
        aside.unlink()
        await until(lambda: not scene.left)
    assert [path.name for path in aside.iterdir()] == ["b"]


async def test_an_error_of_ours_sets_no_record_aside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*_: object) -> None:
        raise AttributeError("a bug")

    with Journal(str(scene.home)) as writer, caplog.at_level(logging.WARNING):
        ended(writer, "one")
        monkeypatch.setattr(connected, "note", wrong)
        await scene.collect()
        await until(lambda: "no rows of the audit yet" in caplog.text)
    assert len(scene.left) == 1
    assert not (scene.home / layout.ASIDE).exists()


async def test_connections_in_a_loop_are_summed_up_and_nobody_elses_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BURST", 3)
    with Journal(str(scene.home)) as writer:
        made = [record(writer, f"r{number}")[0] for number in range(10)]
        assert [one is not None for one in made] == [True] * 3 + [False] * 7
        assert record(writer, "other", "b")[0] is not None
        for _ in range(7):
            writer.sum_up("a", 1, 2, 1)
    (found,) = [one for one in connections(scene.home, "a") if one.times]
    assert (found.times, found.up, found.down, found.seconds) == (7, 7, 14, journal.SUM_S)


async def test_what_nobody_collects_stays_within_bounds(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "WAITING", 2)
    monkeypatch.setattr(journal, "FORMER", 3)
    with Journal(str(scene.home)) as writer:
        made = [record(writer, f"r{number}") for number in range(3)]
        assert made[2][0] is None
        (first, facts), *_ = made
        assert first is not None
        writer.end(first, facts)
        next(path for path in scene.left if path.name == "r0").unlink()
        assert record(writer, "r3")[0] is not None
        for _ in range(4):
            killed = await scene.proxy()
            killed.kill()
            await killed.wait()
        with Journal(str(scene.home)) as later:
            assert record(later, "r4")[0] is not None
        # The first one is the oldest, but it lives.
        assert len([*(scene.home / layout.NETWORK).iterdir()]) == 4
        assert {"r1", "r3", "r4"} <= {one.id for one in connections(scene.home)}


async def test_a_damaged_record_of_a_dead_proxy_is_removed_and_stops_no_other(scene: Scene) -> None:
    proxy = await scene.proxy()
    proxy.kill()
    await proxy.wait()
    place = scene.left[0].parent
    for name, text in {"empty": "", "torn": "12 ", "strange": "{" * 60, "old": json.dumps({"id": "x"}) + "\n"}.items():
        (place / name).write_text(text)
    (scene.home / layout.NETWORK / "file").write_text("")
    os.utime(place, (0, 0))
    await scene.collect()
    assert len(await scene.rows(3)) == 3
    await until(lambda: [path.name for path in scene.left] == ["file"])
