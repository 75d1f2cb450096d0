"""A request for approval as it is told: to a person in lines, to a program in facts."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shellback.cli.shared import age, columns
from shellback.exec.core.display import folded, request_lines, shown_line, visible_line

if TYPE_CHECKING:
    from shellback.work.approvals.approvals import Request


def facts_of(request: Request) -> dict[str, Any]:
    """A request for programs: its values exact, and as they are shown to people."""
    return {**asdict(request), "shown": request.shown}


def on_screen(lines: list[str]) -> str:
    """Lines of a request for whatever standard output is."""
    return "\n".join(folded(lines, columns()))


def wanted(request: Request) -> list[str]:
    """What a call would do, in lines, nothing of it cut."""
    changed = f", as {shown_line(request.changed_by)} changed it" if request.changed_by else ""
    head = f"? {shown_line(request.tool_name)} wants to run{changed}, and waits for you ({request.id}):"
    return [head, *request_lines(request.display)]


def whole(request: Request) -> list[str]:
    """Everything there is about a request, in lines."""
    head = f"{request.id}  {request.state}  {request.tool_name}  in conversation {request.conversation_id}"
    lines = [visible_line(head), *request_lines(request.display)]
    if request.changed_args is not None:
        asked = {"asked for": json.dumps(request.args), "changed to": json.dumps(request.changed_args)}
        lines += request_lines(asked | {"changed by": request.changed_by})
    lines.append(f"    digest: {request.digest}")
    left = request.expires_at - time.time()
    if request.state == "pending":
        lines.append(f"    expires in: {age(max(0.0, left))}")
    elif request.decided_by:
        note = f": {request.note}" if request.note else ""
        decided = {"decided by": f"{request.decided_by} through {request.surface}{note}"}
        lines += request_lines(decided | ({"holds for": "the session"} if request.scope == "session" else {}))
    if request.used_by:
        lines.append(f"    used by: {request.used_by}")
    return lines
