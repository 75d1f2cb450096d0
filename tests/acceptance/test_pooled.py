"""Through a pgbouncer that pools transactions: the main job goes on, also after the death of its worker."""

from __future__ import annotations

import signal

import pytest

from shellback.exec.core.model import SessionState
from shellback.work.hosts import roster
from tests.acceptance.test_two_workers import LEASE_S, Pair
from tests.commands import assert_refused, shellback, told
from tests.stage import Stage, stage

COMMAND = "echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.1; done; exit 7"


def said(loop: Stage) -> str:
    return (loop.home / "worker.log").read_text()


def test_a_process_wakes_its_agent_and_a_turn_outlives_its_worker(pooled_url: str) -> None:
    with stage(pooled_url, FOREGROUND_TIMEOUT="120") as loop:
        pair = Pair(loop)
        a = pair.hire("a")
        ended = loop.started("$ exit 3 &", "exit 3", rest=True)
        assert "exit code 3" in loop.answers()[-1]
        assert loop.callbacks() == [f"EXEC_CALLBACK:{ended.id}"]
        loop.send(f"$ {COMMAND}", "c2")
        loop.approve("c2")
        loop.session("exit 7")
        pair.hire("b")
        a.kill()
        item = "APPROVAL:c2:1"
        loop.until("b has the turn", lambda: pair.executor(item) == "b")
        pair.let_it_end()
        loop.until("it is answered", lambda: "exit code 7" in "".join(loop.answers(conversation="c2")))
        assert loop.ended(item)["executions"] == 2
        assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
        assert [one.state for one in loop.sessions()] == [SessionState.EXITED] * 2
        assert said(loop).count("is a pooler and DATABASE_DIRECT_URL is not set") == 2, "each worker says it once"


def test_tables_are_changed_on_postgres_itself(pooled_url: str, postgres_url: str) -> None:
    with stage(pooled_url) as loop:
        assert_refused(
            shellback(loop, "migrate"), "by way of the pooler", "name Postgres itself in DATABASE_DIRECT_URL"
        )
    with stage(pooled_url, DATABASE_DIRECT_URL=postgres_url) as loop:
        assert "current -> current" in told(loop, "migrate").stdout


@pytest.mark.parametrize("url", ["postgres_url", "pooled_url"])
def test_a_worker_that_was_paused_while_another_took_its_name_changes_nothing_and_stops(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LEASE_S", float(LEASE_S))
    with stage(request.getfixturevalue(url), FOREGROUND_TIMEOUT="120") as loop:
        pair = Pair(loop)
        first = pair.hire("a", LEASE_S)
        loop.send(f"$ {COMMAND}")
        loop.approve()
        loop.session("exit 7")
        # As in a copy of the state directory: no lock there says that the first one lives.
        (loop.home / "executors").rename(loop.home / "elsewhere")
        refused = pair.apply("a", LEASE_S)
        assert refused.process.wait(60) == 2
        assert (
            f"a worker with the name {loop.where.host_id + '.a'!r} is already running: process {first.process.pid}"
            in said(loop)
        )

        first.process.send_signal(signal.SIGSTOP)
        loop.until("its lease has ended", lambda: pair.standing()["a"] == "silent")
        second = pair.hire("a", LEASE_S)
        loop.until("its turn is begun again", lambda: (loop.turn("APPROVAL:c1:1") or {})["executions"] == 2)
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(60) == 2
        assert "is no longer held: this worker stops: process" in said(loop)
        pair.let_it_end()
        loop.until("it is answered", lambda: len(loop.answers()) == 1 and loop.at_rest())
        assert loop.ended("APPROVAL:c1:1")["executions"] == 2
        pair.assert_started_once()
        assert second.process.poll() is None
        assert list(pair.standing().values()) == ["alive"]
