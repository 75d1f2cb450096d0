"""`shellback config`, `doctor`, `migrate`, `prune`, `completion`: what Shellback has here, needs, and can let go."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import asdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Refused, json_option, load_settings, opened, show, table_lines, wants_json
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.checks import Check
    from shellback.settings import Settings

_UNITS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_LEAST_S: Final = 3600.0
MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command()
@click.option("--changed", is_flag=True, help="Only what is not at its default.")
@json_option
def config(changed: bool) -> None:
    """Show every setting with its value and where it came from; passwords and keys are not shown.

    The environment wins over .env in the current directory, which wins over the default. Names in .env that
    look like a setting and are none are pointed out; .env.example says what each setting does.

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
    lines = table_lines(rows, {"SETTING": itemgetter("setting"), "VALUE": _written, "FROM": itemgetter("from")})
    if keys:
        lines.append(f"passed on from .env to model providers: {visible_line(', '.join(keys))}")
    facts = {"settings": rows, "passed_on": list(found.passed_on), "doubtful": dict(found.doubtful)}
    show(facts, lines)
    for name, meant in () if wants_json() else found.doubtful.items():
        click.echo(f"{visible_line(name)} in .env is no setting: {meant} is one. Was that meant?", err=True)


def _written(row: dict[str, Any]) -> str | None:
    """The value of a setting as one writes it into `.env`; None where it is empty."""
    value = row["value"]
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
    return None if text is None or text == "" else str(text)


def _values(settings: Settings) -> list[tuple[str, Any, str]]:
    """Name, value fit to be shown, and what is allowed, of every setting."""
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
@click.option("--live", is_flag=True, help="Only whether the worker here is up: heartbeat, queues, supervisor.")
@json_option
def doctor(live: bool) -> None:
    """Look at everything a worker needs and say what is wrong and what to do.

    It changes nothing, except that it makes the state directory. Exit code 0 when nothing fails, 2 otherwise.

    With --live it is quick, and made for a container or a monitor to call again and again.
    """
    from shellback.checks import all_checks, live_checks

    found: list[Check] = (live_checks if live else all_checks)(load_settings())
    failed = any(check.state == "fail" for check in found)
    lines: list[str] = []
    for check in found:
        lines.append(f"{MARKS[check.state]}  {check.name}: {visible_line(check.text)}")
        lines += [f"      {visible_line(check.remedy)}"] if check.remedy else []
    show({"ok": not failed, "checks": [asdict(check) for check in found]}, lines)
    sys.exit(2 if failed else 0)


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 0 when the tables fit, 2 when not.")
@json_option
def migrate(check: bool) -> None:
    """Create or upgrade the tables in DATABASE_URL: ours and those of DBOS.

    Running it again changes nothing. On SQLite every command does it by itself.
    """
    from shellback.storage import schema
    from shellback.wiring import wiring

    settings = load_settings()
    with wiring.place(settings, migrated=False) as where:
        before = schema.check(where.database)
        if check:
            schema.require_current(where.database)
        else:
            if before is schema.SchemaState.BEHIND:
                click.echo(f"migrating {settings.shown_database} …", err=True)
            schema.migrate(settings.database_url)
        after = schema.check(where.database)
    facts = {"database": settings.shown_database, "before": before.value, "after": after.value}
    show(facts, [f"{settings.shown_database}: {before.value} -> {after.value}"])


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes the shell complete commands, options, conversations and sessions.

    \b
      bash: shellback completion bash > ~/.local/share/bash-completion/completions/shellback
      zsh:  shellback completion zsh > a file in a directory of $fpath, named _shellback
      fish: shellback completion fish > ~/.config/fish/completions/shellback.fish
    or, for this shell alone:
      source <(shellback completion bash)
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise Refused(f"this version of click knows no completion for {shell}: install a newer one")
    # Click looks at the version of the bash that is on PATH, if there is one; the script is the same in any case.
    maker = kind(click.get_current_context().find_root().command, {}, "shellback", "_SHELLBACK_COMPLETE")
    click.echo(maker.source_template % maker.source_vars())


class Age(click.ParamType[float]):
    """`12h`, `30d`, `6w` as seconds; an hour at least, because turns that are being repeated need what they left."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse it; what is no age is a usage error."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,5})([hdw])", str(value).strip())
        if found is None or int(found[1]) * _UNITS[found[2]] < _LEAST_S:
            self.fail(
                f"{value!r} is no age: give hours, days or weeks, say 12h, 30d or 6w; 1h is the least", param, ctx
            )
        return int(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--older-than", type=Age(), metavar="AGE", help="Instead of RETAIN_DAYS: 12h, 30d, 6w.")
@json_option
def prune(dry_run: bool, older_than: float | None) -> None:
    """Forget what is old: heard messages, ended turns and sessions, settled approvals, idle conversations.

    Nothing goes that lives, waits or has yet to be heard, and no session before its log. A worker does this by itself
    each hour; both at once is fine.

    \b
      shellback prune --dry-run          what RETAIN_DAYS would let go now
      shellback prune --older-than 7d    all but the last week
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import wiring

    with opened() as where, wiring.retention(where, rows_s=older_than) as retention:
        gone = asyncio.run(retention.planned() if dry_run else retention.once())
    said = ", ".join(f"{number} {name}" for name, number in sorted(gone.items()) if number)
    lines = [f"{'would prune' if dry_run else 'pruned'}: {said or 'nothing'}"]
    show({"dry_run": dry_run, "rows": gone}, lines)
