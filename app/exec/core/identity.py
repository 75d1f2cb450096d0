"""Names for calls and sessions, derived so that a repeat of a call is the same call.

A tool call id alone is not enough: local models say `call_1` in every response. A run id of the
context is not either: it differs on every resume after an approval. What stays is stamped on the
model response that proposed the call, and history carries it through replays and restarts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import CallKey, CallOrigin, SessionId

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelResponse


_PLACE: Final = 1 << 20
"""So many commands of one place of a tool call are told apart."""


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


def watch_id(origin: CallOrigin) -> str:
    """The id of the watch that this call places, if it places one."""
    return "v" + _hashed("watch", origin)[:15]


def workspace_scope(conversation_id: str) -> SessionId:
    """What the recorded calls of a conversation on files are found by, where a session's would have its id."""
    digest = hashlib.sha256(json.dumps(["workspace", conversation_id]).encode()).digest()
    return SessionId("w" + base64.b32encode(digest).decode("ascii").lower()[:15])


def a_call(scope: str) -> CallOrigin:
    """Who asks for a command of no tool call: it is a new one each time."""
    return CallOrigin(
        conversation_id=scope,
        response_run_id="",
        response_timestamp="",
        call_index=0,
        tool_call_id=uuid.uuid4().hex,
    )


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


@dataclass(slots=True)
class Call:
    """A tool call whose code is running, or all of a run outside of any; and the commands it has started so far.

    Once it is `over`, a task or thread may still be running that began in it.
    """

    ctx: RunContext[Any]
    over: bool = False
    _counts: Counter[int] = field(default_factory=Counter[int])

    def origin(self, place: int = 0) -> CallOrigin:
        """The origin of its next command, the same on every replay that starts commands in the same order.

        Commands of another `place` are counted apart: what a durable engine has recorded is not run again. What goes on
        after the call is over (a thread of a run that was cut off) starts none of its commands: a repeat has to.
        """
        if self.over:
            return a_call(conversation_of(self.ctx))
        self._counts[place] += 1
        try:
            asked = origin_of(self.ctx)
        except InvalidCommand:
            asked = _of_run(self.ctx)
        return replace(asked, ordinal=place * _PLACE + self._counts[place])


_CALL: ContextVar[Call | None] = ContextVar("shellback_call", default=None)


@contextlib.contextmanager
def calling(ctx: RunContext[Any]) -> Generator[Call]:
    """Let what runs within know the tool call that it belongs to."""
    token = _CALL.set(call := Call(ctx))
    try:
        yield call
    finally:
        call.over = True
        _CALL.reset(token)


def call_in_progress() -> Call | None:
    """The tool call that this code belongs to; None outside of one, and where no capability of ours sees calls."""
    return _CALL.get()


def origin_in_call() -> CallOrigin | None:
    """Who asks, for the next command of the running tool call; None outside of one."""
    call = _CALL.get()
    return None if call is None else call.origin()


def _index_of(response: ModelResponse, wanted: str | None) -> int | None:
    calls = [part for part in response.parts if part.part_kind == "tool-call"]
    return next((index for index, part in enumerate(calls) if part.tool_call_id == wanted), None)


def _of_run(ctx: RunContext[Any]) -> CallOrigin:
    """What asks where no response proposed a call: a hook, or a call that the code of another one makes."""
    deps: object = ctx.deps
    turn_id, epoch = (deps.turn_id, deps.epoch) if isinstance(deps, ExecDeps) else ("", 0)
    return CallOrigin(
        conversation_id=conversation_of(ctx),
        response_run_id=ctx.run_id or "",
        response_timestamp="",
        call_index=-1,
        tool_call_id=ctx.tool_call_id or "",
        turn_id=turn_id,
        epoch=epoch,
    )


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
    return base64.b32encode(digest[:20]).decode("ascii").lower()
