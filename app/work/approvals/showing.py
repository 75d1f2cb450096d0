"""A request for approval as people read it: the same card in chat, commands, notices and every other surface.

The card has what will run in its first line, then everything that the agent chose, why a person is asked, and what
changes. `details` has what Shellback itself found: parts, files with hashes, mounts, limits. `whole` is both.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, cast

from shellback.exec.core.display import CONNECT, age, request_lines, shown, subject
from shellback.work.approvals.approvals import Request

ASKS: Final = "? "
"""Begins the first line of a card, in the first column, where no text from elsewhere can be."""
BRIEF_CHARS: Final = 2_000
_MARGIN: Final = "    "
_FOUND: Final = ("segments", "executables", "scripts", "mounts", "limits", "shell", "uid", "separate_stderr")
"""Fields of a display that Shellback computed. A field that is not named here is on the card."""


def headline(request: Request) -> str:
    """What will run or connect, not escaped."""
    about = subject(request.display)
    if about is None:
        return f"{request.tool_name} {json.dumps(request.changed_args or request.args)}"
    return about if request.of_call else f"connect to {about}"


def card(request: Request, *, counted: bool = True) -> list[str]:
    """The lines that a person reads before a decision; with `counted`, the last one names what `details` has."""
    said = {key: value for key, value in request.display.items() if key not in {"command", CONNECT, *_FOUND}}
    lines = [*_first(shown(headline(request))), *request_lines(said | _about(request))]
    if counted and request.of_call:
        found = [_counted(key, request.display[key]) for key in _FOUND if request.display.get(key)]
        lines += request_lines({"details": ", ".join([*found, "digest"])})
    return lines


def brief(request: Request) -> list[str]:
    """The beginning of the card, for who looks at it elsewhere: what will run, why a person is asked, and who asks."""
    why = {key: request.display[key] for key in ("tier", "reason") if key in request.display}
    text, more = shown(headline(request)), dict[str, object]()
    if len(text) > BRIEF_CHARS:
        # Not within a word, which may be a secret that is hidden as a whole later.
        blank = max(text.rfind(" ", 0, BRIEF_CHARS), text.rfind("\n", 0, BRIEF_CHARS))
        end = blank if blank > 0 else BRIEF_CHARS
        text, more = text[:end], {"cut": f"{len(text) - end:,} more characters"}
    return [*_first(text), *request_lines(more | why | _about(request))]


def _first(text: str) -> list[str]:
    first, *more = text.split("\n")
    return [ASKS + first, *(f"{_MARGIN}  {line}" for line in more)]


def details(request: Request) -> list[str]:
    """The lines about what Shellback found, and the digest that binds everything."""
    command = str(request.display.get("command", ""))
    found = {key: request.display[key] for key in _FOUND if key in request.display}
    lines = request_lines({"command": command, **found, "digest": request.digest})
    return lines[len(shown(command).split("\n")) if command else 0 :]


def whole(request: Request) -> list[str]:
    """All lines about a request: its card and its details."""
    return [*card(request, counted=False), *details(request)]


def _about(request: Request) -> dict[str, Any]:
    """Who asks, who changed what, and how it was decided, as fields of a display."""
    asked = f"{request.id} {request.state}, {request.tool_name} in conversation {request.conversation_id}"
    if request.state == "pending":
        asked += f", expires in {age(max(0.0, request.expires_at - time.time()))}"
    about: dict[str, Any] = {}
    if request.changed_args is not None:
        about |= {"asked for": json.dumps(request.args), "changed to": json.dumps(request.changed_args)}
        about["changed by"] = request.changed_by
    about["request"] = asked
    if request.state != "pending" and request.decided_by:
        note = f": {request.note}" if request.note else ""
        about["decided by"] = f"{request.decided_by} through {request.surface}{note}"
        if request.scope == "session":
            about["holds for"] = "the session" if request.of_call else "the conversation"
    return about | {"used by": request.used_by}


def _counted(key: str, value: object) -> str:
    return f"{key} {len(cast('list[object]', value))}" if isinstance(value, list) else key
