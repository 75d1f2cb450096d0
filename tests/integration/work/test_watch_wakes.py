"""From a hit to one row and one item; an end that is no news; news that the agent has read, taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturn
from pydantic_ai.models.function import AgentInfo, FunctionModel

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
from shellback.work.turn import claims, hearing
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing, close
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import texts_of
from shellback.work.turn.stopping import Wish, look
from tests.items import NotedEnqueuer
from tests.sessions import EXITED, a_session
from tests.watches import a_hit, a_watch

OK = replace(EXITED, exit_code=0)
TURN = "CHAT:one"
FOUND = {"count": 1, "counted": True, "last_lines": ["listening"], "start": 10, "end": 19, "dropped": 0, "command": "x"}


@pytest.fixture
def queue() -> NotedEnqueuer:
    return NotedEnqueuer()


def fire(db: Database, queue: NotedEnqueuer, hit: Hit, watch: Watch | None = None) -> Watch | None:
    def act(conn: sa.Connection) -> Watch | None:
        if watch is not None:
            store.place(conn, watch)
        return store.count(conn, "v1", hit, WatchWakes(queue, "host1"))

    return db.write_now(act)


def rows_of(db: Database) -> list[tuple[str, str, str]]:
    query = sa.select(mailbox.c.kind, mailbox.c.dedupe_key, mailbox.c.state).order_by(mailbox.c.id)
    return [(row.kind, row.dedupe_key, row.state) for row in db.read_now(lambda conn: conn.execute(query).all())]


def enter(db: Database, item: WorkItem) -> claims.Entry:
    return db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes())


def take(db: Database, item: WorkItem, epoch: int | None) -> list[Letter]:
    assert epoch is not None
    return db.write_now(look, "c1", item.id, epoch, 0)[0]


def end(db: Database, queue: NotedEnqueuer, item: WorkItem, epoch: int | None, **more: Any) -> str:
    assert epoch is not None
    closing = Closing(conversation_id="c1", turn_id=item.id, epoch=epoch, outcome="answered", answer="done", **more)
    return db.write_now(close, queue, closing, None, [], None)


def test_a_hit_is_one_row_one_item_with_high_priority_and_one_event(database: Database, queue: NotedEnqueuer) -> None:
    hit = a_hit(1, payload=FOUND)
    assert fire(database, queue, hit, a_watch()) is not None
    assert fire(database, queue, hit) is None
    assert rows_of(database) == [("watch", "watch:v1:1", "unread")]
    assert [(item.id, item.type, item.priority) for item in queue.items] == [
        ("EXEC_WATCH:v1:1", ItemType.EXEC_WATCH, Priority.HIGH)
    ]
    kinds = database.read_now(lambda conn: conn.execute(sa.select(events.c.kind)).scalars().all())
    assert kinds == ["watch"]
    letters = take(database, queue.items[0], enter(database, queue.items[0]).epoch)
    (text,) = texts_of(letters)
    assert text.startswith('A watch on a process in the background has fired.\nSession s1 ("x"): 1 line matches')


def test_a_hit_that_is_rolled_back_leaves_nothing_and_is_told_by_the_next_try(
    database: Database, queue: NotedEnqueuer
) -> None:
    database.write_now(store.place, a_watch())

    def broken(conn: sa.Connection) -> None:
        store.count(conn, "v1", a_hit(1, payload=FOUND), WatchWakes(queue, "host1"))
        raise ConnectionError("the machine went away")

    with pytest.raises(ConnectionError):
        database.write_now(broken)
    assert rows_of(database) == []
    assert database.read_now(store.get, "v1") == a_watch()
    assert fire(database, queue, a_hit(1, payload=FOUND)) is not None
    assert rows_of(database) == [("watch", "watch:v1:1", "unread")]


def test_a_hit_of_output_that_the_turn_has_read_is_taken_back_when_it_closes(
    database: Database, queue: NotedEnqueuer
) -> None:
    """What the watch finds later of that output is no news either; the rest of it is."""
    fire(database, queue, a_hit(1, offset=25, payload=FOUND, upto=19), a_watch())
    other = {**FOUND, "start": 30, "end": 60}
    (first,) = queue.items
    entry = enter(database, first)
    assert fire(database, queue, a_hit(2, offset=70, payload=other, upto=60)) == fire(database, queue, a_hit(2))
    assert rows_of(database) == [("watch", "watch:v1:1", "unread")]  # the second keeps until the first is taken
    take(database, first, entry.epoch)
    fire(database, queue, a_hit(2, offset=70, payload=other, upto=60))
    second = queue.items[-1]
    read = ((SessionId("s1"), 7, 15), (SessionId("s1"), 15, 40), (SessionId("s2"), 0, 100))
    assert end(database, queue, first, entry.epoch, read=read) == "answered"
    assert rows_of(database) == [("watch", "watch:v1:1", "heard"), ("watch", "watch:v1:2", "unread")]
    follow = queue.items[-1]
    assert follow.type is ItemType.FOLLOW_UP
    entry = enter(database, follow)
    assert [letter.payload["hit"] for letter in take(database, follow, entry.epoch)] == [2]
    end(database, queue, follow, entry.epoch, heard=frozenset({2}), read=((SessionId("s1"), 60, 200),))
    assert enter(database, second).outcome == "nothing"
    watch = fire(database, queue, a_hit(3, payload={**FOUND, "end": 199}, upto=199))
    assert watch is not None
    assert (watch.hits, watch.offset) == (2, 300)
    assert len(rows_of(database)) == 2


def test_a_hit_that_switches_its_watch_off_is_told_even_if_its_output_was_read(
    database: Database, queue: NotedEnqueuer
) -> None:
    fire(database, queue, a_hit(1, payload=FOUND, upto=19), a_watch(strikes=2))
    entry = enter(database, queue.items[0])
    end(database, queue, queue.items[0], entry.epoch, read=((SessionId("s1"), 0, 100),))
    assert rows_of(database) == [("watch", "watch:v1:1", "unread")]


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
    database: Database, queue: NotedEnqueuer, on_exit: str, how: SessionEnd, state: str
) -> None:
    """G2: the item exists whatever is wanted of the end; it finds nothing to tell."""
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id})
    session = a_session(on_exit=on_exit, delivery=Delivery.CALLBACK)
    database.write_now(claim, session)
    for _ in range(2):
        database.write_now(finish, session.id, how, sink)
    assert rows_of(database) == [("exit", "exit:s1", state)]
    assert [item.id for item in queue.items] == ["EXEC_CALLBACK:s1"]
    assert enter(database, queue.items[0]).outcome == (None if state == "unread" else "nothing")


def test_ends_and_hits_near_each_other_are_one_turn(database: Database, queue: NotedEnqueuer) -> None:
    """Whichever item comes first hears all; the others find nothing left, and nobody is woken once more."""
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id})
    for number in range(1, 4):
        session = a_session(number, delivery=Delivery.CALLBACK)
        database.write_now(claim, session)
        database.write_now(finish, session.id, EXITED, sink)
    fire(database, queue, a_hit(1, payload=FOUND), a_watch())
    first, *others = queue.items
    entry = enter(database, first)
    letters = take(database, first, entry.epoch)
    assert [letter.kind for letter in letters] == ["exit", "exit", "exit", "watch"]
    assert enter(database, others[0]).outcome == "busy"
    end(database, queue, first, entry.epoch, heard=frozenset(letter.id for letter in letters))
    assert [enter(database, item).outcome for item in others[1:]] == ["nothing", "nothing"]
    assert len(queue.items) == 4


def test_hits_count_as_wakes_without_a_person(database: Database, queue: NotedEnqueuer) -> None:
    fire(database, queue, a_hit(1, payload=FOUND), a_watch())
    entry = enter(database, queue.items[0])
    take(database, queue.items[0], entry.epoch)
    end(database, queue, queue.items[0], entry.epoch, heard=frozenset({1}))
    fire(database, queue, a_hit(2, payload=FOUND))
    worn = database.write_now(claims.enter, queue.items[1], executor_id="w1", wakes=Wakes(chain=1))
    assert worn.outcome == "busy"
    assert rows_of(database)[1] == ("watch", "watch:v1:2", "unread")


def test_a_turn_that_was_overtaken_places_no_watch_and_retention_takes_watches_with_their_sessions(
    database: Database, queue: NotedEnqueuer
) -> None:
    with pytest.raises(StaleTurn):
        database.write_now(store.place, a_watch(), 3)
    session = a_session(delivery=Delivery.SETTLED, state=EXITED.state, end=EXITED)
    database.write_now(claim, session)
    database.write_now(store.place, a_watch())
    database.write_now(store.place, a_watch(2, session_id="s2"))
    cut = Cut(host_id="h", rows=1000.0, sessions=1000.0, conversations=None)
    assert database.write_now(delete_sessions, cut, ["s1", "s2"]) == 1
    assert [watch.id for watch in database.read_now(store.find)] == ["v2"]


def test_the_trace_of_a_hit_goes_on_from_the_turn_that_placed_the_watch(
    database: Database, queue: NotedEnqueuer
) -> None:
    item = WorkItem(id="turn-1", type=ItemType.CHAT, priority=Priority.NORMAL, conversation_id="c1")
    database.write_now(lambda conn: queue.put(conn, item, host_id="h"))
    context = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    database.write_now(lambda conn: conn.execute(sa.update(turns).values(traceparent=context)))
    fire(database, queue, a_hit(1, payload=FOUND), a_watch())
    assert database.read_now(tracing.cause_of, queue.items[-1]) == context
    lost = replace(queue.items[-1], id="EXEC_WATCH:gone:1")
    assert database.read_now(tracing.cause_of, lost) is None


def test_a_turn_notes_what_it_has_read_and_is_not_told_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut is not read; a hit that lies in what was read whole is left to the closing."""

    def letter(number: int, start: int, end: int) -> Letter:
        payload = {**FOUND, "start": start, "end": end, "session_id": "s1", "kind": "pattern", "pattern": "p"}
        return Letter(id=number, kind="watch", payload={**payload, "watch_id": "v1", "hit": number, "off": None})

    class Given(hearing.Hearing):
        async def take(self, deps: TurnDeps, step: int) -> tuple[list[Letter], Wish | None]:
            return ([letter(1, 10, 19), letter(2, 40, 60)] if step == 2 else []), None

        async def wished(self, deps: TurnDeps) -> Wish | None:
            return None

    async def unrecorded(_name: str, fn: Callable[[], Awaitable[Any]]) -> Any:
        return await fn()

    monkeypatch.setattr(hearing, "recorded", unrecorded)
    tools = FunctionToolset[TurnDeps]()

    @tools.tool_plain(metadata={"category": "process"})
    def poll() -> ToolReturn[str]:
        told = {"session_id": "s1", "state": "running", **measured(Slice(text="", start=0, end=30, bytes_shown=30))}
        cut = {"session_id": "s2", "state": "running", **measured(Slice(text="", start=0, end=90, bytes_shown=60))}
        return ToolReturn("read", metadata={**told, "sessions": [cut]})

    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        asked = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[TextPart("done") if asked else ToolCallPart("poll", {}, "one")])

    agent = Agent(FunctionModel(respond), deps_type=TurnDeps, toolsets=[tools], capabilities=[Given(cast("Any", None))])
    deps = TurnDeps(conversation_id="c1", turn_id="t1", epoch=1, gate=True, began_at=0.0, seconds=1e12)
    history = asyncio.run(agent.run("go", deps=deps)).all_messages_json().decode()
    assert deps.read == [("s1", 0, 30)]
    assert [letter.id for letter in deps.letters] == [2]
    assert history.count("A watch on a process in the background has fired.") == 1


