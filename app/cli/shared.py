"""What commands share: exit codes, errors, settings, the state directory, output for people and for programs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import click

from shellback.cli.output import fitted, styled
from shellback.exec.core.display import folded, shown_line

if TYPE_CHECKING:
    from shellback.exec.core.ports import SupervisorPort
    from shellback.settings import Settings
    from shellback.wiring.wiring import Place

T = TypeVar("T")
LOOK_S: Final = 0.05
IDS: Final = frozenset({"ID", "SESSION", "CONNECTED", "SESSION_ID", "REQUEST_ID", "APPROVAL_ID", "HOST ID", "HOST_ID"})
"""Columns with ids of which commands take the beginning."""
LEAST_ID: Final = 6
"""So many characters of an id are shown at least, because rows that are not listed may begin alike."""
LEAST_COLUMNS: Final = 30
"""The last column of a table gets at least so many columns of the terminal before others are left out."""
CUT: Final = "…"
"""Ends a value that is cut."""
Columns = dict[str, str | Callable[[T], object]]
"""The columns of a table by heading: the name of an attribute of a row, or a function of a row."""

DONE: Final = 0
CANNOT: Final = 2
PENDING: Final = 3
SET_ASIDE: Final = 4
FAILED: Final = 5
STOPPED: Final = 6
DENIED: Final = 7
OUT_OF_BUDGET: Final = 8
INTERRUPTED: Final = 130

MEANING: Final = {
    DONE: "done, or answered",
    CANNOT: "cannot be done (the message names cause and remedy)",
    PENDING: "a call waits for approval",
    SET_ASIDE: "the conversation is set aside",
    FAILED: "the turn failed (the answer says why)",
    STOPPED: "a person stopped the turn",
    DENIED: "answered, but a person, a rule or the expiry denied a call",
    OUT_OF_BUDGET: "the turn's requests, tokens or time are used up",
    INTERRUPTED: "ended by Ctrl-C",
}
"""Exit codes, for `--help` and the documents."""
OF_A_FATE: Final = {
    "pending_approval": PENDING,
    "set_aside": SET_ASIDE,
    "failed": FAILED,
    "stopped": STOPPED,
    "denied": DENIED,
    "out_of_budget": OUT_OF_BUDGET,
}
"""The exit code of each outcome of a message; every other outcome is 0."""


def json_flag(text: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The option `--json`, which `wants_json` reads; `text` is its help."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta["json"] = value

    return click.option("--json", is_flag=True, expose_value=False, callback=note, help=text)


json_option = json_flag("Print JSON instead of text.")


def _note_wide(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta["wide"] = value


wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=_note_wide,
    help="Show whole ids and all columns, also those that do not fit.",
)


def lists(rows: str = "") -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The options of a command that lists: `--wide`, `-o` and `--json`, which `show` reads.

    `rows` is the field of its JSON that has what it lists, if that is not the whole.
    """

    def note(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta["rows"] = rows
        ctx.meta["fields"] = tuple(name for part in (value or "").split(",") if (name := part.strip()))

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from shellback.cli.shapes import columns_of

        *before, last = incomplete.split(",")
        *within, begun = last.split(".")
        return [
            ",".join([*before, name])
            for field in columns_of(ctx, rows, within)
            if field.startswith(begun) and (name := ".".join([*within, field])) not in before
        ]

    fields = click.option(
        "-o",
        "--fields",
        metavar="FIELDS",
        expose_value=False,
        callback=note,
        shell_complete=complete,
        help="Show these fields of the JSON instead: id,state; end.exit_code is one within another.",
    )
    return lambda command: wide_option(fields(json_option(command)))


def wants_json() -> bool:
    """Whether `--json` was given to the running command."""
    return (ctx := click.get_current_context(silent=True)) is not None and ctx.meta.get("json", False)


def chosen_fields() -> tuple[str, ...]:
    """The fields that `-o` names."""
    return () if (ctx := click.get_current_context(silent=True)) is None else ctx.meta.get("fields", ())


def wants_facts() -> bool:
    """Whether the running command needs what `--json` prints."""
    return wants_json() or bool(chosen_fields())


class Refused(click.ClickException):
    """Raised when a command cannot do what was asked; the message names cause and remedy. Exit code 2."""

    exit_code = CANNOT

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error as `complain` does, without a trace."""
        complain(self.format_message(), file)


class Commands(click.Group):
    """A group of commands, of which help shows the first sentences whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in found if one is not None])


def complain(text: str, file: IO[Any] | None = None) -> None:
    """Print an error on standard error. Only its first row begins in the first column."""
    first, *more = ("shellback: " + text).split("\n")
    rows = folded([first, *(f"  {line}" for line in more)], columns() if sys.stderr.isatty() else None)
    click.echo("\n".join(rows), file=file, err=file is None, color=True)


