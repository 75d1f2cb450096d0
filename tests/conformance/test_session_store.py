"""What every session store promises: in memory, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidTransition, LimitReached, SessionNotFound
from shellback.exec.core.model import Act, CallKey, Delivery, EndedBy, SessionEnd, SessionId, SessionState
from shellback.exec.core.ports import SessionStore
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.storage.sessions import SqlSessionStore
from tests.sessions import EXITED, LOST, RecordingSink, a_session

pytestmark = pytest.mark.anyio


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, sink: RecordingSink) -> SessionStore:
    if request.param == "memory":
        return MemorySessionStore(sink=sink)
    return SqlSessionStore(request.getfixturevalue(request.param), sink=sink)


async def test_a_claimed_session_reads_back_equal(store: SessionStore) -> None:
    session = a_session(approval_id="a1", pty=True, stdin_open=True)
    assert await store.claim(session) == session
    assert await store.get(session.id) == session
    assert await store.get(SessionId("other")) is None


async def test_a_second_claim_returns_the_first_session_untouched(store: SessionStore) -> None:
    first = await store.claim(a_session())
    assert await store.claim(a_session(turn_id="turn-2", command="other")) == first
    assert await store.list() == [first]


async def test_live_sessions_of_a_conversation_are_bounded_and_the_message_names_the_limit(store: SessionStore) -> None:
    for number in range(3):
        await store.claim(a_session(number), limit=3)
    with pytest.raises(LimitReached, match="3 is the limit"):
        await store.claim(a_session(3), limit=3)
    assert (await store.claim(a_session(0), limit=3)).id == "s0"
    await store.claim(a_session(4, conversation_id="c2"), limit=1)
    await store.finish(SessionId("s1"), EXITED)
    await store.claim(a_session(3), limit=3)


async def test_started_moves_only_a_claimed_session(store: SessionStore) -> None:
    claimed = await store.claim(a_session())
    await store.started(claimed.id, pid=42, started_at=150.0)
    running = replace(claimed, state=SessionState.RUNNING, pid=42, started_at=150.0)
    assert await store.get(claimed.id) == running
    await store.started(claimed.id, pid=43, started_at=151.0)
    assert await store.get(claimed.id) == running
    ended = await store.finish(claimed.id, EXITED)
    await store.started(claimed.id, pid=44, started_at=152.0)
    assert await store.get(claimed.id) == ended
    await store.started(SessionId("unknown"), pid=1, started_at=1.0)


@pytest.mark.parametrize(
    "end",
    [
        EXITED,
        LOST,
        SessionEnd(state=SessionState.START_FAILED, errno=2),
        SessionEnd(
            state=SessionState.SIGNALED,
            signal=9,
            ended_by=EndedBy.PERSON,
            bytes_total=5,
            bytes_dropped=2,
            survivors=(7, 8),
        ),
        SessionEnd(state=SessionState.TIMED_OUT, signal=15, ended_by=EndedBy.TIMEOUT),
    ],
    ids=lambda end: str(end.state),
)
async def test_an_end_reads_back_equal(store: SessionStore, sink: RecordingSink, end: SessionEnd) -> None:
    claimed = await store.claim(a_session())
    ended = await store.finish(claimed.id, end)
    assert ended == replace(claimed, state=end.state, end=end, started_at=end.began_at)
    assert await store.get(claimed.id) == ended
    assert sink.told == [ended]


async def test_what_ran_has_a_beginning_also_where_nobody_noted_it_and_what_never_ran_has_none(
    store: SessionStore,
) -> None:
    ends = {
        "s0": SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=200.0, duration_s=0.5),
        "s1": SessionEnd(state=SessionState.SIGNALED, signal=9, ended_at=200.0, duration_s=1.5),
        "s2": SessionEnd(state=SessionState.START_FAILED, errno=2, ended_at=200.0),
    }
    for number, (name, end) in enumerate(ends.items()):
        await store.claim(a_session(number))
        await store.finish(SessionId(name), end)
    began = [found.started_at for name in ends if (found := await store.get(SessionId(name)))]
    assert began == [199.5, 198.5, None]


@pytest.mark.parametrize(("first", "second"), [(EXITED, LOST), (LOST, EXITED), (EXITED, replace(EXITED, exit_code=0))])
async def test_only_the_first_end_counts_and_is_told(
    store: SessionStore, sink: RecordingSink, first: SessionEnd, second: SessionEnd
) -> None:
    session = await store.claim(a_session())
    ended = await store.finish(session.id, first)
    assert await store.finish(session.id, second) == ended
    assert (await store.get(session.id)) == ended
    assert sink.told == [ended]


def test_the_end_of_an_unknown_session_is_refused(store: SessionStore) -> None:
    with pytest.raises(SessionNotFound):
        asyncio.run(store.finish(SessionId("unknown"), EXITED))


async def test_a_sink_that_raises_takes_the_end_back(store: SessionStore, sink: RecordingSink) -> None:
    session = await store.claim(a_session())
    sink.refuses = True
    with pytest.raises(OSError, match="refused"):
        await store.finish(session.id, EXITED)
    assert await store.get(session.id) == session
    sink.refuses = False
    ended = await store.finish(session.id, EXITED)
    assert sink.told == [ended]


async def test_an_inline_end_is_told_only_when_handed_over(store: SessionStore, sink: RecordingSink) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    ended = await store.finish(session.id, EXITED)
    assert sink.told == []
    assert await store.hand_over(session.id)
    assert await store.hand_over(session.id)
    assert sink.told == [replace(ended, delivery=Delivery.CALLBACK)]
    assert not await store.settle_inline(session.id)


async def test_an_end_that_a_call_waits_for_is_settled_with_it(store: SessionStore, sink: RecordingSink) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    ended = await store.finish(session.id, EXITED, told_inline=True)
    assert ended.delivery is Delivery.SETTLED
    assert not await store.hand_over(session.id)
    assert sink.told == []


async def test_an_end_that_another_worker_recorded_is_settled_by_the_call_that_was_told_it(
    store: SessionStore, sink: RecordingSink
) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    await store.finish(session.id, EXITED)
    ended = await store.finish(session.id, EXITED, told_inline=True)
    assert ended.delivery is Delivery.SETTLED
    assert not await store.hand_over(session.id)
    assert sink.told == []


async def test_a_call_that_waits_for_an_end_handed_over_before_leaves_it_to_the_callback(
    store: SessionStore, sink: RecordingSink
) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    assert await store.hand_over(session.id)
    ended = await store.finish(session.id, EXITED, told_inline=True)
    assert sink.told == [ended]


async def test_a_pin_stays_with_its_session_and_none_takes_it_away(store: SessionStore) -> None:
    claimed = await store.claim(a_session())
    assert claimed.pinned is None
    for pinned in (True, False, None, True):
        await store.pin(claimed.id, pinned)
        assert await store.get(claimed.id) == replace(claimed, pinned=pinned)
    ended = await store.finish(claimed.id, EXITED)
    assert ended.pinned is True
    await store.pin(claimed.id, False)
    assert await store.get(claimed.id) == replace(ended, pinned=False)
    with pytest.raises(SessionNotFound):
        await store.pin(SessionId("unknown"), True)


async def test_a_session_handed_over_while_live_is_told_when_it_ends(store: SessionStore, sink: RecordingSink) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    assert await store.hand_over(session.id)
    assert sink.told == []
    ended = await store.finish(session.id, EXITED)
    assert ended.delivery is Delivery.CALLBACK
    assert sink.told == [ended]


async def test_a_settled_session_is_never_handed_over_or_told(store: SessionStore, sink: RecordingSink) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    assert await store.settle_inline(session.id)
    assert await store.settle_inline(session.id)
    assert not await store.hand_over(session.id)
    await store.finish(session.id, EXITED)
    assert sink.told == []
    assert not await store.settle_inline(SessionId("unknown"))
    assert not await store.hand_over(SessionId("unknown"))


async def test_a_hand_over_that_the_sink_refuses_leaves_the_delivery_inline(
    store: SessionStore, sink: RecordingSink
) -> None:
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    await store.finish(session.id, EXITED)
    sink.refuses = True
    with pytest.raises(OSError, match="refused"):
        await store.hand_over(session.id)
    assert await store.settle_inline(session.id)


def test_sessions_are_listed_oldest_first_by_conversation_and_life(store: SessionStore) -> None:
    async def run() -> None:
        await store.claim(a_session(2))
        await store.claim(a_session(1))
        await store.claim(a_session(3, conversation_id="c2"))
        await store.started(SessionId("s3"), pid=1, started_at=1.0)
        await store.finish(SessionId("s2"), EXITED)

        async def ids(**filters: Any) -> list[str]:
            return [session.id for session in await store.list(**filters)]

        assert await ids() == ["s1", "s2", "s3"]
        assert await ids(conversation_id="c1") == ["s1", "s2"]
        assert await ids(live=True) == ["s1", "s3"]
        assert await ids(conversation_id="c1", live=False) == ["s2"]

    asyncio.run(run())


async def test_a_call_is_new_then_begun_then_has_its_first_outcome(store: SessionStore) -> None:
    key = CallKey("k1")
    act = Act(key=key, session_id=SessionId("s1"), tool="process_write", kind="typed")
    with pytest.raises(InvalidTransition):
        await store.end_call(key, {"written": 1})
    assert await store.begin_call(act) is None
    assert await store.begin_call(act) == {}
    await store.end_call(key, {"written": 1, "text": "ü\x00"})
    await store.end_call(key, {"written": 2})
    assert await store.begin_call(act) == {"written": 1, "text": "ü\x00"}


async def test_a_call_about_no_session_is_found_by_its_key_and_read_without_beginning_it(store: SessionStore) -> None:
    key = CallKey("k2")
    act = Act(key=key, session_id=SessionId("w1"), tool="write_file", conversation_id="c1")
    assert await store.recalled(key) is None
    assert await store.acted_on(key) is None
    assert await store.begin_call(act) is None
    assert await store.recalled(key) == {}
    assert await store.acted_on(key) == "w1"
    await store.end_call(key, {"did": "created"})
    assert await store.recalled(key) == {"did": "created"}


async def test_a_poll_moves_forward_and_a_repeat_returns_its_own_range(store: SessionStore) -> None:
    session = await store.claim(a_session())
    assert await store.advance_poll(CallKey("k1"), session.id, 10, 3) == (0, 10, 0, 3)
    assert await store.advance_poll(CallKey("k2"), session.id, 2**40, 2**41) == (10, 2**40, 3, 2**41)
    assert await store.advance_poll(CallKey("k1"), session.id, 99, 99) == (0, 10, 0, 3)
    assert await store.advance_poll(CallKey("k3"), session.id, 5) == (2**40, 2**40, 2**41, 2**41)
    current = await store.get(session.id)
    assert current is not None
    assert current.poll_offset == 2**40
    with pytest.raises(SessionNotFound):
        await store.advance_poll(CallKey("k4"), SessionId("unknown"), 1)
