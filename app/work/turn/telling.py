"""Writes what a turn does to the event table while it does it, for whoever follows."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable
from typing import Any, Final

from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.tools import RunContext

from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.work.queue import stream
from shellback.work.turn.deps import TurnDeps

log = logging.getLogger(__name__)

FLUSH_S: Final = 0.1
SHOWN_CHARS: Final = 2_000


class Telling:
    """An event stream handler: pieces of text at most ten times a second, tool calls and results as they come."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def __call__(self, ctx: RunContext[TurnDeps], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Follow one stream to its end. Cancelling loses what was not written yet; the answer is not made of it."""
        pieces: list[str] = []
        flushed = time.monotonic()
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    pieces.append(text)
                case FunctionToolCallEvent(part=part):
                    await self._note(ctx, "tool_call", {"tool": part.tool_name, "args": part.args_as_dict()})
                case FunctionToolResultEvent(part=ToolReturnPart() as part):
                    await self._note(
                        ctx,
                        "tool_result",
                        {
                            "tool": part.tool_name,
                            "text": part.model_response_str()[:SHOWN_CHARS],
                            "outcome": part.outcome,
                        },
                    )
                case _:
                    pass
            if pieces and time.monotonic() - flushed >= FLUSH_S:
                await self._note(ctx, "text", {"text": "".join(pieces)})
                pieces.clear()
                flushed = time.monotonic()
        if pieces:
            await self._note(ctx, "text", {"text": "".join(pieces)})

    async def _note(self, ctx: RunContext[TurnDeps], kind: str, payload: dict[str, Any]) -> None:
        deps = ctx.deps
        try:
            await self._db.write(stream.note, deps.conversation_id, deps.turn_id, deps.epoch, kind, payload)
        except StorageError as error:
            # Who watches misses a piece; the turn must not die of that.
            log.warning("an event was not written: %s", error, extra={"work_item": deps.turn_id})
