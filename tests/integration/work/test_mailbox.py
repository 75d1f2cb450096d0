"""One turn at a time, nothing unread is forgotten, and whoever is overtaken can do nothing any more."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.tables import turns
from shellback.work.approvals import approvals, sending, uses
from shellback.work.errors import ApprovalSettled, InvalidRequest, UnknownApproval
from shellback.work.queue import mailbox
from shellback.work.queue.items import ItemType, Priority, WorkItem, callback_item
from shellback.work.turn import stopping
from shellback.work.turn.closing import Begun, Closing, close
from tests.items import HOST, PROPOSED, Talk, committed


def exit_news(talk: Talk, session_id: str) -> WorkItem:
    item = callback_item("c1", session_id, {})

    def act(conn: sa.Connection) -> None:
        row = mailbox.open_conversation(conn, "c1", host_id=HOST)
        mailbox.put(conn, talk.queue, row, item, kind="exit", payload={}, dedupe_key=f"exit:{session_id}")

    talk.db.write_now(act)
    return item


def test_a_message_is_heard_by_the_turn_of_its_item(talk: Talk) -> None:
    item = talk.send()
    epoch = talk.begun(item, "hello")
    assert talk.finish(item, epoch) == "answered"
    assert talk.conversation().state == "free"
    assert [item.id for item in talk.queue.items] == [item.id]


def begun(talk: Talk, item: WorkItem, *, gate: bool = True, shows: bool = False) -> Begun:
    def some(_conn: sa.Connection, _conversation_id: str, _host_id: str) -> bool:
        return shows

    return talk.begin(item, gate, some)


def test_a_turn_reads_its_mailbox_again_before_its_first_request_only_if_there_may_be_more_to_tell(talk: Talk) -> None:
    def look(**how: bool) -> bool:
        found = begun(talk, item := talk.send(), **how).look
        talk.finish(item, talk.conversation().epoch)
        return found

    assert not look()
    assert not look(gate=False, shows=True), "without tools no process is shown"
    assert look(shows=True), "a process may have printed something"
    item = talk.send()
    talk.db.write_now(stopping.stop, talk.queue, "c1", by="ann")
    assert begun(talk, item).look, "the wish to stop is read there"


def test_a_replay_begins_with_what_the_first_execution_found(talk: Talk) -> None:
    item = talk.send("first")
    found = begun(talk, item, gate=False, shows=True)
    talk.say("second")
    again = begun(talk, item, gate=True, shows=True)
    assert again == found
    assert [letter.payload["text"] for letter in again.letters] == ["first"]


def test_only_the_first_execution_of_a_turn_is_the_first(talk: Talk) -> None:
    item = talk.send()
    assert [talk.enter(item).first for _ in range(3)] == [True, False, False]


def test_a_turn_with_more_rows_than_one_read_takes_reads_on_before_its_first_request(talk: Talk) -> None:
    item = talk.send()
    for number in range(mailbox.ROWS_PER_TURN - 1):
        talk.say(str(number))
    assert begun(talk, item).look


def test_an_item_that_finds_the_conversation_claimed_ends_at_once_and_its_news_gets_a_follow_up(talk: Talk) -> None:
    first = talk.send("one")
    epoch = talk.begun(first, "one")
    second = talk.send("two")
    assert talk.enter(second).outcome == "busy"
    talk.finish(first, epoch)
    follow = talk.last(ItemType.FOLLOW_UP)
    assert follow.priority is Priority.NORMAL
    assert talk.take(follow, talk.epoch(follow)) == ["two"]


def test_a_follow_up_is_as_urgent_as_the_most_urgent_news(talk: Talk) -> None:
    first = talk.send()
    epoch = talk.begun(first)
    talk.send("low", priority=Priority.LOW, waiting=False)
    exit_news(talk, "s1")
    talk.finish(first, epoch)
    assert talk.queue.items[-1].priority is Priority.HIGH


def test_taking_the_same_step_again_gives_the_same_rows_and_a_later_step_only_what_is_new(talk: Talk) -> None:
    item = talk.send("one")
    talk.begun(item, "one")
    again = talk.epoch(item)
    assert talk.take(item, again, 0) == ["one"]
    exit_news(talk, "s1")
    assert talk.take(item, again, 1) == ["exit"]


def test_an_overtaken_execution_takes_nothing_and_closes_nothing(talk: Talk) -> None:
    item = talk.send()
    old, new = talk.epoch(item), talk.epoch(item)
    with pytest.raises(StaleTurn):
        talk.take(item, old)
    with pytest.raises(StaleTurn):
        talk.finish(item, old)
    assert talk.take(item, new) == ["hello"]
    assert talk.finish(item, new) == "answered"


def test_closing_again_returns_the_stored_outcome_and_changes_nothing(talk: Talk) -> None:
    item, epoch = talk.entered()
    talk.finish(item, epoch)
    talk.send("two")
    count = len(talk.queue.items)
    assert talk.finish(item, epoch, outcome="failed") == "answered"
    assert len(talk.queue.items) == count
    assert talk.enter(item).outcome == "answered"


def test_news_the_agent_was_told_of_is_taken_back_when_the_turn_closes(talk: Talk) -> None:
    item = talk.send()
    epoch = talk.begun(item)
    callback = exit_news(talk, "s1")
    exit_news(talk, "s2")
    talk.finish(item, epoch, told=frozenset({"s1"}))
    talk.begun(callback, "exit")


def test_the_same_exit_is_news_once(talk: Talk) -> None:
    exit_news(talk, "s1")
    exit_news(talk, "s1")
    assert talk.db.read_now(committed) == ["EXEC_CALLBACK:s1"]


def test_pending_calls_block_and_the_last_decision_resumes_once(talk: Talk) -> None:
    item = talk.send()
    epoch = talk.begun(item)
    two = (PROPOSED, replace(PROPOSED, call_key="k2", tool_call_id="t2", digest="d2"))
    talk.finish(item, epoch, outcome="pending_approval", answer=None, proposed=two)
    assert (talk.conversation().state, talk.conversation().blocked_reason) == ("blocked", "approval")
    held = talk.send("meanwhile")
    assert talk.enter(held).outcome == "busy"
    first, second = talk.db.read_now(approvals.find, state="pending")
    decide(talk, first.id, "approved")
    assert talk.queue.items[-1].type is not ItemType.APPROVAL
    decide(talk, second.id, "denied")
    resumed = talk.last(ItemType.APPROVAL)
    assert talk.take(resumed, talk.epoch(resumed)) == ["meanwhile"]
    with pytest.raises(ApprovalSettled, match="denied already"):
        decide(talk, second.id, "approved")


def decide(talk: Talk, request_id: str, decision: Any) -> Any:
    return talk.db.write_now(approvals.decide, talk.queue, request_id, decision, by="me", surface="test")


def ask(talk: Talk, ttl_s: float = 3600.0) -> approvals.Request:
    item = talk.send()
    epoch = talk.begun(item)
    talk.finish(item, epoch, outcome="pending_approval", answer=None, proposed=(PROPOSED,), ttl_s=ttl_s)
    return talk.db.read_now(approvals.find, state="pending")[0]


def test_an_approval_is_used_once_and_only_for_its_digest(talk: Talk) -> None:
    request = ask(talk)
    decide(talk, request.id, "approved")
    with pytest.raises(PermissionError, match="something else"):
        talk.db.write_now(uses.consume, request.id, "s1", "other digest", conversation_id="c1")
    talk.db.write_now(uses.consume, request.id, "s1", "d1", conversation_id="c1")
    talk.db.write_now(uses.consume, request.id, "s1", "d1", conversation_id="c1")
    with pytest.raises(PermissionError, match="used"):
        talk.db.write_now(uses.consume, request.id, "s2", "d1", conversation_id="c1")


def test_nobody_deciding_in_time_is_a_denial_that_resumes(talk: Talk) -> None:
    request = ask(talk, ttl_s=-1)
    assert talk.db.read_now(approvals.left) == {request.id: 0.0}
    decide(talk, request.id, "expired")
    assert talk.db.read_now(approvals.get, request.id).state == "expired"
    assert talk.queue.items[-1].type is ItemType.APPROVAL


def test_an_approval_that_comes_too_late_is_not_one(talk: Talk) -> None:
    request = ask(talk, ttl_s=-1)
    assert decide(talk, request.id, "approved").state == "expired"


def test_interrupting_denies_what_waits_and_the_message_is_heard_with_it(talk: Talk) -> None:
    request = ask(talk)
    talk.send("no, this instead", interrupt=True)
    assert talk.db.read_now(approvals.get, request.id).state == "superseded"
    resumed = talk.queue.items[-1]
    assert talk.take(resumed, talk.epoch(resumed)) == ["no, this instead"]


def test_a_dead_turn_gives_its_news_back_and_three_in_a_row_set_the_conversation_aside(talk: Talk) -> None:
    item = talk.send()
    for strike in range(3):
        talk.begun(item)
        assert talk.die() == ("set_aside" if strike == 2 else "retried")
        if strike < 2:
            item = talk.last(ItemType.RETRY)
    assert (talk.conversation().state, talk.conversation().blocked_reason) == ("blocked", "set_aside")
    again = talk.send("try again")
    talk.begun(again, "hello", "turn_failed", "turn_failed", "turn_failed", "try again")


def test_wakes_without_a_person_are_bounded_and_a_message_ends_the_block(talk: Talk) -> None:
    for number in range(3):
        callback = exit_news(talk, f"s{number}")
        entry = talk.enter(callback, chain=2)
        if number < 2:
            assert entry.epoch is not None
            talk.take(callback, entry.epoch)
            talk.finish(callback, entry.epoch)
        else:
            assert entry.outcome == "busy"
    assert talk.conversation().blocked_reason == "wake_limit"
    message = talk.send("go on")
    talk.begun(message, "exit", "go on", chain=2)


def test_wakes_in_an_hour_are_bounded(talk: Talk) -> None:
    callback = exit_news(talk, "s0")
    talk.finish(callback, talk.epoch(callback, per_hour=1))
    assert talk.enter(exit_news(talk, "s1"), per_hour=1).outcome == "busy"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 101, "a\x00"])
def test_a_name_that_is_none_is_refused(talk: Talk, name: str) -> None:
    with pytest.raises(InvalidRequest, match="conversation name"):
        talk.db.write_now(sending.send, talk.queue, name, "text", host_id=HOST)


@pytest.mark.parametrize("text", ["", "  \n", "a\x00b", "x" * 100_001])
def test_a_text_that_is_none_is_refused(talk: Talk, text: str) -> None:
    with pytest.raises(InvalidRequest, match="message"):
        talk.say(text)


def test_an_unknown_approval_is_refused_by_name(talk: Talk) -> None:
    with pytest.raises(UnknownApproval, match="nosuch"):
        decide(talk, "nosuch", "approved")


def test_items_that_have_nothing_to_tell_end_without_a_claim_and_wear_nothing_out(talk: Talk) -> None:
    callbacks = [exit_news(talk, f"s{number}") for number in range(10)]
    epoch = talk.begun(callbacks[0], chain=2)
    talk.finish(callbacks[0], epoch)
    assert {talk.enter(callback, chain=2).outcome for callback in callbacks[1:]} == {"nothing"}
    assert (talk.conversation().state, talk.conversation().chain) == ("free", 1)


def test_a_message_heard_through_a_follow_up_is_a_persons_and_begins_a_new_chain(talk: Talk) -> None:
    callback = exit_news(talk, "s0")
    epoch = talk.begun(callback, chain=1)
    assert talk.enter(talk.send("listen")).outcome == "busy"
    talk.finish(callback, epoch)
    follow = talk.last(ItemType.FOLLOW_UP)
    talk.begun(follow, "listen", chain=1)


def test_a_clock_that_decides_is_no_person(talk: Talk) -> None:
    request = ask(talk, ttl_s=-1)
    decide(talk, request.id, "expired")
    talk.enter(talk.queue.items[-1])
    assert talk.conversation().chain == 1


def test_rows_the_history_does_not_have_are_unread_again_after_the_closing(talk: Talk) -> None:
    item = talk.send("one")
    epoch = talk.begun(item, "one")
    exit_news(talk, "s1")
    assert talk.take(item, epoch, 1) == ["exit"]
    first = talk.taken(item)[:1]
    talk.finish(item, epoch, heard=frozenset(first))
    follow = talk.queue.items[-1]
    assert (follow.type, follow.priority) == (ItemType.FOLLOW_UP, Priority.HIGH)
    assert talk.take(follow, talk.epoch(follow)) == ["exit"]


def test_a_closed_turn_never_claims_again_however_late_its_other_execution_looks(postgres: Database) -> None:
    """The second execution waits for the row while the first closes; then it has to see that it is closed."""
    talk = Talk(postgres)
    item = talk.send()
    epoch = talk.begun(item)
    heard = frozenset(talk.taken(item))
    outcomes: list[str | None] = []
    late = threading.Thread(target=lambda: outcomes.append(talk.enter(item).outcome))

    def closing_slowly(conn: sa.Connection) -> None:
        mailbox.lock(conn, "c1")
        late.start()
        late.join(0.5)
        assert late.is_alive()
        facts: dict[str, Any] = {"outcome": "answered", "answer": "done", "heard": heard}
        closing = Closing(conversation_id="c1", turn_id=item.id, epoch=epoch, **facts)
        close(conn, talk.queue, closing, None, [], None)

    postgres.write_now(closing_slowly)
    late.join()
    assert outcomes == ["answered"]
    assert talk.conversation().state == "free"


def test_the_newest_decision_counts_whatever_the_clock_said(talk: Talk) -> None:
    """Tool call ids come again: an old yes must not answer for a new no."""
    old = ask(talk)
    decide(talk, old.id, "approved")
    resumed = talk.queue.items[-1]
    epoch = talk.epoch(resumed)
    again = replace(PROPOSED, call_key="k2")
    talk.finish(resumed, epoch, outcome="pending_approval", answer=None, proposed=(again,))
    new = talk.db.read_now(approvals.find, state="pending")[0]
    decide(talk, new.id, "denied")
    clock_turned_back = sa.text("update approvals set created_at = created_at - 3600 where call_key = 'k2'")
    talk.db.write_now(lambda conn: conn.execute(clock_turned_back))
    found = talk.db.read_now(approvals.decided, "c1")
    assert [(request.call_key, request.state) for request in found] == [("k2", "denied")]


def test_messages_that_wait_together_are_one_item_and_all_are_heard(talk: Talk) -> None:
    """Five hundred messages to one conversation do not stand in the way of everybody else's."""
    for number in range(20):
        talk.say(f"message {number}", waiting=False)
    (item,) = talk.queue.items
    epoch = talk.epoch(item)
    assert talk.take(item, epoch) == [f"message {number}" for number in range(20)]
    # Whoever looks up what became of a message finds an item that ended at once.
    outcomes = talk.db.read_now(lambda conn: conn.execute(sa.select(turns.c.outcome)).scalars().all())
    assert sorted(map(str, outcomes)) == ["None", *["busy"] * 19]


def test_a_message_has_an_item_of_its_own_unless_one_as_urgent_has_yet_to_start(talk: Talk) -> None:
    def sent(**more: Any) -> bool:
        before = len(talk.queue.items)
        talk.say("hello", **more)
        return len(talk.queue.items) > before

    assert sent(waiting=False, priority=Priority.LOW)
    assert sent(waiting=False)
    assert sent(waiting=True)
    assert not sent(waiting=False)
    assert not sent(waiting=True)
    assert sent(waiting=True, priority=Priority.HIGH)
    for item in list(talk.queue.items):
        talk.enter(item)
    assert sent(waiting=False, priority=Priority.LOW)
