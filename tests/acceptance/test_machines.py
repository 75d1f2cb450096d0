"""Hosts, workers and the database on machines of their own, one of which is cut off in the middle."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from chaos.links import Link
from chaos.soak.figures import LATE
from shellback.cli.children import WorkerChild
from shellback.exec.wire import layout
from shellback.storage.tables import conversations
from tests.acceptance.test_elsewhere import PROGRAM, Town
from tests.machines import Machine, machines
from tests.stage import Stage, stage

PORT = 7000
POSTGRES = 5432
EPOCH, HOST = sa.select(conversations.c.epoch), sa.select(conversations.c.host_id)
# A lease ends, and a dead connection is noticed.
pytestmark = pytest.mark.timeout(300)


@dataclass
class Apart:
    """A stage whose programs are begun on `machines`, and reach the database from there."""

    loop: Stage
    url: str
    machines: list[Machine]

    def begin(self, on: Machine, *words: str, **environ: str) -> None:
        whole = {**self.loop.environ, "DATABASE_URL": self.url, **environ}
        made = WorkerChild(self.loop.where, whole, on.inside(*PROGRAM, *words))
        self.loop.workers.append(made)
        made.wait_ready()


@contextmanager
def apart(database_url: str, number: int, **environ: str) -> Generator[Apart]:
    """So many machines beside that of the database; `LISTEN` is at the first one."""
    name, _, directory = database_url.partition("@/")[2].partition("?host=")
    with machines(number + 1) as (database, *others), Link() as link:
        link.at(database.listening(POSTGRES), Path(directory))
        with stage(database_url, **{"LISTEN": f"{others[0].address}:{PORT}", **environ}) as loop:
            loop.patience_s = 200.0
            yield Apart(loop, f"postgresql://postgres@{database.address}:{POSTGRES}/{name}", others)


def test_a_worker_whose_machine_is_cut_off_in_a_call_loses_it_to_another_one_and_writes_nothing_more(
    postgres_url: str,
) -> None:
    with apart(postgres_url, 3) as made:
        loop, (host, first, second) = made.loop, made.machines

        def worker(on: Machine, its: str) -> None:
            town = Town(loop, {"SHELLBACK_HOME": str(loop.root / its), "LISTEN": ""})
            town.joined(its)
            made.begin(on, "worker", "--for", loop.where.host_id, **town.away)

        made.begin(host, "host")
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


def test_a_host_that_is_cut_off_ends_its_commands_before_another_one_continues_in_their_workspace(
    postgres_url: str,
) -> None:
    with apart(postgres_url, 2, WORKSPACE_SHARED="true", HOST_LEASE_SECONDS="60", LISTEN="") as made:
        loop, (here, there) = made.loop, made.machines
        made.begin(here, "worker")
        session = loop.started("$ until [ -e never ]; do sleep 0.05; done &", "never", rest=True)
        made.begin(there, "worker", SHELLBACK_HOME=str(loop.root / "other"))
        ended = loop.home / layout.SESSIONS / session.id / layout.EXIT
        here.unplug()
        loop.until("it moves", lambda: loop.scalars(HOST) != [loop.where.host_id])
        assert json.loads(ended.read_text())["ended_by"] == "lease", "it has ended before"
        loop.until("it is told", loop.at_rest)
        (found,) = loop.sessions()
        assert found.end is not None
        assert found.end.evidence == "host_unreachable"
        assert len(loop.callbacks()) == 1
