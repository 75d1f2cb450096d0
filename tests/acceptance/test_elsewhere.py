"""Turns on one machine, their workspaces and processes on another: `host`, `worker --for`, and who may."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.cli.children import WorkerChild
from shellback.cli.shared import Refused
from shellback.exec.reports.callback_text import HEADER
from shellback.storage.tables import workers
from shellback.work.approvals import approvals
from shellback.work.queue.doorbell import Doorbell
from tests.commands import OURS, Result, assert_refused, facts, shellback, told
from tests.machines import free_port
from tests.stage import DIFFERING, Stage, stage

PROGRAM = [sys.executable, "-m", "shellback"]
BEATS = sa.select(workers.c.heartbeat_at).where(workers.c.elsewhere)
"""A worker looks for items as often as its heart beats."""


@dataclass
class Town:
    """A host, and a machine elsewhere that may run its turns."""

    loop: Stage
    away: dict[str, str] = field(default_factory=dict[str, str])

    def host(self, *, differs: str = "") -> WorkerChild:
        """`shellback host`, ready; it `differs` in its version or clock, see `programs/differing.py`."""
        return self._child(differs, {}, "host")

    def worker(self, host: str = "", *, differs: str = "", **environ: str) -> WorkerChild:
        """`shellback worker --for` this host on the other machine, ready; it may differ as `host`."""
        words = ("worker", "--for", host or self.loop.where.host_id[:12])
        return self._child(differs, {**self.away, **environ}, *words)

    def _child(self, differs: str, environ: dict[str, str], *words: str) -> WorkerChild:
        program = [sys.executable, DIFFERING, differs] if differs else PROGRAM
        made = WorkerChild(self.loop.where, {**OURS, **self.loop.environ, **environ}, [*program, *words])
        self.loop.workers.append(made)
        made.wait_ready()
        return made

    def far(self, *words: str, typed: str = "", **environ: str) -> Result:
        """A command on the other machine."""
        whole: dict[str, Any] = {**self.away, **environ}
        return shellback(self.loop, *words, typed=typed, **whole)

    def joined(self, name: str = "builder") -> None:
        invitation = told(self.loop, "hosts", "invite", name).stdout
        done = self.far("hosts", "join", typed=invitation)
        assert done.returncode == 0, done.stderr
        assert f"as {name}: `shellback worker --for {self.loop.where.host_id[:12]}`" in done.stdout


@contextmanager
def listening(database_url: str, **environ: str) -> Generator[Stage]:
    """A machine that is to be a host of this database."""
    with stage(database_url, LISTEN=f"127.0.0.1:{free_port()}", **environ) as made:
        yield made


@pytest.fixture
def town(postgres_url: str) -> Iterator[Town]:
    with listening(postgres_url) as made:
        away = {"SHELLBACK_HOME": str(made.root / "away"), "WORKSPACE_ROOT": str(made.root / "nowhere"), "LISTEN": ""}
        yield Town(made, away)


def test_a_turn_elsewhere_runs_its_commands_on_the_host_after_approval_and_is_woken_by_their_end(town: Town) -> None:
    town.host()
    town.joined()
    town.worker()
    loop = town.loop
    item = loop.send("$ pwd; echo here > made.txt")
    loop.approve()
    assert str(loop.workspace) in loop.answer(item)
    assert (loop.workspace / "made.txt").read_text() == "here\n"
    loop.started("$ echo up-$((8 + 9)); until [ -e go ]; do sleep 0.05; done; exit 7 &", "up-", rest=True)
    loop.answer(loop.send("hello"))
    assert "up-17" in loop.history(), "it is shown what its process has printed"
    (loop.workspace / "go").touch()
    loop.until("it is told", lambda: "exit code 7" in "\n".join(loop.answers()))
    loop.until("at rest", loop.at_rest)
    assert len(loop.callbacks()) == 1
    (row,) = [one for one in facts(told(loop, "workers", "--json")) if one["elsewhere"]]
    assert row["host_id"] == loop.where.host_id
    assert not (loop.root / "nowhere").exists()


def test_readers_at_the_host_hear_at_once_of_what_a_turn_elsewhere_says(town: Town) -> None:
    town.host()
    town.joined()
    worker = town.worker()
    loop = town.loop
    worker.process.send_signal(signal.SIGSTOP)  # so that only the turn can ring
    item = loop.send("hello")

    async def heard() -> None:
        rung, bell = asyncio.Event(), Doorbell(loop.where.home, loop.where.host_id, loop.where.database)
        await bell.read("reader", rung.set)
        worker.process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(rung.wait(), 60)
        await bell.close()

    asyncio.run(heard())
    loop.answer(item)


def test_one_worker_runs_the_turns_of_all_hosts_that_its_machine_has_joined_each_where_its_files_are(
    town: Town, postgres_url: str
) -> None:
    with listening(postgres_url) as second:
        other = Town(second, town.away)
        assert_refused(town.far("worker", "--for", "all"), "has not joined any host", "shellback hosts invite NAME")
        for one in (town, other):
            one.host()
        town.joined()
        worker = town.worker("all")
        items = [one.send("$ pwd; echo here > made.txt", name) for one, name in ((town.loop, "c1"), (second, "c2"))]
        town.loop.approve("c1")
        assert str(town.loop.workspace) in town.loop.answer(items[0])
        waiting = second.turn(items[1])
        assert waiting is not None
        assert waiting["started_at"] is None, "its host has not invited this machine"
        other.joined()
        second.approve("c2")
        assert str(second.workspace) in second.answer(items[1])
        for one in (town.loop, second):
            assert (one.workspace / "made.txt").read_text() == "here\n"
        second.until("it serves both", lambda: set(served(second)) == {town.loop.where.host_id, second.where.host_id})
        assert facts(told(second, "hosts", "revoke", "--json", "builder"))["state"] == "revoked"
        second.until("it serves one", lambda: served(second) == [town.loop.where.host_id])
        assert town.loop.answer(town.loop.send("hello", "c1"))
        assert worker.process.poll() is None


def test_turns_of_all_hosts_share_the_slots_of_their_worker(town: Town, postgres_url: str) -> None:
    with listening(postgres_url) as second:
        whole = [("a", town), ("b", Town(second, town.away))]
        for _, one in whole:
            one.host()
            one.joined()
        items = [(one.loop, one.loop.send("hello", f"{name}{number}")) for number in range(6) for name, one in whole]
        town.worker("all", TURN_SLOTS="3", WAKE_SLOTS="3", OFFLINE_SECONDS="2")
        turns = [on.ended(item) for on, item in items]
        at_once = [sum(one["started_at"] <= turn["started_at"] < one["ended_at"] for one in turns) for turn in turns]
        assert max(at_once) == 3


def test_a_worker_of_all_hosts_hears_of_items_for_as_long_as_it_runs(town: Town) -> None:
    town.host()
    town.joined()
    town.worker("all")
    loop, beats, rung = town.loop, set[float](), list[bool]()
    loop.until("it has looked for its hosts again", lambda: beats.update(loop.scalars(BEATS)) or len(beats) == 4)
    for number in range(6):
        before = loop.scalars(BEATS)
        loop.answer(loop.send("hello", f"c{number}"))
        rung.append(loop.scalars(BEATS) == before)
    assert sum(rung) >= 3, "it finds items only when it looks for them"


def served(on: Stage) -> list[str]:
    """The hosts that the worker elsewhere reaches."""
    (row,) = [one for one in facts(told(on, "workers", "--json")) if one["elsewhere"]]
    return row["serves"]


def test_a_worker_elsewhere_takes_the_items_of_a_host_whose_own_worker_has_no_room(town: Town) -> None:
    loop = town.loop
    loop.hire(WORKER_NAME="own", WAKE_SLOTS="1", FOREGROUND_TIMEOUT="600")
    town.joined()
    item = loop.send("$ until [ -e free ]; do sleep 0.05; done; echo free at last", "full")
    loop.approve("full")
    loop.session("at last")
    town.worker()
    loop.started("$ until [ -e go ]; do sleep 0.05; done; exit 7 &", "-e go")
    loop.until("its turn is over", lambda: loop.no_turn("c1"))
    (loop.workspace / "go").touch()
    loop.until("it is told", lambda: "exit code 7" in "\n".join(loop.answers()))
    assert len(loop.callbacks()) == 1
    assert not loop.no_turn("full"), "its own worker has had no room"
    (loop.workspace / "free").touch()
    assert "free at last" in loop.answer(item)


@pytest.mark.parametrize("seconds", ["+3600", "-3600"])
@pytest.mark.parametrize("whose", ["host", "worker"])
def test_a_clock_that_is_an_hour_off_expires_no_request_and_ends_no_turn(town: Town, whose: str, seconds: str) -> None:
    loop = town.loop
    loop.environ |= {"SWEEP_SECONDS": "0.2", "APPROVAL_TTL": "900", "TURN_MAX_SECONDS": "600"}
    differs = {whose: seconds}
    town.host(differs=differs.get("host", ""))
    town.joined()
    town.worker(differs=differs.get("worker", ""))
    loop.started("$ until [ -e go ]; do sleep 0.05; done; exit 7 &", "-e go")
    (loop.workspace / "go").touch()
    loop.until("it is told", lambda: "exit code 7" in "\n".join(loop.answers()))
    item = loop.send("$ echo up-$((8 + 9))")
    loop.approve()
    assert "up-17" in loop.answer(item)
    assert [one.state for one in loop.read(approvals.find)] == ["used", "used"]


def test_a_worker_elsewhere_of_another_version_is_refused_by_name_and_runs_no_turn(town: Town) -> None:
    host = town.host()
    town.joined()
    with pytest.raises(
        Refused, match=r"is of version \S+ \(protocol \d+\), this worker of v2 \(\d+\): install the same"
    ):
        town.worker(differs="v2")
    everywhere = town.worker("all", differs="v2")
    item = town.loop.send("hello")
    town.loop.until("it says why", lambda: "this worker of v2" in (town.loop.home / "worker.log").read_text())
    waiting = town.loop.turn(item)
    assert waiting is not None
    assert waiting["started_at"] is None
    everywhere.kill()
    town.worker()
    assert town.loop.answer(item)
    assert host.process.poll() is None


def test_host_and_worker_are_upgraded_one_after_the_other_and_nothing_is_lost_or_done_twice(town: Town) -> None:
    loop, sent = town.loop, list[str]()

    def send(when: str) -> str:
        """A message to each of three conversations that go on, and to a new one; the item of the last."""
        items = [loop.send(f"{when}-{name}.", name) for name in ("c1", "c2", "c3", when)]
        sent.extend(f"{when}-{name}." for name in ("c1", "c2", "c3", when))
        return items[-1]

    def log() -> str:
        return (loop.home / "worker.log").read_text()

    host = town.host()
    town.joined()
    worker = town.worker("all", OFFLINE_SECONDS="0.5")
    process = loop.started("$ until [ -e go ]; do sleep 0.05; done; exit 7 &", "-e go", "process", rest=True)
    loop.send("$ echo ran >> ran.txt; until [ -e free ]; do sleep 0.05; done; echo over-$((8 + 9))", "call")
    request = loop.pending("call")
    loop.send("held-by-the-call.", "call")
    sent.append("held-by-the-call.")
    loop.decide(request)
    loop.until("it runs", (loop.workspace / "ran.txt").exists)
    send("before")
    host.stop()
    assert host.process.returncode == 0
    send("without")
    town.host(differs="v2")
    unfit = r"handed on until .* is of version v2 \(protocol \d+\), this worker of shape\S+ \(\d+\): install the same"
    loop.until("it says why", lambda: re.search(unfit, log()))
    between = send("between")
    beats = set[float]()
    loop.until("it has looked for items", lambda: beats.update(loop.scalars(BEATS)) or len(beats) == 3)
    worker.stop()
    assert worker.process.returncode == 0
    town.worker("all", differs="v2")
    after = send("after")
    for name in ("go", "free"):
        (loop.workspace / name).touch()
    loop.until("it is told of the process", lambda: "exit code 7" in "\n".join(loop.answers(conversation="process")))
    loop.until("it is told of the call", lambda: "over-17" in "\n".join(loop.answers(conversation="call")))
    loop.until("at rest", loop.at_rest)
    names = ("c1", "c2", "c3", "before", "without", "between", "after", "process", "call")
    answers = "\n".join(answer for name in names for answer in loop.answers(conversation=name))
    assert {text: answers.count(text) for text in sent} == dict.fromkeys(sent, 1)
    assert answers.count(f"Session {process.id}: exit code 7") == 1
    assert answers.count(HEADER) == 2
    (call,) = (one for one in loop.sessions() if one.id != process.id)
    assert sorted(loop.callbacks()) == sorted(f"EXEC_CALLBACK:{one}" for one in (process.id, call.id))
    assert (loop.workspace / "ran.txt").read_text() == "ran\n"
    version_of = sa.text("select application_version from dbos.workflow_status where workflow_uuid = :id")
    assert [loop.scalars(version_of.bindparams(id=item)) for item in (between, after)] == [["v2"], ["v2"]]


def test_a_host_that_is_told_to_stop_during_a_call_ends_at_once_and_the_next_one_answers_it(town: Town) -> None:
    host = town.host()
    town.joined()
    town.worker()
    loop = town.loop
    item = loop.send("$ echo once >> nonce.txt; until [ -e go ]; do sleep 0.05; done; exit 9")
    loop.approve()
    loop.until("it runs", (loop.workspace / "nonce.txt").exists)
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(20) == 0, "it does not wait for the command (DRAIN_SECONDS is 30)"
    (loop.workspace / "go").touch()
    town.host()
    assert "exit code 9" in loop.answer(item)
    assert (loop.workspace / "nonce.txt").read_text() == "once\n"
    assert len(loop.sessions()) == 1


def test_a_host_that_drains_finishes_its_work_by_a_worker_elsewhere_and_then_both_end(town: Town) -> None:
    host = town.host()
    town.joined()
    worker = town.worker()
    loop = town.loop
    loop.started("$ until [ -e go ]; do sleep 0.05; done; exit 7 &", "sleep", rest=True)
    told(loop, "hosts", "drain", loop.where.host_id[:12])
    told(loop, "send", "hello", "--conversation", "later")
    assert loop.answer(loop.send("hello")), "it is not empty"
    assert not loop.answers(conversation="later"), "it takes nothing new"
    (loop.workspace / "go").touch()
    loop.until("it is told", lambda: "exit code 7" in "\n".join(loop.answers()))
    for one in (host, worker):
        assert one.process.wait(60) == 0
    assert len(loop.callbacks()) == 1


def test_a_denied_call_runs_nothing_and_what_changed_since_the_approval_is_refused(town: Town) -> None:
    town.host()
    town.joined()
    town.worker()
    loop = town.loop
    item = loop.send("$ touch denied.txt")
    loop.decide(loop.pending(), "denied")
    loop.answer(item)
    (loop.workspace / "script.sh").write_text("touch one.txt\n")
    second = loop.send("$ sh ./script.sh", "c2")
    request = loop.pending("c2")
    (loop.workspace / "script.sh").write_text("touch two.txt\n")
    loop.decide(request)
    loop.ended(second)
    loop.until("at rest", loop.at_rest)
    assert {"denied.txt", "one.txt", "two.txt"}.isdisjoint(path.name for path in loop.workspace.iterdir())


@pytest.mark.parametrize("who", ["worker", "host"])
def test_a_command_runs_once_though_its_worker_or_host_is_killed_while_it_runs(town: Town, who: str) -> None:
    host = town.host()
    town.joined()
    worker = town.worker()
    loop = town.loop
    item = loop.send("$ echo ran >> ran.txt; until [ -e go ]; do sleep 0.05; done; echo over")
    loop.approve()
    loop.until("it runs", (loop.workspace / "ran.txt").exists)
    (worker if who == "worker" else host).kill()
    again = town.worker() if who == "worker" else town.host()
    (loop.workspace / "go").touch()
    loop.until("it is told", lambda: re.search(r'"content": ?"[^"]*over\b', loop.history().replace("echo over", "")))
    loop.until("at rest", loop.at_rest)
    assert (loop.workspace / "ran.txt").read_text() == "ran\n"
    assert len(loop.sessions()) == 1
    assert loop.turn(item) is not None
    assert again.process.poll() is None


def test_who_was_not_invited_or_was_revoked_runs_no_turn(town: Town) -> None:
    town.host()
    loop, host_id = town.loop, town.loop.where.host_id
    refused = town.far("worker", "--for", host_id[:12])
    assert_refused(refused, "has not joined host", "shellback hosts invite NAME")
    invitation = facts(told(loop, "hosts", "invite", "--json", "builder"))["invitation"]
    assert facts(town.far("hosts", "join", "--json", typed=invitation))["state"] == "joined"
    assert_refused(town.far("hosts", "join", typed=invitation), "was used or replaced")
    assert_refused(shellback(loop, "hosts", "invite", "builder"), "a machine has joined as 'builder'")
    late = told(loop, "hosts", "invite", "late", "--expires", "1s").stdout
    worker = town.worker()
    loop.answer(loop.send("hello"))
    assert facts(told(loop, "hosts", "revoke", "--json", "builder"))["state"] == "revoked"
    item = loop.send("$ touch never.txt", "c2")
    assert_refused(town.far("hosts", "join", typed=late), "has expired")
    states = {one["name"]: one["state"] for one in facts(told(loop, "hosts", "members", "--json"))}
    assert states == {"builder": "revoked", "late": "expired"}
    worker.kill()
    loop.hire(WORKER_NAME="own")  # of the host itself, beside the process that listens
    loop.approve("c2")
    loop.ended(item)
    loop.until("its own worker did it", (loop.workspace / "never.txt").exists)
