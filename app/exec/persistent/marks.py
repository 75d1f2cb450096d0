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

import contextlib
import functools
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.persistent.quoting import unquoted
from shellback.exec.wire import linux

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
_ASKED: Final = re.compile(rb"[0-9]{1,3};[A-Za-z]*'")
"""What R says: the last status and the shell's options."""
TRIGGER: Final = re.compile(rb" IFS= \\builtin read -rsd [^\n]{0,400}?\"\$__sb\"\r?\n")
"""What is seen of us where the terminal shows what is typed."""


class Mark(NamedTuple):
    """One mark that was found: its kind, whose it is, what it says, and where it begins and ends."""

    kind: str
    name: str
    said: bytes
    start: int
    end: int

    @property
    def status(self) -> int | None:
        """The status that it tells, if it tells one."""
        word = self.said.split(b";", 1)[0]
        return int(word) if word.isdigit() and len(word) <= _DIGITS else None

    @property
    def options(self) -> str:
        """The shell's options, as R tells them."""
        return self.said.partition(b";")[2].rstrip(b"'").decode("ascii", "replace")


@dataclass(frozen=True, slots=True)
class Ended:
    """What E says: the status, the directory, and the one that the shell was put back from, if it was."""

    status: int
    cwd: str
    left: str


def found_in(data: bytes, at: int = 0) -> list[Mark]:
    """All marks in a piece of output that begins at offset `at`."""
    return [
        Mark(one[1].decode("ascii"), one[2].decode("ascii"), one[3], at + one.start(), at + one.end())
        for one in _MARK.finditer(data)
        if one[1] != b"R" or _ASKED.fullmatch(one[3])
    ]


def without(data: bytes) -> bytes:
    """A piece of output without marks and without what is seen of us."""
    return TRIGGER.sub(b"", _MARK.sub(b"", data))


def ended(mark: Mark) -> Ended:
    """What an E mark says; what says something else, which only a program can have printed, says nothing."""
    _, _, paths = mark.said.partition(b";")
    cwd, _, left = paths.partition(_BETWEEN)
    return Ended(mark.status or 0, _path(cwd), _path(left))


def _path(word: bytes) -> str:
    return unquoted(word).decode("utf-8", "replace")


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
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        linux.write_all(fd, secrets.token_bytes(_KEY_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
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
