"""What commands share: settings, the state directory, output for people and for programs."""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from app.settings import Settings
    from app.wiring import Place

CANNOT: Final = 2
PENDING: Final = 3
SET_ASIDE: Final = 4

json_option = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON instead of text.")


class Refused(click.ClickException):
    """Raised when a command cannot do what was asked; the message names cause and remedy. Exit code 2."""

    exit_code = CANNOT

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it as every error of ours: one beginning, no trace."""
        click.echo(f"shellback: {self.format_message()}", file=file, err=file is None)


def known_error(error: Exception) -> str | None:
    """The text of an error that names its cause and remedy itself; None for a bug, which deserves its trace."""
    from app.exec.errors import ExecError
    from app.settings import SettingsError
    from app.storage.errors import StorageError
    from app.work.errors import WorkError

    known: tuple[type[Exception], ...] = (ExecError, SettingsError, StorageError, WorkError)
    module = sys.modules.get("app.agent.builtin")
    if module is not None:
        known = (*known, module.ModelUnavailable)
    if isinstance(error, known):
        return str(error)
    return _surroundings(error) or _in_a_driver(error)


_OF_THE_MACHINE: Final = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room in the quota",
    errno.EROFS: "it is read-only: name another place",
    errno.EACCES: "check the owner and the mode",
    errno.EPERM: "check the owner and the mode",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has no file descriptors left: end something",
}


def _surroundings(error: Exception) -> str | None:
    if not isinstance(error, OSError) or error.errno not in _OF_THE_MACHINE:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}: {_OF_THE_MACHINE[error.errno]}, then repeat"


def _in_a_driver(error: Exception) -> str | None:
    """What a database's error means that came through somebody else's connection, say that of DBOS."""
    if "sqlalchemy" not in sys.modules:
        return None
    from app.storage.failures import failure_of
    from app.storage.url import normalised

    with contextlib.suppress(Exception):
        failure = failure_of(error, normalised(load_settings().database_url))
        return str(failure.error) if failure is not None else None
    return None


def me() -> str:
    """The name of whoever runs this program, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid {os.geteuid()}"


def utf8(text: str, what: str) -> str:
    """`text` as it came from a command line, if it was UTF-8 there.

    Raises:
        Refused: It was not.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{what} is not UTF-8: give it as UTF-8 text") from None
    return text


def load_settings() -> Settings:
    """The settings; a wrong one ends the command with its name, value and what is allowed."""
    from app.settings import Settings

    return Settings.load()


@contextlib.contextmanager
def opened(settings: Settings | None = None) -> Generator[Place]:
    """The state directory and database of the settings, open for one command."""
    from app import wiring

    with wiring.place(settings or load_settings()) as where:
        yield where


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows under headings; `columns` maps keys to headings. Values are cut to what a terminal line holds."""
    shown = [[_cell(row.get(key)) for key in columns] for row in rows]
    widths = [max([len(head), *(len(cells[i]) for cells in shown)]) for i, head in enumerate(columns.values())]
    click.echo("  ".join(head.ljust(width) for head, width in zip(columns.values(), widths, strict=True)).rstrip())
    for cells in shown:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = visible(str(value)).replace("\n", "⏎ ").replace("\t", " ")
    return text if len(text) <= 60 else text[:59] + "…"


def visible(text: str) -> str:
    """Text with every control character but newline and tab made visible, so that output cannot drive a terminal."""
    return "".join(
        char if char in "\n\t" or (char.isprintable() and ord(char) not in range(0x200B, 0x2070)) else ascii(char)[1:-1]
        for char in text
    )


def age(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}m"
    if seconds < 86400:
        return f"{seconds / 3600:.1f}h"
    return f"{seconds / 86400:.1f}d"
