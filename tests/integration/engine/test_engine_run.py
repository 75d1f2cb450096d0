"""Commands through the engine and a real supervisor: results, ends, hand-overs."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from pathlib import Path

import pytest

from shellback.exec.core import limits
from shellback.exec.core.base import Plan
from shellback.exec.core.errors import (
    CheckTimedOut,
    InvalidCommand,
    LimitReached,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.core.model import CommandSpec, Delivery, EndedBy, Session, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.link.supervised import Seen
from shellback.exec.log.mask import Mask
from shellback.exec.reports.render import outcome_text
from tests.execs import (
    GATE,
    Told,
    end_of,
    granted,
    launch,
    let_go,
    origin,
    places,
    printed,
    run,
    running,
    running_engine,
    spec,
    unstarted_engine,
)
from tests.supervisors import SOON, cancelled, raising, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


async def test_output_exit_code_and_facts_of_a_foreground_command(engine: Engine) -> None:
    outcome = await run(engine, "echo out; echo err >&2; exit 3")
    end = end_of(outcome.session)
    assert (end.state, end.exit_code, end.signal) == (SessionState.EXITED, 3, None)
    assert outcome.output.text == "out\nerr\n"
    assert not outcome.handed_over
    text = outcome_text(outcome)
    assert text.startswith("out\nerr\n[exit code 3, ")
    assert text.endswith(f"session {outcome.session.id}]")


async def test_what_a_command_prints_at_once_is_read_with_the_secrets_of_its_start(engine: Engine) -> None:
    secret, asked = secrets.token_hex(16), threading.Event()

    def values() -> list[tuple[str, str]]:
        asked.wait(0.3)  # files are read, which takes a while
        return [("NEW", secret)]

    engine.mask = Mask("mask", values)
    outcomes = await asyncio.gather(*(run(engine, f"echo {secret}") for _ in range(2)))
    assert [outcome.output.text for outcome in outcomes] == ["[secret NEW]\n"] * 2


async def test_a_foreground_result_is_settled_and_no_callback_tells_it(engine: Engine, told: Told) -> None:
    outcome = await run(engine, "true")
    stored = await engine.store.get(outcome.session.id)
    assert stored is not None
    assert stored.delivery is Delivery.SETTLED
    assert told.sessions == []


async def test_streams_apart_where_asked(engine: Engine) -> None:
    outcome = await run(engine, "echo out; echo err >&2", separate_stderr=True)
    assert outcome.err is not None
    assert (outcome.output.text, outcome.err.text) == ("out\n", "err\n")


async def test_a_signal_is_a_signal_and_not_a_number(engine: Engine) -> None:
    outcome = await run(engine, "kill -KILL $$")
    end = end_of(outcome.session)
    assert (end.state, end.exit_code, end.signal) == (SessionState.SIGNALED, None, 9)
    assert "[ended by signal SIGKILL, " in outcome_text(outcome)


async def test_a_timeout_is_a_result_with_its_partial_output(engine: Engine) -> None:
    outcome = await run(engine, "echo partial; sleep 600", timeout=2.0)
    assert (outcome.session.state, end_of(outcome.session).ended_by) == (SessionState.TIMED_OUT, EndedBy.TIMEOUT)
    assert outcome.output.text == "partial\n"
    assert "[timed out and stopped (signal SIGTERM), " in outcome_text(outcome)


async def test_the_environment_is_built_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_backend: str) -> None:
    monkeypatch.setenv("OUR_SECRET", "x")
    async with running_engine(tmp_path) as engine:
        outcome = await run(engine, "env", env={"GIVEN": "1"})
        # A sandbox has a home of its own, the host's is not for commands.
        home = engine.backend.private_home("talk")
    lines = set(outcome.output.text.splitlines())
    assert {"GIVEN=1", f"HOME={home}", "TERM=dumb"} <= lines
    assert any(line.startswith(f"SHELLBACK_SESSION={outcome.session.id}@") for line in lines)
    assert not any("OUR_SECRET" in line for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has somebody to become")
async def test_as_root_commands_run_as_somebody_else(each_backend: str, engine: Engine) -> None:
    outcome = await run(engine, "id -u; cat /etc/shadow")
    assert outcome.output.text.startswith("65534\n")
    # What a sandbox does not need is not there at all.
    assert ("Permission denied" if each_backend == "host" else "No such file") in outcome.output.text


async def test_long_output_is_shown_from_both_ends_and_the_rest_can_be_read(engine: Engine) -> None:
    outcome = await run(engine, "seq 1 100000")
    text = outcome_text(outcome)
    assert outcome.output.bytes_total == 588_895
    assert len(outcome.output.text) <= limits.RESULT_CHARS
    assert text.startswith("1\n2\n")
    assert "99999\n100000\n[exit code 0" in text
    assert f"{outcome.output.bytes_shown:,} of 588,895 bytes shown, 0 dropped for good" in text
    _, lines = await Sessions(engine, "talk").log_lines(outcome.session.id, 50_000, 2)
    assert (lines.text, lines.lines_total) == ("50001\n50002\n", 100_000)


async def test_the_log_is_linked_in_the_workspace_and_ignored_by_git(engine: Engine) -> None:
    outcome = await run(engine, "echo hello")
    link = engine.workspace / ".tmp" / "exec" / f"{outcome.session.id}.log"
    assert str(link) == outcome.session.log_path
    await until(link.is_symlink)
    assert link.read_text() == "hello\n"
    assert (engine.workspace / ".tmp" / ".gitignore").read_text() == "*\n"


async def test_a_background_command_returns_at_once_and_tells_its_end_once(engine: Engine, told: Told) -> None:
    session = await launch(engine, "read -r _; echo done; exit 7", keep_stdin_open=True)
    assert (session.state, session.delivery) == (SessionState.RUNNING, Delivery.CALLBACK)
    assert session.pid is not None
    assert told.sessions == []
    await Sessions(engine, "talk").write(session.id, b"go\n", origin(), tool="process_write")
    ended = await engine.wait(session.id, up_to=60)
    assert end_of(ended).exit_code == 7
    assert [one.id for one in told.sessions] == [session.id]


async def test_yield_after_hands_over_once_and_the_callback_tells_the_end(engine: Engine, told: Told) -> None:
    outcome = await run(engine, f"echo begun; {GATE}; echo done; exit 4", yield_after=0.1)
    assert outcome.handed_over
    assert (outcome.session.state, outcome.session.delivery) == (SessionState.RUNNING, Delivery.CALLBACK)
    assert "still running and moved to the background" in outcome_text(outcome)
    let_go(engine)
    ended = await engine.wait(outcome.session.id, up_to=60)
    assert end_of(ended).exit_code == 4
    assert [(one.id, one.end and one.end.exit_code) for one in told.sessions] == [(outcome.session.id, 4)]


async def test_cancelling_a_foreground_wait_leaves_the_process_and_hands_it_over(engine: Engine, told: Told) -> None:
    task = asyncio.create_task(run(engine, f"{GATE}; exit 9", timeout=60))
    live = await running(engine)
    await cancelled(task)
    let_go(engine)
    ended = await engine.wait(live[0].id, up_to=60)
    assert end_of(ended).exit_code == 9
    assert [one.id for one in told.sessions] == [live[0].id]


async def test_a_wait_that_is_cut_off_after_the_engine_stopped_is_left_to_a_repeat_of_the_call(tmp_path: Path) -> None:
    engine = unstarted_engine(*places(tmp_path))
    await engine.start()
    task = asyncio.create_task(run(engine, GATE, timeout=60))
    live = await running(engine)
    await engine.stop()
    before = asyncio.all_tasks()
    await cancelled(task)
    # Whoever stopped the engine ends the loop next; a task would be destroyed in the midst of its work.
    assert asyncio.all_tasks() <= before
    stored = await engine.store.get(live[0].id)
    let_go(engine)
    assert stored is not None
    assert stored.delivery is Delivery.INLINE


async def test_a_repeat_of_a_call_is_told_the_end_whatever_would_be_said_of_the_command_by_now(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = raising(CheckTimedOut("a file system does not answer"))
    made, who = spec(engine, "echo $$ >> nonce; exit 3"), origin()
    grant = granted(engine, made)
    first = await engine.run(grant, who)
    monkeypatch.setattr("shellback.exec.policy.commands.proposed", hangs)
    assert (await engine.run(grant, who)).session == first.session
    with pytest.raises(CheckTimedOut):
        await engine.run(grant, origin())
    with pytest.raises(InvalidCommand, match="make one call at a time"):
        await engine.run(granted(engine, spec(engine, "echo two")), who)


async def test_an_end_that_comes_while_the_answer_to_the_start_is_lost_is_told(
    engine: Engine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded as told by the call that waits for it, so no callback tells it."""
    start = engine.supervised.start

    async def cut_off(session: Session, made: CommandSpec, plan: Plan) -> Seen:
        await start(session, made, plan)
        assert (await engine.wait(session.id, up_to=SOON)).end is not None
        raise SupervisorUnreachable("the connection was cut off")

    monkeypatch.setattr(engine.supervised, "start", cut_off)
    outcome = await run(engine, "exit 3")
    assert (end_of(outcome.session).exit_code, outcome.handed_over, told.sessions) == (3, False, [])


