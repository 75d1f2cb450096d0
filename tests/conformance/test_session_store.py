"""What every session store promises: in memory, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa

from app.exec.errors import InvalidTransition, LimitReached, SessionNotFound
from app.exec.memory_store import MemorySessionStore
from app.exec.model import (
    CallKey,
    Delivery,
    EndedBy,
    Evidence,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from app.exec.ports import SessionStore
from app.storage import sessions as on_connection
from app.storage.db import Database
from app.storage.errors import StaleTurn
from app.storage.rows import lock_row
from app.storage.sessions import SqlSessionStore
from app.storage.tables import conversations, sessions
from tests.databases import wait_until_locked_out

EXITED = SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=200.0, duration_s=1.5, bytes_total=2**40)
LOST = SessionEnd(state=SessionState.LOST, evidence=Evidence.SUPERVISOR_KILLED, ended_at=201.0)


@dataclass
class RecordingSink:
    told: list[Session] = field(default_factory=list[Session])
    refuses: bool = False

    def ended(self, tx: object, session: Session) -> None:
        if self.refuses:
            raise OSError("refused")
        self.told.append(session)


def a_session(number: int = 1, **changes: Any) -> Session:
    session = Session(
        id=SessionId(f"s{number}"),
        conversation_id="c1",
        tool_call_id="call_1",
        turn_id="turn-1",
        epoch=0,
        host_id="h",
        boot_id="b",
        uid=65534,
        backend="host",
        profile="work",
        command="printf 'ü\n\"'",
        cwd="/w",
        workspace="/w",
        pty=False,
        background=True,
        separate_stderr=False,
        stdin_open=False,
        lifetime="conversation",
        delivery=Delivery.CALLBACK,
        state=SessionState.CLAIMED,
        log_path="/l/s1.log",
        created_at=100.0 + number,
    )
    return replace(session, **changes)


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, sink: RecordingSink) -> Iterator[SessionStore]:
    if request.param == "memory":
        yield MemorySessionStore(sink=sink, limit=3)
        return
    database = Database(request.getfixturevalue(f"{request.param}_url"))
    yield SqlSessionStore(database, sink=sink, limit=3)
    database.close()


def test_a_claimed_session_reads_back_equal(store: SessionStore) -> None:
    async def run() -> None:
        session = a_session(approval_id="a1", pty=True, stdin_open=True)
        assert await store.claim(session) == session
        assert await store.get(session.id) == session
        assert await store.get(SessionId("other")) is None

    asyncio.run(run())


def test_a_second_claim_returns_the_first_session_untouched(store: SessionStore) -> None:
    async def run() -> None:
        first = await store.claim(a_session())
        assert await store.claim(a_session(turn_id="turn-2", command="other")) == first
        assert await store.list() == [first]

    asyncio.run(run())


def test_live_sessions_of_a_conversation_are_bounded_and_the_message_names_the_limit(store: SessionStore) -> None:
    async def run() -> None:
        for number in range(3):
            await store.claim(a_session(number))
        with pytest.raises(LimitReached, match="3 is the limit"):
            await store.claim(a_session(3))
        assert (await store.claim(a_session(0))).id == "s0"
        await store.claim(a_session(4, conversation_id="c2"))
        await store.finish(SessionId("s1"), EXITED)
        await store.claim(a_session(3))

    asyncio.run(run())


def test_started_moves_only_a_claimed_session(store: SessionStore) -> None:
    async def run() -> None:
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

    asyncio.run(run())


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
def test_an_end_reads_back_equal(store: SessionStore, sink: RecordingSink, end: SessionEnd) -> None:
    async def run() -> None:
        claimed = await store.claim(a_session())
        ended = await store.finish(claimed.id, end)
        assert ended == replace(claimed, state=end.state, end=end)
        assert await store.get(claimed.id) == ended
        assert sink.told == [ended]

    asyncio.run(run())


@pytest.mark.parametrize(("first", "second"), [(EXITED, LOST), (LOST, EXITED), (EXITED, replace(EXITED, exit_code=0))])
def test_only_the_first_end_counts_and_is_told(
    store: SessionStore, sink: RecordingSink, first: SessionEnd, second: SessionEnd
) -> None:
    async def run() -> None:
        session = await store.claim(a_session())
        ended = await store.finish(session.id, first)
        assert await store.finish(session.id, second) == ended
        assert (await store.get(session.id)) == ended
        assert sink.told == [ended]

    asyncio.run(run())


def test_the_end_of_an_unknown_session_is_refused(store: SessionStore) -> None:
    with pytest.raises(SessionNotFound):
        asyncio.run(store.finish(SessionId("unknown"), EXITED))


def test_a_sink_that_raises_takes_the_end_back(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session())
        sink.refuses = True
        with pytest.raises(OSError, match="refused"):
            await store.finish(session.id, EXITED)
        assert await store.get(session.id) == session
        sink.refuses = False
        ended = await store.finish(session.id, EXITED)
        assert sink.told == [ended]

    asyncio.run(run())


def test_an_inline_end_is_told_only_when_handed_over(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        ended = await store.finish(session.id, EXITED)
        assert sink.told == []
        assert await store.hand_over(session.id)
        assert await store.hand_over(session.id)
        assert sink.told == [replace(ended, delivery=Delivery.CALLBACK)]
        assert not await store.settle_inline(session.id)

    asyncio.run(run())


def test_an_end_that_a_call_waits_for_is_settled_with_it(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        ended = await store.finish(session.id, EXITED, told_inline=True)
        assert ended.delivery is Delivery.SETTLED
        assert not await store.hand_over(session.id)
        assert sink.told == []

    asyncio.run(run())


def test_a_call_that_waits_for_an_end_handed_over_before_leaves_it_to_the_callback(
    store: SessionStore, sink: RecordingSink
) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        assert await store.hand_over(session.id)
        ended = await store.finish(session.id, EXITED, told_inline=True)
        assert sink.told == [ended]

    asyncio.run(run())


def test_a_session_handed_over_while_live_is_told_when_it_ends(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        assert await store.hand_over(session.id)
        assert sink.told == []
        ended = await store.finish(session.id, EXITED)
        assert ended.delivery is Delivery.CALLBACK
        assert sink.told == [ended]

    asyncio.run(run())


def test_a_settled_session_is_never_handed_over_or_told(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        assert await store.settle_inline(session.id)
        assert await store.settle_inline(session.id)
        assert not await store.hand_over(session.id)
        await store.finish(session.id, EXITED)
        assert sink.told == []
        assert not await store.settle_inline(SessionId("unknown"))
        assert not await store.hand_over(SessionId("unknown"))

    asyncio.run(run())


def test_a_hand_over_that_the_sink_refuses_leaves_the_delivery_inline(store: SessionStore, sink: RecordingSink) -> None:
    async def run() -> None:
        session = await store.claim(a_session(delivery=Delivery.INLINE))
        await store.finish(session.id, EXITED)
        sink.refuses = True
        with pytest.raises(OSError, match="refused"):
            await store.hand_over(session.id)
        assert await store.settle_inline(session.id)

    asyncio.run(run())


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


def test_a_call_is_new_then_begun_then_has_its_first_outcome(store: SessionStore) -> None:
    async def run() -> None:
        key = CallKey("k1")
        with pytest.raises(InvalidTransition):
            await store.end_call(key, {"written": 1})
        assert await store.begin_call(key, SessionId("s1"), "process_write") is None
        assert await store.begin_call(key, SessionId("s1"), "process_write") == {}
        await store.end_call(key, {"written": 1, "text": "ü\x00"})
        await store.end_call(key, {"written": 2})
        assert await store.begin_call(key, SessionId("s1"), "process_write") == {"written": 1, "text": "ü\x00"}

    asyncio.run(run())


def test_a_poll_moves_forward_and_a_repeat_returns_its_own_range(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.claim(a_session())
        assert await store.advance_poll(CallKey("k1"), session.id, 10) == (0, 10)
        assert await store.advance_poll(CallKey("k2"), session.id, 2**40) == (10, 2**40)
        assert await store.advance_poll(CallKey("k1"), session.id, 99) == (0, 10)
        assert await store.advance_poll(CallKey("k3"), session.id, 5) == (2**40, 2**40)
        current = await store.get(session.id)
        assert current is not None
        assert current.poll_offset == 2**40
        with pytest.raises(SessionNotFound):
            await store.advance_poll(CallKey("k4"), SessionId("unknown"), 1)

    asyncio.run(run())


# What only a database can promise


def hold(database: Database, *, claimed_by: str, epoch: int) -> None:
    def write(conn: sa.Connection) -> None:
        conn.execute(
            conversations.insert().values(
                id="c1", host_id="h", state="claimed", claimed_by=claimed_by, epoch=epoch, created_at=1.0
            )
        )

    database.write_now(write)


def test_a_claim_needs_the_turn_and_epoch_that_hold_the_conversation(database: Database) -> None:
    store = SqlSessionStore(database)

    async def run() -> None:
        with pytest.raises(StaleTurn):
            await store.claim(a_session(epoch=1))
        hold(database, claimed_by="turn-1", epoch=2)
        with pytest.raises(StaleTurn, match="'turn-1' \\(epoch 1\\)"):
            await store.claim(a_session(epoch=1))
        with pytest.raises(StaleTurn):
            await store.claim(a_session(epoch=2, turn_id="turn-0"))
        assert await store.list() == []
        claimed = await store.claim(a_session(epoch=2))
        assert await store.claim(a_session(epoch=2)) == claimed
        await store.claim(a_session(2))

    asyncio.run(run())


def test_what_is_done_within_a_claim_is_done_once_and_can_refuse_it(database: Database) -> None:
    done: list[str] = []

    def within(conn: sa.Connection, session: Session) -> None:
        if session.approval_id is None:
            raise PermissionError("not approved")
        done.append(session.id)

    store = SqlSessionStore(database, within=within)

    async def run() -> None:
        with pytest.raises(PermissionError):
            await store.claim(a_session())
        assert await store.list() == []
        await store.claim(a_session(approval_id="a1"))
        await store.claim(a_session(approval_id="a1"))
        assert done == ["s1"]

    asyncio.run(run())


def in_two_threads(*actions: Callable[[], Any]) -> list[Any]:
    """Run the actions at the same moment; what each returned or raised."""
    barrier = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)

    def run(index: int, action: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[index] = action()
        except Exception as error:  # noqa: BLE001 - the test judges it
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("round_", range(10))
def test_two_claims_of_one_id_insert_it_once(database: Database, round_: int) -> None:
    inserted: list[str] = []

    def claim(command: str) -> Session:
        return database.write_now(
            on_connection.claim,
            a_session(command=command),
            within=lambda conn, session: inserted.append(session.command),
        )

    first, second = in_two_threads(lambda: claim("a"), lambda: claim("b"))
    assert first == second
    assert inserted == [first.command]


@pytest.mark.parametrize("in_the_queue", [True, False])
def test_claims_at_the_same_moment_do_not_pass_the_limit(database: Database, in_the_queue: bool) -> None:
    if in_the_queue:
        hold(database, claimed_by="turn-1", epoch=1)

    def claim(number: int) -> Session:
        return database.write_now(on_connection.claim, a_session(number), limit=2)

    results = in_two_threads(*(lambda number=number: claim(number) for number in range(6)))
    assert sum(isinstance(result, LimitReached) for result in results) == 4
    assert len(database.read_now(on_connection.find, live=True)) == 2


@pytest.mark.parametrize("round_", range(10))
def test_two_ends_at_the_same_moment_are_told_once(database: Database, round_: int) -> None:
    sink = RecordingSink()
    database.write_now(on_connection.claim, a_session())

    def finish(end: SessionEnd) -> Session:
        return database.write_now(on_connection.finish, "s1", end, sink)  # type: ignore[arg-type]

    first, second = in_two_threads(lambda: finish(EXITED), lambda: finish(LOST))
    assert first == second
    assert sink.told == [first]


@pytest.mark.parametrize("round_", range(10))
def test_a_hand_over_and_an_end_at_the_same_moment_are_told_once(database: Database, round_: int) -> None:
    hold(database, claimed_by="turn-1", epoch=1)
    sink = RecordingSink()
    session = database.write_now(on_connection.claim, a_session(delivery=Delivery.INLINE))
    handed, ended = in_two_threads(
        lambda: database.write_now(on_connection.hand_over, session.id, sink),
        lambda: database.write_now(on_connection.finish, session.id, EXITED, sink),
    )
    assert handed is True
    assert ended.state is SessionState.EXITED
    assert [told.id for told in sink.told] == [session.id]


@pytest.mark.parametrize("round_", range(10))
def test_settling_and_handing_over_exclude_each_other(database: Database, round_: int) -> None:
    sink = RecordingSink()
    session = database.write_now(on_connection.claim, a_session(delivery=Delivery.INLINE))
    database.write_now(on_connection.finish, session.id, EXITED, sink)
    settled, handed = in_two_threads(
        lambda: database.write_now(on_connection.settle_inline, session.id),
        lambda: database.write_now(on_connection.hand_over, session.id, sink),
    )
    assert settled is not handed
    assert len(sink.told) == int(handed)


def test_an_end_meets_a_transaction_that_holds_the_conversation_without_a_deadlock(postgres_url: str) -> None:
    database = Database(postgres_url)
    hold(database, claimed_by="turn-1", epoch=1)
    session = database.write_now(on_connection.claim, a_session(delivery=Delivery.INLINE))
    database.write_now(on_connection.hand_over, session.id)
    told: list[str] = []

    class LockingSink:
        def ended(self, tx: object, session: Session) -> None:
            assert isinstance(tx, sa.Connection)
            told.append(session.id)
            lock_row(tx, conversations, session.conversation_id)

    finishing = threading.Thread(
        target=database.write_now, args=(on_connection.finish, session.id, EXITED, LockingSink())
    )
    runs: list[int] = []

    def close_the_turn(conn: sa.Connection) -> None:
        runs.append(1)
        lock_row(conn, conversations, "c1")
        if not finishing.is_alive():
            finishing.start()
        wait_until_locked_out(database, finishing)
        on_connection.settle_inline(conn, session.id)
        lock_row(conn, sessions, session.id)

    database.write_now(close_the_turn)
    finishing.join()
    assert (runs, told) == ([1], [session.id])
    database.close()


def test_polls_at_the_same_moment_share_the_output_without_overlap(database: Database) -> None:
    session = database.write_now(on_connection.claim, a_session())

    def poll(number: int) -> tuple[int, int]:
        return database.write_now(on_connection.advance_poll, CallKey(f"k{number}"), session.id, 10 * (number + 1))

    ranges = sorted(in_two_threads(*(lambda number=number: poll(number) for number in range(6))))
    assert ranges[-1][1] == 60
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
