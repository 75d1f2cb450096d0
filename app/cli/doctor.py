"""`shellback doctor`: what works here, what does not, and how to mend it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shellback.cli.shared import json_option, load_settings, print_json
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.checks import Check

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command()
@click.option("--live", is_flag=True, help="Only whether the worker here is up: heartbeat, queues, supervisor.")
@json_option
def doctor(live: bool, as_json: bool) -> None:
    """Look at everything a worker needs and say what is wrong and what to do.

    It changes nothing, except that it makes the state directory. Exit code 0 when nothing fails, 2 otherwise.

    With --live it is quick, and made for a container or a monitor to call again and again.
    """
    from shellback.checks import all_checks, live_checks

    found: list[Check] = (live_checks if live else all_checks)(load_settings())
    failed = any(check.state == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": [check.to_json() for check in found]})
    else:
        for check in found:
            click.echo(f"{MARKS[check.state]}  {check.name}: {visible_line(check.text)}")
            if check.remedy:
                click.echo(f"      {visible_line(check.remedy)}")
    sys.exit(2 if failed else 0)
