"""Session directories made in advance, so that a start waits for one rename instead of four new files."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import queue
import shutil
import threading
import time
from typing import Final

from shellback.exec.wire import layout, linux

_COUNT: Final = 16
_LATER_S: Final = 0.003
"""The disk is left to the command that has just been started."""
_AGAIN_S: Final = 1.0


class Spares:
    """Each has a `started` file with the text of a claim, an empty log, and room for an exit record."""

    def __init__(self, home: str, sessions_fd: int, text: bytes) -> None:
        self._path = os.path.join(home, layout.SUPERVISOR, layout.SPARE)
        self._sessions_fd = sessions_fd
        self.text = text
        self._names = itertools.count()
        self._ready: collections.deque[str] = collections.deque()
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_COUNT):
            self._wanted.put(None)
        threading.Thread(target=self._run, name="spares", daemon=True).start()

    def take(self, session_id: str) -> bool:
        """Make a spare the session's directory; False when there is none, or the session has one.

        Like the creation of its `started` file this happens for one caller only.
        """
        try:
            spare = self._ready.popleft()
        except IndexError:
            return False
        try:
            linux.rename_new(spare, session_id, self._sessions_fd)
        except OSError:
            # The session has one, or there are no spares on this file system, or none now.
            self._ready.append(spare)
            return False
        self._wanted.put(None)
        return True

    def _run(self) -> None:
        while not self._emptied():
            time.sleep(_AGAIN_S)
        while True:
            self._wanted.get()
            time.sleep(_LATER_S)
            path = os.path.join(self._path, str(next(self._names)))
            while not self._make(path):
                # What there is no room for now is not missed for ever.
                shutil.rmtree(path, ignore_errors=True)
                time.sleep(_AGAIN_S)
            self._ready.append(path)

    def _emptied(self) -> bool:
        """Whether the folder is there and has nothing of the last supervisor's, whose names are used again."""
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._path)
            os.mkdir(self._path, 0o700)
        except OSError:
            return False
        return True

    def _make(self, path: str) -> bool:
        try:
            self._fill(path)
        except OSError:
            return False
        return True

    def _fill(self, path: str) -> None:
        os.mkdir(path, 0o700)
        for name, text in ((layout.STARTED, self.text), (layout.LOG, b""), (layout.EXIT + ".new", b"")):
            fd = os.open(os.path.join(path, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if text:
                    linux.write_all(fd, text)
            finally:
                os.close(fd)
