"""`send` from a machine without a worker, `--needs`, and `hosts drain`: on Postgres, with a real worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.commands import Result, assert_refused, facts, shellback, told
from tests.stage import Stage, stage

HERE = os.uname().nodename


@pytest.fixture
def loop(postgres_url: str) -> Iterator[Stage]:
    with stage(postgres_url, HOST_LABELS="gpu, linux-arm64") as made:
        yield made


def far(loop: Stage, *words: str) -> Result:
    """A command on another machine with the same database."""
    return shellback(loop, *words, SHELLBACK_HOME=str(loop.root / "far"), HOST_LABELS="")


def test_a_message_from_any_machine_is_answered_on_the_host_with_the_labels(loop: Stage) -> None:
    loop.hire()
    answered = far(loop, "send", "-c", "train", "--needs", "linux-arm64", "--wait", "hello")
    assert answered.returncode == 0, answered.stderr
    assert answered.stderr == "", "no worker is missing: it is on the other machine"
    shown = told(loop, "conversations", "show", "train").stdout
    assert f"placed on {HERE}: label linux-arm64, 48 of 48 slots free; 1 of 1 host(s) fit" in shown
    assert facts(far(loop, "send", "-c", "plain", "--wait", "--json", "hello"))["outcome"] == "answered"


def test_without_a_host_that_fits_a_message_waits_says_why_and_is_answered_once_one_is_there(loop: Stage) -> None:
    worker = loop.hire()
    why = f"waits for a host: no host fits: {HERE} lacks the label tpu"
    assert why in far(loop, "send", "-c", "c1", "--needs", "tpu,gpu", "hello").stderr
    assert "(waits for a host)" in told(loop, "conversations", "show", "c1").stdout
    assert_refused(shellback(loop, "adopt", "conversation", "c1", "--yes"), "has no host to be adopted from", "tpu")
    assert "waiting for a host: c1" in told(loop, "hosts").stdout
    assert f"no host fits: {HERE} lacks the label tpu" in told(loop, "queue", "--wide").stdout
    (unplaced,) = facts(told(loop, "queue", "--json"))["unplaced"]
    assert (unplaced["conversation"], unplaced["unread"]) == ("c1", 1)
    assert facts(told(loop, "conversations", "list", "--json"))[0]["host_id"] == ""
    worker.stop()
    loop.hire(HOST_LABELS="tpu,gpu")
    loop.until("it is placed and answered", loop.answers)


def test_a_host_that_drains_takes_nothing_new_and_its_worker_ends_when_its_process_has_ended(loop: Stage) -> None:
    worker = loop.hire()
    loop.started("$ until [ -e go ]; do sleep 0.1; done &", "until", rest=True)
    for undone in (False, True):
        drained = facts(told(loop, "hosts", "drain", HERE, *(["--undo"] if undone else []), "--json"))
        assert drained == {"host_id": loop.where.host_id, "name": HERE, "draining": not undone}
    said = told(loop, "hosts", "drain", loop.where.host_id[:8]).stdout
    assert "drains: it takes no new conversations" in said
    (host,) = facts(told(loop, "hosts", "--json"))
    assert (host["state"], host["labels"], host["free_slots"]) == ("draining", ["gpu", "linux-arm64"], 48)
    assert "drains" in told(loop, "send", "-c", "new", "hello").stderr
    loop.send("hello again")  # what lives here goes on
    loop.until("it is answered", lambda: len(loop.answers()) > 1)
    assert worker.process.poll() is None
    (loop.workspace / "go").touch()
    assert worker.process.wait(60) == 0
    assert "this host drains, and nothing here needs it any more" in (loop.home / "worker.log").read_text()


def test_a_host_that_is_not_there_cannot_drain(loop: Stage, sqlite_url: str) -> None:
    assert_refused(shellback(loop, "hosts", "drain", "nowhere"), "no host matches 'nowhere'")
    assert_refused(shellback(loop, "hosts", "drain", "x", DATABASE_URL=sqlite_url), "on SQLite there is one host")


@pytest.mark.parametrize("needs", ["a b", ",", "gpu,,x", "ü$"])
def test_what_cannot_be_a_label_is_refused(loop: Stage, needs: str) -> None:
    refused = shellback(loop, "send", "-c", "c1", "--needs", needs, "hello")
    assert refused.returncode == 2
    assert "give labels with commas between them" in refused.stderr
