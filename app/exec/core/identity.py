"""Derives ids of calls and sessions, the same for each replay of a call.

A tool call id alone is not unique: local models use `call_1` in every response. The context's run id differs after each
approval. The ids are derived from the model response that proposed the call; history keeps it through replays.
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
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import Act, CallKey, CallKind, CallOrigin, SessionId

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelResponse


_PLACE: Final = 1 << 20
"""The most commands that one place of a tool call can start."""


@runtime_checkable
class ExecDeps(Protocol):
    """Attributes that an agent's dependencies may have for the exec tools; all are optional without a queue."""

    conversation_id: str
    turn_id: str
    epoch: int


def call_key(origin: CallOrigin) -> CallKey:
    """The key under which a changing call records its outcome."""
    return CallKey("c" + _hashed("call", origin)[:31])


def session_id(origin: CallOrigin) -> SessionId:
    """The id of the session that this call starts, if it starts one."""
    return SessionId("x" + _hashed("session", origin)[:15])


def watch_id(origin: CallOrigin) -> str:
    """The id of the watch that this call places, if it places one."""
    return "v" + _hashed("watch", origin)[:15]


def workspace_scope(conversation_id: str) -> SessionId:
    """The id under which a conversation's calls of file tools are recorded, in place of a session's."""
    return SessionId("w" + digest_of("workspace", conversation_id)[:15])


def a_call(scope: str) -> CallOrigin:
    """A new origin for a command outside any tool call."""
    return CallOrigin(
        conversation_id=scope,
        response_run_id="",
        response_timestamp="",
        call_index=0,
        tool_call_id=uuid.uuid4().hex,
    )


def origin_of(ctx: RunContext[Any]) -> CallOrigin:
    """The origin of the running tool call, the same on every replay and resume.

    Raises:
        InvalidCommand: The call is not in the run's messages.
    """
    found = proposed(ctx.messages, ctx.tool_call_id)
    if found is None:
        raise InvalidCommand(
            f"tool call {ctx.tool_call_id!r} is in no model response of this run; "
            "exec tools run only as calls of a model"
        )
    response, index = found
    return _origin(ctx, response.run_id, _stamp(response.timestamp), index)


def act_of(origin: CallOrigin, session_id: SessionId, tool: str, kind: CallKind = "", **more: Any) -> Act:
    """The record of a call before it changes something; `more` are further fields."""
    return Act(
        key=call_key(origin), session_id=session_id, tool=tool, kind=kind, turn_id=origin.turn_id, epoch=origin.epoch,
        **more,
    )  # fmt: skip


def conversation_of(ctx: RunContext[Any]) -> str:
    """The conversation whose sessions this call may see, from the dependencies or the run."""
    deps: object = ctx.deps
    if isinstance(deps, ExecDeps):
        return deps.conversation_id
    return ctx.conversation_id or ""


@dataclass(slots=True)
class Call:
    """A running tool call, or the code of a run outside any call, and the commands that it has started.

    Tasks and threads that it began may still run when it is `over`.
    """

    ctx: RunContext[Any]
    over: bool = False
    _counts: Counter[int] = field(default_factory=Counter[int])

    def origin(self, place: int = 0) -> CallOrigin:
        """The origin of its next command, the same on every replay that starts commands in the same order.

        Each `place` counts its own commands, because a replay skips recorded steps. Code that continues after the call
        is over, such as a thread of an interrupted run, can start no command: the replay starts it.
        """
        if self.over:
            return a_call(conversation_of(self.ctx))
        self._counts[place] += 1
        try:
            asked = origin_of(self.ctx)
        except InvalidCommand:
            # No model response proposed the call: a hook, or the code of another call, made it.
            asked = _origin(self.ctx, self.ctx.run_id, "", -1)
        return replace(asked, ordinal=place * _PLACE + self._counts[place])

    def unused(self, origin: CallOrigin) -> None:
        """Give `origin` to the next command, because nothing was started by it; not if a later one was given since."""
        place, number = divmod(origin.ordinal, _PLACE)
        if number and self._counts[place] == number:
            self._counts[place] -= 1


_CALL: ContextVar[Call | None] = ContextVar("shellback_call", default=None)


@contextlib.contextmanager
def calling(ctx: RunContext[Any]) -> Generator[Call]:
    """Make the tool call known to the code that runs inside the `with` block."""
    token = _CALL.set(call := Call(ctx))
    try:
        yield call
    finally:
        call.over = True
        _CALL.reset(token)


def call_in_progress() -> Call | None:
    """The tool call of this code; None outside a call, or if no capability of ours observes calls."""
    return _CALL.get()


def origin_in_call() -> CallOrigin | None:
    """The origin of the next command of the running tool call; None outside a call."""
    call = _CALL.get()
    return None if call is None else call.origin()


def proposed(messages: Sequence[ModelMessage], tool_call_id: str | None) -> tuple[ModelResponse, int] | None:
    """The last response that contains a call, and the call's index in it."""
    for message in reversed(messages):
        if message.kind == "response":
            calls = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            if tool_call_id in calls:
                return message, calls.index(tool_call_id)
    return None


def _origin(ctx: RunContext[Any], run_id: str | None, stamp: str, index: int) -> CallOrigin:
    deps: object = ctx.deps
    turn_id, epoch = (deps.turn_id, deps.epoch) if isinstance(deps, ExecDeps) else ("", 0)
    return CallOrigin(
        conversation_id=conversation_of(ctx),
        response_run_id=run_id or "",
        response_timestamp=stamp,
        call_index=index,
        tool_call_id=ctx.tool_call_id or "",
        turn_id=turn_id,
        epoch=epoch,
    )


def origins_in(
    messages: Sequence[ModelMessage], conversation_id: str, tool_call_ids: Sequence[str]
) -> list[CallOrigin]:
    """The origins of pending calls, for the requests for approval; from the last response that contains them."""
    return [
        CallOrigin(
            conversation_id=conversation_id,
            response_run_id=found[0].run_id or "",
            response_timestamp=_stamp(found[0].timestamp),
            call_index=found[1],
            tool_call_id=wanted,
        )
        for wanted in tool_call_ids
        if (found := proposed(messages, wanted)) is not None
    ]


def _stamp(moment: datetime) -> str:
    # JSON may change how the time zone is written, but not the instant.
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")


def _hashed(purpose: str, origin: CallOrigin) -> str:
    parts = [
        *(origin.conversation_id, origin.response_run_id, origin.response_timestamp),
        *(origin.call_index, origin.tool_call_id),
    ]
    return digest_of(purpose, *parts, *([origin.ordinal] if origin.ordinal else []))


def digest_of(*parts: object) -> str:
    """A digest of these JSON values: lower-case letters and digits."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return base64.b32encode(digest[:20]).decode("ascii").lower()
