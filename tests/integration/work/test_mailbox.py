"""One turn at a time, nothing unread is forgotten, and whoever is overtaken can do nothing any more."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.tables import conversations, turns
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import approvals, sending, uses
from shellback.work.approvals.asking import Proposed
from shellback.work.errors import ApprovalSettled, InvalidRequest, UnknownApproval
from shellback.work.queue import mailbox
from shellback.work.queue.items import ItemType, Priority, WorkItem, callback_item
from shellback.work.turn import claims, stopping
from shellback.work.turn.claims import Entry, Wakes, fail
from shellback.work.turn.closing import Closing, close
from tests.items import NotedEnqueuer, committed

HOST = "host1"


@pytest.fixture
def queue() -> NotedEnqueuer:
    return NotedEnqueuer()


def send(db: Database, queue: NotedEnqueuer, text: str = "hello", **more: Any) -> WorkItem:
    sent = db.write_now(sending.send, queue, "c1", text, host_id=HOST, **more)
    return next(item for item in queue.items if item.id == sent.item_id)


def enter(db: Database, item: WorkItem, **wakes: int) -> Entry:
    return db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes(**wakes))


def finish(db: Database, queue: NotedEnqueuer, item: WorkItem, epoch: int | None, **more: Any) -> str:
    assert epoch is not None
    facts: dict[str, Any] = {"outcome": "answered", "answer": "done", **more}
    facts.setdefault("heard", frozenset(db.read_now(taken_by, item.id)))
    closing = Closing(conversation_id="c1", turn_id=item.id, epoch=epoch, **facts)
    return db.write_now(close, queue, closing, None, [], None)


def taken_by(conn: sa.Connection, turn_id: str) -> list[int]:
    return list(conn.execute(sa.select(rows.c.id).where(rows.c.taken_by == turn_id)).scalars())


def take(db: Database, item: WorkItem, epoch: int | None, step: int = 0) -> list[str]:
    assert epoch is not None
    letters, _ = db.write_now(stopping.look, "c1", item.id, epoch, step)
    return [letter.payload.get("text", letter.kind) for letter in letters]


def exit_news(db: Database, queue: NotedEnqueuer, session_id: str) -> WorkItem:
    item = callback_item("c1", session_id, {})

    def act(conn: sa.Connection) -> None:
        row = mailbox.open_conversation(conn, "c1", host_id=HOST)
        mailbox.put(conn, queue, row, item, kind="exit", payload={}, dedupe_key=f"exit:{session_id}")

    db.write_now(act)
    return item


def state_of(db: Database) -> Any:
    return db.read_now(lambda conn: conn.execute(sa.select(conversations)).one())


PROPOSED = Proposed(
    call_key="k1", tool_call_id="t1", tool_name="execute", args={"command": "x"}, display={"command": "x"}, digest="d1"
)


def test_a_message_is_heard_by_the_turn_of_its_item(database: Database, queue: NotedEnqueuer) -> None:
    item = send(database, queue)
    entry = enter(database, item)
    assert take(database, item, entry.epoch) == ["hello"]
    assert finish(database, queue, item, entry.epoch) == "answered"
    assert state_of(database).state == "free"
    assert [item.id for item in queue.items] == [item.id]


def test_an_item_that_finds_the_conversation_claimed_ends_at_once_and_its_news_gets_a_follow_up(
    database: Database, queue: NotedEnqueuer
) -> None:
    first, second = send(database, queue, "one"), None
    entry = enter(database, first)
    assert take(database, first, entry.epoch) == ["one"]
    second = send(database, queue, "two")
    assert enter(database, second).outcome == "busy"
    finish(database, queue, first, entry.epoch)
    follow = queue.items[-1]
    assert follow.type is ItemType.FOLLOW_UP
    assert follow.priority is Priority.NORMAL
    assert take(database, follow, enter(database, follow).epoch) == ["two"]


def test_a_follow_up_is_as_urgent_as_the_most_urgent_news(database: Database, queue: NotedEnqueuer) -> None:
    first = send(database, queue)
    entry = enter(database, first)
    take(database, first, entry.epoch)
    send(database, queue, "low", priority=Priority.LOW, waiting=False)
    exit_news(database, queue, "s1")
    finish(database, queue, first, entry.epoch)
    assert queue.items[-1].priority is Priority.HIGH


def test_taking_the_same_step_again_gives_the_same_rows_and_a_later_step_only_what_is_new(
    database: Database, queue: NotedEnqueuer
) -> None:
    item = send(database, queue, "one")
    entry = enter(database, item)
    assert take(database, item, entry.epoch, 0) == ["one"]
    again = enter(database, item)
    assert take(database, item, again.epoch, 0) == ["one"]
    exit_news(database, queue, "s1")
    assert take(database, item, again.epoch, 1) == ["exit"]


def test_an_overtaken_execution_takes_nothing_and_closes_nothing(database: Database, queue: NotedEnqueuer) -> None:
    item = send(database, queue)
    old, new = enter(database, item).epoch, enter(database, item).epoch
    with pytest.raises(StaleTurn):
        take(database, item, old)
    with pytest.raises(StaleTurn):
        finish(database, queue, item, old)
    assert take(database, item, new) == ["hello"]
    assert finish(database, queue, item, new) == "answered"


def test_closing_again_returns_the_stored_outcome_and_changes_nothing(database: Database, queue: NotedEnqueuer) -> None:
    item = send(database, queue)
    entry = enter(database, item)
    finish(database, queue, item, entry.epoch)
    send(database, queue, "two")
    count = len(queue.items)
    assert finish(database, queue, item, entry.epoch, outcome="failed") == "answered"
    assert len(queue.items) == count
    assert enter(database, item).outcome == "answered"


def test_news_the_agent_was_told_of_is_taken_back_when_the_turn_closes(
    database: Database, queue: NotedEnqueuer
) -> None:
    item = send(database, queue)
    entry = enter(database, item)
    take(database, item, entry.epoch)
    callback = exit_news(database, queue, "s1")
    exit_news(database, queue, "s2")
    finish(database, queue, item, entry.epoch, told=frozenset({"s1"}))
    entry = enter(database, callback)
    assert take(database, callback, entry.epoch) == ["exit"]


def test_the_same_exit_is_news_once(database: Database, queue: NotedEnqueuer) -> None:
    exit_news(database, queue, "s1")
    exit_news(database, queue, "s1")
    assert database.read_now(committed) == ["EXEC_CALLBACK:s1"]


def test_pending_calls_block_and_the_last_decision_resumes_once(database: Database, queue: NotedEnqueuer) -> None:
    item = send(database, queue)
    entry = enter(database, item)
    take(database, item, entry.epoch)
    two = (PROPOSED, replace(PROPOSED, call_key="k2", tool_call_id="t2", digest="d2"))
    finish(database, queue, item, entry.epoch, outcome="pending_approval", answer=None, proposed=two)
    assert (state_of(database).state, state_of(database).blocked_reason) == ("blocked", "approval")
    held = send(database, queue, "meanwhile")
    assert enter(database, held).outcome == "busy"
    first, second = database.read_now(approvals.find, state="pending")
    decide(database, queue, first.id, "approved")
    assert queue.items[-1].type is not ItemType.APPROVAL
    decide(database, queue, second.id, "denied")
    resumed = queue.items[-1]
    assert resumed.type is ItemType.APPROVAL
    assert take(database, resumed, enter(database, resumed).epoch) == ["meanwhile"]
    with pytest.raises(ApprovalSettled, match="denied already"):
        decide(database, queue, second.id, "approved")


def decide(db: Database, queue: NotedEnqueuer, request_id: str, decision: Any) -> Any:
    return db.write_now(approvals.decide, queue, request_id, decision, by="me", surface="test")


def ask(db: Database, queue: NotedEnqueuer, ttl_s: float = 3600.0) -> approvals.Request:
    item = send(db, queue)
    entry = enter(db, item)
    take(db, item, entry.epoch)
    finish(db, queue, item, entry.epoch, outcome="pending_approval", answer=None, proposed=(PROPOSED,), ttl_s=ttl_s)
    return db.read_now(approvals.find, state="pending")[0]


def test_an_approval_is_used_once_and_only_for_its_digest(database: Database, queue: NotedEnqueuer) -> None:
    request = ask(database, queue)
    decide(database, queue, request.id, "approved")
    with pytest.raises(PermissionError, match="something else"):
        database.write_now(uses.consume, request.id, "s1", "other digest", conversation_id="c1")
    database.write_now(uses.consume, request.id, "s1", "d1", conversation_id="c1")
    database.write_now(uses.consume, request.id, "s1", "d1", conversation_id="c1")
    with pytest.raises(PermissionError, match="used"):
        database.write_now(uses.consume, request.id, "s2", "d1", conversation_id="c1")


def test_nobody_deciding_in_time_is_a_denial_that_resumes(database: Database, queue: NotedEnqueuer) -> None:
    request = ask(database, queue, ttl_s=-1)
    assert database.read_now(approvals.left) == {request.id: 0.0}
    decide(database, queue, request.id, "expired")
    assert database.read_now(approvals.get, request.id).state == "expired"
    assert queue.items[-1].type is ItemType.APPROVAL


def test_an_approval_that_comes_too_late_is_not_one(database: Database, queue: NotedEnqueuer) -> None:
    request = ask(database, queue, ttl_s=-1)
    assert decide(database, queue, request.id, "approved").state == "expired"


def test_interrupting_denies_what_waits_and_the_message_is_heard_with_it(
    database: Database, queue: NotedEnqueuer
) -> None:
    request = ask(database, queue)
    send(database, queue, "no, this instead", interrupt=True)
    assert database.read_now(approvals.get, request.id).state == "superseded"
    resumed = queue.items[-1]
    assert take(database, resumed, enter(database, resumed).epoch) == ["no, this instead"]


def test_a_dead_turn_gives_its_news_back_and_three_in_a_row_set_the_conversation_aside(
    database: Database, queue: NotedEnqueuer
) -> None:
    item = send(database, queue)
    for strike in range(3):
        entry = enter(database, item)
        take(database, item, entry.epoch)

        def die(conn: sa.Connection) -> str:
            row = mailbox.lock(conn, "c1")
            assert row is not None
            return fail(conn, queue, row, reason="it broke")

        assert database.write_now(die) == ("set_aside" if strike == 2 else "retried")
        if strike < 2:
            item = queue.items[-1]
            assert item.type is ItemType.RETRY
    assert (state_of(database).state, state_of(database).blocked_reason) == ("blocked", "set_aside")
    again = send(database, queue, "try again")
    entry = enter(database, again)
    assert take(database, again, entry.epoch) == ["hello", "turn_failed", "turn_failed", "turn_failed", "try again"]


def test_wakes_without_a_person_are_bounded_and_a_message_ends_the_block(
    database: Database, queue: NotedEnqueuer
) -> None:
    for number in range(3):
        callback = exit_news(database, queue, f"s{number}")
        entry = enter(database, callback, chain=2)
        if number < 2:
            take(database, callback, entry.epoch)
            finish(database, queue, callback, entry.epoch)
        else:
            assert entry.outcome == "busy"
    assert state_of(database).blocked_reason == "wake_limit"
    message = send(database, queue, "go on")
    entry = enter(database, message, chain=2)
    assert take(database, message, entry.epoch) == ["exit", "go on"]


def test_wakes_in_an_hour_are_bounded(database: Database, queue: NotedEnqueuer) -> None:
    callback = exit_news(database, queue, "s0")
    finish(database, queue, callback, enter(database, callback, per_hour=1).epoch)
    assert enter(database, exit_news(database, queue, "s1"), per_hour=1).outcome == "busy"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 101, "a\x00"])
def test_a_name_that_is_none_is_refused(database: Database, queue: NotedEnqueuer, name: str) -> None:
    with pytest.raises(InvalidRequest, match="conversation name"):
        database.write_now(sending.send, queue, name, "text", host_id=HOST)


@pytest.mark.parametrize("text", ["", "  \n", "a\x00b", "x" * 100_001])
def test_a_text_that_is_none_is_refused(database: Database, queue: NotedEnqueuer, text: str) -> None:
    with pytest.raises(InvalidRequest, match="message"):
        database.write_now(sending.send, queue, "c1", text, host_id=HOST)


def test_an_unknown_approval_is_refused_by_name(database: Database, queue: NotedEnqueuer) -> None:
    with pytest.raises(UnknownApproval, match="nosuch"):
        decide(database, queue, "nosuch", "approved")


def test_items_that_have_nothing_to_tell_end_without_a_claim_and_wear_nothing_out(
    database: Database, queue: NotedEnqueuer
) -> None:
    callbacks = [exit_news(database, queue, f"s{number}") for number in range(10)]
    entry = enter(database, callbacks[0], chain=2)
    take(database, callbacks[0], entry.epoch)
    finish(database, queue, callbacks[0], entry.epoch)
    assert {enter(database, callback, chain=2).outcome for callback in callbacks[1:]} == {"nothing"}
    assert (state_of(database).state, state_of(database).chain) == ("free", 1)


def test_a_message_heard_through_a_follow_up_is_a_persons_and_begins_a_new_chain(
    database: Database, queue: NotedEnqueuer
) -> None:
    callback = exit_news(database, queue, "s0")
    entry = enter(database, callback, chain=1)
    take(database, callback, entry.epoch)
    assert enter(database, send(database, queue, "listen")).outcome == "busy"
    finish(database, queue, callback, entry.epoch)
    follow = queue.items[-1]
    assert follow.type is ItemType.FOLLOW_UP
    entry = enter(database, follow, chain=1)
    assert take(database, follow, entry.epoch) == ["listen"]


def test_a_clock_that_decides_is_no_person(database: Database, queue: NotedEnqueuer) -> None:
    request = ask(database, queue, ttl_s=-1)
    decide(database, queue, request.id, "expired")
    enter(database, queue.items[-1])
    assert state_of(database).chain == 1


def test_rows_the_history_does_not_have_are_unread_again_after_the_closing(
    database: Database, queue: NotedEnqueuer
) -> None:
    item = send(database, queue, "one")
    entry = enter(database, item)
    assert take(database, item, entry.epoch) == ["one"]
    exit_news(database, queue, "s1")
    assert take(database, item, entry.epoch, 1) == ["exit"]
    first = database.read_now(taken_by, item.id)[:1]
    finish(database, queue, item, entry.epoch, heard=frozenset(first))
    follow = queue.items[-1]
    assert (follow.type, follow.priority) == (ItemType.FOLLOW_UP, Priority.HIGH)
    assert take(database, follow, enter(database, follow).epoch) == ["exit"]


def test_a_closed_turn_never_claims_again_however_late_its_other_execution_looks(
    postgres_url: str, queue: NotedEnqueuer
) -> None:
    """The second execution waits for the row while the first closes; then it has to see that it is closed."""
    db = Database(postgres_url)
    try:
        item = send(db, queue)
        entry = enter(db, item)
        take(db, item, entry.epoch)
        outcomes: list[str | None] = []

        def closing_slowly(conn: sa.Connection) -> None:
            mailbox.lock(conn, "c1")
            late = threading.Thread(target=lambda: outcomes.append(enter(db, item).outcome))
            late.start()
            late.join(0.5)
            assert late.is_alive()
            late_ones.append(late)
            closing = Closing(
                conversation_id="c1",
                turn_id=item.id,
                epoch=entry.epoch or 0,
                outcome="answered",
                answer="done",
                heard=frozenset(taken_by(conn, item.id)),
            )
            close(conn, queue, closing, None, [], None)

        late_ones: list[threading.Thread] = []
        db.write_now(closing_slowly)
        late_ones[0].join()
        assert outcomes == ["answered"]
        assert state_of(db).state == "free"
    finally:
        db.close()


def test_the_newest_decision_counts_whatever_the_clock_said(database: Database, queue: NotedEnqueuer) -> None:
    """Tool call ids come again: an old yes must not answer for a new no."""
    old = ask(database, queue)
    decide(database, queue, old.id, "approved")
    resumed = queue.items[-1]
    entry = enter(database, resumed)
    again = replace(PROPOSED, call_key="k2")
    finish(database, queue, resumed, entry.epoch, outcome="pending_approval", answer=None, proposed=(again,))
    new = database.read_now(approvals.find, state="pending")[0]
    decide(database, queue, new.id, "denied")

    def turn_the_clock_back(conn: sa.Connection) -> None:
        conn.execute(sa.text("update approvals set created_at = created_at - 3600 where call_key = 'k2'"))

    database.write_now(turn_the_clock_back)
    found = database.read_now(approvals.decided, "c1")
    assert [(request.call_key, request.state) for request in found] == [("k2", "denied")]


def test_messages_that_wait_together_are_one_item_and_all_are_heard(database: Database, queue: NotedEnqueuer) -> None:
    """Five hundred messages to one conversation do not stand in the way of everybody else's."""
    for number in range(20):
        database.write_now(sending.send, queue, "c1", f"message {number}", host_id=HOST, waiting=False)
    (item,) = queue.items
    entry = enter(database, item)
    assert take(database, item, entry.epoch) == [f"message {number}" for number in range(20)]
    # Whoever looks up what became of a message finds an item that ended at once.
    outcomes = database.read_now(lambda conn: conn.execute(sa.select(turns.c.outcome)).scalars().all())
    assert sorted(map(str, outcomes)) == ["None", *["busy"] * 19]


def test_a_message_has_an_item_of_its_own_unless_one_as_urgent_has_yet_to_start(
    database: Database, queue: NotedEnqueuer
) -> None:
    def sent(**more: Any) -> bool:
        before = len(queue.items)
        database.write_now(sending.send, queue, "c1", "hello", host_id=HOST, **more)
        return len(queue.items) > before

    assert sent(waiting=False, priority=Priority.LOW)
    assert sent(waiting=False)
    assert sent(waiting=True)
    assert not sent(waiting=False)
    assert not sent(waiting=True)
    assert sent(waiting=True, priority=Priority.HIGH)
    for item in list(queue.items):
        enter(database, item)
    assert sent(waiting=False, priority=Priority.LOW)
