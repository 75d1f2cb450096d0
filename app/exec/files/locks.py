"""One at a time for whatever has the same name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lock:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class Locks:
    """Locks for threads, each there as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._mine = threading.Lock()
        self._locks: dict[Hashable, _Lock] = {}

    @contextlib.contextmanager
    def held(self, name: Hashable) -> Generator[None]:
        """Have the lock of `name`. Blocks until it is free."""
        with self._mine:
            one = self._locks.setdefault(name, _Lock())
            one.users += 1
        try:
            with one.lock:
                yield
        finally:
            with self._mine:
                one.users -= 1
                if one.users == 0:
                    del self._locks[name]
