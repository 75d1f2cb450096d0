"""A host, its workers and the database on machines of their own, one of which is cut off in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from chaos.links import Link
from chaos.soak.figures import LATE
from shellback.cli.children import WorkerChild
from shellback.storage.tables import conversations
from tests.acceptance.test_elsewhere import PROGRAM, Town
from tests.machines import Machine, machines
from tests.stage import stage

PORT = 7000
POSTGRES = 5432
EPOCH = sa.select(conversations.c.epoch)


@pytest.mark.timeout(300)  # a lease ends, and a dead connection is noticed
def test_a_worker_whose_machine_is_cut_off_in_a_call_loses_it_to_another_one_and_writes_nothing_more(
    postgres_url: str,
) -> None:
    name, _, directory = postgres_url.partition("@/")[2].partition("?host=")
    with machines(4) as (database, host, first, second), Link() as link:
        link.at(database.listening(POSTGRES), Path(directory))
        with stage(postgres_url, LISTEN=f"{host.address}:{PORT}") as loop:
            loop.patience_s = 120.0
            far = {"DATABASE_URL": f"postgresql://postgres@{database.address}:{POSTGRES}/{name}"}

            def begin(on: Machine, *words: str, **environ: str) -> WorkerChild:
                made = WorkerChild(loop.where, {**loop.environ, **far, **environ}, on.inside(*PROGRAM, *words))
                loop.workers.append(made)
                made.wait_ready()
                return made

            def worker(on: Machine, its: str) -> None:
                town = Town(loop, {"SHELLBACK_HOME": str(loop.root / its), "LISTEN": ""})
                town.joined(its)
                begin(on, "worker", "--for", loop.where.host_id, **town.away)

            begin(host, "host")
            worker(first, "first")
            item = loop.send("$ echo once >> nonce.txt; until [ -e go ]; do sleep 0.05; done; exit 9")
            loop.approve()
            loop.until("it runs", (loop.workspace / "nonce.txt").exists)
            worker(second, "second")
            (held,) = loop.scalars(EPOCH)
            first.unplug()
            loop.until("the other one has it", lambda: loop.scalars(EPOCH) > [held])
            (loop.workspace / "go").touch()
            assert "exit code 9" in loop.answer(item)
            first.plug()
            log = loop.home / "worker.log"
            loop.until("its late write is refused", lambda: LATE.search(log.read_text()))
            assert len(loop.answers()) == 1
            assert (loop.workspace / "nonce.txt").read_text() == "once\n"
            assert len(loop.sessions()) == 1