async def test_a_repeat_while_it_runs_waits_for_the_same_process(engine: Engine) -> None:
    made, who = spec(engine, "echo x >> nonce; sleep 0.3; exit 5"), origin()
    both = await asyncio.gather(*(engine.run(granted(engine, made), who) for _ in range(2)))
    assert [one.session.end and one.session.end.exit_code for one in both] == [5, 5]
    assert (engine.workspace / "nonce").read_text() == "x\n"


async def test_a_claim_that_is_refused_starts_nothing(tmp_path: Path) -> None:
    async with unstarted_engine(*places(tmp_path), limits=limits.Limits(sessions=1)) as engine:
        session = await launch(engine, "sleep 100")
        made = spec(engine, "touch ran")
        with pytest.raises(LimitReached):
            await engine.run(granted(engine, made), origin())
        await Sessions(engine, "talk").kill(session.id, origin())
        # The supervisor answers in order, so what it was asked before has been done.
        assert not (engine.workspace / "ran").exists()


async def test_kill_ends_the_whole_tree_and_says_so(engine: Engine, told: Told) -> None:
    session = await launch(engine, "sleep 100 & sleep 100 & wait")
    sessions, who = Sessions(engine, "talk"), origin()
    ended, survivors = await sessions.kill(session.id, who)
    assert (end_of(ended).ended_by, survivors) == (EndedBy.AGENT, ())
    again, _ = await sessions.kill(session.id, who)
    assert again.end == end_of(ended)
    with pytest.raises(TaskCompleted, match="has ended: ended by signal SIGTERM"):
        await sessions.kill(session.id, origin())
    assert len(told.sessions) == 1


