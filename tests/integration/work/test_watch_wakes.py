"""From a hit to one row and one item; an end that is no news; news that the agent has read, taken back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturn
from pydantic_ai.models.function import AgentInfo

from shellback.exec.core.model import Delivery, EndedBy, SessionEnd, SessionId, SessionState
from shellback.exec.core.watch import Hit, Watch
from shellback.exec.log.output import Slice
from shellback.exec.reports.render import measured
from shellback.storage import watches as store
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.retention import Cut, delete_sessions
from shellback.storage.sessions import claim, finish
from shellback.storage.tables import events, mailbox, turns
from shellback.work.queue import tracing
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.items import ItemType, Priority, WorkItem
from shellback.work.queue.mailbox import Letter
from shellback.work.queue.watch_wakes import WatchWakes
from shellback.work.turn.hearing import texts_of
from tests.items import HOST, Given, Talk, turn_deps
from tests.sessions import EXITED, a_session
from tests.watches import a_hit, a_watch

OK = replace(EXITED, exit_code=0)
TURN = "CHAT:one"
FOUND = {"count": 1, "counted": True, "last_lines": ["listening"], "start": 10, "end": 19, "dropped": 0, "command": "x"}


def fire(talk: Talk, hit: Hit, watch: Watch | None = None) -> Watch | None:
    def act(conn: sa.Connection) -> Watch | None:
        if watch is not None:
            store.place(conn, watch)
        return store.count(conn, "v1", hit, WatchWakes(talk.queue, HOST))

    return talk.db.write_now(act)


def rows_of(db: Database) -> list[tuple[str, str, str]]:
    query = sa.select(mailbox.c.kind, mailbox.c.dedupe_key, mailbox.c.state).order_by(mailbox.c.id)
    return [(row.kind, row.dedupe_key, row.state) for row in db.read_now(lambda conn: conn.execute(query).all())]


def test_a_hit_is_one_row_one_item_with_high_priority_and_one_event(talk: Talk) -> None:
    hit = a_hit(1, payload=FOUND)
    assert fire(talk, hit, a_watch()) is not None
    assert fire(talk, hit) is None
    assert rows_of(talk.db) == [("watch", "watch:v1:1", "unread")]
    assert [(item.id, item.type, item.priority) for item in talk.queue.items] == [
        ("EXEC_WATCH:v1:1", ItemType.EXEC_WATCH, Priority.HIGH)
    ]
    kinds = talk.db.read_now(lambda conn: conn.execute(sa.select(events.c.kind)).scalars().all())
    assert kinds == ["watch"]
    letters = talk.letters(talk.queue.items[0], talk.epoch(talk.queue.items[0]))
    (text,) = texts_of(letters)
    assert text.startswith('A watch on a process in the background has fired.\nSession s1 ("x"): 1 line matches')


def test_a_hit_that_is_rolled_back_leaves_nothing_and_is_told_by_the_next_try(talk: Talk) -> None:
    talk.db.write_now(store.place, a_watch())

    def broken(conn: sa.Connection) -> None:
        store.count(conn, "v1", a_hit(1, payload=FOUND), WatchWakes(talk.queue, HOST))
        raise ConnectionError("the machine went away")

    with pytest.raises(ConnectionError):
        talk.db.write_now(broken)
    assert rows_of(talk.db) == []
    assert talk.db.read_now(store.get, "v1") == a_watch()
    assert fire(talk, a_hit(1, payload=FOUND)) is not None
    assert rows_of(talk.db) == [("watch", "watch:v1:1", "unread")]


def test_a_hit_of_output_that_the_turn_has_read_is_taken_back_when_it_closes(talk: Talk) -> None:
    """What the watch finds later of that output is no news either; the rest of it is."""
    fire(talk, a_hit(1, offset=25, payload=FOUND, upto=19), a_watch())
    other = {**FOUND, "start": 30, "end": 60}
    (first,) = talk.queue.items
    epoch = talk.epoch(first)
    assert fire(talk, a_hit(2, offset=70, payload=other, upto=60)) == fire(talk, a_hit(2))
    assert rows_of(talk.db) == [("watch", "watch:v1:1", "unread")]  # the second keeps until the first is taken
    talk.letters(first, epoch)
    fire(talk, a_hit(2, offset=70, payload=other, upto=60))
    second = talk.queue.items[-1]
    read = ((SessionId("s1"), 7, 15), (SessionId("s1"), 15, 40), (SessionId("s2"), 0, 100))
    assert talk.close(first, epoch, answer="done", read=read) == "answered"
    assert rows_of(talk.db) == [("watch", "watch:v1:1", "heard"), ("watch", "watch:v1:2", "unread")]
    follow = talk.last(ItemType.FOLLOW_UP)
    epoch = talk.epoch(follow)
    assert [letter.payload["hit"] for letter in talk.letters(follow, epoch)] == [2]
    talk.close(follow, epoch, answer="done", heard=frozenset({2}), read=((SessionId("s1"), 60, 200),))
    assert talk.enter(second).outcome == "nothing"
    watch = fire(talk, a_hit(3, payload={**FOUND, "end": 199}, upto=199))
    assert watch is not None
    assert (watch.hits, watch.offset) == (2, 300)
    assert len(rows_of(talk.db)) == 2


def test_a_hit_that_switches_its_watch_off_is_told_even_if_its_output_was_read(talk: Talk) -> None:
    fire(talk, a_hit(1, payload=FOUND, upto=19), a_watch(strikes=2))
    epoch = talk.epoch(talk.queue.items[0])
    talk.close(talk.queue.items[0], epoch, answer="done", read=((SessionId("s1"), 0, 100),))
    assert rows_of(talk.db) == [("watch", "watch:v1:1", "unread")]


@pytest.mark.parametrize(
    ("on_exit", "how", "state"),
    [
        ("always", OK, "unread"),
        ("failure", OK, "heard"),
        ("failure", EXITED, "unread"),
        ("failure", SessionEnd(state=SessionState.SIGNALED, signal=9, ended_by=EndedBy.AGENT), "unread"),
        ("failure", SessionEnd(state=SessionState.TIMED_OUT, exit_code=0, ended_by=EndedBy.TIMEOUT), "unread"),
        ("never", EXITED, "heard"),
    ],
)
def test_an_end_that_is_no_news_has_its_item_and_is_settled_with_the_end(
    talk: Talk, on_exit: str, how: SessionEnd, state: str
) -> None:
    """G2: the item exists whatever is wanted of the end; it finds nothing to tell."""
    sink = CallbackSink(talk.queue, HOST, lambda session: {"session_id": session.id})
    session = a_session(on_exit=on_exit, delivery=Delivery.CALLBACK)
    talk.db.write_now(claim, session)
    for _ in range(2):
        talk.db.write_now(finish, session.id, how, sink)
    assert rows_of(talk.db) == [("exit", "exit:s1", state)]
    assert [item.id for item in talk.queue.items] == ["EXEC_CALLBACK:s1"]
    assert talk.enter(talk.queue.items[0]).outcome == (None if state == "unread" else "nothing")


def test_ends_and_hits_near_each_other_are_one_turn(talk: Talk) -> None:
    """Whichever item comes first hears all; the others find nothing left, and nobody is woken once more."""
    sink = CallbackSink(talk.queue, HOST, lambda session: {"session_id": session.id})
    for number in range(1, 4):
        session = a_session(number, delivery=Delivery.CALLBACK)
        talk.db.write_now(claim, session)
        talk.db.write_now(finish, session.id, EXITED, sink)
    fire(talk, a_hit(1, payload=FOUND), a_watch())
    first, *others = talk.queue.items
    epoch = talk.epoch(first)
    letters = talk.letters(first, epoch)
    assert [letter.kind for letter in letters] == ["exit", "exit", "exit", "watch"]
    assert talk.enter(others[0]).outcome == "busy"
    talk.close(first, epoch, answer="done", heard=frozenset(letter.id for letter in letters))
    assert [talk.enter(item).outcome for item in others[1:]] == ["nothing", "nothing"]
    assert len(talk.queue.items) == 4


def test_hits_count_as_wakes_without_a_person(talk: Talk) -> None:
    fire(talk, a_hit(1, payload=FOUND), a_watch())
    epoch = talk.begun(talk.queue.items[0])
    talk.close(talk.queue.items[0], epoch, answer="done", heard=frozenset({1}))
    fire(talk, a_hit(2, payload=FOUND))
    worn = talk.enter(talk.queue.items[1], chain=1)
    assert worn.outcome == "busy"
    assert rows_of(talk.db)[1] == ("watch", "watch:v1:2", "unread")


def test_a_turn_that_was_overtaken_places_no_watch_and_retention_takes_watches_with_their_sessions(talk: Talk) -> None:
    with pytest.raises(StaleTurn):
        talk.db.write_now(store.place, a_watch(), 3)
    session = a_session(delivery=Delivery.SETTLED, state=EXITED.state, end=EXITED)
    talk.db.write_now(claim, session)
    talk.db.write_now(store.place, a_watch())
    talk.db.write_now(store.place, a_watch(2, session_id="s2"))
    cut = Cut(host_id="h", rows=1000.0, sessions=1000.0, conversations=None)
    assert talk.db.write_now(delete_sessions, cut, ["s1", "s2"]) == 1
    assert [watch.id for watch in talk.db.read_now(store.find)] == ["v2"]


def test_the_trace_of_a_hit_goes_on_from_the_turn_that_placed_the_watch(talk: Talk) -> None:
    item = WorkItem(id="turn-1", type=ItemType.CHAT, priority=Priority.NORMAL, conversation_id="c1")
    talk.db.write_now(lambda conn: talk.queue.put(conn, item, host_id="h"))
    context = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    talk.db.write_now(lambda conn: conn.execute(sa.update(turns).values(traceparent=context)))
    fire(talk, a_hit(1, payload=FOUND), a_watch())
    assert talk.db.read_now(tracing.cause_of, talk.queue.items[-1]) == context
    lost = replace(talk.queue.items[-1], id="EXEC_WATCH:gone:1")
    assert talk.db.read_now(tracing.cause_of, lost) is None


@pytest.mark.usefixtures("unrecorded")
def test_a_turn_notes_what_it_has_read_and_is_not_told_it_again() -> None:
    """What was cut is not read; a hit that lies in what was read whole is left to the closing."""

    def letter(number: int, start: int, end: int) -> Letter:
        payload = {**FOUND, "start": start, "end": end, "session_id": "s1", "kind": "pattern", "pattern": "p"}
        return Letter(id=number, kind="watch", payload={**payload, "watch_id": "v1", "hit": number, "off": None})

    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        asked = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[TextPart("done") if asked else ToolCallPart("poll", {}, "one")])

    agent = Given(lambda look: [letter(1, 10, 19), letter(2, 40, 60)] if look == 2 else []).agent(respond)

    @agent.tool_plain(metadata={"category": "process"})
    def poll() -> ToolReturn[str]:
        told = {"session_id": "s1", "state": "running", **measured(Slice(text="", start=0, end=30, bytes_shown=30))}
        cut = {"session_id": "s2", "state": "running", **measured(Slice(text="", start=0, end=90, bytes_shown=60))}
        return ToolReturn("read", metadata={**told, "sessions": [cut]})

    deps = turn_deps()
    history = asyncio.run(agent.run("go", deps=deps)).all_messages_json().decode()
    assert deps.read == [("s1", 0, 30)]
    assert [letter.id for letter in deps.letters] == [2]
    assert history.count("A watch on a process in the background has fired.") == 1


ENDED = replace(a_session(delivery=Delivery.CALLBACK), state=EXITED.state, end=EXITED)


def counted(conn: sa.Connection, query: sa.Select[int]) -> int:
    return conn.execute(query).scalar_one()


def test_one_end_delivered_twice_is_one_row_and_one_item_with_high_priority(talk: Talk) -> None:
    sink = CallbackSink(talk.queue, HOST, lambda session: {"session_id": session.id, "exit_code": 3})
    for _ in range(2):
        talk.db.write_now(lambda conn: sink.ended(conn, ENDED))
    rows = talk.db.read_now(lambda conn: conn.execute(sa.select(mailbox)).all())
    assert [(row.kind, row.dedupe_key) for row in rows] == [("exit", f"exit:{ENDED.id}")]
    assert rows[0].payload["command"] == ENDED.command
    assert [(item.id, item.priority) for item in talk.queue.items] == [(f"EXEC_CALLBACK:{ENDED.id}", Priority.HIGH)]
    assert talk.queue.items[0].payload == {"session_id": ENDED.id, "exit_code": 3}


def test_news_that_is_rolled_back_leaves_nothing_behind(talk: Talk) -> None:
    """The row, the item and the end are one transaction: all of it or none."""
    sink = CallbackSink(talk.queue, HOST, lambda session: {"session_id": session.id})

    def broken(conn: sa.Connection) -> None:
        sink.ended(conn, ENDED)
        raise ConnectionError("the machine went away")

    with pytest.raises(ConnectionError):
        talk.db.write_now(broken)
    for table in (mailbox, events):
        query = sa.select(sa.func.count()).select_from(table)
        assert talk.db.read_now(counted, query) == 0