ENDED = replace(a_session(delivery=Delivery.CALLBACK), state=EXITED.state, end=EXITED)


def counted(conn: sa.Connection, query: sa.Select[int]) -> int:
    return conn.execute(query).scalar_one()


def test_one_end_delivered_twice_is_one_row_and_one_item_with_high_priority(database: Database) -> None:
    queue = NotedEnqueuer()
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id, "exit_code": 3})
    for _ in range(2):
        database.write_now(lambda conn: sink.ended(conn, ENDED))
    rows = database.read_now(lambda conn: conn.execute(sa.select(mailbox)).all())
    assert [(row.kind, row.dedupe_key) for row in rows] == [("exit", f"exit:{ENDED.id}")]
    assert rows[0].payload["command"] == ENDED.command
    assert [(item.id, item.priority) for item in queue.items] == [(f"EXEC_CALLBACK:{ENDED.id}", Priority.HIGH)]
    assert queue.items[0].payload == {"session_id": ENDED.id, "exit_code": 3}


def test_news_that_is_rolled_back_leaves_nothing_behind(database: Database) -> None:
    """The row, the item and the end are one transaction: all of it or none."""
    queue = NotedEnqueuer()
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id})

    def broken(conn: sa.Connection) -> None:
        sink.ended(conn, ENDED)
        raise ConnectionError("the machine went away")

    with pytest.raises(ConnectionError):
        database.write_now(broken)
    for table in (mailbox, events):
        query = sa.select(sa.func.count()).select_from(table)
        assert database.read_now(counted, query) == 0
