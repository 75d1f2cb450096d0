"""Output as data: what a process printed, made harmless to show. The raw bytes stay in the log."""

from __future__ import annotations

import re
from typing import Final

# Sequences are bounded, so that one that never ends cannot swallow what follows it.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]{0,256}[ -/]{0,16}[@-~]?"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]{0,4}[0-~]?"  # two-character sequences
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Remove control sequences and characters but newline and tab; a carriage return becomes a line end."""
    if _CONTROLS.search(text) is None:
        return text
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _CONTROLS.sub("", text)


def decoded(data: bytes) -> str:
    """`data` as UTF-8 with replacement characters, made harmless."""
    return harmless(data.decode("utf-8", "replace"))


def whole_characters(data: bytes) -> int:
    """How many bytes of `data` end on a character: an unfinished UTF-8 sequence at the end is left out."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return len(data) - back if needed > back else len(data)
    return len(data)


def continuation_bytes(data: bytes) -> int:
    """How many bytes at the start of `data` belong to a character that began before it, three at most."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
