"""A small soak: two workers on Postgres, many processes, and each part killed once while they run and end."""

from __future__ import annotations

import random
import time

import pytest

from chaos.soak import ENVIRON, verdict
from chaos.soak.crowd import Crowd, make_tasks
from chaos.soak.staff import Staff
from tests.databases import TEMPLATE, NoPostgres, serving_postgres, unavailable
from tests.stage import stage

PROCESSES = 24
PATIENCE_S = 200.0
KILLS = {4: "worker", 10: "supervisor", 16: "postgres"}
"""Who is killed when so many have ended."""


@pytest.mark.timeout(PATIENCE_S + 60)
def test_what_many_processes_did_is_told_once_whoever_is_killed() -> None:
    rng = random.Random(1)
    try:
        with (
            serving_postgres(durable=True) as server,
            stage(server.url(server.create(TEMPLATE)), **ENVIRON) as made,
            Staff(made, server, rng) as staff,
        ):
            tasks = make_tasks(rng, PROCESSES, first=0, seconds=(0.5, 2.0))
            crowd = Crowd(made, tasks, at_once=12, batch=4, conversations=4)
            due = dict(KILLS)
            deadline = time.monotonic() + PATIENCE_S
            while not (crowd.step() and staff.whole):
                staff.step()
                for ended in [ended for ended in due if crowd.ended >= ended]:
                    staff.kill(due.pop(ended))
                assert time.monotonic() < deadline, f"{crowd.ended} of {PROCESSES} have ended"
                time.sleep(0.1)
            judged = verdict.judge(made, tasks, staff.outages)
    except NoPostgres as error:
        unavailable(str(error))
    assert not due
    assert (judged.sessions, judged.callbacks) == (PROCESSES, PROCESSES), judged.notes
    assert not judged.wrong, judged.notes
