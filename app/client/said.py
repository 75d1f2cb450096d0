"""The messages of a conversation, as parts for people: who said what, whoever shows it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast

Who = Literal["person", "shellback", "processes", "agent", "thinking", "call", "result", "retry", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One part of a message. `at` is seconds of the wall clock. Calls and their results have a `tool` and a `call`."""

    who: Who
    text: str
    at: float | None = None
    tool: str = ""
    call: str = ""
    kind: str = ""
    """The kind of a part that is none of these."""


_WHO: Final[dict[str, Who]] = {
    "text": "agent", "tool-call": "call", "thinking": "thinking", "tool-return": "result", "retry-prompt": "retry",
}  # fmt: skip


def parts_of(message: dict[str, Any]) -> Iterator[Said]:
    """The parts of a stored message; instructions are left out."""
    at = None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        at = datetime.fromisoformat(message["timestamp"]).timestamp()
    for part in message.get("parts", []):
        kind = part.get("part_kind")
        if kind == "user-prompt":
            yield from _prompted(at, part.get("content"))
        elif who := _WHO.get(kind):
            text = _text(part.get("args" if who == "call" else "content"))
            tool, call = part.get("tool_name") or "", part.get("tool_call_id") or ""
            yield Said(who=who, text=text, at=at, tool=tool, call=call)
        elif kind != "system-prompt":
            yield Said(who="other", text=_text(part), at=at, kind=str(kind))


def _prompted(at: float | None, content: Any) -> Iterator[Said]:
    """The input of the model: from people, from Shellback, and the blocks of processes."""
    from shellback.exec.reports.blocks import MARK
    from shellback.exec.reports.callback_text import NOTICE

    for piece in cast("list[Any]", content) if isinstance(content, list) else [content]:
        about = cast("dict[str, Any]", piece) if isinstance(piece, dict) else {}
        metadata: object = about.get("metadata")
        if isinstance(metadata, dict) and MARK in metadata:
            yield Said(who="processes", text=str(about["content"]), at=at)
        elif isinstance(metadata, dict) and NOTICE in metadata:
            yield Said(who="shellback", text=str(about["content"]), at=at)
        else:
            yield Said(who="person", text=_text(piece), at=at)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
