"""Two workers of a host, and two hosts: one dies, hangs or comes back; the other goes on, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.cli.children import WorkerChild
from shellback.exec.core.model import Evidence, SessionState
from shellback.storage.tables import events, hosts, notices, turns, workers
from shellback.work.hosts import roster
from shellback.work.queue import standing, stream
from shellback.work.turn.claims import RECOVERIES
from tests.commands import assert_refused, facts, shellback, told
from tests.execs import end_of
from tests.nursery import ForkedWorker
from tests.stage import Stage, stage, working
from tests.supervisors import removed

COUNTING = str(Path(__file__).parent.parent / "programs" / "counting_worker.py")
LEASE_S = "3"
TAKEN_OVER_WITHIN_S = 30.0
ITEM = "APPROVAL:c1:1"
COMMAND = "echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.1; done; exit 7"


class Pair:
    """Workers with names, which note whenever they ask their model."""

    def __init__(self, loop: Stage) -> None:
        self.loop = loop

    def hire(self, name: str, *lease: str, **environ: str) -> WorkerChild:
        worker = self.apply(name, *lease, **environ)
        worker.wait_ready()
        return worker

    def apply(self, name: str, *lease: str, **environ: str) -> WorkerChild:
        environ = {**self.loop.environ, "WORKER_NAME": name, **environ}
        worker = ForkedWorker(self.loop.where, environ, program=COUNTING, arguments=lease)
        self.loop.workers.append(worker)
        return worker

    def asked(self) -> list[str]:
        return (self.loop.home / "asked").read_text().split()

    def executor(self, item: str) -> str:
        return str((self.loop.turn(item) or {}).get("executor_id")).rpartition(".")[2]

    def taken_over_by(self, name: str) -> None:
        self.loop.until(f"{name} has the turn", lambda: self.executor(ITEM) == name)

    def let_it_end(self) -> None:
        (self.loop.workspace / "go").touch()

    def standing(self) -> dict[str, str]:
        found = self.loop.read(roster.look, self.loop.where.host_id)
        return {one.executor_id.rpartition(".")[2]: one.state for one in found}

    def assert_started_once(self) -> None:
        assert (self.loop.workspace / "nonce.txt").read_text() == "nonce\n"
        assert len(self.loop.sessions()) == 1


@pytest.fixture
def pair(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(roster, "LEASE_S", float(LEASE_S))
    with stage(postgres_url, FOREGROUND_TIMEOUT="120") as loop:
        yield Pair(loop)


def test_a_machine_with_a_copy_of_a_state_directory_is_refused_and_told_which_worker_has_it(postgres_url: str) -> None:
    with stage(postgres_url) as loop:
        loop.hire(WORKER_NAME="w1")
        loop.change(sa.update(workers).values(boot_id="another machine/1"))
        refused = shellback(loop, "worker", WORKER_NAME="w2")
        assert_refused(refused, "the id of this host is that of process", "on another machine", "set SHELLBACK_HOME")
        assert loop.ended(loop.send("hello"))["outcome"] == "answered", "the first one goes on"


def test_a_turn_whose_worker_is_killed_is_gone_on_with_by_the_other_within_30_seconds(pair: Pair) -> None:
    loop = pair.loop
    a = pair.hire("a")
    loop.started(f"$ {COMMAND}", "exit 7")
    assert pair.executor(ITEM) == "a"
    pair.hire("b")
    a.kill()
    killed = time.monotonic()
    pair.taken_over_by("b")
    assert time.monotonic() - killed < TAKEN_OVER_WITHIN_S
    pair.let_it_end()
    assert "exit code 7" in loop.until("it is answered", loop.answers)[0]
    turn = loop.ended(ITEM)
    assert (turn["outcome"], turn["executions"]) == ("answered", 2)
    assert pair.asked() == ["a", "b"], "the request answered before the kill is not made again"
    assert loop.callbacks() == []
    pair.assert_started_once()
    assert pair.standing()["a"] == "dead"
    assert list(loop.read(roster.lost_turns).values()) == [1]


@pytest.mark.parametrize("point", [None, "claim.committed", "started.recorded"])
def test_a_worker_that_was_paused_and_comes_back_changes_nothing_and_serves_on(pair: Pair, point: str | None) -> None:
    """Paused while a command of its turn runs, when it is about to start one, and when it has started one."""
    loop = pair.loop
    a = pair.hire("a", LEASE_S)
    if point is not None:
        loop.arm(point, "stop self")
    loop.send(f"$ {COMMAND}{' &' if point else ''}")
    loop.approve()
    if point is None:
        loop.session("exit 7")
        a.process.send_signal(signal.SIGSTOP)
    else:
        loop.until("it is paused", lambda: loop.fired(point))
    b = pair.hire("b", LEASE_S)
    pair.taken_over_by("b")
    if point is not None:
        loop.until("b answers that it runs", loop.answers)
    pair.let_it_end()
    answers = 2 if point else 1
    loop.until("b answers", lambda: len(loop.answers()) == answers and loop.at_rest())
    asked = pair.asked()
    assert pair.standing()["a"] == "silent"
    a.process.send_signal(signal.SIGCONT)
    loop.until("a is back", lambda: pair.standing()["a"] == "alive")
    b.kill()
    item = loop.send("are you well?", "c2")
    loop.until("a answers", lambda: loop.answers(conversation="c2"))
    assert pair.executor(item) == "a"
    assert pair.asked()[: len(asked)] == asked
    loop.until("all is at rest", loop.at_rest)
    assert len(loop.answers()) == answers
    assert len(loop.callbacks()) == answers - 1
    assert len([event for event in loop.read(stream.after, "c1", 0) if event.kind == "answer"]) == answers
    pair.assert_started_once()


def test_an_item_that_ends_each_of_its_workers_is_set_aside_and_what_is_left_serves_on(pair: Pair) -> None:
    loop = pair.loop
    loop.arm("turn.begun")
    pair.hire("a", LEASE_S)
    item = loop.send("poison")
    loop.until("a dies of it", lambda: loop.workers[-1].process.poll() is not None)
    # As if it had killed before, so that it takes two deaths and not five.
    loop.change(sa.update(turns).values(executions=RECOVERIES - 1))
    loop.arm("turn.begun")
    pair.hire("b", LEASE_S)
    loop.until("b dies of it", lambda: loop.workers[-1].process.poll() is not None)
    loop.arm("turn.begun")
    pair.hire("c", LEASE_S)
    assert loop.ended(item)["outcome"] == "failed"
    assert not loop.fired("turn.begun")
    blocked = loop.read(standing.backlog).blocked
    assert [(one.conversation, one.reason, one.unread) for one in blocked] == [("c1", "set_aside", 2)]
    alarms = [event for event in loop.read(stream.after, "c1", 0) if event.kind == "alarm"]
    assert ["set aside" in alarm.payload["text"] for alarm in alarms] == [True]
    (loop.points / "turn.begun").unlink()
    again = loop.send("and now?")
    loop.until("the conversation goes on", lambda: any("poison" in said for said in loop.answers(since=again)))
    os.kill(loop.workers[-1].process.pid, 0)


def silence(loop: Stage, host_id: str, name: str = "first") -> None:
    """Let the last word of this host be older than its lease."""
    changes = {"heartbeat_at": hosts.c.heartbeat_at - 400, "name": name}
    loop.change(sa.update(hosts).where(hosts.c.host_id == host_id).values(changes))


def alarms(loop: Stage) -> list[str]:
    query = sa.select(events.c.payload).where(events.c.kind == "alarm").order_by(events.c.id)
    return [payload["text"] for payload in loop.scalars(query)]


def test_a_host_that_dies_is_given_up_adopted_and_doubles_nothing_when_it_returns(postgres_url: str) -> None:
    with stage(postgres_url) as first, working(postgres_url, NOTIFY_COMMAND="true") as second:
        worker = first.hire()
        session = first.started("$ echo nonce >> nonce.txt; sleep 600 &", "sleep 600", rest=True)
        answers = len(first.answers())
        worker.kill()
        first.kill_supervisor()

        assert_refused(told(second, "adopt", "conversation", "c1", "--yes"), "its lease ends in", "--force")
        silence(first, first.where.host_id)
        first.until("its process is given up", lambda: not first.sessions(live=True))
        (lost,) = first.sessions()
        assert (lost.state, end_of(lost).evidence) == (SessionState.LOST, Evidence.HOST_UNREACHABLE)
        assert first.callbacks() == [f"EXEC_CALLBACK:{session.id}"]
        first.until("the conversation says so", lambda: alarms(first))
        assert "its 1 process(es) of this conversation are given up as lost (host_unreachable)" in alarms(first)[0]
        keys = sa.select(notices.c.dedupe_key)
        first.until("somebody is told", lambda: any("host:" in key for key in first.scalars(keys)))
        assert len(first.answers()) == answers

        sent = told(second, "send", "-c", "c1", "hello from afar")
        assert "lives on host first, which was last heard of" in sent.stderr
        assert "`shellback adopt conversation c1`" in sent.stderr
        assert "first, silent" in told(second, "conversations", "list").stdout
        assert_refused(shellback(second, "adopt", "conversation", "c1"), "without a terminal, confirm with --yes")
        (moved,) = facts(told(second, "adopt", "conversation", "c1", "--yes", "--json"))
        assert moved == {"conversation": "c1", "from_host": first.where.host_id, "lost_sessions": 0}
        second.until("the wake is answered there", lambda: "does not answer" in "\n".join(second.answers()))
        second.until("the message, too", lambda: "hello from afar" in "\n".join(second.answers()))
        assert_refused(told(second, "adopt", "conversation", "c1", "--yes"), "already lives on this host")

        answers = len(first.answers())
        first.hire()
        first.until("the first host is heard of", lambda: first.sessions() and not told(first, "workers").returncode)
        killed = shellback(first, "kill", session.id)
        assert killed.returncode == 0, killed.stderr
        assert "ended, with everything it started" in killed.stdout
        assert_refused(shellback(first, "kill", session.id), "has ended already")
        first.until("everything is at rest", first.at_rest)
        assert first.callbacks() == [f"EXEC_CALLBACK:{session.id}"]
        assert len(first.answers()) == answers
        assert first.sessions()[0].end == lost.end
        assert (first.workspace / "nonce.txt").read_text() == "nonce\n"
        assert len(alarms(first)) == 2


def test_conversations_of_a_state_directory_that_was_deleted_are_adopted_by_its_successor(sqlite_url: str) -> None:
    with stage(sqlite_url) as loop:
        worker = loop.hire()
        loop.answer(loop.send("before"))
        worker.stop()
        loop.until("everything is at rest", loop.at_rest)
        old = loop.where.host_id
        loop.close()
        loop.until("nobody writes there any more", lambda: removed(loop.home))
        loop.workers.clear()
        loop.open()
        assert loop.where.host_id != old
        silence(loop, old)
        loop.send("after")
        assert_refused(told(loop, "adopt", "host", "nowhere", "--yes"), "no other host matches 'nowhere'", old)
        (moved,) = facts(told(loop, "adopt", "host", old[:8], "--yes", "--json"))
        assert moved["from_host"] == old
        loop.hire()
        loop.until("the message is answered", lambda: "after" in "\n".join(loop.answers()))
        assert_refused(told(loop, "adopt", "host", old, "--yes"), "has no conversations")
