"""Who calls, by the token or login of the request; and the end of what is open when this ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from shellback.exec.wire.ring import Ring
from shellback.storage import accounts, tokens
from shellback.storage.accounts import Login
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.tokens import Token

log = logging.getLogger(__name__)

Credential = Token | Login
"""What a request proves with who sends it."""

STOPS: Final = "the server stops"
LOOK_S: Final = 30.0
"""The time between two looks for a token that was revoked and whose ring was lost."""
_FAILED_S: Final = 1.0
"""The least time between a look that failed and the next one."""
_LATER_S: Final = 0.05
"""So much after the moment at which a token expires, it has expired by the database's clock too."""


@dataclass(eq=False, slots=True)
class Use:
    """Something that is open with a credential. `over` is set when it has to end; `why` says why then."""

    digest: str
    why: str = ""
    expires: asyncio.TimerHandle | None = None
    """Ends it when its credential expires."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str) -> None:
        """Have it end; a repeat changes nothing."""
        if not self.over.is_set():
            self.why = why
            self.over.set()


class Access:
    """The tokens and logins of the database, and what is open with them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._uses: dict[str, set[Use]] = {}
        self._rung = Ring()
        self._closed = False

    @contextlib.contextmanager
    def used(self, digest: str) -> Generator[Use]:
        """Something that is open with what has this digest: it is told of an end that `credential` did not see."""
        use = Use(digest)
        self._uses.setdefault(digest, set()).add(use)
        if self._closed:
            use.end(STOPS)
        try:
            yield use
        finally:
            if use.expires is not None:
                use.expires.cancel()
            self._uses[digest].discard(use)
            if not self._uses[digest]:
                del self._uses[digest]

    async def credential(self, use: Use) -> Credential | None:
        """The token or login of a use, in force or not; None without one.

        Raises:
            StorageError: The database cannot be read.
        """
        found = (await self._database.read(_of_digests, [use.digest])).get(use.digest)
        if found is not None and found.left_s is not None and use.expires is None:
            # By the clock of this process, so that it ends also while the database does not answer.
            expired = functools.partial(use.end, f"the {noun(found)} is expired")
            use.expires = asyncio.get_running_loop().call_later(found.left_s + _LATER_S, expired)
        return found

    def ring(self) -> None:
        """A token was revoked, or a login ended: look."""
        self._rung.ring()

    def close(self) -> None:
        """End all that is open, and at once what is opened from now on."""
        self._closed = True
        for use in [use for uses in self._uses.values() for use in uses]:
            use.end(STOPS)

    async def watch(self) -> None:
        """End what is open when its token is revoked or its login ended, until cancelled."""
        while True:
            rung = self._rung.next
            try:
                await self.look()
            except StorageError as error:
                log.warning("tokens cannot be read, so what is open with one that was revoked stays open: %s", error)
                await asyncio.sleep(_FAILED_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rung.wait(), LOOK_S)

    async def look(self) -> None:
        """End what is open with a credential that is not in force.

        Raises:
            StorageError: The database cannot be read; nothing was ended.
        """
        digests = [digest for digest in self._uses if digest]
        if not digests:
            return
        found = await self._database.read(_of_digests, digests)
        for digest in digests:
            credential = found.get(digest)
            if credential is None or credential.state != "active":
                for use in [*self._uses.get(digest, ())]:
                    use.end(why_not(credential))


def why_not(found: Credential | None) -> str:
    """Why a credential opens nothing that is not in force."""
    return "the token is not known" if found is None else f"the {noun(found)} is {found.state}"


def noun(found: Credential) -> str:
    """What to call it."""
    return "token" if isinstance(found, Token) else "login"


def _of_digests(conn: sa.Connection, digests: Collection[str]) -> dict[str, Credential]:
    return {**tokens.of_digests(conn, digests), **accounts.of_digests(conn, digests)}
