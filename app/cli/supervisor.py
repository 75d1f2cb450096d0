"""`shellback supervisor`: the parent of every command, as a service of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from shellback.cli.shared import Refused, load_settings

if TYPE_CHECKING:
    from shellback.settings import Settings


@click.command()
@click.option("--check", is_flag=True, help="Only say whether one answers: exit code 0, or 2.")
def supervisor(check: bool) -> None:
    """Run the commands of agents, in the foreground, for workers with SUPERVISOR=external.

    Commands are children of this process and go on whatever happens to workers. It does not end by
    idleness. SIGTERM or Ctrl-C ends the commands, keeps how each one ended for the next worker, and goes;
    SIGHUP lets it go as soon as no command runs, so that whatever watches over it starts the version that
    is installed by then.

    It needs SHELLBACK_HOME and nothing else: no database, no key.

    \b
      shellback supervisor &
      SUPERVISOR=external ENABLE_EXECUTE=true shellback worker
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.link import launch
    from shellback.storage.host import ensure_home

    settings = load_settings()
    if check:
        asyncio.run(_check(settings))
        return
    crash = settings.shellback_crash_points
    launch.become_service(ensure_home(settings.shellback_home), str(crash) if crash else None)


async def _check(settings: Settings) -> None:
    from shellback.exec.core.errors import SupervisorAbsent
    from shellback.wiring import supervision

    client = supervision.supervisor_client(settings, spawn=False)
    try:
        hello = await client.connect()
    except SupervisorAbsent as error:
        raise Refused(f"{error}: start it with `shellback supervisor`") from None
    finally:
        await client.close()
    click.echo(f"one answers: pid {hello['pid']} (of its own namespace), {hello['live']} live session(s)")
