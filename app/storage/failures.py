"""Maps errors of the drivers to our errors, and tells whether a repeat may succeed."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

from shellback.storage.errors import DatabaseFull, DatabaseLocked, DatabaseUnreachable, SchemaBehind, StorageError
from shellback.storage.url import shown

_ABORTED: Final = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_BROKEN: Final = frozenset({"57P01", "57P02", "57P03", "53300"})  # shutdown, crash, starting, too many connections

_ROOM: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of ours, and whether the same transaction may succeed when it is repeated (`passing`)."""

    error: StorageError
    passing: bool


def failure_of(error: Exception, url: sa.URL) -> Failure | None:
    """The failure that an error stands for; None if it is an error of the caller, not of the database."""
    broken = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    if url.get_backend_name() == "sqlite":
        found, passing = _sqlite_error(cause, url), False
    else:
        found = _postgres_error(cause, url, broken=broken)
        passing = isinstance(found, DatabaseUnreachable) or getattr(cause, "sqlstate", None) in _ABORTED
    return None if found is None else Failure(found, passing)


def _sqlite_error(cause: object, url: sa.URL) -> StorageError | None:  # noqa: PLR0911 - one return for each condition
    where = shown(url)
    if not isinstance(cause, sqlite3.DatabaseError):
        return None
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseLocked(f"{where} is locked by another process for too long: end what holds it, then repeat")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(url)):
        return DatabaseFull(f"the disk that holds {where} is full: make room, then repeat")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        text = f"{where} is damaged or not a SQLite database: restore a backup or name another file"
        return DatabaseUnreachable(text)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return DatabaseUnreachable(f"{where} cannot be opened or written ({cause}): check the path and its owner")
    if str(cause).startswith(("no such table", "no such column")):
        return SchemaBehind(f"{where} lacks tables of this version ({cause}): run `shellback migrate`")
    return None


def _no_room(url: sa.URL) -> bool:
    # A full disk also causes I/O errors in the files beside the database.
    try:
        found = os.statvfs(os.path.dirname(str(url.database)))
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _ROOM


def _postgres_error(cause: object, url: sa.URL, *, broken: bool) -> StorageError | None:  # noqa: PLR0911
    import psycopg

    if not isinstance(cause, psycopg.Error):
        return None
    where, state = shown(url), cause.sqlstate or ""
    if state in _ABORTED:
        return DatabaseLocked(f"{where} kept aborting a transaction ({_text(cause, url)}): repeat")
    if state == "55P03":
        return DatabaseLocked(f"{where}: a lock was held by another process for too long: end it, then repeat")
    if state == "53100":
        return DatabaseFull(f"the disk that holds {where} is full: make room, then repeat")
    if state in ("42P01", "42703", "3F000"):
        return SchemaBehind(f"{where} lacks tables of this version: run `shellback migrate`")
    connecting = isinstance(cause, psycopg.OperationalError) and not state
    # libpq reports a rejected login without a state.
    if connecting and (
        (cause.pgconn is not None and cause.pgconn.needs_password) or "authentication failed" in str(cause)
    ):
        return DatabaseUnreachable(
            f"Postgres rejected the login to {where}: check user and password in DATABASE_URL ({_text(cause, url)})"
        )
    if broken or connecting or state in _BROKEN or state.startswith("08"):
        text = (
            f"no connection to {where} ({_text(cause, url)}): check that the server runs, and that host, user and "
            "password in DATABASE_URL are right"
        )
        return DatabaseUnreachable(text)
    return None


def _text(cause: BaseException, url: sa.URL) -> str:
    text = (str(cause).splitlines() or [type(cause).__name__])[0]
    return text.replace(str(url.password), "***") if url.password else text
