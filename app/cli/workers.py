"""`shellback workers`."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from app.cli.shared import age, json_option, opened, print_json, stamp, table


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that stopped or died.")
@json_option
def workers(everything: bool, as_json: bool) -> None:
    """List workers: who runs turns, where, in which version, and when it was heard of last.

    alive: heard of in the last half minute; silent: not; dead: its process is gone; stopped: it said so.
    Without one that is alive nothing is answered: `shellback worker` starts one.

    \b
      shellback workers
      shellback workers --all --json
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from app.work import roster

    with opened() as where:
        found = where.database.read_now(roster.look, where.host_id)
    shown = [one for one in found if everything or one.state in {"alive", "silent"}]
    if as_json:
        print_json([asdict(one) for one in shown])
        return
    if not shown:
        click.echo(
            "no workers" if everything else "no worker runs: `shellback worker` starts one (--all shows past ones)"
        )
        return
    now = time.time()
    table(
        [
            {
                **asdict(one),
                "started": stamp(one.started_at),
                "heard": age(max(0.0, now - one.heartbeat_at)) + " ago",
            }
            for one in shown
        ],
        {
            "executor_id": "EXECUTOR",
            "host_id": "HOST",
            "pid": "PID",
            "state": "STATE",
            "heard": "HEARD OF",
            "started": "STARTED",
            "version": "VERSION",
        },
    )
