"""What a turn loads of a long conversation, and that its save appends to all of it."""

from __future__ import annotations

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from shellback.storage.db import Database
from shellback.storage.history import SqlConversationStore
from shellback.work.turn.closing import TurnStore
from tests.items import Talk

pytestmark = pytest.mark.anyio


def exchange(number: int, calls: int = 0) -> list[ModelMessage]:
    """A prompt, so many calls with their results, and an answer."""
    made: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(f"prompt {number}")])]
    for call in range(calls):
        made.append(ModelResponse(parts=[ToolCallPart("look", {}, f"call_{call}")]))
        made.append(ModelRequest(parts=[ToolReturnPart("look", "seen", f"call_{call}")]))
    return [*made, ModelResponse(parts=[TextPart(f"answer {number}")])]


async def stored(database: Database, messages: list[ModelMessage]) -> None:
    await SqlConversationStore(database).save(Conversation(conversation_id="c1", messages=messages))


async def turn(database: Database, window: int) -> tuple[TurnStore, Conversation]:
    record = await SqlConversationStore(database).read_record("c1")
    store = TurnStore(database, Talk(database).queue, record, window)
    loaded = await store.load("c1")
    assert loaded is not None
    return store, loaded


async def test_a_turn_loads_at_least_half_of_its_window_and_begins_at_a_prompt(database: Database) -> None:
    whole = [message for number in range(20) for message in exchange(number, calls=1)]
    await stored(database, whole)
    _, loaded = await turn(database, 30)
    assert 15 <= len(loaded.messages) <= 30
    assert loaded.messages == whole[-len(loaded.messages) :]
    assert isinstance(loaded.messages[0].parts[0], UserPromptPart)


async def test_a_turn_that_is_longer_than_the_window_keeps_its_prompt(database: Database) -> None:
    whole = [*exchange(0), *exchange(1), *exchange(2, calls=12)]
    await stored(database, whole)
    _, loaded = await turn(database, 8)
    assert loaded.messages[0] in (whole[0], whole[2], whole[4])
    assert loaded.messages == whole[-len(loaded.messages) :]


@pytest.mark.parametrize("window", [0, 100])
async def test_a_conversation_within_the_window_is_loaded_whole(database: Database, window: int) -> None:
    whole = [message for number in range(20) for message in exchange(number)]
    await stored(database, whole)
    assert (await turn(database, window))[1].messages == whole


async def test_the_window_begins_at_the_same_message_for_many_turns(database: Database) -> None:
    whole = [message for number in range(40) for message in exchange(number)]
    await stored(database, whole)
    began: list[ModelMessage] = []
    for number in range(40, 70):
        _, loaded = await turn(database, 40)
        began.append(loaded.messages[0])
        loaded.messages += exchange(number)
        await SqlConversationStore(database).save(loaded)
    distinct = [one for place, one in enumerate(began) if place == 0 or one != began[place - 1]]
    assert len(distinct) <= 20
    kept = await SqlConversationStore(database).load("c1")
    assert kept is not None
    assert len(kept.messages) == 140, "a save appends to the whole history"
