"""Writes events while a turn runs: its text, tool calls and results, and how much processes print."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Final, NoReturn

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
from shellback.work.queue import stream
from shellback.work.turn.deps import TurnDeps

log = logging.getLogger(__name__)

FLUSH_S: Final = 0.1
UNTOLD: Final = 100
"""Events of a turn that wait to be written."""
SHOWN_CHARS: Final = 2_000


class Telling:
    """An event stream handler: text, tool calls and results are written within `FLUSH_S`, or when the turn closes."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._untold: dict[tuple[str, int], _Untold] = {}

    async def __call__(self, ctx: RunContext[TurnDeps], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Follow one stream to its end. A turn that dies loses events that are not written yet."""
        deps = ctx.deps
        key = deps.turn_id, deps.epoch
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    noted = stream.Noted("text", {"text": text})
                case FunctionToolCallEvent(part=part):
                    told = {"tool": part.tool_name, "args": part.args_as_dict(), "tool_call_id": part.tool_call_id}
                    noted = stream.Noted("tool_call", told)
                case FunctionToolResultEvent(part=ToolReturnPart() as part):
                    told = {"tool": part.tool_name, "text": part.model_response_str()[:SHOWN_CHARS]}
                    told |= {"outcome": part.outcome, "tool_call_id": part.tool_call_id}
                    noted = stream.Noted("tool_result", told)
                case _:
                    continue
            if key not in self._untold:
                self._untold[key] = _Untold(partial(self._db.write, stream.note_all, deps.conversation_id, *key))
            await self._untold[key].add(noted)

    async def rest(self, turn_id: str, epoch: int) -> Sequence[stream.Noted]:
        """The events of a turn that are not written yet, for its closing transaction."""
        untold = self._untold.pop((turn_id, epoch), None)
        return () if untold is None else await untold.rest()

    def forget(self, turn_id: str, epoch: int) -> None:
        """Drop what an execution that did not close has left."""
        if (untold := self._untold.pop((turn_id, epoch), None)) is not None:
            untold.end()


class _Untold:
    """Events of one execution of a turn that are not written yet, in order."""

    def __init__(self, write: Callable[[Sequence[stream.Noted]], Awaitable[object]]) -> None:
        self._write = write
        self._events: list[stream.Noted] = []
        self._task: asyncio.Task[None] | None = None
        self._writes = self._over = False

    async def add(self, event: stream.Noted) -> None:
        """Write an event soon. With `UNTOLD` events, return only when they are written."""
        last = self._events[-1] if self._events else None
        if last is not None and last.kind == event.kind == "text":
            last.payload["text"] += event.payload["text"]
        else:
            self._events.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._soon(), context=Context())
        if len(self._events) >= UNTOLD:
            await asyncio.wait((self._task,))

    def end(self) -> None:
        """Write nothing more; what is being written will be."""
        self._over = True
        if self._task is not None and not self._writes:
            self._task.cancel()

    async def rest(self) -> Sequence[stream.Noted]:
        """End, and return the events that are not written."""
        self.end()
        if self._task is not None:
            await asyncio.wait((self._task,))
        return self._events

    async def _soon(self) -> None:
        while self._events and not self._over:
            await asyncio.sleep(FLUSH_S)
            events, self._events, self._writes = self._events, [], True
            try:
                await self._write(events)
            except Exception as error:  # noqa: BLE001 - a missing event must not fail the turn
                log.warning("an event was not written: %s", error)
            finally:
                self._writes = False


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
