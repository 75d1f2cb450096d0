"""kill -9 at armed points of the loop: nothing lost, nothing twice, the status is the kernel's.

Counted from outside: the nonce in the command's own file, DBOS's rows, the answers in the conversation. These are
a few cells of the matrix, one of each kind: `make chaos-quick` has every point, and `make chaos` all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import sqlalchemy as sa

from chaos.apart import live_apart
from chaos.cells import LINE, TRUE, Cell, Victim, cells, client_cells, connected_cells, contained_cells, quick_cells
from chaos.clients import live_as_client
from chaos.connections import ENVIRON, live_connected
from chaos.outages import Outage, linked, pooled
from chaos.story import PATIENCE_S, facts_of, live_through
from tests.databases import PostgresServer, unavailable
from tests.nursery import NoNursery, probe_machines
from tests.podmans import contained
from tests.sandboxes import program_needed
from tests.stage import Stage, stage

# Its own patience is longer than what a test has.
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


def assert_clean(made: Stage, cell: Cell, *, executed: bool = False) -> None:
    if cell.is_connected:
        count = live_connected(made, cell)
    elif cell.elsewhere:
        count = live_apart(made, cell)
    else:
        count = live_as_client(made, cell) if "server" in cell.victims else live_through(made, cell, executed=executed)
    assert count.clean, f"{count}\n{json.dumps(facts_of(made), indent=1, default=str)}"


@pytest.mark.parametrize("point", ["claim.committed", "exit.committed"])
def test_a_worker_killed_at(database_url: str, point: str) -> None:
    with stage(database_url) as made:
        assert_clean(made, Cell(("worker",), point))


@pytest.mark.parametrize(
    ("victims", "point"),
    [
        (("supervisor",), "supervisor.forked"),
        (("supervisor",), "supervisor.record_renamed"),
        (("keeper",), "exit.received"),
        (("worker", "supervisor"), "started.recorded"),
        (("database",), "exit.finishing"),  # held by somebody else
        (("machine",), "started.recorded"),
    ],
)
def test_another_victim_at(sqlite_url: str, victims: tuple[Victim, ...], point: str) -> None:
    if victims == ("machine",):
        try:
            probe_machines()
        except NoNursery as error:
            unavailable(str(error))
    with stage(sqlite_url) as made:
        assert_clean(made, Cell(victims, point))


@pytest.mark.parametrize("way", [pooled, linked])
def test_a_commit_whose_answer_is_lost_on_the_way(
    postgres_server: PostgresServer, postgres_url: str, way: Callable[..., AbstractContextManager[tuple[str, Outage]]]
) -> None:
    cell = Cell(("pgbouncer",) if way is pooled else ("link",), "exit.finishing")
    with way(postgres_server, str(sa.make_url(postgres_url).database)) as (url, outage), stage(url) as made:
        count = live_through(made, cell, outage)
        assert count.clean, f"{count}\n{json.dumps(facts_of(made), indent=1, default=str)}"


def test_a_worker_that_was_started_as_operators_start_it(sqlite_url: str) -> None:
    with stage(sqlite_url) as made:
        assert_clean(made, Cell(("worker",), "started.recorded"), executed=True)


@pytest.mark.parametrize("victims", [("worker",), ("worker", "supervisor")], ids="+".join)
def test_an_end_that_a_call_was_told_and_that_is_not_recorded(database_url: str, victims: tuple[Victim, ...]) -> None:
    with stage(database_url) as made:
        assert_clean(made, Cell(victims, "exit.told"))


@pytest.mark.parametrize("cell", client_cells()[2:11:8], ids=lambda cell: cell.name)
def test_around_an_mcp_client(database_url: str, cell: Cell) -> None:
    with stage(database_url) as made:
        assert_clean(made, cell)


@pytest.mark.parametrize(
    ("victims", "point"),
    [(LINE, "start.sent"), (("worker", "host"), "started.recorded"), (("host",), "exit.finishing")],
)
def test_with_a_worker_elsewhere(postgres_url: str, victims: tuple[Victim, ...], point: str) -> None:
    with stage(postgres_url) as made:
        assert_clean(made, Cell(victims, point, elsewhere=True))


@pytest.mark.parametrize("cell", contained_cells()[:7:3], ids=lambda cell: cell.name)
def test_in_a_container(sqlite_url: str, cell: Cell) -> None:
    with contained("podman", sqlite_url) as made:
        assert_clean(made, cell)


@pytest.mark.parametrize("cell", connected_cells()[::3], ids=lambda cell: cell.name)
def test_around_connections(sqlite_url: str, cell: Cell) -> None:
    program_needed("curl")
    with contained("bubblewrap", sqlite_url, **ENVIRON) as made:
        assert_clean(made, cell)


def test_an_end_may_be_lost_only_where_nobody_can_know_it() -> None:
    gone = {"supervisor", "keeper", "machine"}
    everything = cells("postgres")
    excused = [cell for cell in everything if any(end.startswith("lost") for end in cell.allowed)]
    assert excused
    assert all(gone & set(cell.victims) or cell.point == "keeper.held" for cell in excused)
    for point in ("supervisor.record_renamed", "supervisor.rung", "exit.received", "exit.committed", "wake.entered"):
        assert [cell.allowed for cell in everything if cell.point == point] == [frozenset({TRUE})] * 9


def test_the_quick_part_has_every_point_and_every_kind_of_victim_on_both_databases() -> None:
    assert {cell.point for cell in quick_cells("sqlite")} == {cell.point for cell in cells("sqlite")}
    for database in ("sqlite", "postgres"):
        assert {cell.victims for cell in quick_cells(database)} == {cell.victims for cell in cells(database)}
