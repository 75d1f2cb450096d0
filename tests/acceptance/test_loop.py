"""The loop from outside: real workers, real queues, real processes, on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stage import Stage, stage, working


@pytest.fixture
def loop(database_url: str) -> Iterator[Stage]:
    with stage(database_url) as made:
        yield made


def test_a_message_is_answered(loop: Stage) -> None:
    loop.hire()
    item = loop.send("hello there")
    assert "hello there" in loop.answer(item)


def test_what_was_approved_runs_once_and_the_agent_tells_its_exit_code(loop: Stage) -> None:
    loop.hire()
    item = loop.send("$ echo nonce >> out.txt; exit 4")
    request = loop.approve()
    assert "exit code 4" in loop.answer(item)
    assert (loop.workspace / "out.txt").read_text() == "nonce\n"
    session = loop.sessions()[0]
    assert session.approval_id == request.id
    assert loop.callbacks() == []


def test_a_background_end_wakes_the_agent_in_its_conversation_once(loop: Stage) -> None:
    loop.hire()
    command = "until [ -e go ]; do sleep 0.05; done; echo tail of it; exit 3"
    session = loop.started(f"$ {command} &\nthen:\nthe build is over", command, rest=True)
    (loop.workspace / "go").touch()
    wake = loop.ended(f"EXEC_CALLBACK:{session.id}")
    assert "exit code 3" in wake["answer"]
    assert "tail of it" in wake["answer"]
    assert "the build is over" in wake["answer"]
    assert wake["priority"] == 10
    assert loop.callbacks() == [f"EXEC_CALLBACK:{session.id}"]


def test_an_exit_that_comes_while_approvals_wait_is_heard_after_them(loop: Stage) -> None:
    loop.hire()
    session = loop.started("$ until [ -e go ]; do sleep 0.05; done; exit 5 &", "exit 5")
    loop.until("the first answer", loop.answers)
    item = loop.send("$ echo held")
    request = loop.pending()
    (loop.workspace / "go").touch()
    assert loop.ended(f"EXEC_CALLBACK:{session.id}")["outcome"] == "busy"
    loop.decide(request)
    loop.until("both are told", lambda: "exit code 5" in "\n".join(loop.answers()))
    assert "held" in "\n".join(loop.answers(since=item))


def test_without_the_gate_there_are_no_tools(sqlite_url: str) -> None:
    with working(sqlite_url, ENABLE_EXECUTE="false") as loop:
        item = loop.send("$ echo hi")
        assert "ENABLE_EXECUTE" in loop.answer(item)
        assert loop.sessions() == []
