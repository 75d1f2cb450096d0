"""`shellback config`: every setting, its value, and where that came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shellback.cli.shared import json_option, load_settings, print_json, table
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.settings import Settings


@click.command()
@click.option("--changed", is_flag=True, help="Only what is not at its default.")
@json_option
def config(changed: bool, as_json: bool) -> None:
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
    if as_json:
        facts = {"settings": rows, "passed_on": list(found.passed_on), "doubtful": dict(found.doubtful)}
        print_json(facts)
        return
    table(
        [row | {"value": _written(row["value"])} for row in rows],
        {"setting": "SETTING", "value": "VALUE", "from": "FROM"},
    )
    keys = [name for name in found.passed_on if name not in found.doubtful]
    if keys:
        click.echo(f"passed on from .env to model providers: {visible_line(', '.join(keys))}")
    for name, meant in found.doubtful.items():
        click.echo(f"{visible_line(name)} in .env is no setting: {meant} is one. Was that meant?", err=True)


def _written(value: Any) -> str | None:
    """A value as one writes it into `.env`; None where it is empty."""
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
