"""`shellback migrate`."""

from __future__ import annotations

import click

from shellback.cli.shared import json_option, load_settings, print_json


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 0 when the tables fit, 2 when not.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
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
    if as_json:
        print_json({"database": settings.shown_database, "before": before.value, "after": after.value})
    else:
        click.echo(f"{settings.shown_database}: {before.value} -> {after.value}")
