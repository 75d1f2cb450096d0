"""`shellback` alone on a terminal: what waits, what runs, what is wrong, and what to do about each."""

from __future__ import annotations

from typing import Final

from shellback.cli.asking import asking
from shellback.cli.cards import wrapped
from shellback.cli.shared import laid_out, load_settings
from shellback.exec.core.display import visible_line

NEXT: Final = (
    "`shellback init` sets up, `shellback chat` talks to the agent, `shellback demo` is a tour, `shellback --help`"
    " lists all commands"
)


def lines() -> list[str]:
    """The lines that say what to do now."""
    from shellback.checks import live_checks, verdict

    with asking() as ask:
        waits = ask("requests", conversation=None, everything=False, programs=True)
        runs = ask("processes", conversation=None, everything=False, programs=True)["sessions"]
    rows = [
        ["waits:", str(len(waits)), "shellback approvals list" if waits else "nothing waits for you"],
        ["runs:", str(len(runs)), "shellback ps" if runs else "no process runs"],
    ]
    return [
        *laid_out([rows]),
        f"doctor: {visible_line(verdict(live_checks(load_settings())))}",
        wrapped([NEXT]),
    ]
