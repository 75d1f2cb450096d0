"""What a command printed, as much of it as a result may have: whole characters, head and tail."""

from __future__ import annotations

from typing import Final, NamedTuple

from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import continuation_bytes, whole_characters

_NOTE_BYTES: Final = 64
"""Kept free for the line that says what was left out."""


class Captured(NamedTuple):
    """Both streams as text, within the bytes they share."""

    stdout: str
    stderr: str
    truncated: bool


class _Seen(NamedTuple):
    """One stream: all of it, or its two ends. `size` counts all that was printed, `room` what it takes as text."""

    head: bytes
    tail: bytes
    size: int
    whole: bool

    @property
    def room(self) -> int:
        return len(self.head) if self.whole else self.size


async def captured(out: OutputLog, err: OutputLog | None, most: int) -> Captured:
    """Read both streams; together they take at most `most` bytes, and each is sure of half of them."""
    seen_out = await _seen(out, most)
    seen_err = _Seen(b"", b"", 0, whole=True) if err is None else await _seen(err, most)
    half = most // 2
    out_text, out_cut = _within(seen_out, max(half, most - seen_err.room))
    err_text, err_cut = _within(seen_err, max(half, most - seen_out.room))
    return Captured(out_text, err_text, out_cut or err_cut)


def fitted(text: str, most: int) -> str:
    """Text of at most `most` bytes: the end of it is left out where it has more."""
    data = text.encode()
    return text if len(data) <= most else data[: whole_characters(data[:most])].decode()


async def _seen(log: OutputLog, most: int) -> _Seen:
    size = log.size()
    if size <= most:
        data = await log.raw(0, size)
        # Where there are fewer bytes than that, the log was emptied for its room.
        return _Seen(_text(data), b"", size, whole=len(data) == size)
    head = await log.raw(0, min(size, most))
    tail = await log.raw(max(0, size - most), size)
    return _Seen(_text(head[: whole_characters(head)]), _text(tail[continuation_bytes(tail) :]), size, whole=False)


def _text(data: bytes) -> bytes:
    """The same with every byte that is no text replaced; it may take three times the room."""
    return data.decode("utf-8", "replace").encode()


def _within(seen: _Seen, most: int) -> tuple[str, bool]:
    if seen.whole and len(seen.head) <= most:
        return seen.head.decode(), False
    tail_of = seen.head if seen.whole else seen.tail
    room = max(0, most - _NOTE_BYTES)
    head = seen.head[: room - room // 2]
    head = head[: whole_characters(head)]
    tail = tail_of[len(tail_of) - min(room // 2, len(tail_of)) :]
    tail = tail[continuation_bytes(tail) :]
    note = f"\n[left out here: the middle of {seen.size} bytes]\n"
    return fitted(f"{head.decode()}{note}{tail.decode()}", most), True
