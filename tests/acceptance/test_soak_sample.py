"""A small soak: workers on Postgres, many processes, and each part harmed once while they run and end."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext

import pytest

from chaos.soak import ENVIRON, verdict
from chaos.soak.crowd import Crowd, make_tasks
from chaos.soak.staff import Staff, town
from tests.databases import TEMPLATE, NoPostgres, pooling, serving_postgres, unavailable

PROCESSES = 24
PATIENCE_S = 200.0
HARMS = [
    (1, 0, ("worker", "supervisor", "postgres")),
    (2, 0, ("link", "pause", "pooler")),
    (2, 0, ("upgrade", "upgrade", "upgrade", "upgrade")),
    (2, 2, ("worker", "reach", "still supervisor", "still postgres")),
]
"""The number of hosts and of workers elsewhere, and who is harmed, one after another as processes end."""


@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize(
    ("number", "elsewhere", "harms"), HARMS, ids=lambda part: part if isinstance(part, int) else "-".join(part)
)
def test_what_many_processes_did_is_told_once_whoever_is_harmed(
    number: int, elsewhere: int, harms: tuple[str, ...]
) -> None:
    rng = random.Random(1)
    try:
        with (
            serving_postgres(durable=True) as server,
            pooling(server) if number > 1 else nullcontext() as pooler,
            town(server, server.create(TEMPLATE), number, 2, pooler, False, elsewhere, **ENVIRON) as hosts,
            Staff(hosts, server, rng, pooler=pooler, upgrades="upgrade" in harms) as staff,
        ):
            tasks = make_tasks(rng, PROCESSES, first=0, seconds=(0.5, 2.0))
            crowd = Crowd([host.stage for host in hosts], tasks, at_once=12, batch=4, conversations=4)
            due: dict[int, str] = {4 + 5 * number: harm for number, harm in enumerate(harms)}
            deadline = time.monotonic() + PATIENCE_S
            while not (crowd.step() and staff.whole):
                staff.step()
                for ended in [ended for ended in due if crowd.ended >= ended]:
                    staff.kill(due.pop(ended))
                assert time.monotonic() < deadline, f"{crowd.ended} of {PROCESSES} have ended"
                time.sleep(0.1)
            judged = verdict.judge(hosts[0].stage, tasks, staff.outages)
    except NoPostgres as error:
        unavailable(str(error))
    assert not due
    released = {post.release for post in staff.posts}
    assert released == ({1} if "upgrade" in harms else {0}), "each worker is of the next version now"
    assert (judged.sessions, judged.callbacks) == (PROCESSES, PROCESSES), judged.notes
    assert not judged.wrong, judged.notes
