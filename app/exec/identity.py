"""Names for calls and sessions, derived so that a repeat of a call is the same call.

A tool call id alone is not enough: local models say `call_1` in every response. A run id of the
context is not either: it differs on every resume after an approval. What stays is stamped on the
model response that proposed the call, and history carries it through replays and restarts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from app.exec.errors import InvalidCommand
from app.exec.model import CallKey, CallOrigin, SessionId

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelResponse


@runtime_checkable
class ExecDeps(Protocol):
    """What the dependencies of an agent may hold for the exec tools; all of it is optional in bare use."""

    conversation_id: str
    turn_id: str
    epoch: int


def call_key(origin: CallOrigin) -> CallKey:
    """The key under which a call that changes something records its outcome."""
    return CallKey("c" + _hashed("call", origin)[:31])


def session_id(origin: CallOrigin) -> SessionId:
    """The id of the session that this call starts, if it starts one."""
    return SessionId("x" + _hashed("session", origin)[:15])


def origin_of(ctx: RunContext[Any]) -> CallOrigin:
    """Find who asked for the running tool call, the same on every replay and resume.

    Raises:
        InvalidCommand: The call is not in the run's messages, so nothing could be derived from it.
    """
    wanted = ctx.tool_call_id
    for message in reversed(ctx.messages):
        if message.kind != "response":
            continue
        index = _index_of(message, wanted)
        if index is not None:
            return _origin(ctx, message, index, cast("str", wanted))
    raise InvalidCommand(
        f"tool call {wanted!r} is in no model response of this run; exec tools run only as calls of a model"
    )


def conversation_of(ctx: RunContext[Any]) -> str:
    """The conversation whose sessions this call may see: of the dependencies, else of the run."""
    deps: object = ctx.deps
    if isinstance(deps, ExecDeps):
        return deps.conversation_id
    return ctx.conversation_id or ""


def _index_of(response: ModelResponse, wanted: str | None) -> int | None:
    calls = [part for part in response.parts if part.part_kind == "tool-call"]
    return next((index for index, part in enumerate(calls) if part.tool_call_id == wanted), None)


def _origin(ctx: RunContext[Any], response: ModelResponse, index: int, tool_call_id: str) -> CallOrigin:
    deps: object = ctx.deps
    turn_id, epoch = (deps.turn_id, deps.epoch) if isinstance(deps, ExecDeps) else ("", 0)
    return CallOrigin(
        conversation_id=conversation_of(ctx),
        response_run_id=response.run_id or "",
        response_timestamp=_stamp(response.timestamp),
        call_index=index,
        tool_call_id=tool_call_id,
        turn_id=turn_id,
        epoch=epoch,
    )


def origins_in(
    messages: Sequence[ModelMessage], conversation_id: str, tool_call_ids: Sequence[str]
) -> list[CallOrigin]:
    """The origins of pending calls of the last response that made them, for whoever records approvals."""
    found: list[CallOrigin] = []
    for wanted in tool_call_ids:
        for message in reversed(messages):
            if message.kind == "response" and (index := _index_of(message, wanted)) is not None:
                found.append(
                    CallOrigin(
                        conversation_id=conversation_id,
                        response_run_id=message.run_id or "",
                        response_timestamp=_stamp(message.timestamp),
                        call_index=index,
                        tool_call_id=wanted,
                    )
                )
                break
    return found


def _stamp(moment: datetime) -> str:
    # History goes through JSON: the zone may come back spelled differently, the instant does not.
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")


def _hashed(purpose: str, origin: CallOrigin) -> str:
    parts = [
        purpose,
        origin.conversation_id,
        origin.response_run_id,
        origin.response_timestamp,
        origin.call_index,
        origin.tool_call_id,
    ]
    if origin.ordinal:
        parts.append(origin.ordinal)
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return base64.b32encode(digest).decode("ascii").lower().rstrip("=")
