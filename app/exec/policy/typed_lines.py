"""What is typed into a session, as a shell would read it: whole lines, and what is left of one until it is ended.

A shell runs what it reads once a line is ended, however many calls typed it. So what was typed before counts, and where
nobody can tell what the line will be, because keys edit it or a quote is open, that is said.
"""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.syntax import Parsed

UNFINISHED: Final = "unfinished"
"""Under what name the outcome of a call has what it has left unfinished."""
MOST: Final = 8_192
"""Characters that are remembered of lines that are not finished; of more nothing is known."""
_EDITS: Final = re.compile(r"[^\n\x20-\x7e\xa0-\U0010ffff]|\ufffd")
"""What a line editor takes for a command, a tab that completes among it."""
_HISTORY: Final = re.compile(r"!(?![\s=(]|\Z)|^\^", re.MULTILINE)
_GOES_ON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\\n\Z")
_INTERRUPT: Final = "\x03"


def lines_of(data: bytes, *, eof: bool = False) -> str:
    """What a shell reads of `data`; Enter and the end of the input end a line."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return f"{text}\n" if eof and text and not text.endswith("\n") else text


def only_interrupts(text: str) -> bool:
    """Whether it is C-c and nothing else, which types nothing."""
    return bool(text) and not text.strip(_INTERRUPT)


def left_of(before: str | None, text: str) -> str | None:
    """What is waiting to be finished once `text` has been typed after `before`; None where nobody can tell."""
    if only_interrupts(text):
        return None if before else before  # a line that was begun is given up, unless the shell ignores C-c
    if _EDITS.search(text):
        return None
    whole = (before or "") + text
    if len(whole) > MOST:
        return None
    if finished(whole):
        return ""
    return None if before is None else whole


def unknown(before: str | None, text: str) -> str | None:
    """Why nobody can tell what a shell will run of `text`, in words that follow "because"; None where all is seen."""
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
    """Whether a shell that has read this runs it, and begins anew with what comes next."""
    if not text.endswith("\n") or _GOES_ON.search(text):
        return False
    parsed = parse(text)
    return isinstance(parsed, Parsed) and (not parsed.outside or second.whole(text))
