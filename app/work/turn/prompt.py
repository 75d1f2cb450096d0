"""How mailbox rows read to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import TextContent, UserContent

from shellback.exec.reports.callback_text import NOTICE, wake_text, watch_text
from shellback.work.approvals.typed import said
from shellback.work.queue.mailbox import Letter


def contents_of(letters: Sequence[Letter]) -> list[UserContent]:
    """What goes into the history, in the order the rows came: what a person said as it is, all else marked."""
    pairs = zip(letters, texts_of(letters), strict=True)
    return [text if one.kind == "message" else notice(text, one.kind, one.payload) for one, text in pairs]


def notice(text: str, kind: str, payload: Mapping[str, Any] | None = None) -> TextContent:
    """A text of ours, for the history; with it goes the session that its `payload` is about."""
    about = {key: value for key, value in (payload or {}).items() if key == "session_id"}
    return TextContent(text, metadata={NOTICE: kind, **about})


def texts_of(letters: Sequence[Letter]) -> list[str]:
    """One text per row, in the order the rows came."""
    return [_text(letter.kind, letter.payload) for letter in letters]


def _text(kind: str, payload: dict[str, Any]) -> str:
    if kind == "message":
        return str(payload["text"])
    if kind == "exit":
        return wake_text(payload)
    if kind == "watch":
        return watch_text(payload)
    if kind == "typed":
        return said(payload["session_id"], payload["bytes"], over=payload["over"])
    return turn_failed_text(payload)


def turn_failed_text(payload: dict[str, Any]) -> str:
    """Tell the model that an earlier turn broke off, and what it had already started."""
    started: list[dict[str, Any]] = payload.get("started", [])
    lines = [f"[turn failed: {payload['reason']}; it is tried again]"]
    lines += [
        f"It had started session {row['session_id']} ({row['state']}): "
        + json.dumps(row["command"], ensure_ascii=False)
        for row in started
    ]
    lines.append("Nothing above is started again by repeating it here; look before you repeat a command.")
    return "\n".join(lines)
