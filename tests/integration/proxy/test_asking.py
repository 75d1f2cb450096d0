"""The proxy and the receptions that it asks: one question for all who wait, and another reception if one ends."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.policy.rules.matching import Rules
from shellback.exec.proxy import asking
from shellback.exec.proxy.asking import Asking
from shellback.exec.proxy.reach import Refused
from shellback.exec.wire import layout
from shellback.exec.wire.hosts import Entry
from shellback.storage.db import Database, after_commit
from shellback.storage.tables import conversations
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.connecting import Terms
from shellback.work.approvals.reception import Reception
from shellback.work.notices.notices import SILENT
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.queues import decisions_queue
from tests.items import NotedEnqueuer
from tests.supervisors import answered

pytestmark = pytest.mark.anyio


class Ringing(NotedEnqueuer):
    """Rings as the real one does."""

    def __init__(self, bell: Doorbell) -> None:
        super().__init__()
        self.bell = bell

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        after_commit(conn, self.bell.ring, host_id, decisions_queue(host_id))


@dataclass
class Scene:
    """A conversation `a`, a proxy's side of it, and receptions by name."""

    home: Path
    db: Database
    proxy: Asking
    receptions: dict[str, Reception] = field(default_factory=dict[str, Reception])
    queue: NotedEnqueuer = field(default_factory=NotedEnqueuer)

    async def open(self, name: str, *, once: bool = False) -> Reception:
        made = Reception(
            home=self.home,
            name=name,
            once=once,
            host_id="h",
            database=self.db,
            enqueuer=self.queue,
            doorbell=Doorbell(self.home, "h", self.db),
            terms=Terms(rules=Rules(), ttl_s=60.0, limit=50, outbox=SILENT),
        )
        self.receptions[name] = made
        await made.start()
        return made

    def connect(self, host: str = "x.example", wait_s: float = 20.0, **more: Any) -> asyncio.Task[Entry]:
        there = more.get("there", lambda: True)
        return asyncio.ensure_future(self.proxy.allow(more.get("scope", "a"), wait_s, there, "s1", host, 443))

    async def asked(self, count: int = 1) -> list[Request]:
        async def enough() -> bool:
            return len(await self.db.read(approvals.find, state="pending")) >= count

        await answered(enough)
        return await self.db.read(approvals.find, state="pending")

    async def decide(self, request: Request, decision: Any = "approved", **how: Any) -> None:
        queue = Ringing(Doorbell(self.home, "h", self.db))
        act = partial(approvals.settle, self.db, queue, request.id, decision, by="ann", surface="test", **how)
        await asyncio.to_thread(act)


@pytest.fixture
async def scene(tmp_path: Path, database: Database) -> AsyncGenerator[Scene]:
    row = {"id": "a", "host_id": "h", "created_at": time.time()}
    database.write_now(lambda conn: conn.execute(sa.insert(conversations).values(row)))
    async with Asking(str(tmp_path)) as proxy:
        found = Scene(tmp_path, database, proxy)
        yield found
        for one in found.receptions.values():
            await one.stop()


async def test_connections_to_one_host_share_a_question_and_its_answer(scene: Scene) -> None:
    await scene.open("w")
    waiting = [scene.connect() for _ in range(5)]
    (request,) = await scene.asked()
    await scene.decide(request)
    async with asyncio.timeout(20):
        found = await asyncio.gather(*waiting)
    assert {(one.text, one.host, one.ports) for one in found} == {
        (f"request {request.id}", "x.example", frozenset({443}))
    }


async def test_a_no_is_told_to_all_who_wait(scene: Scene) -> None:
    await scene.open("w")
    waiting = [scene.connect() for _ in range(2)]
    (request,) = await scene.asked()
    await scene.decide(request, "denied", note="no")
    for one in waiting:
        with pytest.raises(Refused, match="was denied by ann: no"):
            await asyncio.wait_for(one, 20)


async def test_if_a_reception_ends_the_question_goes_on_at_another(scene: Scene) -> None:
    first = await scene.open("v")
    waiting = scene.connect()
    (request,) = await scene.asked()
    await first.stop()
    await scene.open("w")
    await scene.decide(request)
    assert (await asyncio.wait_for(waiting, 20)).text == f"request {request.id}"
    assert len(await scene.db.read(approvals.find)) == 1


async def test_a_reception_that_opens_has_the_questions_that_nobody_had(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "AGAIN_S", 3600.0)
    waiting = scene.connect()
    for _ in range(5):
        await asyncio.sleep(0)  # it looks around, and waits
    await scene.open("w")
    (request,) = await scene.asked()
    await scene.decide(request)
    assert await asyncio.wait_for(waiting, 20)


async def test_a_reception_that_does_not_answer_is_left_for_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    place = scene.home / layout.RECEPTION
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(place / "stopped"))
        stopped.listen()
        waiting = scene.connect()
        await asyncio.to_thread(select.select, [stopped], [], [], 20)
        await scene.open("w")
        (request,) = await scene.asked()
        await scene.decide(request)
        assert await asyncio.wait_for(waiting, 20)


async def test_what_a_server_that_was_killed_has_left_is_removed(scene: Scene) -> None:
    place = scene.home / layout.RECEPTION
    place.mkdir(mode=0o700)
    for name in (f"s{layout.ONCE}", "worker"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(place / name))
    with pytest.raises(Refused, match="no worker answers"):
        await scene.connect(wait_s=0.2)
    # A worker of this name may just be starting.
    assert [one.name for one in place.iterdir()] == ["worker"]


async def test_a_yes_is_kept_if_all_clients_have_ended_before(scene: Scene) -> None:
    await scene.open("w")
    waiting = scene.connect(there=lambda: False)
    (request,) = await scene.asked()
    await scene.decide(request)
    with pytest.raises(Refused, match="the client has ended"):
        await asyncio.wait_for(waiting, 20)
    assert (await asyncio.wait_for(scene.connect(), 20)).text == f"request {request.id}"


async def test_who_waited_in_vain_is_told_of_the_request_and_the_question_ends(scene: Scene) -> None:
    await scene.open("w")
    waiting = scene.connect(wait_s=1.0)
    (request,) = await scene.asked()
    with pytest.raises(Refused, match=rf"within 1 s \(request {request.id} waits for a person\): repeat this later"):
        await waiting
    again = scene.connect()
    await scene.decide(request)
    assert await asyncio.wait_for(again, 20)


async def test_a_connection_that_ends_leaves_those_that_wait_with_it(scene: Scene) -> None:
    await scene.open("w")
    first, second = scene.connect(), scene.connect()
    (request,) = await scene.asked()
    first.cancel()
    await asyncio.wait([first])
    await scene.decide(request)
    assert await asyncio.wait_for(second, 20)


async def test_a_conversation_waits_for_so_many_hosts(scene: Scene) -> None:
    await scene.open("w")
    waiting = [scene.connect(f"h{number}.example") for number in range(asking.QUESTIONS)]
    await scene.asked(asking.QUESTIONS)
    with pytest.raises(Refused, match="other hosts wait for a person already"):
        await scene.connect("other.example")
    with pytest.raises(Refused, match="outside a conversation"):
        await scene.connect("other.example", scope="b")
    for one in waiting:
        one.cancel()
