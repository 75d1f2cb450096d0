"""One connection for many short transactions."""

from __future__ import annotations

import threading

import sqlalchemy as sa
from sqlalchemy import exc


class KeptConnection:
    """A connection that stays checked out between its users, who take turns; one who fails gives it back.

    Checking a connection out and in costs as much as an insert.
    """

    def __init__(self, engine: sa.Engine, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._conn: sa.Connection | None = None

    def __enter__(self) -> sa.Connection:
        if not self._turn.acquire(timeout=self._timeout_s):
            raise exc.TimeoutError("the connection was not free in time")
        try:
            if self._conn is None:
                self._conn = self._engine.connect()
        except BaseException:
            self._turn.release()
            raise
        return self._conn

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        try:
            if kind is not None:
                self._give_back()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Wait for the one who uses it, then close it."""
        with self._turn:
            self._give_back()

    def _give_back(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
