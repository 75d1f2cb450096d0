"""What nobody approved runs for a bounded time: classified commands, and those that code of a tool starts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ApprovalRequired

from shellback.exec.core.limits import Limits
from shellback.exec.core.model import EndedBy, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.shell.permit import ByPolicy, launch_permitted
from shellback.exec.tools.toolset import plain_judge
from tests.desks import Desk, here
from tests.execs import end_of, origin, running_engine, spec

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("sandbox")]

__all__ = ["here"]

ENDLESS = "seq 1 999999999999"
SOON_OVER = Limits(unattended_timeout_s=1.0, log_bytes=65536)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    async with running_engine(tmp_path, limits=SOON_OVER) as made:
        yield made


async def test_a_command_that_only_classification_allowed_ends_and_the_agent_is_told_why(here: Desk) -> None:
    said = await here.call("execute", command=ENDLESS, background=True)
    assert "it is stopped after 1 s: a person is asked where you give a longer timeout" in str(said.value)
    ended = await here.engine.wait(said.metadata["session_id"], up_to=60)
    assert (ended.state, ended.granted_by) == (SessionState.TIMED_OUT, "classifier")
    assert end_of(ended).ended_by is EndedBy.TIMEOUT
    polled = await here.call("process_poll", session_id=ended.id)
    assert polled.value["state"] == "timed_out"
    told = wake_text(callback_payload(ended, here.engine.output(ended)))
    assert "timed out" in told


async def test_a_longer_one_is_for_a_person_who_may_let_it_run_as_long_as_it_likes(here: Desk) -> None:
    with pytest.raises(ApprovalRequired):
        await here.call("execute", command=ENDLESS, background=True, timeout=5.0)
    said = await here.approved("execute", command="sleep 2; echo over", background=True)
    ended = await here.engine.wait(said.metadata["session_id"], up_to=60)
    assert ended.state is SessionState.EXITED


async def test_the_repeat_of_such_a_call_is_the_same_session(here: Desk) -> None:
    said = await here.call("execute", command=ENDLESS, background=True)
    again = await here.call("execute", command=ENDLESS, background=True, again=True)
    assert again.metadata["session_id"] == said.metadata["session_id"]
    await here.engine.wait(said.metadata["session_id"], up_to=60)


async def test_what_the_code_of_a_tool_starts_ends_too(engine: Engine) -> None:
    made = spec(engine, "yes; touch not-read-only", background=True)
    mine = ByPolicy(engine, plain_judge(engine))
    session = await launch_permitted(engine, mine, made, "talk", origin())
    ended = await engine.wait(session.id, up_to=60)
    assert (ended.state, ended.granted_by) == (SessionState.TIMED_OUT, "read-only profile")
