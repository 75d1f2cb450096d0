"""A tool of somebody else's agent: bounded in time, and cancelled with its turn."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel

from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Hearing
from tests.items import turn_deps
from tests.supervisors import cancelled

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

pytestmark = pytest.mark.anyio


class Deaf(Hearing):
    """Without a mailbox and its steps."""

    async def before_model_request(
        self, ctx: RunContext[TurnDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        return request_context


def agent() -> Agent[TurnDeps, str]:
    return Agent(TestModel(), deps_type=TurnDeps, capabilities=[Deaf(cast("Any", None))])


async def test_a_function_that_does_not_return_is_left_when_the_time_of_a_turn_is_over() -> None:
    awake, mine = threading.Event(), agent()

    @mine.tool_plain
    def doze() -> str:
        awake.wait(60)
        return "awake"

    @mine.tool_plain
    async def dream() -> str:
        await asyncio.sleep(60)
        return "awake"

    try:
        said = (await mine.run("go", deps=turn_deps(seconds=0.2))).output
    finally:
        awake.set()
    assert said.count("it had not returned after 0.2 s") == 2
    assert "awake" not in said


async def test_a_turn_that_is_cancelled_in_a_tool_is_cancelled() -> None:
    mine, began = agent(), asyncio.Event()

    @mine.tool_plain
    async def dream() -> str:
        began.set()
        await asyncio.sleep(60)
        return "awake"

    running = asyncio.ensure_future(mine.run("go", deps=turn_deps()))
    await began.wait()
    await cancelled(running)


async def test_what_a_tool_raises_to_some_effect_has_that_effect() -> None:
    mine: Agent[TurnDeps, Any] = agent()
    asked: list[str] = []

    @mine.tool_plain
    def again() -> str:
        asked.append("again")
        if len(asked) == 1:
            raise ModelRetry("once more")
        return "well"

    assert (await mine.run("go", deps=turn_deps())).output == '{"again":"well"}'

    @mine.tool_plain
    def misused() -> str:
        raise UserError("not like this")

    with pytest.raises(UserError, match="not like this"):
        await mine.run("go", deps=turn_deps())
