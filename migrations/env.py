"""Runs revisions on the connection that `shellback.storage.schema` passes in.

On the command line the database is named by `alembic -x url=sqlite:///PATH ...`. Nothing is read from
the environment and no logging is configured.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from shellback.storage.db import Database
from shellback.storage.schema import alembic_options


def _run(conn: sa.Connection) -> None:
    context.configure(connection=conn, **alembic_options())
    with context.begin_transaction():
        context.run_migrations()


def _main() -> None:
    given: sa.Connection | None = context.config.attributes.get("connection")
    if given is not None:
        _run(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise SystemExit("name the database: alembic -x url=sqlite:///PATH ...")
    database = Database(str(url))
    try:
        database.write_now(_run)
    finally:
        database.close()


_main()
