"""Text that is typed into a session, as a shell reads it: whole lines, and the unfinished rest.

A shell runs a line when it ends, however many calls typed it, so earlier text counts. If keys edit the line or a quote
is open, the line is reported as unknown.
"""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.syntax import Parsed

UNFINISHED: Final = "unfinished"
"""The key for the unfinished text in the outcome of a call."""
MOST: Final = 8_192
"""The most characters of an unfinished line that are kept; a longer line is unknown."""
_EDITS: Final = re.compile(r"[^\n\x20-\x7e\xa0-\U0010ffff]|\ufffd")
"""Characters that a line editor takes as commands, such as a tab that completes."""
_HISTORY: Final = re.compile(r"!(?![\s=(]|\Z)|^\^", re.MULTILINE)
_GOES_ON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\\n\Z")
_INTERRUPT: Final = "\x03"


def lines_of(data: bytes, *, eof: bool = False) -> str:
    """The text that a shell reads from `data`; Enter and the end of input end a line."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return f"{text}\n" if eof and text and not text.endswith("\n") else text


def only_interrupts(text: str) -> bool:
    """Whether the text is only C-c, which types nothing."""
    return bool(text) and not text.strip(_INTERRUPT)


def left_of(before: str | None, text: str) -> str | None:
    """The unfinished text after `text` was typed behind `before`; None if unknown."""
    if only_interrupts(text):
        return None if before else before  # C-c drops an unfinished line, unless the shell ignores C-c
    if _EDITS.search(text):
        return None
    whole = (before or "") + text
    if len(whole) > MOST:
        return None
    if finished(whole):
        return ""
    return None if before is None else whole


def unknown(before: str | None, text: str) -> str | None:
    """The reason why the shell's reading of `text` is unknown, to follow "because"; None if it is known."""
    if before != "":
        goes_on = "is not known" if before is None else f"is not finished: {before!r}"
        return f"it goes on with what was typed before, which {goes_on}"
    if only_interrupts(text) or not text:
        return None
    if _EDITS.search(text):
        return "it has keys that edit the line, complete it or take one from the history, so what runs cannot be seen"
    if _HISTORY.search(text):
        return "! and ^ stand for earlier commands, so what runs cannot be seen"
    if len(text) > MOST or not finished(text):
        return "it does not end what it begins, so what runs is still to come"
    return None


def finished(text: str) -> bool:
    """Whether a shell that has read this runs it and starts a new line."""
    if not text.endswith("\n") or _GOES_ON.search(text):
        return False
    parsed = parse(text)
    return isinstance(parsed, Parsed) and (not parsed.outside or second.whole(text))
