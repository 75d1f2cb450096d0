"""The records of the proxy: a file for each connection, until a collector has made it a row and removes it.

A record begins with the numbers of bytes, written as these flow, so that a killed proxy loses none. A line of facts
from the beginning of the connection follows, and one from its end. The directory of a proxy is locked while it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellback.exec.wire import bells, layout

BURST: Final = 1000
"""Records of a conversation at once; those that connect in a loop get one each second. The rest is summed up."""
WAITING: Final = 1024
"""Records of a conversation that wait to become rows, of one proxy."""
FORMER: Final = 64
"""Directories of proxies that are kept; where no worker ever runs, nobody removes them."""
SUM_S: Final = 60.0
"""A sum is a record of its own after this time."""
RING_S: Final = 0.05
"""Connections that end within this time ring once."""
HEAD: Final = "{:16d} {:16d} {:10d}\n"
HEAD_BYTES: Final = len(HEAD.format(0, 0, 0))


def directory_of(scope: str) -> str:
    """The name of the directory of a conversation."""
    return hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Record:
    """One record, which exists from now on; raises OSError."""

    def __init__(self, place: Path, facts: Mapping[str, Any]) -> None:
        self._fd = os.open(place / facts["id"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._counts = [0, 0, 0]
        head = HEAD.format(0, 0, 0).encode() + _line(facts)
        written = -1
        try:
            written = os.write(self._fd, head)
        finally:
            if written < len(head):
                os.close(self._fd)
                with contextlib.suppress(OSError):
                    os.unlink(place / facts["id"])
        if written < len(head):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def add(self, up: int, down: int, times: int = 0) -> None:
        """Count these bytes, and connections."""
        self._counts = [one + more for one, more in zip(self._counts, (up, down, times), strict=True)]
        os.pwrite(self._fd, HEAD.format(*self._counts).encode(), 0)

    def end(self, facts: Mapping[str, Any]) -> None:
        """Note what is known at the end, and close it."""
        try:
            os.write(self._fd, _line(facts))
        finally:
            os.close(self._fd)


@dataclass(slots=True)
class _Kept:
    """The records of a conversation: how many may begin now, and how many there are, as far as is known."""

    place: Path
    tokens: float = BURST
    since: float = 0.0
    files: int = 0
    sum: Record | None = None


class Journal:
    """Keeps records below a state directory within the block; without one, none. It closes on a running loop."""

    def __init__(self, home: str | None) -> None:
        self._home = None if home is None else Path(home)
        self._place: Path | None = None
        self._kept: dict[str, _Kept] = {}
        self._rings = False

    def __enter__(self) -> Journal:
        # What a killed one has left is for a collector now.
        self._ring()
        return self

    def __exit__(self, *_: object) -> None:
        for scope, kept in self._kept.items():
            self._end_sum(scope, kept)
        self._ring()

    def begin(self, scope: str, facts: Mapping[str, Any]) -> Record | None:
        """A record of a connection; None if it is part of a sum, or the disk is full."""
        with contextlib.suppress(OSError):
            kept = self._of(scope)
            return Record(kept.place, facts) if kept is not None and self._room(kept) else None
        return None

    def end(self, record: Record, facts: Mapping[str, Any]) -> None:
        """End a record, and tell the collectors; a full disk loses what its end says."""
        with contextlib.suppress(OSError):
            record.end(facts)
        if not self._rings:
            self._rings = True
            asyncio.get_running_loop().call_later(RING_S, self._ring)

    def sum_up(self, scope: str, up: int, down: int, times: int = 0) -> None:
        """Count what has no record of its own."""
        with contextlib.suppress(OSError):
            if (kept := self._of(scope)) is None:
                return
            if kept.sum is None:
                kept.sum = Record(kept.place, _sum(scope))
                asyncio.get_running_loop().call_later(SUM_S, self._end_sum, scope, kept)
            kept.sum.add(up, down, times)

    def _end_sum(self, scope: str, kept: _Kept) -> None:
        record, kept.sum = kept.sum, None
        if record is not None:
            self.end(record, _sum(scope) | {"seconds": SUM_S})

    def _of(self, scope: str) -> _Kept | None:
        if self._home is None:
            return None
        if scope not in self._kept:
            if self._place is None:
                self._place = _made(self._home / layout.NETWORK)
            place = self._place / directory_of(scope)
            place.mkdir(mode=0o700, exist_ok=True)
            self._kept[scope] = _Kept(place)
        return self._kept[scope]

    def _room(self, kept: _Kept) -> bool:
        now = time.monotonic()
        kept.tokens, kept.since = min(BURST, kept.tokens + now - kept.since), now
        if kept.files >= WAITING:
            kept.files = len(os.listdir(kept.place))
        if kept.tokens < 1 or kept.files >= WAITING:
            return False
        kept.tokens -= 1
        kept.files += 1
        return True

    def _ring(self) -> None:
        self._rings = False
        if self._home is not None:
            bells.knock(self._home / layout.BELLS, layout.NETWORK)


def ended(place: Path) -> bool:
    """Whether the proxy of this directory has ended, so that nothing in it changes any more; raises OSError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _made(network: Path) -> Path:
    """A directory of our own, locked before anybody sees it, and until we end."""
    network.mkdir(mode=0o700, exist_ok=True)
    found = sorted((one for one in network.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    for one in found[: -FORMER + 1]:
        if ended(one):
            shutil.rmtree(one, ignore_errors=True)
    name = os.urandom(16).hex()
    hidden = network / f".{name}"
    hidden.mkdir(mode=0o700)
    fcntl.flock(os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
    return hidden.rename(network / name)


def _sum(scope: str) -> dict[str, Any]:
    return {"id": os.urandom(8).hex(), "at": round(time.time(), 3), "scope": scope, "host": "", "port": 0}


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"
