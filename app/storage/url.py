"""The database URL: supported databases, and the URL without secrets."""

from __future__ import annotations

from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy import exc

from shellback.storage.errors import DatabaseUnsupported

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_ACCEPTED = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"


def normalised(url: str) -> sa.URL:
    """The URL with the driver that we use: `postgresql://` becomes `postgresql+psycopg://`.

    Raises:
        DatabaseUnsupported: It is malformed, names another database, or is SQLite without a file.
    """
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        # Neither text nor cause is shown: both may contain the password.
        raise DatabaseUnsupported(f"DATABASE_URL is not a URL; write {_ACCEPTED}") from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise DatabaseUnsupported(f"no support for {urlsplit(url).scheme!r} databases; write {_ACCEPTED}")
    if driver == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise DatabaseUnsupported(
            "a SQLite database must be a file: worker and command line share it; write sqlite:///PATH"
        )
    return parsed.set(drivername=driver)


def shown(url: sa.URL) -> str:
    """The URL for people, without password and query."""
    return url.set(query={}).render_as_string(hide_password=True)
