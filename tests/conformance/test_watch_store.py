"""What every store of watches promises: in memory, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shellback.exec.core.errors import LimitReached
from shellback.exec.core.ports import WatchStore
from shellback.exec.core.watch import BY_THE_AGENT, LIFE, PER_CONVERSATION, PER_SESSION, STRIKES, UNHEEDED, USED_UP
from shellback.exec.watching.memory import MemoryWatchStore
from shellback.storage.watches import SqlWatchStore
from tests.watches import Fired, a_hit, a_watch

pytestmark = pytest.mark.anyio


@pytest.fixture
def sink() -> Fired:
    return Fired()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, sink: Fired) -> WatchStore:
    if request.param == "memory":
        return MemoryWatchStore(sink=sink)
    return SqlWatchStore(request.getfixturevalue(request.param), sink=sink)


async def test_a_placed_watch_reads_back_equal_and_a_second_placing_changes_nothing(store: WatchStore) -> None:
    watch = a_watch()
    assert await store.place(watch) == watch
    assert await store.place(replace(watch, pattern="other")) == watch
    assert await store.get(watch.id) == watch
    assert await store.get("other") is None


async def test_watches_that_are_on_are_listed_by_session_and_host(store: WatchStore) -> None:
    one, two = a_watch(1), a_watch(2, session_id="s2", host_id="h2")
    await store.place(two)
    await store.place(one)
    assert await store.list() == [one, two]
    assert await store.list(session_id="s2") == [two]
    assert await store.list(host_id="h") == [one]
    await store.off("s1", BY_THE_AGENT)
    assert await store.list() == [two]
    assert await store.get("v1") == replace(one, state="off", why_off=BY_THE_AGENT)


async def test_watches_of_a_session_and_of_a_conversation_are_bounded(store: WatchStore) -> None:
    for number in range(PER_CONVERSATION):
        await store.place(a_watch(number, session_id=f"s{number // PER_SESSION}"))
    with pytest.raises(LimitReached, match=f"session s0 has {PER_SESSION} watches"):
        await store.place(a_watch(900, session_id="s0"))
    with pytest.raises(LimitReached, match=f"this conversation has {PER_CONVERSATION} watches.*off=true"):
        await store.place(a_watch(901, session_id="s99"))
    await store.place(a_watch(902, session_id="s98", conversation_id="c2"))
    await store.off("s0", BY_THE_AGENT, watch_id="v0")
    assert await store.place(a_watch(901, session_id="s99")) == a_watch(901, session_id="s99")


async def test_a_hit_is_counted_and_told_once_however_often_it_is_found(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    fired = await store.hit("v1", a_hit(1))
    assert fired == replace(a_watch(), hits=1, strikes=1, offset=100, hit_at=201.0)
    assert await store.get("v1") == fired
    assert await store.hit("v1", a_hit(1)) is None
    assert await store.hit("v1", a_hit(3)) is None
    assert await store.hit("other", a_hit(1)) is None
    assert [told["hit"] for told in sink.told] == [1]
    assert await store.get("v1") == fired


async def test_two_that_find_the_same_hit_tell_it_once(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    found = await asyncio.gather(*(store.hit("v1", a_hit(1)) for _ in range(4)))
    assert len([one for one in found if one is not None]) == 1
    assert [told["hit"] for told in sink.told] == [1]


async def test_a_sink_that_raises_takes_the_hit_back(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    sink.refuses = True
    with pytest.raises(OSError, match="refused"):
        await store.hit("v1", a_hit(1))
    assert await store.get("v1") == a_watch()
    sink.refuses = False
    assert await store.hit("v1", a_hit(1)) is not None
    assert [told["hit"] for told in sink.told] == [1]


async def test_hits_that_nobody_heeds_switch_the_watch_off_and_say_so(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    for number in range(1, STRIKES):
        await store.hit("v1", a_hit(number))
    await store.heed("s1")
    for number in range(STRIKES, 2 * STRIKES):
        watch = await store.hit("v1", a_hit(number))
        assert watch is not None
        assert watch.on is (number < 2 * STRIKES - 1)
    assert [told["off"] for told in sink.told] == [None] * (2 * STRIKES - 2) + [UNHEEDED]
    assert await store.hit("v1", a_hit(2 * STRIKES)) is None


async def test_a_watch_has_its_hits_and_no_more(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    for number in range(1, LIFE + 1):
        await store.heed("s1")
        assert await store.hit("v1", a_hit(number)) is not None
    assert await store.hit("v1", a_hit(LIFE + 1)) is None
    assert [told["off"] for told in sink.told] == [None] * (LIFE - 1) + [USED_UP]


async def test_a_hit_of_what_the_agent_has_read_moves_on_and_is_not_told(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch(offset=50))
    watch = await store.hit("v1", a_hit(1, upto=50))
    assert watch == a_watch(offset=100)
    assert sink.told == []
    assert await store.hit("v1", a_hit(1, upto=101)) is not None
    assert len(sink.told) == 1


async def test_a_hit_that_cannot_be_told_yet_changes_nothing(store: WatchStore, sink: Fired) -> None:
    await store.place(a_watch())
    sink.busy = True
    assert await store.hit("v1", a_hit(1)) == a_watch()
    assert await store.get("v1") == a_watch()
    sink.busy = False
    assert await store.hit("v1", a_hit(1)) == replace(a_watch(), hits=1, strikes=1, offset=100, hit_at=201.0)


async def test_the_offset_moves_forward_only_and_only_of_a_watch_that_is_on(store: WatchStore) -> None:
    await store.place(a_watch())
    await store.moved("v1", 5)
    assert await store.get("v1") == a_watch()
    await store.moved("v1", 50)
    assert await store.get("v1") == a_watch(offset=50)
    await store.off("s1", BY_THE_AGENT)
    await store.moved("v1", 60)
    await store.heed("s1")
    assert await store.get("v1") == a_watch(offset=50, state="off", why_off=BY_THE_AGENT)
