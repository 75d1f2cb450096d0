"""kill -9 at armed points of the loop: nothing lost, nothing twice, the status is the kernel's.

Counted from outside: the nonce in the command's own file, DBOS's rows, the answers in the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from app.exec.model import SessionState
from chaos.cells import NEVER_STARTED, SUPERVISOR_POINTS, WORKER_POINTS
from tests.stage import Stage, stage

BOTH_POINTS = [
    "claim.committed",
    "start.sent",
    "start.answered",
    "started.recorded",
    "tool.returned",
    "turn.closing",
    "exit.received",
    "exit.finishing",
    "exit.committed",
    "wake.entered",
]


@pytest.fixture
def loop(database_url: str) -> Iterator[Stage]:
    with stage(database_url) as made:
        yield made


@pytest.fixture
def sqlite_loop(sqlite_url: str) -> Iterator[Stage]:
    """For deaths that the database hardly sees; `make chaos` has them on Postgres too."""
    with stage(sqlite_url) as made:
        yield made


def run_through(loop: Stage, code: int) -> str:
    """Send, approve, follow to the answer of the wake; workers that die are replaced. Returns the session id."""
    if not loop.workers:
        loop.hire()
    loop.send(f"$ echo nonce >> nonce.txt; sleep 0.7; echo over; exit {code} &")
    approved = False
    answered = f"exit code {code}"

    def step() -> str | None:
        nonlocal approved
        if loop.workers[-1].process.poll() is not None:
            loop.hire()
        if not approved and (pending := loop.requests()):
            loop.decide(pending[0])
            approved = True
        done = [session for session in loop.sessions() if session.end is not None]
        if done and any(answered in answer or "lost" in answer for answer in loop.answers()):
            return done[0].id
        return None

    return loop.until("the wake is answered", step)


def assert_exactly_once(loop: Stage, session_id: str, code: int) -> None:
    assert [session.id for session in loop.sessions()] == [session_id]
    session = loop.sessions()[0]
    assert session.end is not None
    assert (session.state, session.end.exit_code) == (SessionState.EXITED, code)
    assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
    assert loop.callbacks() == [f"EXEC_CALLBACK:{session_id}"]
    loop.until("the conversation is at rest", loop.at_rest)
    telling = [answer for answer in loop.answers() if re.search(rf"exit code {code}\b", answer)]
    assert len(telling) == 1


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_killed_at(loop: Stage, point: str) -> None:
    loop.arm(point)
    session_id = run_through(loop, 7)
    assert loop.fired(point)
    assert_exactly_once(loop, session_id, 7)


@pytest.mark.parametrize("point", SUPERVISOR_POINTS)
def test_a_supervisor_killed_at(sqlite_loop: Stage, point: str) -> None:
    loop = sqlite_loop
    loop.arm(point)
    session_id = run_through(loop, 8)
    assert loop.fired(point)
    if point in NEVER_STARTED and loop.sessions()[0].state is SessionState.LOST:
        assert not (loop.workspace / "nonce.txt").exists()
        assert loop.callbacks() == [f"EXEC_CALLBACK:{session_id}"]
    else:
        assert_exactly_once(loop, session_id, 8)


@pytest.mark.parametrize("point", BOTH_POINTS)
def test_worker_and_supervisor_killed_together_at(sqlite_loop: Stage, point: str) -> None:
    """The worker kills the supervisor, then itself, both with kill -9."""
    loop = sqlite_loop
    loop.hire()
    supervisor, _ = loop.supervisor_pids()
    loop.arm(point, f"kill {supervisor}\nkill self")
    session_id = run_through(loop, 9)
    assert loop.fired(point)
    assert_exactly_once(loop, session_id, 9)
