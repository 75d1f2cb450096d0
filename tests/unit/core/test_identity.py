"""Keys of calls: the same on every repeat, different for every call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import call_key, conversation_of, origin_of, origins_in, session_id
from shellback.exec.core.model import CallOrigin

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ORIGIN = CallOrigin(
    conversation_id="c", response_run_id="r", response_timestamp="t", call_index=0, tool_call_id="call_1"
)


@dataclass
class Deps:
    conversation_id: str = "talk"
    turn_id: str = "turn-7"
    epoch: int = 3


def response(*ids: str, run_id: str | None = "run-a", at: datetime = MOMENT) -> ModelResponse:
    parts = [TextPart("so"), *(ToolCallPart("execute", {"command": "true"}, tool_call_id=id_) for id_ in ids)]
    return ModelResponse(parts=parts, run_id=run_id, timestamp=at)


def context(messages: list[Any], tool_call_id: str | None, deps: object = None, **more: Any) -> RunContext[Any]:
    return RunContext(
        deps=deps, model=TestModel(), usage=RunUsage(), messages=messages, tool_call_id=tool_call_id, **more
    )


def test_the_newest_response_with_the_id_is_the_one_that_counts() -> None:
    first = response("call_1", run_id="run-a")
    second = response("call_1", run_id="run-b", at=MOMENT + timedelta(seconds=1))
    origin = origin_of(context([first, ModelRequest(parts=[UserPromptPart("x")]), second], "call_1"))
    assert (origin.response_run_id, origin.response_timestamp) == ("run-b", "2026-01-02T03:04:06.000678+00:00")


def test_index_counts_the_calls_of_the_response_and_not_its_other_parts() -> None:
    assert origin_of(context([response("a", "b")], "b")).call_index == 1


def test_a_resume_under_another_run_id_and_through_json_gives_the_same_keys() -> None:
    messages: list[Any] = [ModelRequest(parts=[UserPromptPart("x")]), response("call_1")]
    before = origin_of(context(messages, "call_1", Deps(), run_id="run-a"))
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    after = origin_of(context(list(stored), "call_1", Deps(epoch=9), run_id="run-z"))
    assert (session_id(before), call_key(before)) == (session_id(after), call_key(after))
    assert after.epoch == 9


def test_the_same_instant_in_another_zone_is_the_same_call() -> None:
    other = MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert origin_of(context([response("a", at=other)], "a")) == origin_of(context([response("a")], "a"))


def test_pending_calls_get_the_origins_that_their_execution_will_have() -> None:
    messages: list[Any] = [response("a", "b")]
    found = origins_in(messages, "talk", ["b", "a"])
    executed = [origin_of(context(messages, id_, Deps())) for id_ in ("b", "a")]
    assert [call_key(origin) for origin in found] == [call_key(origin) for origin in executed]


def test_dependencies_give_conversation_turn_and_epoch() -> None:
    origin = origin_of(context([response("a")], "a", Deps(), conversation_id="of the run"))
    assert (origin.conversation_id, origin.turn_id, origin.epoch) == ("talk", "turn-7", 3)


def test_without_dependencies_the_conversation_of_the_run_is_used() -> None:
    assert conversation_of(context([], None, None, conversation_id="of the run")) == "of the run"


def test_a_call_that_no_response_made_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="only as calls of a model"):
        origin_of(context([response("a")], "b"))


@pytest.mark.parametrize(
    ("part", "value"),
    [*dict.fromkeys(("conversation_id", "response_run_id", "response_timestamp", "tool_call_id"), "d").items(),
     ("call_index", 1)],
)  # fmt: skip
def test_every_part_of_the_origin_counts(part: str, value: Any) -> None:
    changed = replace(ORIGIN, **{part: value})
    assert session_id(changed) != session_id(ORIGIN)
    assert call_key(changed) != call_key(ORIGIN)


def test_ids_are_short_lower_case_and_know_what_they_are() -> None:
    assert session_id(ORIGIN) == session_id(replace(ORIGIN, turn_id="t2", epoch=5))
    assert len(session_id(ORIGIN)) == 16
    assert session_id(ORIGIN).startswith("x")
    assert session_id(ORIGIN).isalnum()
    assert session_id(ORIGIN) == session_id(ORIGIN).lower()
    assert len(call_key(ORIGIN)) == 32
