"""How many bytes the commands of a conversation have sent and received in all: files, which outlive the proxy."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

from shellback.exec.proxy.journal import directory_of
from shellback.exec.wire import layout

CONVERSATIONS: Final = 4096
"""So many are counted, those that connected last."""
_COUNTS: Final = struct.Struct("<QQ")


class Carried:
    """The counts of one conversation, which may have `most` bytes each way; 0 is no limit, and counts nothing.

    Without a state directory, or with a full disk, they are those of this object alone.
    """

    def __init__(self, home: str | None, scope: str, most: int) -> None:
        self._most = most
        self._fd = -1
        self._counts = 0, 0
        if most and home is not None:
            with contextlib.suppress(OSError):
                self._fd = _opened(os.path.join(home, layout.CARRIED), directory_of(scope))
        self.add(0, 0)

    def add(self, up: int, down: int) -> None:
        """Count these bytes."""
        if self._most == 0:
            return
        # Two proxies of a conversation may write at the same moment, as when the supervisor was replaced: then the
        # last one of them counts, of a megabyte at most.
        with contextlib.suppress(OSError, struct.error):
            self._counts = _COUNTS.unpack(os.pread(self._fd, _COUNTS.size, 0))
        self._counts = self._counts[0] + up, self._counts[1] + down
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _COUNTS.pack(*self._counts), 0)

    @property
    def spent(self) -> bool:
        """Whether it may send or receive nothing more."""
        return 0 < self._most <= max(self._counts)

    @property
    def why(self) -> str:
        """What a command is told then."""
        up, down = self._counts
        return f"commands of this conversation have sent {up} bytes and received {down}, of {self._most} each way"

    def close(self) -> None:
        """Count nothing more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _opened(directory: str, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CLOEXEC)
    place = Path(directory)
    place.mkdir(mode=0o700, exist_ok=True)
    found = [*place.iterdir()]
    if len(found) >= CONVERSATIONS:
        for one in sorted(found, key=lambda one: one.stat().st_mtime)[: -CONVERSATIONS + 1]:
            one.unlink(missing_ok=True)
    return os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
