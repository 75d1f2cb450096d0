"""What decided requests answer: to the calls that waited for them, and to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.conversation import Conversation

from shellback.exec.core.model import CallKey
from shellback.exec.policy.policy import Approval
from shellback.work.approvals.approvals import Request


def results_of(conversation: Conversation, decided: Sequence[Request]) -> DeferredToolResults | None:
    """Answers for every call the conversation is paused at."""
    deferred = conversation.deferred_tool_requests
    if deferred is None or not deferred.approvals:
        return None
    by_call = {request.tool_call_id: request for request in decided}
    results = DeferredToolResults()
    for call in deferred.approvals:
        request = by_call.get(call.tool_call_id)
        results.approvals[call.tool_call_id] = (
            ToolApproved(override_args=request.changed_args)
            if request and request.state in {"approved", "used"}
            else ToolDenied(_refusal(request))
        )
    return results


def changes_in(decided: Sequence[Request]) -> list[str]:
    """What the model has to know of calls that a person had run otherwise than it asked for."""
    return [
        f"[{request.changed_by} changed your call {request.tool_call_id} of {request.tool_name} before approving it."
        f" It was called with these arguments instead: {json.dumps(request.changed_args)}]"
        for request in decided
        if request.changed_args is not None and request.state in {"approved", "used"}
    ]


def _refusal(request: Request | None) -> str:
    match request.state if request else None:
        case "denied":
            assert request is not None
            said = f": {request.note}" if request.note else ""
            return f"Denied by {request.decided_by}{said}. Do not try the same in another way."
        case "expired":
            return "Denied: nobody decided in time (expired). Ask again only if it is still needed."
        case "superseded" if request is not None and request.surface == "stop":
            return f"Denied: {request.decided_by} stopped this instead. Do not try it again unless you are told to."
        case "refused":
            assert request is not None
            return f"Denied: {request.note}. Nobody was asked about this one; make it again if it is still needed."
        case "superseded":
            return "Denied: the person sent a new message instead (superseded). Read it first."
        case _:
            return "Denied: there is no decision on record for this call."


def grants_of(decided: Sequence[Request]) -> dict[CallKey, Approval]:
    """The person's yes for each call that has one."""
    return {
        CallKey(request.call_key): Approval(request.id, request.digest)
        for request in decided
        if request.state in {"approved", "used"}
    }
