"""Through a pgbouncer that pools transactions: the main job goes on, also after the death of its worker."""

from __future__ import annotations

from shellback.exec.core.model import SessionState
from tests.acceptance.test_two_workers import Pair
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
