"""Making exit records durable, in a thread, so that the loop never waits for a disk."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.records.records import Records
from shellback.exec.wire import layout

_GATHER_S: Final = 0.05
"""Most records are acknowledged within this time, and then the worker's database has them."""


class Syncer:
    """Syncs the records it is told about, in order."""

    def __init__(self, records: Records, failed: Callable[[str], None]) -> None:
        self._records = records
        self._failed = failed
        self._todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def add(self, session_id: str) -> None:
        self._todo.put(session_id)

    def _run(self) -> None:
        while True:
            sessions = [self._todo.get()]
            time.sleep(_GATHER_S)
            while not self._todo.empty():
                sessions.append(self._todo.get())
            for session_id in sessions:
                try:
                    self._records.sync(session_id, layout.EXIT)
                except OSError as error:
                    self._failed(f"{session_id}: {error.strerror}")
