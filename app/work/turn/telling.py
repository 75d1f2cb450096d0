"""Writes events while a turn runs: its text, tool calls and results, and how much processes print."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import sqlalchemy as sa
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

from shellback.exec.engine.engine import Engine
from shellback.exec.reports.output_events import OutputEvent, OutputFeed
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
        """Follow one stream to its end. Cancelling loses unwritten events, but not the answer."""
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
            # A missing event must not fail the turn.
            log.warning("an event was not written: %s", error, extra={"work_item": deps.turn_id})


KIND: Final = "output"
EVERY_S: Final = 1.0
_Key = tuple[str, str]


async def note_output(database: Database, engine: Engine) -> NoReturn:
    """Keep one event for each stream that has grown, at most once a second; it replaces the previous event.

    So the table has at most one per stream, and a client that follows by number sees the last total of each second.
    """
    last: dict[_Key, int] = {}
    while True:
        try:
            async with OutputFeed(engine, rest_s=EVERY_S) as feed:
                while True:
                    events = await feed.new()
                    grown = [event for event in events if event.kind == "output"]
                    if grown:
                        last |= await database.write(_written, grown, last)
                    for event in events:
                        if event.kind == "exit":  # its last event stays until it is pruned
                            last.pop((event.session_id, "stdout"), None)
                            last.pop((event.session_id, "stderr"), None)
                    await asyncio.sleep(EVERY_S)
        except Exception as error:  # noqa: BLE001 - only these events are lost
            log.warning("output was not noted: %s", error)
        await asyncio.sleep(EVERY_S)


def _written(conn: sa.Connection, grown: Sequence[OutputEvent], last: Mapping[_Key, int]) -> dict[_Key, int]:
    now: dict[_Key, int] = {}
    for event in grown:
        told = {
            "session_id": event.session_id,
            "label": event.label,
            "stream": event.stream,
            "bytes": event.bytes,
            "total": event.total,
            "text": f"{event.message}, {event.total:,} in all",
        }
        number = stream.note(conn, event.conversation_id, event.turn_id, 0, KIND, told)
        now[event.session_id, event.stream] = number
    # After the new ones: SQLite would reuse the highest number, and a client that has read it would skip the event.
    stream.drop(conn, [last[key] for key in now if key in last])
    return now
