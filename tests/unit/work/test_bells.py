"""A bell ends the wait of a queue's thread at a ring, and rings itself when an item may wait for a slot."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from shellback.exec.wire.bells import prefix
from shellback.storage.db import Database
from shellback.work.queue.bells import Bell, Slots
from shellback.work.queue.doorbell import Doorbell
from shellback.work.worker.dispatch import Dispatch

# pyright: reportPrivateUsage=false

pytestmark = pytest.mark.anyio
LONG_S = 25.0
PATIENCE_S = 10.0
AT_ONCE_S = 0.0


class Polls:
    """The thread of a queue: at each poll it takes `wanted` items, as far as slots are free."""

    def __init__(self, slots: int | Slots, others: Callable[[], None] = lambda: None) -> None:
        self.slots = Slots(slots) if isinstance(slots, int) else slots
        self.bell = Bell(self.slots, asyncio.get_running_loop(), others)
        self.running = 0

    async def wait(self, timeout_s: float = LONG_S) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(self.bell.wait, timeout_s)

    def take(self, wanted: int) -> int:
        taken = min(wanted, self.slots.number - self.slots.running)
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


async def test_queues_that_share_slots_fill_them_together_and_each_hears_of_a_free_one() -> None:
    slots = Slots(3)
    one, other = Polls(slots), Polls(slots)
    one.bell.ring()
    await one.wait()
    assert one.take(2) == 2
    polling = asyncio.create_task(other.wait())
    other.bell.ring()
    await asyncio.sleep(0.05)
    assert not polling.done(), "one of them polls at a time"
    resting = asyncio.create_task(one.wait())
    assert await polling is False
    assert other.take(2) == 1
    assert not one.bell.hear(), "no slot is free"
    both = {resting: one, asyncio.create_task(other.wait()): other}
    one.end()
    while both:  # one for the ring that it heard, one for the item that found no slot
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for polled in done:
            assert polled.result() is False
            both.pop(polled).bell.rest()
    assert slots.running == 2


async def test_a_free_slot_is_offered_last_to_the_queue_that_has_filled_one_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots, offered = Slots(1), list[str]()
    bells = {name: Bell(slots, asyncio.get_running_loop()) for name in ("a", "b", "c")}
    for name, bell in bells.items():
        monkeypatch.setattr(bell, "freed", partial(offered.append, name))
    for name, order in (("a", "bca"), ("c", "bac"), ("b", "acb"), ("b", "acb")):
        bells[name].began()
        bells[name].ended()
        assert "".join(offered) == order
        offered.clear()


def _comes(slots: Slots, number: int) -> None:
    while len(slots._polling) < number:
        time.sleep(0.001)


async def test_queues_poll_in_the_order_in_which_they_came() -> None:
    slots = Slots(1)
    bells = [Bell(slots, asyncio.get_running_loop()) for _ in range(3)]
    polls = list[asyncio.Task[None]]()
    for bell in bells:
        polls.append(asyncio.create_task(asyncio.to_thread(slots.begin_poll, bell)))
        await asyncio.to_thread(_comes, slots, len(polls))
    for place, bell in enumerate(bells):
        await asyncio.wait_for(polls[place], 60)
        assert [one.done() for one in polls] == [True] * (place + 1) + [False] * (2 - place)
        slots.end_poll(bell)


async def test_a_stop_ends_the_wait_for_the_poll_of_another_queue() -> None:
    slots = Slots(1)
    polling, stopped, after = (Bell(slots, asyncio.get_running_loop()) for _ in range(3))
    slots.begin_poll(polling)
    waits = list[asyncio.Task[None]]()
    for number, bell in enumerate((stopped, after), 2):
        waits.append(asyncio.create_task(asyncio.to_thread(slots.begin_poll, bell)))
        await asyncio.to_thread(_comes, slots, number)
    stopped.stop()
    ended, left = await asyncio.wait(waits, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    for bell in (stopped, polling):
        slots.end_poll(bell)
    await asyncio.wait(waits)
    assert (ended, left) == ({waits[0]}, {waits[1]})


async def test_a_queue_that_leaves_shares_no_slots_and_its_turns_count_on() -> None:
    slots = Slots(1)
    one, other = Polls(slots), Polls(slots)
    one.bell.ring()
    await one.wait()
    one.take(1)
    one.bell.stop()
    one.bell.rest()
    one.bell.leave()
    assert not other.bell.hear()
    waiting = asyncio.create_task(other.wait())
    one.end()
    assert await waiting is False


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


async def test_a_ring_reaches_one_worker_of_its_host_and_only_the_bell_of_its_queue(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    home = tmp_path / ("a" * 120)  # a socket's own path has at most 108 bytes
    home.mkdir()
    ours, other = Doorbell(home, "h", sqlite), Doorbell(home, "h", sqlite)
    for number, doorbell in enumerate((ours, other)):
        await doorbell.listen(
            f"w{number}", {queue: _noting(heard, f"{number} {queue}") for queue in ("turns.h", "wakes.h")}
        )
    ring = Doorbell(home, "h", sqlite).ring
    await asyncio.to_thread(ring, "h", "wakes.h")
    assert await heard.get() in {"0 wakes.h", "1 wakes.h"}
    await asyncio.to_thread(partial(ring, every=True), "h", "turns.h")
    assert {await heard.get(), await heard.get()} == {"0 turns.h", "1 turns.h"}, "the first ring woke one worker"
    await other.close()
    await asyncio.to_thread(ring, "h", "turns.h")
    assert await heard.get() == "0 turns.h"
    await ours.close()
    assert not list((home / "bells").iterdir())
    assert heard.empty()


async def test_a_ring_goes_on_to_the_next_worker_until_one_has_use_for_it_or_each_has_heard_it(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    workers = [f"w{number}" for number in range(5)]
    useful: set[str] = set()
    doorbells = [Doorbell(tmp_path, "h", sqlite) for _ in workers]

    def hears(worker: str) -> Callable[[], bool]:
        def hear() -> bool:
            heard.put_nowait(worker)
            return worker in useful

        return hear

    for worker, doorbell in zip(workers, doorbells, strict=True):
        await doorbell.listen(worker, {"turns.h": hears(worker)})
    left = next((tmp_path / "bells").iterdir()).with_name(f"{prefix('turns.h')}0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(left))
    for wanted in (set[str](), {"w1"}, {"w0", "w4"}):
        useful.clear()
        useful |= wanted
        for _ in range(10):
            await asyncio.to_thread(doorbells[0].ring, "h", "turns.h")
            told: list[str] = []
            async with asyncio.timeout(PATIENCE_S):
                while not wanted & set(told) and len(told) < len(workers):
                    told.append(await heard.get())
            assert len(set(told)) == len(told), "none hears a ring twice"
    useful.clear()
    doorbells[2].ring_another("turns.h", "w2")
    async with asyncio.timeout(PATIENCE_S):
        assert {await heard.get() for _ in workers} == set(workers), "the last one that hears it is who sent it on"
    for doorbell in doorbells:
        await doorbell.close()
    assert heard.empty()


async def test_a_bell_without_a_free_slot_has_no_use_for_a_ring_and_rings_when_a_turn_ends() -> None:
    polls = Polls(2)
    assert polls.bell.hear() is True
    await polls.wait()
    polls.take(1)
    waiting = asyncio.create_task(polls.wait())
    await asyncio.sleep(0.1)
    polls.take(1)  # one that DBOS resumed: the last poll had slots for more
    assert polls.bell.hear() is False
    await asyncio.sleep(0.1)
    assert not waiting.done()
    polls.end()
    assert await waiting is False


async def test_a_bell_whose_polls_get_no_new_items_has_no_use_for_a_ring() -> None:
    polls = Polls(2)
    polls.bell.takes = False
    assert polls.bell.hear() is False
    assert await polls.wait(AT_ONCE_S) is False
    polls.bell.takes = True
    assert polls.bell.hear() is True


async def test_a_ring_goes_past_a_worker_that_reads_none(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    doorbell = Doorbell(tmp_path, "h", sqlite)
    await doorbell.listen("w", {"turns.h": _noting(heard, "w")})
    paused = next((tmp_path / "bells").iterdir()).with_name(f"{prefix('turns.h')}0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unread:
        unread.bind(str(paused))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ours:
            for _ in range(10_000):
                with contextlib.suppress(BlockingIOError):
                    ours.sendto(b"\0", str(paused))
        for _ in range(20):
            doorbell.ring("h", "turns.h")
            async with asyncio.timeout(PATIENCE_S):
                assert await heard.get() == "w"
    await doorbell.close()


async def test_a_worker_that_stops_has_another_one_rung_for_what_it_did_not_answer(
    sqlite: Database, tmp_path: Path, heard: asyncio.Queue[str]
) -> None:
    stopping, other = Doorbell(tmp_path, "h", sqlite), Doorbell(tmp_path, "h", sqlite)
    dispatch = Dispatch("w0", stopping, {"turns.h": Slots(1)})
    dispatch.prepare()
    await stopping.listen("w0", {"turns.h": lambda: None})
    await other.listen("w1", {"turns.h": _noting(heard, "w1")})
    await dispatch.stop()
    async with asyncio.timeout(PATIENCE_S):
        assert await heard.get() == "w1"
    await other.close()


async def test_a_poll_that_others_rang_for_and_that_took_all_slots_rings_another_worker_once() -> None:
    rung: list[None] = []
    polls = Polls(2, lambda: rung.append(None))
    polls.bell.ring()
    await polls.wait()
    polls.take(2)
    assert await polls.wait(AT_ONCE_S) is False
    assert not rung, "nobody has rung but the worker itself"
    polls.end(2)
    for _ in range(3):
        assert polls.bell.hear() is True
    await polls.wait()
    polls.take(3)
    for _ in range(2):
        assert await polls.wait(AT_ONCE_S) is False
    assert len(rung) == 1


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
