"""`shellback workers`."""

from __future__ import annotations

from dataclasses import asdict

import click

from shellback.cli.shared import age, json_option, opened, print_json, stamp, table


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that stopped or died.")
@json_option
def workers(everything: bool, as_json: bool) -> None:
    """List workers: who runs turns, where, in which version, and when it was heard of last.

    alive: heard of in the last 15 seconds; silent: not, it hangs or is paused; dead: its process is gone,
    on Postgres its lock; stopped: it said so. LOST counts the turns that others took over in the last day.
    Without one that is alive nothing is answered: `shellback worker` starts one.

    \b
      shellback workers
      shellback workers --all --json
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.hosts import roster

    with opened() as where:
        found = where.database.read_now(roster.look, where.host_id)
        lost = where.database.read_now(roster.lost_turns)
    shown = [one for one in found if everything or one.state in {"alive", "silent"} or one.executor_id in lost]
    if as_json:
        print_json([{**asdict(one), "turns_taken_over": lost.get(one.executor_id, 0)} for one in shown])
        return
    if not shown:
        click.echo(
            "no workers" if everything else "no worker runs: `shellback worker` starts one (--all shows past ones)"
        )
        return
    table(
        [
            {
                **asdict(one),
                "started": stamp(one.started_at),
                "heard": age(one.quiet_s) + " ago",
                "lost": lost.get(one.executor_id),
            }
            for one in shown
        ],
        {
            "executor_id": "EXECUTOR",
            "host_id": "HOST",
            "pid": "PID",
            "state": "STATE",
            "lost": "LOST",
            "heard": "HEARD OF",
            "started": "STARTED",
            "version": "VERSION",
        },
    )
