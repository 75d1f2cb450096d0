"""Exit records: written before they are told, told until they are acknowledged, synced soon after.

If the disk has no room, the keeper holds the record. It is told at once, and again when it has been written.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.records.records import Records, Unreadable
from shellback.exec.wire import crashpoints, layout
from shellback.exec.wire.protocol import ExitRecord, Message

_RETRY_S: Final = 1.0
_GATHER_S: Final = 0.05
"""Most records are acknowledged within this time: then the database has them, and no sync is needed."""


class Ledger:
    """`ended` has the records that are not acknowledged."""

    def __init__(self, loop: Loop, records: Records, diary: Diary, written_late: Callable[[str], None]) -> None:
        self._loop = loop
        self._records = records
        self._diary = diary
        self._written_late = written_late
        self._unsynced: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._unwritten: set[str] = set()
        self.ended: dict[str, ExitRecord] = {}
        # In a thread, so that the loop never waits for a disk.
        threading.Thread(target=self._sync, name="sync", daemon=True).start()

    @property
    def behind(self) -> bool:
        """Whether a record waits for room on the disk."""
        return bool(self._unwritten)

    def lacks(self, name: str) -> bool:
        """Whether this session's record waits for room on the disk."""
        return name in self._unwritten

    def enter(self, record: ExitRecord) -> bool:
        """Keep a record; False if it could not be written yet, which is tried each second."""
        name = record["session_id"]
        self.ended[name] = record
        if self._write(name):
            return True
        if not self._unwritten:
            self._loop.after(_RETRY_S, self._retry)
        self._unwritten.add(name)
        return False

    def _write(self, name: str) -> bool:
        try:
            self._records.write_aside(name, layout.EXIT, dict(self.ended[name]))
            crashpoints.reach("supervisor.record_written")
            try:
                self._records.rename(name, layout.EXIT + ".new", layout.EXIT)
            except IsADirectoryError:
                self._records.keep_aside(name, layout.EXIT)
                self._records.rename(name, layout.EXIT + ".new", layout.EXIT)
        except OSError as error:
            self._diary.note(f"{name}: exit record: {error.strerror}")
            # If the session's directory was removed, trying again is useless.
            return isinstance(error, FileNotFoundError)
        crashpoints.reach("supervisor.record_renamed")
        self._unsynced.put(name)
        return True

    def _retry(self) -> None:
        for name in list(self._unwritten):
            if name not in self.ended or self._write(name):
                self._unwritten.discard(name)
                self._written_late(name)
        if self._unwritten:
            self._loop.after(_RETRY_S, self._retry)

    def acknowledge(self, name: str) -> bool:
        """Tell this end no more; False if none was due, or its record is not on disk yet.

        An unwritten record stays: the next supervisor would find a start without an end.
        """
        if name in self._unwritten or name not in self.ended:
            return False
        with contextlib.suppress(FileNotFoundError):
            try:
                self._records.rename(name, layout.EXIT, layout.ACKED)
            except IsADirectoryError:
                self._records.keep_aside(name, layout.ACKED)
                self._records.rename(name, layout.EXIT, layout.ACKED)
        del self.ended[name]
        with contextlib.suppress(OSError):
            self._records.remove(name, layout.RUNNING)
        return True

    def look_up(self, name: str) -> Message | None:
        """The status of a session without a process; None if it was claimed and has no readable end."""
        record = self.ended.get(name)
        if record is not None:
            return {"state": record["state"], "record": record}
        try:
            return self._records.standing(name, layout.ACKED)
        except Unreadable:
            return None

    def _sync(self) -> None:
        while True:
            sessions = [self._unsynced.get()]
            time.sleep(_GATHER_S)
            while not self._unsynced.empty():
                sessions.append(self._unsynced.get())
            for session_id in sessions:
                try:
                    self._records.sync(session_id, layout.EXIT)
                except OSError as error:
                    self._diary.note(f"sync failed: {session_id}: {error.strerror}")
