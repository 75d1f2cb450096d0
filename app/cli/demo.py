"""`shellback demo`: a tour with real processes, real queues and two real `kill -9`."""

from __future__ import annotations

import contextlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import click

from shellback.cli.shared import Refused, json_option, print_json
from shellback.cli.tour import Tour
from shellback.exec.core.runner import make_workspace


@click.command()
@json_option
@click.option("--keep", is_flag=True, help="Keep the state directory and the workspace, and say where they are.")
@click.option("--yes", "-y", is_flag=True, help="Answer every question yourself (the default without a terminal).")
def demo(as_json: bool, keep: bool, yes: bool) -> None:
    """A tour that ends by itself in under two minutes: nothing to set up, no key, no server.

    A message; a command that needs approval; a background build that wakes the agent past a
    backlog; then worker and supervisor are killed with kill -9 while a process runs, and nothing
    is lost and nothing runs twice.
    """
    ask = sys.stdin.isatty() and sys.stdout.isatty() and not yes and not as_json
    with _playground(keep=keep, quiet=as_json) as root, Tour(root, narrate=not as_json, ask=ask) as tour:
        facts = tour.walk()
    if as_json:
        print_json(facts)
    wrong = [name for name, held in facts["checks"].items() if not held]
    if wrong:
        raise Refused(f"the tour did not go as promised: {', '.join(wrong)}")


@contextlib.contextmanager
def _playground(*, keep: bool, quiet: bool) -> Generator[Path]:
    """A directory of our own with `home` and a `workspace` that belongs to whoever runs commands."""
    root = Path(tempfile.mkdtemp(prefix="shellback-demo-"))
    root.chmod(0o755)
    (root / "home").mkdir(mode=stat.S_IRWXU)
    make_workspace(root / "workspace")
    try:
        yield root
    finally:
        if keep:
            if not quiet:
                click.echo(f"kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
