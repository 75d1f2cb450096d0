"""Shared options and arguments: times, and names for the shell's completion.

Completion is bounded in number and time, and prints nothing, even on errors.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from shellback.cli.shared import handled, load_settings

if TYPE_CHECKING:
    import sqlalchemy as sa

PATIENCE_S: Final = 2.0
NAMES: Final = 100
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])?")


class Moment(click.ParamType[float]):
    """A duration before now, or a time, converted to seconds of the wall clock."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of the wall clock."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if found := _DURATION.fullmatch(text):
            return time.time() - float(found[1]) * _UNITS[found[2] or "s"]
        try:
            return datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{text!r} is neither a duration (90s, 10m, 2h, 3d) nor a time (2026-11-21T10:00)", param, ctx)


class Lasting(click.ParamType[float]):
    """A duration, converted to seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no duration: 90s, 10m, 2h, 30d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


class Labels(click.ParamType[tuple[str, ...]]):
    """Labels of hosts with commas between them, as a tuple."""

    name = "labels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The labels."""
        if isinstance(value, tuple):
            return cast("tuple[str, ...]", value)
        from shellback.settings import LABELS, labels

        if not re.fullmatch(LABELS, str(value).strip()):
            self.fail(f"{value!r}: give labels with commas between them, of letters, digits and . _ -", param, ctx)
        return labels(str(value))


def since_option(text: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The option `--since`; `text` begins its help."""
    return click.option(
        "--since", type=Moment(), metavar="DURATION|TIME", help=f"{text}: 90s, 10m, 2h, or 2026-11-21T10:00."
    )


def conversation_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Conversations whose name begins with `incomplete`."""
    from shellback.storage.tables import conversations

    return _names(conversations.c.id, incomplete)


conversation_option = click.option(
    "--conversation", "-c", metavar="NAME", help="Only this conversation.", shell_complete=conversation_names
)


workspace_option = click.option(
    "--workspace", "-w", metavar="NAME", help="The workspace of a new conversation [default: WORKSPACE_ROOT]."
)


def session_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Sessions whose id begins with `incomplete`, the newest first."""
    from shellback.storage.tables import sessions

    return _names(sessions.c.id, incomplete, newest=sessions.c.created_at)


def container_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Containers whose name begins with `incomplete`."""
    from shellback.storage.tables import workspaces

    return _names(workspaces.c.name, incomplete, workspaces.c.state != "removed")


def request_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Pending approval requests whose id begins with `incomplete`."""
    from shellback.storage.tables import approvals

    return _names(approvals.c.id, incomplete, approvals.c.state == "pending")


def finding_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Open findings whose id begins with `incomplete`."""
    from shellback.storage.tables import findings

    return _names(findings.c.id, incomplete, findings.c.acknowledged_at.is_(None), newest=findings.c.created_at)


def _names(
    column: sa.Column[str], prefix: str, *which: sa.ColumnElement[bool], newest: sa.Column[float] | None = None
) -> list[str]:
    from shellback.storage.db import Database
    from shellback.storage.rows import names

    with contextlib.suppress(Exception), _within(PATIENCE_S):
        # Not `opened`: completion neither makes a state directory nor migrates a database.
        database = Database(load_settings().database_url)
        try:
            if database.dialect != "sqlite" or Path(str(database.url.database)).exists():
                return database.read_now(names, column, prefix, *which, newest=newest, limit=NAMES)
        finally:
            database.close()
    return []


@contextlib.contextmanager
def _within(seconds: float) -> Generator[None]:
    def give_up(_number: int, _frame: Any) -> None:
        raise TimeoutError

    with handled(give_up, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
