"""The records of the proxy: a line when a connection has begun, and one when it has ended.

Each conversation has a file of its own, so that none can push the records of another one out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Final

FILE_BYTES: Final = 512 * 1024
"""Size of a file; the one before it is kept."""
FILES: Final = 512
"""So many are kept, the newest; two for each conversation."""
FORMER: Final = ".1"


def file_of(scope: str) -> str:
    """The name of the file of a conversation."""
    return hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Journal:
    """Appends to the files of a directory; without one, keeps nothing."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    def note(self, conversation: str, **facts: object) -> None:
        """Write one line; a full disk loses it, and the connection goes on."""
        if self._directory is None:
            return
        path = os.path.join(self._directory, file_of(conversation))
        with contextlib.suppress(OSError):
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                size = 0
                self._make_room(self._directory)
            if size > FILE_BYTES:
                os.replace(path, f"{path}{FORMER}")
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, json.dumps(facts).encode() + b"\n")
            finally:
                os.close(descriptor)

    def _make_room(self, directory: str) -> None:
        os.makedirs(directory, 0o700, exist_ok=True)
        with os.scandir(directory) as found:
            oldest = sorted(found, key=lambda one: one.stat().st_mtime)[: -FILES + 1]
        for one in oldest:
            os.unlink(one.path)
