"""Marks in the output of a shell: OSC sequences, which no terminal shows.

    R ─ the shell takes the next command       S ─ the command starts       E ─ it has ended, with status and directory
    P ─ the shell is about to prompt, with the last status                  C ─ it has read a line, and runs it

R, S and E bear a name of their own for each call, made with a key that commands cannot read: what a command prints
can be none of them before the shell itself has printed it, and a repeat of the call finds those of its first execution.
P and C bear one for the session, which commands can find out: alone they prove nothing.

R has a quote before its end: where `set -x` or a trap shows the command that prints it, the quote is quoted, so that is
no mark. It would come before the shell has switched its echo off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.log.output import OutputLog
from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing

KEY_FILE: Final = "shell.key"
_KEY_BYTES: Final = 32
LONGEST: Final = 8 * 4096 + 64
"""Bytes of the longest mark: two directories, in which each byte may be quoted by four."""
OPEN: Final = b"\x1b]7770;"
_DIGITS: Final = 3
_KINDS: Final = "RSE"
_NAME: Final = 32
_BETWEEN: Final = b"\x1f"
"""Between two directories; quoted, none of them has it."""
_MARK: Final = re.compile(rb"\x1b\]7770;([RSEPC]);([0-9a-f]{32});?([^\x07\x1b]{0,%d})\x07" % LONGEST)
_ASKED: Final = re.compile(rb"[0-9]{1,3};[A-Za-z]*(?:;[0-9a-f]*)?'")
"""The text of R: last status, shell options, and the shell's library, which earlier versions did not have."""
TRIGGER: Final = re.compile(rb" IFS= \\builtin read -rsd [^\n]{0,400}?\"\$__sb\"\r?\n")
"""Our line as the terminal echoes it."""


class Mark(NamedTuple):
    """One mark: its kind, name and text, and its offsets in the log."""

    kind: str
    name: str
    said: bytes
    start: int
    end: int

    @property
    def status(self) -> int | None:
        """The status in its text, if there is one."""
        word = self.said.split(b";", 1)[0]
        return int(word) if word.isdigit() and len(word) <= _DIGITS else None

    @property
    def options(self) -> str:
        """The shell's options, as R tells them."""
        return self._asked[1]

    @property
    def library(self) -> str:
        """The name of the shell's library, as R tells it."""
        return self._asked[2]

    @property
    def _asked(self) -> list[str]:
        return [*self.said.rstrip(b"'").decode("ascii", "replace").split(";"), "", ""]

    @property
    def places(self) -> tuple[str, str]:
        """The directory in an E mark, and the directory that the shell was moved back from, if it was.

        Only a program can have printed a text of another form; it has no meaning.
        """
        cwd, _, left = self.said.partition(b";")[2].partition(_BETWEEN)
        return unquoted(cwd).decode("utf-8", "replace"), unquoted(left).decode("utf-8", "replace")


def opening(kind: str, name: str) -> bytes:
    """How a mark with this name begins."""
    return b"%b%b;%b;" % (OPEN, kind.encode(), name.encode())


def asking(status: int, options: str, library: str) -> bytes:
    """The text of R; BEL follows."""
    return f"{status};{options};{library}'".encode()


def found_in(data: bytes, at: int = 0) -> list[Mark]:
    """All marks in a piece of output that begins at offset `at`."""
    return [
        Mark(one[1].decode("ascii"), one[2].decode("ascii"), one[3], at + one.start(), at + one.end())
        for one in _MARK.finditer(data)
        if one[1] != b"R" or _ASKED.fullmatch(one[3])
    ]


def without(data: bytes) -> bytes:
    """A piece of output without marks and without the echo of our line."""
    return TRIGGER.sub(b"", _MARK.sub(b"", data))


class Names:
    """Names for marks, from a key that is made once for a state directory and readable by nobody else.

    Raises:
        OSError: The key can be neither read nor made, or is damaged.
    """

    def __init__(self, home: Path) -> None:
        self._key = _key_in(home)

    def of_call(self, kind: str, session_id: SessionId, key: CallKey) -> str:
        """The name of a mark of this call."""
        at = _KINDS.index(kind) * _NAME
        return _digest(self._key, session_id, key)[at : at + _NAME]

    def of_session(self, session_id: SessionId) -> str:
        """The name of all marks of prompts of a session."""
        return _digest(self._key, session_id)[:_NAME]


@functools.lru_cache(maxsize=256)
def _digest(key: bytes, *parts: str) -> str:
    """As long as all names of a call: each of them tells nothing of the others."""
    return hmac.digest(key, "\0".join(parts).encode(), "sha512").hex()


