"""kill -9 at armed points of the loop: nothing lost, nothing twice, the status is the kernel's.

Counted from outside: the nonce in the command's own file, DBOS's rows, the answers in the conversation. These are
a few cells of the matrix, one of each kind: `make chaos-quick` has every point, and `make chaos` all of it.
"""

from __future__ import annotations

import json

import pytest

from chaos.cells import TRUE, Cell, Victim, cells, contained_cells, quick_cells
from chaos.story import PATIENCE_S, facts_of, live_through
from tests import images
from tests.databases import unavailable
from tests.nursery import NoNursery, probe_machines
from tests.pods import emptied
from tests.stage import stage

# Its own patience is longer than what a test has.
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)
WORKER_POINTS = ["claim.committed", "exit.committed"]


def assert_clean(database_url: str, victims: tuple[Victim, ...], point: str, *, executed: bool = False) -> None:
    with stage(database_url) as made:
        count = live_through(made, Cell(victims, point), executed=executed)
        assert count.clean, f"{count}\n{json.dumps(facts_of(made), indent=1, default=str)}"


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_killed_at(database_url: str, point: str) -> None:
    assert_clean(database_url, ("worker",), point)


def test_a_worker_that_was_started_as_operators_start_it(sqlite_url: str) -> None:
    assert_clean(sqlite_url, ("worker",), "started.recorded", executed=True)


@pytest.mark.parametrize("point", ["supervisor.forked", "supervisor.record_renamed"])
def test_a_supervisor_killed_at(sqlite_url: str, point: str) -> None:
    assert_clean(sqlite_url, ("supervisor",), point)


@pytest.mark.parametrize("point", ["exit.received"])
def test_a_keeper_killed_at(sqlite_url: str, point: str) -> None:
    assert_clean(sqlite_url, ("keeper",), point)


@pytest.mark.parametrize("point", ["started.recorded"])
def test_worker_and_supervisor_killed_together_at(sqlite_url: str, point: str) -> None:
    assert_clean(sqlite_url, ("worker", "supervisor"), point)


@pytest.mark.parametrize("point", ["exit.finishing"])
def test_the_database_is_held_by_somebody_else_from(sqlite_url: str, point: str) -> None:
    assert_clean(sqlite_url, ("database",), point)


@pytest.mark.parametrize("point", ["started.recorded"])
def test_the_machine_is_started_anew_at(sqlite_url: str, point: str) -> None:
    try:
        probe_machines()
    except NoNursery as error:
        unavailable(str(error))
    assert_clean(sqlite_url, ("machine",), point)


@pytest.mark.parametrize("cell", contained_cells()[:7:3], ids=lambda cell: cell.name)
def test_in_a_container(sqlite_url: str, cell: Cell) -> None:
    images.needed()
    with stage(sqlite_url, BACKEND="podman", PODMAN_IMAGE=str(images.test_rootfs())) as made, emptied(made):
        count = live_through(made, cell)
        assert count.clean, f"{count}\n{json.dumps(facts_of(made), indent=1, default=str)}"


def test_an_end_may_be_lost_only_where_nobody_can_know_it() -> None:
    gone = {"supervisor", "keeper", "machine"}
    excused = [cell for cell in cells() if any(end.startswith("lost") for end in cell.allowed)]
    assert excused
    assert all(gone & set(cell.victims) or cell.point == "keeper.held" for cell in excused)
    for point in ("supervisor.record_renamed", "supervisor.rung", "exit.received", "exit.committed", "wake.entered"):
        assert [cell.allowed for cell in cells() if cell.point == point] == [frozenset({TRUE})] * 7


def test_the_quick_part_has_every_point_and_every_kind_of_victim_on_both_databases() -> None:
    everything = cells()
    assert {cell.point for cell in quick_cells("sqlite")} == {cell.point for cell in everything}
    for database in ("sqlite", "postgres"):
        assert {cell.victims for cell in quick_cells(database)} == {cell.victims for cell in everything}
