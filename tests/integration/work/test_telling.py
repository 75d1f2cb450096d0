"""Events of a running turn: written soon, in order, and what is left with the close of the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartStartEvent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)

from shellback.storage.db import Database
from shellback.work.queue import stream
from shellback.work.turn import telling
from shellback.work.turn.telling import Telling
from tests.items import Talk, turn_deps

pytestmark = pytest.mark.anyio

CALL = FunctionToolCallEvent(ToolCallPart("execute", {"command": "ls"}, "c1"))
RESULT = FunctionToolResultEvent(part=ToolReturnPart("execute", "a b", "c1"))


async def tell(tells: Telling, *events: AgentStreamEvent | str) -> None:
    async def stream_of() -> AsyncIterator[AgentStreamEvent]:
        for event in events:
            yield PartStartEvent(index=0, part=TextPart(event)) if isinstance(event, str) else event

    await tells(cast("Any", SimpleNamespace(deps=turn_deps())), stream_of())


def written(database: Database) -> list[tuple[str, object]]:
    found = database.read_now(stream.after, "c1", 0)
    return [(event.kind, event.payload.get("text") or event.payload.get("tool")) for event in found]


async def until_written(tells: Telling) -> None:
    for untold in vars(tells)["_untold"].values():
        await vars(untold)["_task"]


async def test_events_of_a_turn_that_goes_on_are_written_in_one_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    note_all = stream.note_all

    def counted(conn: Any, conversation: str, turn: str, epoch: int, events: Sequence[stream.Noted]) -> None:
        sizes.append(len(events))
        note_all(conn, conversation, turn, epoch, events)

    monkeypatch.setattr(stream, "note_all", counted)
    tells = Telling(database)
    await tell(tells, "I ", "look.", CALL)
    await tell(tells, RESULT, "Two ", "files.")
    await until_written(tells)
    assert written(database) == [
        ("text", "I look."),
        ("tool_call", "execute"),
        ("tool_result", "a b"),
        ("text", "Two files."),
    ]
    assert sizes == [4]
    assert await tells.rest("t1", 1) == []


async def test_what_is_not_written_is_written_when_the_turn_closes_before_its_answer(database: Database) -> None:
    talk, tells = Talk(database), Telling(database)
    item, epoch = talk.entered()
    await tell(tells, "Two files.", CALL)
    events = await tells.rest("t1", 1)
    assert talk.close(item, epoch, answer="done", events=events) == "answered"
    assert [kind for kind, _ in written(database)][-3:] == ["text", "tool_call", "answer"]
    assert await tells.rest("t1", 1) == ()


async def test_a_turn_that_does_not_close_leaves_nothing_to_write(database: Database) -> None:
    tells = Telling(database)
    await tell(tells, CALL)
    tells.forget("t1", 1)
    assert await tells.rest("t1", 1) == ()
    assert written(database) == []


async def test_a_stream_waits_while_too_many_of_its_events_are_not_written(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "UNTOLD", 3)
    tells = Telling(database)
    await tell(tells, CALL, CALL, CALL, CALL)
    assert len(written(database)) == 3
    tells.forget("t1", 1)


async def test_an_event_that_cannot_be_written_fails_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(stream, "note_all", broken)
    tells = Telling(database)
    await tell(tells, CALL)
    await until_written(tells)
    assert "an event was not written: no space" in caplog.text
