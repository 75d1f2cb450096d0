"""What a wish to stop does to the turn that runs, to calls and messages that wait, and to a turn that dies."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from shellback.client.messages import Waiting
from shellback.storage.db import Database
from shellback.storage.tables import notices as told
from shellback.work.approvals import approvals, sending
from shellback.work.errors import UnknownConversation
from shellback.work.notices.notices import Outbox
from shellback.work.queue import mailbox
from shellback.work.queue.items import ItemType, WorkItem
from shellback.work.turn import closing, hearing, looks, stopping
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Stopped
from shellback.work.turn.stopping import NEXT, Stopping, Wish
from tests.items import HOST, PROPOSED, Given, Talk, turn_deps


class Desk(Talk):
    def reads(self, item: WorkItem) -> tuple[list[str], int]:
        """The texts with which an execution of a turn begins, and its epoch."""
        letters = self.begin(item).letters
        return [str(letter.payload.get("text", letter.kind)) for letter in letters], self.conversation().epoch

    def look(self, item: WorkItem, epoch: int, step: int) -> tuple[list[str], str | None]:
        found = self.db.write_now(looks.look, "c1", item.id, epoch, step)
        return [str(one.payload.get("text")) for one in found.letters], found.wish.by if found.wish else None

    def hears(self, item: WorkItem, *texts: str, by: str | None) -> int:
        """The epoch of a turn that begins with these texts, and is then to end where somebody wished it."""
        found, epoch = self.reads(item)
        assert found == list(texts)
        assert self.look(item, epoch, 1) == ([], by)
        return epoch

    def stop(self, by: str = "ann") -> Stopping:
        return self.db.write_now(stopping.stop, self.queue, "c1", by=by)


@pytest.fixture
def talk(database: Database) -> Desk:
    return Desk(database)


def test_a_turn_told_to_end_takes_no_more_news_and_what_came_behind_it_runs_next(talk: Desk) -> None:
    item, epoch = talk.entered("one")
    assert talk.look(item, epoch, 0) == (["one"], None)
    talk.send("behind")
    assert talk.db.read_now(stopping.stoppable, "c1")
    assert talk.stop() == Stopping(conversation_id="c1", reach="running", turn_id=item.id)
    assert not talk.db.read_now(stopping.stoppable, "c1"), "a second Ctrl-C leaves"
    assert talk.look(item, epoch, 1) == ([], "ann")
    assert talk.stop("ben").turn_id == item.id
    again = talk.epoch(item)
    assert talk.look(item, again, 1) == ([], "ann"), "a repeated execution sees the same wish"
    talk.close(item, again, "stopped", answer="Stopped by ann.")
    row = talk.conversation()
    assert (row.state, row.stop_turn, row.stop_by) == ("free", None, None)
    follow = talk.last(ItemType.FOLLOW_UP)
    assert talk.look(follow, talk.epoch(follow), 0) == (["one", "behind"], None)


def test_a_turn_that_ends_by_itself_first_takes_the_wish_with_it(talk: Desk) -> None:
    item, epoch = talk.entered("one")
    talk.stop()
    talk.close(item, epoch, "answered", answer="done")
    later = talk.send("two")
    assert talk.look(later, talk.epoch(later), 0)[1] is None


def test_the_wish_for_a_turn_that_died_holds_for_the_one_that_tries_again(talk: Desk) -> None:
    item, epoch = talk.entered("one")
    assert talk.look(item, epoch, 0) == (["one"], None)
    talk.stop()
    assert talk.die() == "retried"
    retry = talk.last(ItemType.RETRY)
    assert talk.look(retry, talk.epoch(retry), 1)[1] == "ann"


def test_calls_that_wait_for_approval_are_denied_and_their_turn_ends_before_it_asks_the_model(talk: Desk) -> None:
    item = talk.send("one")
    talk.close(item, talk.epoch(item), "pending_approval", proposed=(PROPOSED,))
    assert not talk.db.read_now(stopping.stoppable, "c1"), "at a prompt Ctrl-C leaves"
    assert talk.stop().reach == "approvals"
    (request,) = talk.db.read_now(approvals.find)
    assert (request.state, request.surface) == ("superseded", "stop")
    resume = talk.last(ItemType.APPROVAL)
    assert talk.look(resume, talk.epoch(resume), 1)[1] == "ann"


def test_a_turn_that_was_told_to_end_while_it_asked_for_approval_asks_nobody(talk: Desk) -> None:
    item, epoch = talk.entered("one")
    talk.stop()
    talk.close(item, epoch, "pending_approval", proposed=(PROPOSED,))
    (request,) = talk.db.read_now(approvals.find)
    assert request.state == "superseded"
    resume = talk.last(ItemType.APPROVAL)
    assert talk.look(resume, talk.epoch(resume), 1)[1] == "ann"


def test_a_message_whose_turn_has_not_begun_is_stopped_by_whichever_turn_takes_it(talk: Desk) -> None:
    item = talk.send("one")
    assert talk.stop() == Stopping(conversation_id="c1", reach="queued")
    assert talk.conversation().stop_turn == NEXT
    epoch = talk.epoch(item)
    assert talk.conversation().stop_turn == item.id
    assert talk.look(item, epoch, 1)[1] == "ann"


def test_a_message_sent_after_the_wish_is_answered_and_not_swallowed_with_what_was_stopped(talk: Desk) -> None:
    item = talk.send("one")
    assert talk.stop().reach == "queued"
    talk.say("two")
    epoch = talk.hears(item, "one", by="ann")
    talk.finish(item, epoch, "stopped", answer="Stopped by ann.")
    follow = talk.last(ItemType.FOLLOW_UP)
    talk.hears(follow, "two", by=None)


def test_a_message_sent_after_the_wish_but_before_the_turn_has_read_anything_is_for_the_next_turn(talk: Desk) -> None:
    item, _ = talk.entered("one")
    assert talk.stop().reach == "running"
    talk.send("two")
    assert talk.stop().reach == "running"
    assert talk.reads(item)[0] == ["one"]
    found, again = talk.reads(item)
    assert found == ["one"], "an execution that is repeated reads the same"
    talk.finish(item, again, "stopped", answer="Stopped by ann.")
    follow = talk.queue.items[-1]
    assert talk.reads(follow)[0] == ["two"]


def test_a_second_wish_is_about_what_has_come_since_the_first(talk: Desk) -> None:
    item = talk.send("one")
    talk.stop()
    talk.say("two")
    talk.stop("ben")
    talk.hears(item, "one", "two", by="ann")


def test_after_a_turn_died_only_what_it_had_taken_is_stopped_and_what_came_behind_it_is_answered(talk: Desk) -> None:
    item = talk.send("one")
    assert talk.reads(item)[0] == ["one"]
    talk.send("behind")
    talk.stop()
    assert talk.die() == "retried"
    retry = talk.queue.items[-1]
    epoch = talk.hears(retry, "one", "turn_failed", by="ann")
    talk.finish(retry, epoch, "stopped", answer="Stopped by ann.")
    follow = talk.queue.items[-1]
    talk.hears(follow, "behind", by=None)


def test_more_messages_than_one_turn_takes_are_all_stopped(talk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "ROWS_PER_TURN", 2)
    item = talk.send("1")
    for text in "23":
        talk.say(text)
    talk.stop()
    talk.say("later")
    found, epoch = talk.reads(item)
    assert found == ["1", "2"]
    talk.finish(item, epoch, "stopped", answer="Stopped by ann.")
    assert talk.db.read_now(stopping.settled, "c1", None, 0.0) is None
    follow = talk.queue.items[-1]
    epoch = talk.hears(follow, "3", by="ann")
    talk.finish(follow, epoch, "stopped", answer="Stopped by ann.")
    follow = talk.queue.items[-1]
    talk.hears(follow, "later", by=None)


def test_a_call_approved_but_not_begun_is_not_made_by_a_turn_that_is_to_end(talk: Desk) -> None:
    item = talk.send("one")
    talk.close(item, talk.epoch(item), "pending_approval", proposed=(PROPOSED,))
    (request,) = talk.db.read_now(approvals.find)
    talk.db.write_now(approvals.decide, talk.queue, request.id, "approved", by="ben", surface="test")
    assert talk.stop().reach == "approvals"
    resume = talk.queue.items[-1]
    talk.epoch(resume)

    def decided(conn: sa.Connection) -> list[tuple[str, str | None]]:
        wish = stopping.wish_of(talk.conversation(), resume.id)
        return [(one.state, one.decided_by) for one in closing.decided(conn, "c1", wish)]

    assert talk.db.read_now(decided) == [("superseded", "ann")]


def test_nobody_is_told_of_calls_that_a_stop_denies_as_they_are_asked_for(talk: Desk) -> None:
    box = Outbox(host="here", on=True)
    item, epoch = talk.entered("one")
    talk.stop()
    talk.close(item, epoch, "pending_approval", proposed=(PROPOSED,), outbox=box)
    assert talk.db.read_now(lambda conn: conn.execute(sa.select(told)).all()) == []


def test_where_nothing_is_under_way_nothing_is_stopped_later(talk: Desk) -> None:
    with pytest.raises(UnknownConversation):
        talk.stop()
    item, epoch = talk.entered("one")
    talk.look(item, epoch, 0)
    talk.close(item, epoch, "answered", answer="done", heard=frozenset({1}))
    assert talk.stop().reach is None
    later = talk.send("two")
    assert talk.look(later, talk.epoch(later), 0) == (["two"], None)


def test_who_waits_for_a_message_hears_how_it_ends_though_its_calls_were_denied_at_once(talk: Desk) -> None:
    began = time.time()
    sent = talk.db.write_now(sending.send, talk.queue, "c1", "one", host_id=HOST)
    item = talk.queue.items[-1]
    waiting = Waiting(talk.db, sent)
    _, epoch = talk.reads(item)
    talk.stop()
    talk.close(item, epoch, "pending_approval", proposed=(PROPOSED,), heard=frozenset(talk.taken(item)))
    assert waiting.look() is None
    assert talk.db.read_now(stopping.settled, "c1", item.id, began) is None
    resume = talk.queue.items[-1]
    talk.close(resume, talk.epoch(resume), "stopped", answer="Stopped by ann.")
    assert (waiting.look(), waiting.answer) == ("stopped", "Stopped by ann.")
    settled = talk.db.read_now(stopping.settled, "c1", item.id, began)
    assert settled is not None
    assert (settled.turn_id, settled.outcome) == (resume.id, "stopped")


WISH = Wish(by="ann", living=[], count=0)


async def results_of(agent: Agent[TurnDeps]) -> list[ToolReturnPart]:
    with capture_run_messages() as messages, pytest.raises(Stopped, match="Stopped by ann"):
        await agent.run("go", deps=turn_deps())
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


@pytest.mark.anyio
@pytest.mark.usefixtures("unrecorded")
async def test_of_two_commands_in_one_response_the_second_is_not_run_and_the_first_has_its_result() -> None:
    ran: list[str] = []
    asked = 0

    def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        return ModelResponse(parts=[ToolCallPart("act", {"word": word}, word) for word in ("one", "two")])

    agent = Given(wish=lambda _: WISH if ran else None).agent(respond)

    @agent.tool_plain(metadata={"category": "exec"}, sequential=True)
    def act(word: str) -> str:
        ran.append(word)
        return f"did {word}"

    results = await results_of(agent)
    assert (ran, asked) == (["one"], 1)
    assert [(part.outcome, str(part.content)) for part in results] == [
        ("success", "did one"),
        ("failed", "Nothing more was done: ann stopped this turn."),
    ]


@pytest.mark.anyio
async def test_a_result_is_kept_after_the_ends_that_it_tells_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def kept(_name: str, fn: Callable[[], Awaitable[Any]]) -> Any:
        result = await fn()
        order.append("result")
        return result

    async def recorded(conversation_id: str) -> None:
        assert conversation_id
        order.append("ends")

    monkeypatch.setattr(hearing, "recorded", kept)
    made = iter([ToolCallPart("act", {}, "one"), ToolCallPart("theirs", {}, "two"), TextPart("done")])
    agent = Given(recorded=recorded).agent(lambda _messages, _info: ModelResponse(parts=[next(made)]))

    @agent.tool_plain(metadata={"category": "exec"})
    def act() -> str:
        return "did it"

    @agent.tool_plain
    def theirs() -> str:
        assert order == ["ends", "result"]
        return "did it"

    await agent.run("go", deps=turn_deps())
    assert order == ["ends", "result", "ends"]


@pytest.mark.anyio
@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize(
    ("ended", "said"), [(True, "did it"), (False, "Nothing more was done: ann stopped this turn.")]
)
async def test_a_repeat_of_a_call_that_has_ended_tells_its_result_though_somebody_wants_the_turn_to_end(
    ended: bool, said: str
) -> None:
    given = Given(wish=lambda look: WISH if look > 1 else None, ended=ended)
    agent = given.agent(lambda _messages, _info: ModelResponse(parts=[ToolCallPart("act", {}, "one")]))

    @agent.tool_plain(metadata={"category": "exec"})
    def act() -> str:
        return "did it"

    assert [str(part.content) for part in await results_of(agent)] == [said]