def _key_in(home: Path) -> bytes:
    path = home / KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        return _whole(path)
    draft = home / f"{KEY_FILE}.{secrets.token_hex(8)}"
    with closing(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as fd:
        linux.write_all(fd, secrets.token_bytes(_KEY_BYTES))
        os.fsync(fd)
    # Whoever is first has made it: a second one in its place would leave the marks of the first without a name.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    return _whole(path)


def _whole(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} is damaged: remove it, and end the shells that run; another key is made then")
    return key


_BYTE: Final = {0x27: b"\\'", 0x5C: b"\\\\", 0x0A: b"\\n"}
_SPECIAL: Final = re.compile(rb"[\x00-\x1f\x7f'\\]")
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_NAMED: Final = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"v": b"\v",
    b"f": b"\f",
    b"E": b"\x1b",
}


def quoted(data: bytes) -> bytes:
    """One word with exactly these bytes, on one line and without control characters: a terminal may carry it."""
    return b"$'%b'" % _SPECIAL.sub(_escaped, data)


def _escaped(found: re.Match[bytes]) -> bytes:
    byte = found[0][0]
    return _BYTE.get(byte) or b"\\%03o" % byte


def unquoted(data: bytes) -> bytes:
    """What was quoted with `%q`."""
    if data.startswith(b"$'"):
        return _ESCAPE.sub(_unescaped, data[2:-1])
    return b"" if data == b"''" else re.sub(rb"\\(.)", rb"\1", data, flags=re.DOTALL)


def _unescaped(found: re.Match[bytes]) -> bytes:
    what = found[1]
    if what[:1] in b"01234567":
        return bytes([int(what, 8) & 0xFF])
    return _NAMED.get(what, what)


_TAIL: Final = 4096
_PIECE: Final = 64 * 1024
_LARGE: Final = 4 * 1024 * 1024
"""Bytes of one read; more than `_PIECE` is read in a thread."""
_OPENED: Final = re.compile(rb"\x1b(?:\]7770;[^\x07\x1b]{0,%d}|\]?7{0,3}0?)?\Z" % LONGEST)


class Reader:
    """Marks from an offset on. `at` is what has been read; an unfinished mark is read again."""

    def __init__(self, log: OutputLog, at: int) -> None:
        self._log = log
        self.at = at
        self.size = at
        """The end of what has been looked at, an unfinished mark included."""

    async def marks(self) -> list[Mark]:
        """New marks in order. Much new output is read in a thread."""
        found: list[Mark] = []
        end = self._log.size()
        while self.size < end:
            if end - self.at <= _PIECE:
                found += self._piece(_PIECE)
            else:
                found += await asyncio.to_thread(self._piece, _LARGE)
        return found

    def given(self, at: int, data: bytes) -> list[Mark]:
        """The marks in all output from `at` to now, which somebody else has read."""
        self.at = at
        return self._found(data)

    def _piece(self, most: int) -> list[Mark]:
        return self._found(self._log.piece(self.at, most))

    def _found(self, data: bytes) -> list[Mark]:
        self.size = self.at + len(data)
        found = found_in(data, self.at) if OPEN in data else []
        rest = found[-1].end - self.at if found else 0
        unfinished = _OPENED.search(data, max(rest, len(data) - LONGEST))
        self.at += len(data) if unfinished is None else unfinished.start()
        return found


def before_unfinished(log: OutputLog, end: int) -> int:
    """Where the log can be read to, at most `end`: not into a mark whose rest has yet to come. Blocks shortly."""
    start = max(0, end - LONGEST)
    unfinished = _OPENED.search(log.piece(start, end - start))
    return end if unfinished is None else start + unfinished.start()


def last_mark(log: OutputLog, kinds: str) -> Mark | None:
    """The last mark of one of these kinds, of the last MiB of a log; None where there is none. Blocks shortly."""
    end = log.size()
    for most in (_TAIL, _PIECE, 1024 * 1024):
        start = max(0, end - most)
        data = log.piece(start, most)
        at = len(data)
        while (at := data.rfind(OPEN, 0, at)) >= 0:
            for mark in found_in(data[at : at + 2 * LONGEST], start + at)[:1]:
                if mark.start == start + at and mark.kind in kinds:
                    return mark
        if start == 0:
            break
    return None


async def mark_named(log: OutputLog, name: str) -> Mark | None:
    """The first mark with this name, wherever in the log it is; None where there is none."""
    reader = Reader(log, 0)
    while reader.size < log.size():
        for mark in await reader.marks():
            if mark.name == name:
                return mark
    return None
