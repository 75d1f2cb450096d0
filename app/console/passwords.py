"""Passwords: their hashes, and how often one may be guessed."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

T = TypeVar("T")

SHORTEST: Final = 12
LONGEST: Final = 1_000
AT_ONCE: Final = 2
"""So many passwords are hashed at once: each takes 64 MiB."""
WAITING: Final = 20
FREE: Final = 5
"""So many wrong passwords of one name make nobody wait."""
FIRST_S: Final = 30.0
"""The wait after one more. It doubles with each, to `MOST_S` at most."""
MOST_S: Final = 15 * 60.0
NAMES: Final = 10_000


class Busy(Exception):
    """Raised when too many logins are looked at already."""


class Passwords:
    """Hashes by argon2id, in threads, a few at once."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._nobodys = ""

    async def hash(self, password: str) -> str:
        """What is kept of a password."""
        return await self._run(partial(self._hasher.hash, password))

    async def right(self, kept: str | None, password: str) -> bool:
        """Whether this is the password. It takes as long for an account that is not there, of which nothing is kept.

        Raises:
            Busy: Too many are being looked at.
        """
        if not self._nobodys:
            self._nobodys = await self.hash("the password of nobody")
        found = await self._run(partial(self._verified, kept or self._nobodys, password))
        return found and kept is not None

    def _verified(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (Argon2Error, InvalidHashError):
            return False

    async def _run(self, work: partial[T]) -> T:
        if self._waiting >= WAITING:
            raise Busy("too many logins are looked at; repeat yours in a moment")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


class Attempts:
    """How often the password of a name was wrong, whether or not there is such an account."""

    def __init__(self) -> None:
        self._wrong = OrderedDict[str, tuple[int, float, float]]()

    def begin(self, name: str) -> float:
        """Count an attempt as wrong, until `right`; or the seconds that this name has to wait for one."""
        count, last, _ = self._wrong.get(name, (0, 0.0, 0.0))
        now = time.monotonic()
        wait_s = last + min(FIRST_S * 2 ** min(count - FREE, 10), MOST_S) - now if count >= FREE else 0.0
        if wait_s > 0:
            return wait_s
        self._wrong[name] = (count + 1, now, last)
        self._wrong.move_to_end(name)
        while len(self._wrong) > NAMES:
            self._wrong.popitem(last=False)
        return 0.0

    def undo(self, name: str) -> None:
        """Count the last attempt no more: it was not looked at."""
        count, _, before = self._wrong.get(name, (1, 0.0, 0.0))
        if count > 1:
            self._wrong[name] = (count - 1, before, before)
        else:
            self.right(name)

    def right(self, name: str) -> None:
        """Forget the wrong ones."""
        self._wrong.pop(name, None)