def known_error(error: Exception) -> str | None:
    """The text of an error that names its cause and remedy; None for a bug, which gets its trace."""
    from shellback.agent.errors import AgentError
    from shellback.exec.core.errors import ExecError
    from shellback.settings import SettingsError
    from shellback.storage.errors import StorageError
    from shellback.work.errors import WorkError

    known: tuple[type[Exception], ...] = (AgentError, ExecError, SettingsError, StorageError, WorkError)
    if isinstance(error, known):
        return str(error)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return f"{error.object[:100]!a} is not UTF-8: give it as UTF-8 text"
    return _surroundings(error) or _in_a_driver(error)


_OF_THE_MACHINE: Final = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room in the quota",
    errno.EROFS: "choose a path that can be written",
    errno.EACCES: "check the owner and the mode",
    errno.EPERM: "check the owner and the mode",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "end some processes, because the machine has no file descriptors left",
}


def _surroundings(error: Exception) -> str | None:
    if not isinstance(error, OSError) or error.errno not in _OF_THE_MACHINE:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}: {_OF_THE_MACHINE[error.errno]}, then repeat"


def _in_a_driver(error: Exception) -> str | None:
    """The meaning of a database error that came through a connection not ours, for example DBOS's."""
    if "sqlalchemy" not in sys.modules:
        return None
    from shellback.storage.failures import failure_of
    from shellback.storage.url import normalised

    with contextlib.suppress(Exception):
        failure = failure_of(error, normalised(load_settings().database_url))
        return str(failure.error) if failure is not None else None
    return None


def utf8(text: str, what: str) -> str:
    """`text` of the command line, if it was given as UTF-8.

    Raises:
        Refused: It was not UTF-8; `what` names it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{what} is not UTF-8: give it as UTF-8 text") from None
    return text


def load_settings() -> Settings:
    """The settings; a wrong one ends the command and names itself, its value and the allowed values."""
    from shellback.settings import Settings

    return Settings.load()


def lasting_settings() -> Settings:
    """The settings of a command that runs on; other processes read no secret in its environment from now on."""
    from shellback.environment import conceal
    from shellback.settings import plain_names

    settings = load_settings()
    conceal(plain_names())
    return settings


@contextlib.contextmanager
def opened(settings: Settings | None = None) -> Generator[Place]:
    """The state directory and database of the settings, open for one command."""
    from shellback.wiring import wiring

    with wiring.place(settings or load_settings()) as where:
        yield where


def the_one(names: Iterable[str], given: str, what: str) -> str | None:
    """The one of `names` that is `given` or begins with it; None if there is none.

    Raises:
        Refused: Several names begin with `given`; `what` names their kind.
    """
    matching = {name for name in names if given and name.startswith(given)}
    if len(matching) > 1 and given not in matching:
        from shellback.storage.rows import candidates

        raise Refused(candidates(given, what, matching))
    return given if given in matching else next(iter(matching), None)


def until(look: Callable[[], T | None], seconds: float, late: str) -> T:
    """Call `look` until it returns something, and return that.

    Raises:
        Refused: It returned nothing in time; the message is `late`.
    """
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise Refused(late)
        time.sleep(LOOK_S)
    return found


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Generator[None]:
    """Within the block, signals with these numbers call `handler`."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def asked(
    where: Place,
    ask: Callable[[SupervisorPort], Awaitable[T]],
    absent: str = "{error}: start a worker (shellback worker), which starts a supervisor",
) -> T:
    """The answer of this host's supervisors.

    Raises:
        Refused: None runs; the message is `absent` with the error.
    """
    import asyncio

    from shellback.exec.core.errors import SupervisorUnreachable
    from shellback.wiring import supervision

    try:
        return asyncio.run(supervision.ask(where.settings, ask))
    except SupervisorUnreachable as error:
        raise Refused(absent.format(error=error)) from error


def columns() -> int | None:
    """The width of standard output's terminal; None if it is no terminal: then no line is folded."""
    return (os.get_terminal_size(sys.stdout.fileno()).columns or 80) if sys.stdout.isatty() else None


