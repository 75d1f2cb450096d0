"""`shellback config`, `doctor`, `migrate`, `prune`, `completion`."""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import (
    CANNOT,
    DONE,
    Refused,
    columns,
    json_option,
    lists,
    load_settings,
    opened,
    show,
    table_lines,
    wants_json,
)
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.checks import Check
    from shellback.settings import Settings

_UNITS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_LEAST_S: Final = 3600.0
MARGIN: Final = "      "
MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command()
@click.option("--changed", is_flag=True, help="Only settings that the environment or .env sets.")
@lists("settings")
def config(changed: bool) -> None:
    """Show every setting, its value and its source; passwords and keys are hidden.

    The environment wins over .env in the current directory, that over .env in the state directory, and that over the
    default. Names in .env that resemble a setting are reported. .env.example explains each setting.

    \b
      shellback config
      shellback config --changed
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.settings import origins

    settings = load_settings()
    found = origins()
    rows = [
        {"setting": name, "value": value, "from": found.of[name], "allowed": allowed}
        for name, value, allowed in _values(settings)
        if not changed or found.of[name] != "default"
    ]
    keys = [name for name in found.passed_on if name not in found.doubtful]
    lines = table_lines(rows, {"SETTING": itemgetter("setting"), "FROM": itemgetter("from"), "VALUE": _written})
    if keys:
        lines.append(f"passed on from .env to model providers: {visible_line(', '.join(keys))}")
    facts = {"settings": rows, "passed_on": list(found.passed_on), "doubtful": dict(found.doubtful)}
    show(facts, lines)
    for name, meant in () if wants_json() else found.doubtful.items():
        click.echo(f"{visible_line(name)} in .env is not a setting: did you mean {meant}?", err=True)


def _written(row: dict[str, Any]) -> str | None:
    """The value of a setting as written in `.env`; None if it is empty."""
    value = row["value"]
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
    return None if text is None or text == "" else str(text)


def _values(settings: Settings) -> list[tuple[str, Any, str]]:
    """Name, value without secrets, and allowed values of every setting."""
    from shellback.settings import shown_url

    shown: list[tuple[str, Any, str]] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name == "database_url":
            value = settings.shown_database
        elif value and not field.repr:
            value = "(hidden)"
        elif value is not None and not isinstance(value, bool | int | float):
            value = shown_url(str(value)) if "://" in str(value) else str(value)
        shown.append((name.upper(), value, field.description or ""))
    return shown


@click.command()
@click.option("--live", is_flag=True, help="Check only whether the worker is up: heartbeat, queues, supervisor.")
@json_option
def doctor(live: bool) -> None:
    """Check everything that a worker needs; name each problem and its remedy.

    The last line says how much is wrong and what to do first. Nothing is changed, except that the state directory is
    created. Exit code 0 if no check fails, else 2.

    --live is quick: use it as the health check of a container or monitor.
    """
    from shellback.checks import all_checks, live_checks

    facts, lines = checked((live_checks if live else all_checks)(load_settings()))
    show(facts, lines)
    sys.exit(DONE if facts["ok"] else CANNOT)


def checked(found: Sequence[Check]) -> tuple[dict[str, Any], list[str]]:
    """The results of checks: for programs, and as lines for people."""
    from shellback.checks import verdict

    lines: list[str] = []
    for check in found:
        lines += _rows(f"{MARKS[check.state]}  {check.name}: {visible_line(check.text)}")
        lines += _rows(f"{MARGIN}{visible_line(check.remedy)}") if check.remedy else []
    lines += _rows(visible_line(verdict(found)))
    fails = any(check.state == "fail" for check in found)
    return {"ok": not fails, "checks": [asdict(check) for check in found]}, lines


def _rows(text: str) -> list[str]:
    """A line of a check, on a terminal in rows that end with a word."""
    width = columns()
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width, 20), subsequent_indent=MARGIN, break_on_hyphens=False)


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 0 if the tables are current, else 2.")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Then copy everything from this SQLite file, which is only read.",
)
@json_option
def migrate(check: bool, source: Path | None) -> None:
    """Create or upgrade the tables in DATABASE_URL: those of Shellback and of DBOS.

    Running it again changes nothing. On SQLite every command migrates by itself.

    --from moves from SQLite to Postgres: stop worker, serve and mcp, and name the empty database in DATABASE_URL. All
    conversations, processes, rules, accounts and waiting items are copied, or none.

    \b
      shellback migrate
      shellback migrate --from ~/.local/state/shellback/shellback.db
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.storage import schema
    from shellback.wiring import wiring

    if check and source is not None:
        raise click.UsageError("--check changes nothing, and --from copies: give one of them")
    settings = load_settings()
    copied: dict[str, int] | None = None
    with wiring.place(settings, migrated=False) as where:
        before = schema.check(where.database)
        if check:
            schema.require_current(where.database)
        else:
            if before is schema.SchemaState.BEHIND:
                click.echo(f"migrating {settings.shown_database} …", err=True)
            schema.migrate(settings.database_url, settings.database_direct_url)
        after = schema.check(where.database)
        if source is not None:
            copied = wiring.transferred(where, source)
    facts = {"database": settings.shown_database, "before": before.value, "after": after.value}
    lines = [f"{settings.shown_database}: {before.value} -> {after.value}"]
    if copied is not None:
        lines.append(f"rows copied: {sum(copied.values())}, of conversations: {copied['conversations']}")
    show(facts if copied is None else {**facts, "copied": copied}, lines)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell: it completes commands, options, names, ids, and the fields of `-o`.

    \b
      bash: shellback completion bash > ~/.local/share/bash-completion/completions/shellback
      zsh:  shellback completion zsh > DIR/_shellback, where DIR is in $fpath
      fish: shellback completion fish > ~/.config/fish/completions/shellback.fish
    or, for this shell alone:
      source <(shellback completion bash)
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise Refused(f"the installed version of click has no completion for {shell}: install a newer one")
    # Click checks the version of bash on PATH; the script does not depend on it.
    maker = kind(click.get_current_context().find_root().command, {}, "shellback", "_SHELLBACK_COMPLETE")
    # The function of fish cuts a completion at its first comma, and lists of fields have some.
    click.echo((maker.source_template % maker.source_vars()).replace("string split ", "string split --max 1 "))


