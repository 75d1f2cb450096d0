"""An end that a call was waiting for is told by it, and by nothing else."""

from __future__ import annotations

import json

import sqlalchemy as sa

from shellback.exec.reports.callback_text import HEADER
from tests.stage import Stage, stage


def steps(loop: Stage, item: str) -> list[str]:
    table = "operation_outputs" if loop.where.database.dialect == "sqlite" else "dbos.operation_outputs"
    query = sa.text(f"select function_name from {table} where workflow_uuid = :id order by function_id")

    def look(conn: sa.Connection) -> list[str]:
        return list(conn.execute(query, {"id": item}).scalars())

    return loop.read(look)


def test_an_end_that_process_wait_has_told_wakes_nobody_and_is_not_told_again_in_its_turn(database_url: str) -> None:
    with stage(database_url) as loop:
        loop.hire()
        loop.send("$ until [ -e go ]; do sleep 0.05; done; echo tail of it; exit 6 &")
        loop.approve()
        session = loop.session("tail of it")
        loop.until("the turn that has started it is over", loop.at_rest)
        before = len(loop.answers())
        item = loop.send(f"!process_wait {json.dumps({'session_ids': [session.id], 'timeout': 60})}")
        # After the answer of the model nobody looks for news before the call has returned.
        loop.until("the model has asked to wait", lambda: any("model" in name for name in steps(loop, item)))
        (loop.workspace / "go").touch()
        told = loop.answer(item)
        assert "tail of it" in told
        assert "exit_code" in told
        wake = loop.ended(f"EXEC_CALLBACK:{session.id}")
        loop.until("nothing is left to do", loop.at_rest)
        # Busy: it came while the turn that was waiting had the conversation, and leaves the rest to that.
        assert wake["outcome"] in {"nothing", "busy"}
        assert wake["answer"] is None
        assert not any("model" in name for name in steps(loop, f"EXEC_CALLBACK:{session.id}"))
        assert len(loop.answers()) == before + 1
        assert HEADER not in loop.history()
