"""Names for the shell to complete: bounded in number and time, and silent whatever happens."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import load_settings

if TYPE_CHECKING:
    import sqlalchemy as sa

PATIENCE_S: Final = 2.0
NAMES: Final = 100


def conversation_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Conversations whose name begins so."""
    from shellback.work.queue import standing

    return _names(lambda conn: standing.names(conn, incomplete, NAMES))


conversation_option = click.option(
    "--conversation", "-c", metavar="NAME", help="Only of one conversation.", shell_complete=conversation_names
)


def session_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Sessions whose id begins so, the newest first."""
    from shellback.storage import sessions

    return _names(lambda conn: sessions.ids(conn, incomplete, limit=NAMES))


def workspace_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Containers whose name begins so."""
    from shellback.storage import workspaces

    return _names(lambda conn: workspaces.names(conn, incomplete, limit=NAMES))


def request_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Approval requests that wait and whose id begins so."""
    from shellback.work.approvals import approvals

    return _names(lambda conn: [r.id for r in approvals.find(conn, state="pending") if r.id.startswith(incomplete)])


def finding_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Open findings whose id begins so."""
    from shellback.storage import findings

    return _names(lambda conn: findings.names(conn, incomplete, limit=NAMES))


def _names(look: Callable[[sa.Connection], list[str]]) -> list[str]:
    from pathlib import Path

    with contextlib.suppress(Exception), _within(PATIENCE_S):
        from shellback.storage.db import Database

        # Not `opened`: pressing TAB neither makes a state directory nor migrates anything.
        database = Database(load_settings().database_url)
        try:
            if database.dialect != "sqlite" or Path(str(database.url.database)).exists():
                return database.read_now(look)[:NAMES]
        finally:
            database.close()
    return []


@contextlib.contextmanager
def _within(seconds: float) -> Generator[None]:
    def give_up(_number: int, _frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