class Age(click.ParamType[float]):
    """`12h`, `30d`, `6w` as seconds; at least an hour, because turns that are replayed need their rows."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; any other text is a usage error."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,5})([hdw])", str(value).strip())
        if found is None or int(found[1]) * _UNITS[found[2]] < _LEAST_S:
            self.fail(
                f"{value!r} is not an age: give hours, days or weeks, for example 12h, 30d or 6w; at least 1h",
                param,
                ctx,
            )
        return int(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@click.option("--older-than", type=Age(), metavar="AGE", help="Use this age instead of RETAIN_DAYS: 12h, 30d, 6w.")
@json_option
def prune(dry_run: bool, older_than: float | None) -> None:
    """Delete old data: heard messages, ended turns and sessions, settled approvals, idle conversations.

    Live, waiting and unheard data is kept. A session is kept until its log is deleted. A worker prunes every hour;
    running this command at the same time is safe.

    \b
      shellback prune --dry-run          what RETAIN_DAYS would delete now
      shellback prune --older-than 7d    delete everything older than a week
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import wiring

    with opened() as where, wiring.retention(where, rows_s=older_than) as retention:
        gone = asyncio.run(retention.planned() if dry_run else retention.once())
    said = ", ".join(f"{number} {name}" for name, number in sorted(gone.items()) if number)
    lines = [f"{'would prune' if dry_run else 'pruned'}: {said or 'nothing'}"]
    show({"dry_run": dry_run, "rows": gone}, lines)
