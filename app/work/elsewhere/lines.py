"""What hosts and workers elsewhere tell each other: JSON, a line for each message, over TLS.

A request has an `id` and what to `do`; its answer has that id, and `ok` or `failed`. An empty line says that the sender
is alive. A request may be sent again on another connection, so each may be carried out twice at the same time. What has
the id `RUNG` is no answer: the host tells the queue of a new item.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import proposed
from shellback.exec.reports.blocks import Seen, Told
from shellback.exec.tools.tool import Part, Result
from shellback.storage.errors import StaleTurn

PROTOCOL: Final = 7
LINE: Final = 64 * 2**20
"""The most bytes of a message; a call that writes a large file is the longest."""
PIECE: Final = 256 * 1024
HELLO: Final = -1
RUNG: Final = -2
ALIVE_S: Final = 10.0
SILENCE_S: Final = 30.0
"""After this time without a line the other side is gone, or the network between."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What has to be equal on both sides; and what a worker takes over from its host: where people hear of its notices.

    `parts` are those of the tools, `own` is a digest of the agents, models and bounds that named workspaces have.
    `notices` are written if the host sends any; `console` is the address for their links.
    """

    version: str
    parts: frozenset[Part]
    own: str
    notices: bool = False
    console: str = ""

    def to_json(self) -> Message:
        """As it is sent."""
        return {"protocol": PROTOCOL, **asdict(self), "parts": sorted(self.parts)}

    def objection(self, its: Message) -> str | None:
        """Why a host of which this was sent does not fit; None if it does."""
        if (its.get("protocol"), its.get("version")) != (PROTOCOL, self.version):
            return (
                f"is of version {its.get('version')} (protocol {its.get('protocol')}), this worker of {self.version}"
                f" ({PROTOCOL}): install the same version on both, and start them again"
            )
        if others := self.parts.symmetric_difference(its["parts"]):
            return (
                f"has other tools than this worker ({', '.join(sorted(others))}): give both the same SESSION_TOOLS,"
                " SHELL_TOOL and WORKSPACE_TOOLS"
            )
        if its["own"] != self.own:
            return (
                "has other agents, models or bounds of turns in named workspaces than this worker: give both the same"
                " table [workspaces] (POLICY_FILE)"
            )
        return None


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """The messages of the other side, until it closes or sends none for `SILENCE_S`.

    Raises:
        ValueError: What came is no message.
        TimeoutError: Nothing came.
        OSError: The connection broke.
    """
    line = bytearray()
    while True:
        async with asyncio.timeout(SILENCE_S):  # a long message comes slowly
            piece = await reader.read(PIECE)
        if not piece:
            return  # it may have been cut off within a message
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line += end
            if line:
                found: object = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError("no message")
                yield found
            line.clear()
        line += rest
        if len(line) > LINE:
            raise ValueError(f"a message is longer than {LINE:,} bytes")


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent.

    Raises:
        ValueError: It is too long.
    """
    line = json.dumps(message, default=to_jsonable_python).encode("ascii") + b"\n"
    if len(line) > LINE:
        raise ValueError(f"a message of {len(line):,} bytes is longer than {LINE:,}")
    return line


async def send(writer: asyncio.StreamWriter, message: Mapping[str, Any] | None = None) -> None:
    """Send a message, or that we are alive.

    Raises:
        OSError: The connection is broken, or takes nothing for `SILENCE_S` (TimeoutError).
        ValueError: It is too long.
    """
    writer.write(b"\n" if message is None else packed(message))
    while True:
        left = writer.transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(SILENCE_S):
                await writer.drain()
        except TimeoutError:
            if writer.transport.get_write_buffer_size() >= left:
                raise
        else:
            return


async def alive(writer: asyncio.StreamWriter) -> None:
    """Say so every `ALIVE_S`, until the connection is broken or this is cancelled."""
    with contextlib.suppress(OSError):
        while True:
            await asyncio.sleep(ALIVE_S)
            await send(writer)


def call_of(ctx: RunContext[Any], tool: str, args: Mapping[str, Any]) -> Message:
    """A call of a tool, with what tells its origin.

    Raises:
        InvalidCommand: The call is not in the run's messages.
    """
    found = proposed(ctx.messages, ctx.tool_call_id)
    if found is None:
        raise InvalidCommand(f"tool call {ctx.tool_call_id!r} is in no model response of this run")
    response, index = found
    before = [part.tool_call_id for part in response.parts if part.part_kind == "tool-call"][: index + 1]
    origin = {"run_id": response.run_id, "timestamp": response.timestamp.isoformat(), "calls": before}
    return {"tool": tool, "args": args, "approved": ctx.tool_call_approved, "origin": origin}


def context_of(call: Message, deps: Any) -> RunContext[Any]:
    """The context in which a host carries out a call; its origin, if it has one, is the same as on the other side."""
    origin: Message | None = call["origin"]
    nobody: Any = None
    ctx = RunContext(deps=deps, model=nobody, usage=nobody, tool_name=call["tool"])
    if origin is None:
        return ctx
    parts = [ToolCallPart(call["tool"], call["args"], tool_call_id=name) for name in origin["calls"]]
    response = ModelResponse(parts, timestamp=datetime.fromisoformat(origin["timestamp"]), run_id=origin["run_id"])
    which = {"messages": [response], "tool_call_id": origin["calls"][-1]}
    return replace(ctx, **which, tool_call_approved=bool(call["approved"]))


def told_of(result: Result[Any]) -> Message:
    """A result as it is sent."""
    return {"value": result.value, "metadata": result.metadata}


def result_of(told: Message) -> Result[Any]:
    """A result that was sent."""
    return Result(told["value"], told["metadata"])


def news_of(told: Told | None) -> Message | None:
    """What is new in processes, as it is sent."""
    return None if told is None else {"text": told.text, "seen": told.seen}


def told_news(sent: Message | None) -> Told | None:
    """What is new in processes, as it was sent."""
    return None if sent is None else Told(sent["text"], seen_of(sent["seen"]))


def seen_of(sent: Mapping[str, Sequence[Any]]) -> dict[str, Seen]:
    """How much of processes is known, as it was sent."""
    return {name: Seen(*one) for name, one in sent.items()}


def failure_of(error: Exception) -> Message:
    """Why there is no result, as it is sent."""
    match error:
        case ApprovalRequired():
            return {"why": "approval", "metadata": error.metadata}
        case ToolFailed() | InvalidCommand():
            return {"why": "failed", "text": str(error)}
        case StaleTurn():
            return {"why": "stale", "args": error.args}
        case _:
            return {"why": "error", "text": f"{type(error).__name__}: {error}"}


def raised_by(failure: Message) -> Exception:
    """What to raise for a failure that was sent."""
    match failure["why"]:
        case "approval":
            return ApprovalRequired(metadata=failure["metadata"])
        case "failed":
            return ToolFailed(failure["text"])
        case "stale":
            return StaleTurn(*failure["args"])
        case _:
            return RuntimeError(f"the host could not do it: {failure['text']}")
