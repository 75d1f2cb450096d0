"""Whatever happens in whatever order, nothing is lost and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.loop import Bench, live_through, machine, set_up

STORIES = {
    "an item that died before its turn began is closed, and nobody waits behind it": [
        ("say", 2, 0),
        ("an_item_dies", 0, 1),
        ("say", 2, 0),
    ],
    "approved calls do not wait behind an item that is not admitted": [
        ("say", 0, 1),
        ("take_up", 0, 11),
        ("decide", 0, 0),
        ("an_item_dies", 0, 2),
        ("say", 0, 0),
        ("sweep", 0, 0),
    ],
    "a command that needs nobody is claimed before it starts": [("a_round", 1, 0)],
    "an approval that was used is not used again": [("a_round", 1, 4), ("use_an_approval_again", 0, 0)],
    "an end is news though its worker dies with the commit": [
        ("a_round", 1, 0),
        ("a_worker_will_die", 0, 1),
        ("a_process_ends", 0, 3),
    ],
    "an overtaken execution takes nothing": [
        ("say", 0, 4),
        ("take_up", 0, 2),
        ("replay", 0, 11),
        ("say", 0, 4),
        ("go_on", 0, 11),
    ],
    "an overtaken execution starts nothing": [
        ("mean_to_call", 1, 0),
        ("say", 1, 4),
        ("take_up", 0, 3),
        ("go_on", 0, 3),
        ("replay", 0, 2),
        ("go_on", 0, 11),
    ],
    "two workers hear of one end": [
        ("a_round", 1, 0),
        ("a_worker_starts", 7, 11),
        ("a_process_ends", 0, 3),
    ],
    "a command that ran is told of, though its turn is stopped before it could": [
        ("a_round", 8, 4),
        ("a_supervisor_dies", 5, 11),
        ("a_round", 5, 3),
        ("go_on", 3, 4),
        ("stop", 2, 8),
    ],
    "an end that comes while the answer to its start is lost is told": [
        ("mean_to_call", 0, 3),
        ("say", 0, 4),
        ("the_supervisor_does_not_answer", 0, 1),
        ("take_up", 0, 0),
        ("go_on", 0, 7),
        ("go_on", 0, 3),
        ("go_on", 0, 11),
    ],
    "a dead turn is freed though the clock was set back": [
        ("say", 0, 4),
        ("take_up", 0, 2),
        ("an_item_dies", 0, 0),
        ("the_clock_jumps", 0, 5),
        ("sweep", 0, 0),
    ],
    "an overtaken turn that ends during a sweep is the next sweep's": [
        ("mean_to_call", 0, 7),
        ("a_round", 0, 0),
        ("take_up", 0, 6),
        ("time_passes", 0, 0),
        ("replay", 0, 4),
        ("sweep", 0, 0),
    ],
}
"""What has failed once."""


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path) -> Iterator[Bench]:
    with set_up(sqlite_url, tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", STORIES)
def test_what_has_failed_once(bench: Bench, name: str) -> None:
    live_through(bench, STORIES[name])


@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nothing_happens_twice(bench: Bench) -> None:
    profile = settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(machine(bench), settings=profile)
