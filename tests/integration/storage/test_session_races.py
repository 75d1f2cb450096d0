"""Claims, ends and hand-overs at the same moment, and executions that have been overtaken: on both databases."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import LimitReached
from shellback.exec.core.model import Act, CallKey, Delivery, Polled, Session, SessionEnd, SessionState
from shellback.storage import sessions as on_connection
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.rows import lock_row
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import conversations, sessions
from tests.databases import at_once, wait_until_locked_out
from tests.sessions import EXITED, LOST, RecordingSink, a_session


def hold(database: Database, *, claimed_by: str, epoch: int) -> None:
    row = {"id": "c1", "host_id": "h", "state": "claimed", "claimed_by": claimed_by, "epoch": epoch, "created_at": 1.0}
    database.write_now(lambda conn: conn.execute(conversations.insert().values(row)) and None)


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


@pytest.mark.parametrize("round_", range(10))
def test_two_claims_of_one_id_insert_it_once(database: Database, round_: int) -> None:
    inserted: list[str] = []

    def claim(command: str) -> Session:
        return database.write_now(
            on_connection.claim,
            a_session(command=command),
            within=lambda conn, session: inserted.append(session.command),
        )

    first, second = at_once(lambda: claim("a"), lambda: claim("b"))
    assert first == second
    assert inserted == [first.command]


@pytest.mark.parametrize("in_the_queue", [True, False])
def test_claims_at_the_same_moment_do_not_pass_the_limit(database: Database, in_the_queue: bool) -> None:
    if in_the_queue:
        hold(database, claimed_by="turn-1", epoch=1)

    def claim(number: int) -> Session:
        return database.write_now(on_connection.claim, a_session(number), limit=2)

    results = at_once(*(lambda number=number: claim(number) for number in range(6)))
    assert sum(isinstance(result, LimitReached) for result in results) == 4
    assert len(database.read_now(on_connection.find, live=True)) == 2


@pytest.mark.parametrize("round_", range(10))
def test_two_ends_at_the_same_moment_are_told_once(database: Database, round_: int) -> None:
    sink = RecordingSink()
    database.write_now(on_connection.claim, a_session())

    def finish(end: SessionEnd) -> Session:
        return database.write_now(on_connection.finish, "s1", end, sink)  # type: ignore[arg-type]

    first, second = at_once(lambda: finish(EXITED), lambda: finish(LOST))
    assert first == second
    assert sink.told == [first]


@pytest.mark.parametrize("round_", range(10))
def test_a_hand_over_and_an_end_at_the_same_moment_are_told_once(database: Database, round_: int) -> None:
    hold(database, claimed_by="turn-1", epoch=1)
    sink = RecordingSink()
    session = database.write_now(on_connection.claim, a_session(delivery=Delivery.INLINE))
    handed, ended = at_once(
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
    settled, handed = at_once(
        lambda: database.write_now(on_connection.settle_inline, session.id),
        lambda: database.write_now(on_connection.hand_over, session.id, sink),
    )
    assert settled is not handed
    assert len(sink.told) == int(handed)


def test_an_end_meets_a_transaction_that_holds_the_conversation_without_a_deadlock(postgres: Database) -> None:
    hold(postgres, claimed_by="turn-1", epoch=1)
    session = postgres.write_now(on_connection.claim, a_session(delivery=Delivery.INLINE))
    postgres.write_now(on_connection.hand_over, session.id)
    told: list[str] = []

    class LockingSink:
        def ended(self, tx: object, session: Session) -> None:
            assert isinstance(tx, sa.Connection)
            told.append(session.id)
            lock_row(tx, conversations, session.conversation_id)

    finishing = threading.Thread(
        target=postgres.write_now, args=(on_connection.finish, session.id, EXITED, LockingSink())
    )
    runs: list[int] = []

    def close_the_turn(conn: sa.Connection) -> None:
        runs.append(1)
        lock_row(conn, conversations, "c1")
        if not finishing.is_alive():
            finishing.start()
        wait_until_locked_out(postgres, finishing)
        on_connection.settle_inline(conn, session.id)
        lock_row(conn, sessions, session.id)

    postgres.write_now(close_the_turn)
    finishing.join()
    assert (runs, told) == ([1], [session.id])


def test_polls_at_the_same_moment_share_the_output_without_overlap(database: Database) -> None:
    session = database.write_now(on_connection.claim, a_session())

    def poll(number: int) -> Polled:
        upto = 10 * (number + 1)
        return database.write_now(on_connection.advance_poll, CallKey(f"k{number}"), session.id, upto, upto)

    ranges = sorted(at_once(*(lambda number=number: poll(number) for number in range(6))))
    assert (ranges[-1].end, ranges[-1].err_end) == (60, 60)
    assert all((one.end, one.err_end) == (next_.start, next_.err_start) for one, next_ in itertools.pairwise(ranges))


def test_a_call_of_an_overtaken_execution_is_not_begun(database: Database) -> None:
    """Fencing: what a stale execution may not claim it may not write to, press keys in or kill either."""
    session = a_session()
    database.write_now(on_connection.claim, session)
    hold(database, claimed_by="t1", epoch=5)
    act = Act(key=CallKey("c1"), session_id=session.id, tool="process_write", kind="typed", turn_id="t1", epoch=5)
    with pytest.raises(StaleTurn):
        database.write_now(on_connection.begin, replace(act, epoch=4))
    assert database.write_now(on_connection.begin, act) is None
