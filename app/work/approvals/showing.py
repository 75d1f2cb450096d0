"""A request for approval as people read it, whoever asks them."""

from __future__ import annotations

import json
import time

from shellback.exec.core.display import age, request_lines, visible_line
from shellback.work.approvals.approvals import Request


def whole(request: Request) -> list[str]:
    """All lines about a request."""
    head = f"{request.id}  {request.state}  {request.tool_name}  in conversation {request.conversation_id}"
    lines = [visible_line(head), *about(request)]
    lines.append(f"    digest: {request.digest}")
    left = request.expires_at - time.time()
    if request.state == "pending":
        lines.append(f"    expires in: {age(max(0.0, left))}")
    elif request.decided_by:
        note = f": {request.note}" if request.note else ""
        decided = {"decided by": f"{request.decided_by} through {request.surface}{note}"}
        whole = "the session" if request.of_call else "the conversation"
        lines += request_lines(decided | ({"holds for": whole} if request.scope == "session" else {}))
    if request.used_by:
        lines.append(f"    used by: {request.used_by}")
    return lines


def about(request: Request) -> list[str]:
    """The lines about what will run, and how a person has changed it."""
    lines = request_lines(request.display)
    if request.changed_args is not None:
        asked = {"asked for": json.dumps(request.args), "changed to": json.dumps(request.changed_args)}
        lines += request_lines(asked | {"changed by": request.changed_by})
    return lines