def json_text(value: object) -> str:
    """One JSON document on one line, in printable ASCII."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


def print_json(value: object) -> None:
    """`json_text` on standard output."""
    click.echo(json_text(value))


def show(facts: object, lines: Iterable[str]) -> None:
    """Print `facts` if JSON is wanted, else `lines`, which are only then evaluated; with `-o` only some fields.

    Raises:
        Refused: `-o` names a field that there is not.
    """
    if names := chosen_fields():
        rows = _rows_of(facts, names)
        facts = [{name: _field(row, name) for name in names} for row in rows]
        lines = table_lines(facts, {name.upper(): partial(_shown_field, name) for name in names})
    if wants_json():
        print_json(facts)
        return
    width = None if _wide() else columns()
    for line in lines:
        for row in (row for one in line.split("\n") for row in fitted(one, width)):
            click.echo(row)


def _wide() -> bool:
    return (ctx := click.get_current_context(silent=True)) is not None and ctx.meta.get("wide", False)


def _rows_of(facts: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    ctx = click.get_current_context()
    of = "" if isinstance(facts, list) else ctx.meta["rows"]
    rows = cast("list[dict[str, Any]]", facts[of] if of else facts)
    known = dict.fromkeys(name for row in rows for name in row)
    if not known.keys() >= (wanted := {name.partition(".")[0] for name in names}):
        from shellback.cli.shapes import columns_of

        known |= dict.fromkeys(columns_of(ctx, of))
        if strange := sorted(wanted - known.keys()):
            raise Refused(f"-o: there is no field {shown_line(strange[0])!r}; there are {', '.join(known)}")
    return rows


def _field(row: Any, name: str) -> Any:
    for part in name.split("."):
        row = cast("dict[str, Any]", row).get(part) if isinstance(row, dict) else None
    return row


def _shown_field(name: str, row: dict[str, Any]) -> object:
    value = row[name]
    if name.endswith("_at") and isinstance(value, float):
        return stamp(value)
    if value is None or isinstance(value, bool):
        return None if value is None else str(value).lower()
    return Whole(shown_line(value if isinstance(value, str) else json_text(value)))


class Whole(str):
    """A value of a table that is never cut."""

    __slots__ = ()


Cells = list[list[str]]
"""A table: its headings, then its rows."""


def table_of(rows: Iterable[T], columns: Columns[T]) -> Cells:
    """Rows under headings; long values are cut, and control characters made visible."""
    return [
        [*columns],
        *([_cell(getattr(row, of) if isinstance(of, str) else of(row)) for of in columns.values()] for row in rows),
    ]


def laid_out(parts: Iterable[str | Cells], *, margin: int = 0) -> Iterator[str]:
    """The lines of an answer, which leave a `margin` of columns; names of states in tables are coloured.

    On a terminal, unless `--wide` is given, ids are as short as is unique, and tables have the columns that fit.
    """
    width = None if _wide() or (has := columns()) is None else has - margin
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        part = part if width is None else _abbreviated(part)  # noqa: PLW2901 - the same table
        widths = [max(map(len, column)) for column in zip(*part, strict=True)]
        kept = _fitting(widths, width)
        for number, cells in enumerate(part):
            padded = [cells[at].ljust(widths[at]) for at in kept]
            padded[-1] = padded[-1].rstrip()
            begin = sum(len(cell) + 2 for cell in padded[:-1])
            if width is not None and begin + len(padded[-1]) > width and padded[-1].endswith(CUT):
                padded[-1] = padded[-1][: max(width - begin, 8) - 1] + CUT
            if width is not None and begin + len(padded[-1]) > width:
                yield from folded(["  ".join(padded)], width, hang=begin)
            else:
                yield "  ".join(map(coloured, padded) if number else padded).rstrip()
        if len(kept) < len(widths):
            yield f"--wide also shows {', '.join(head for at, head in enumerate(part[0]) if at not in kept)}"


def _abbreviated(table: Cells) -> Cells:
    """The table with the shortest beginning of each id that no other id of its column has."""
    head, *rows = table
    short = [_short({row[at] for row in rows}) if name in IDS else {} for at, name in enumerate(head)]
    return [head, *([short[at].get(cell, cell) for at, cell in enumerate(row)] for row in rows)]


def _short(ids: Collection[str]) -> dict[str, str]:
    """The shortest unique beginning of each id, but not shorter than `LEAST_ID`."""
    ordered = sorted(ids)
    found: dict[str, str] = {}
    for before, one, after in zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False):
        shared = max(len(os.path.commonprefix([one, other])) for other in (before, after))  # noqa: RUF071 - no paths
        found[one] = one[: max(LEAST_ID, shared + 1)]
    return found


def _fitting(widths: Sequence[int], width: int | None) -> list[int]:
    """The columns that fit: the first and the last one, which say what a row is about, and others in their order."""
    if width is None or len(widths) < 2:
        return [*range(len(widths))]
    left = width - widths[0] - 2 - min(widths[-1], LEAST_COLUMNS)
    kept = [0]
    for at in range(1, len(widths) - 1):
        if widths[at] + 2 <= left:
            left -= widths[at] + 2
            kept.append(at)
    return [*kept, len(widths) - 1]


def table_lines(rows: Iterable[T], columns: Columns[T]) -> list[str]:
    """`table_of` in lines."""
    return [*laid_out([table_of(rows, columns)])]


_COLOURS: Final[dict[str, Literal["green", "yellow", "red"]]] = {
    **dict.fromkeys(("running", "alive", "approved", "used"), "green"),
    **dict.fromkeys(("pending", "blocked", "silent", "draining", "CRITICAL", "HIGH"), "yellow"),
    **dict.fromkeys(("lost", "dead", "set_aside", "failed", "alarm", "denied", "start_failed", "timed_out"), "red"),
}


def coloured(text: str) -> str:
    """The text in the colour of the state that it names, if it names one."""
    colour = _COLOURS.get(text.strip())
    return text if colour is None else styled(text, colour)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Whole):
        return value
    text = shown_line(str(value))
    return text if len(text) <= 60 else text[:59] + CUT


def stamp(moment: float) -> str:
    """A time for people: local date and time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
