"""Each view of what only a worker keeps up to date says how old it is, once none is alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.commands import facts, told
from tests.stage import Stage, stage

VIEWS = (
    ("ps",),
    ("ps", "--all"),
    ("queue",),
    ("approvals", "list"),
    ("conversations", "list"),
    ("conversations", "show", "waits"),
    ("events",),
)
OLD = "no worker of this host is alive: this is as it was"


@pytest.fixture(scope="module")
def left() -> Iterator[Stage]:
    """What a worker left that was killed: a process that it took to run, and a request."""
    with stage() as made:
        made.hire()
        made.send("$ touch waits.txt", "waits")
        made.pending("waits")
        for view in VIEWS:
            done = told(made, *view)
            assert OLD not in done.stdout + done.stderr
            assert all(one["data_age_s"] == 0 for one in ages(made, *view))
        made.workers[0].process.kill()
        made.workers[0].process.wait()
        yield made


def ages(place: Stage, *view: str) -> list[dict[str, Any]]:
    if view[0] == "events":
        return []
    found = facts(told(place, *view, "--json"))
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else [found]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_view_says_how_old_it_is_once_its_worker_was_killed(left: Stage, view: tuple[str, ...]) -> None:
    done = told(left, *view)
    assert OLD in done.stdout + done.stderr
    assert all(one["data_age_s"] > 0 for one in ages(left, *view))


@pytest.mark.parametrize("view", [("queue",), ("ps",)], ids=" ".join)
def test_where_no_worker_has_ever_run_a_view_says_that(view: tuple[str, ...]) -> None:
    with stage() as empty:
        empty.send("hello", "a")
        assert "no worker has run here" in told(empty, *view).stdout
        assert [one["data_age_s"] for one in ages(empty, *view)] == [None]
