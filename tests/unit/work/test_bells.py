"""A bell ends the wait of a queue's thread at a ring, and rings itself when an item may wait for a slot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shellback.storage.db import Database
from shellback.work.queue.bells import Bell
from shellback.work.queue.doorbell import Doorbell

pytestmark = pytest.mark.anyio
LONG_S = 25.0
PATIENCE_S = 10.0
AT_ONCE_S = 0.0


class Polls:
    """The thread of a queue: at each poll it takes `wanted` items, as far as slots are free."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.bell = Bell(slots, asyncio.get_running_loop())
        self.running = 0

    async def wait(self, timeout_s: float = LONG_S) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(self.bell.wait, timeout_s)

    def take(self, wanted: int) -> int:
        taken = min(wanted, self.slots - self.running)
        for _ in range(taken):
            self.running += 1
            self.bell.began()
        return taken

    def end(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.running -= 1
            self.bell.ended()


async def test_a_ring_ends_the_wait_also_one_that_came_before_it() -> None:
    polls = Polls(2)
    waiting = asyncio.create_task(polls.wait())
    await asyncio.sleep(0)
    polls.bell.ring()
    assert await waiting is False
    polls.bell.ring()
    assert await polls.wait() is False


async def test_a_stop_ends_the_wait_and_every_later_one() -> None:
    polls = Polls(2)
    polls.bell.stop()
    assert await polls.wait() is True
    assert await polls.wait() is True
    assert polls.bell.is_set()


async def test_items_that_found_no_slot_are_taken_as_soon_as_turns_end() -> None:
    polls = Polls(2)
    items = 7
    polls.bell.ring()
    while items:
        await polls.wait()
        items -= polls.take(items)
        # Both turns end, one during the next wait.
        waiting = asyncio.create_task(polls.wait())
        polls.end()
        await waiting
        items -= polls.take(items)
        polls.end(polls.running)


async def test_a_turn_that_ends_while_slots_were_free_causes_no_poll() -> None:
    polls = Polls(3)
    polls.bell.ring()
    await polls.wait()
    polls.take(2)
    assert await polls.wait(AT_ONCE_S) is False
    polls.end()
    rung = threading.Event()

    def wait() -> None:
        polls.bell.wait(LONG_S)
        rung.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    await asyncio.to_thread(rung.wait, 0.2)
    assert not rung.is_set()
    polls.bell.ring()
    await asyncio.to_thread(thread.join)


@pytest.fixture
def heard() -> asyncio.Queue[str]:
    return asyncio.Queue()


async def test_a_ring_reaches_the_workers_of_its_host_and_only_the_bell_of_its_queue(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    home = tmp_path / ("a" * 120)  # a socket's own path has at most 108 bytes
    home.mkdir()
    ours, other = Doorbell(home, "h", sqlite), Doorbell(home, "h", sqlite)
    for number, doorbell in enumerate((ours, other)):
        await doorbell.listen(
            f"w{number}", {queue: _noting(heard, f"{number} {queue}") for queue in ("turns.h", "wakes.h")}
        )
    await asyncio.to_thread(Doorbell(home, "h", sqlite).ring, "h", "wakes.h")
    assert {await heard.get(), await heard.get()} == {"0 wakes.h", "1 wakes.h"}
    await other.close()
    await asyncio.to_thread(Doorbell(home, "h", sqlite).ring, "h", "turns.h")
    assert await heard.get() == "0 turns.h"
    await ours.close()
    assert not list((home / "bells").iterdir())
    assert heard.empty()


async def test_more_rings_than_a_socket_holds_are_one(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    doorbell = Doorbell(tmp_path, "h", sqlite)
    await doorbell.listen("w", {"turns.h": _noting(heard, "turns.h")})
    for _ in range(1000):
        doorbell.ring("h", "turns.h")
    assert await heard.get() == "turns.h"
    await doorbell.close()


def _noting(heard: asyncio.Queue[str], what: str) -> Callable[[], None]:
    return lambda: heard.put_nowait(what)
