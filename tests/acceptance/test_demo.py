"""The demo, judged by its facts and not by its own checks."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from shellback.settings import plain_environment
from tests.commands import PROGRAM, Result, facts
from tests.supervisors import run_to_end


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float, Path]:
    """The facts of one demo, how long it took, and where it kept its files."""
    place = tmp_path_factory.mktemp("demo")
    begun = time.monotonic()
    # Its own directory goes where the uid of commands can enter, so not below this one.
    environ = {**plain_environment(), "ENABLE_EXECUTE": "false", "DATABASE_URL": "mysql://not/used"}
    done = run_to_end(*PROGRAM, "demo", "--json", env=environ, cwd=place, stdin=subprocess.DEVNULL, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return facts(Result(["demo", "--json"], 0, done.stdout, "")), time.monotonic() - begun, place


Toured = tuple[dict[str, Any], float, Path]


def test_it_ends_by_itself_in_under_two_minutes_and_leaves_nothing_where_it_was_called(toured: Toured) -> None:
    _, seconds, place = toured
    assert seconds < 120
    assert list(place.iterdir()) == []


def test_every_command_ran_once_with_the_exit_code_of_its_kernel(toured: Toured) -> None:
    facts, _, _ = toured
    ran = {
        next(word for word in ("note.txt", "build.sh", "nonce.txt") if word in one["command"]): one
        for one in facts["sessions"]
        if one["command"] != "cat note.txt"  # which only reads, and runs where a sandbox can be had
        and not one["command"].startswith("curl ")  # which asks about a host, where that is possible
    }
    assert len(ran) == 3
    assert len(facts["sessions"]) == 3 + (facts["backend"] != "host") + ("host" in facts)
    assert {name: (one["state"], one["exit_code"], one["signal"]) for name, one in ran.items()} == {
        "note.txt": ("exited", 0, None),
        "build.sh": ("exited", 3, None),
        "nonce.txt": ("exited", 7, None),
    }
    assert facts["approval"]["state"] == "used"
    assert facts["approval"]["used_by"] == ran["note.txt"]["id"]
    assert facts["checks"]["command ran once"] is True


def test_each_background_process_has_one_callback_and_one_answer_that_names_its_code(toured: Toured) -> None:
    facts, _, _ = toured
    background = {one["id"]: one["exit_code"] for one in facts["sessions"] if one["background"]}
    calls = [item for item in facts["items"] if item["type"] == "EXEC_CALLBACK"]
    assert sorted(item["id"] for item in calls) == sorted(f"EXEC_CALLBACK:{name}" for name in background)
    assert [item["priority"] for item in calls] == [10] * len(calls)
    for name, code in background.items():
        naming = [item for item in facts["items"] if f"Session {name}: exit code {code}" in (item["answer"] or "")]
        assert len(naming) == 1


def test_the_wake_starts_before_normal_before_low_and_is_answered_while_low_waits(toured: Toured) -> None:
    facts, _, _ = toured
    items = {item["id"]: item for item in facts["items"]}
    order = [items[entry["item"]] for entry in facts["order"]]
    assert [item["started_at"] for item in order] == sorted(item["started_at"] for item in order)
    wake, *rest = order
    assert (wake["type"], wake["priority"]) == ("EXEC_CALLBACK", 10)
    priorities = [item["priority"] for item in rest]
    assert priorities == sorted(priorities)
    assert priorities.count(100) == 2
    low = [item for item in rest if item["priority"] == 1000]
    assert len(low) >= 5
    assert sum(item["started_at"] > wake["ended_at"] for item in low) >= 1
    busy = [item for item in facts["items"] if item["conversation"].startswith("busy-")]
    assert len(busy) == 2
    assert all(item["started_at"] < wake["started_at"] < item["ended_at"] for item in busy)


def test_the_process_that_outlived_both_kills_was_told_by_the_next_worker(toured: Toured) -> None:
    facts, _, _ = toured
    killed = facts["killed"]
    for name in ("worker", "supervisor"):
        assert not os.path.exists(f"/proc/{killed[name]}/exe")
    session = next(one for one in facts["sessions"] if one["id"] == killed["session"])
    assert (session["state"], session["exit_code"]) == ("exited", 7)
    assert facts["checks"]["process outlived both kills"] is True
    assert all(facts["checks"].values())