async def test_a_poll_reads_what_is_new_and_a_repeat_reads_the_same(engine: Engine) -> None:
    session = await launch(engine, "echo one; read -r _; echo two", keep_stdin_open=True)
    sessions, first, second = Sessions(engine, "talk"), origin(), origin()
    await printed(engine, session.id, "one\n")
    assert (await sessions.poll(session.id, first))[1].text == "one\n"
    await sessions.write(session.id, b"\n", origin(), tool="process_write")
    await engine.wait(session.id, up_to=60)
    assert (await sessions.poll(session.id, first))[1].text == "one\n"
    assert (await sessions.poll(session.id, second))[1].text == "two\n"
    assert (await sessions.poll(session.id, origin()))[1].text == ""


async def test_what_a_command_leaves_running_is_named(engine: Engine, each_backend: str) -> None:
    outcome = await run(engine, "sleep 100 & echo $!")
    (survivor,) = end_of(outcome.session).survivors
    # Numbers are the host's; in a sandbox they are others.
    assert (survivor == int(outcome.output.text)) == (each_backend == "host")
    assert f"processes it started are still there: {survivor}" in outcome_text(outcome)
    assert await engine.supervised.kill(outcome.session.id, by=EndedBy.SHUTDOWN) == ()


async def test_many_at_once_cost_no_descriptor_each(engine: Engine) -> None:
    before = len(os.listdir("/proc/self/fd"))
    started = await asyncio.gather(*(launch(engine, "sleep 100") for _ in range(40)))
    assert len({session.id for session in started}) == 40
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_an_engine_starts_itself_when_it_is_first_used(tmp_path: Path) -> None:
    engine = unstarted_engine(*places(tmp_path))
    outcome = await run(engine, "echo hi")
    assert outcome.output.text == "hi\n"
    await engine.stop()
