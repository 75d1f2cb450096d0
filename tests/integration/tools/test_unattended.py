"""What nobody approved runs for a bounded time: classified commands, and those that code of a tool starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.exceptions import ApprovalRequired

from shellback.exec.core.limits import Limits
from shellback.exec.core.model import EndedBy, SessionState
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.shell.permit import ByPolicy, launch_permitted
from shellback.exec.tools.toolset import plain_judge
from tests import sandboxes
from tests.desks import desk_of
from tests.execs import KIND, origin, running_engine, spec

pytestmark = pytest.mark.anyio

ENDLESS = "seq 1 999999999999"
SOON_OVER = Limits(unattended_timeout_s=1.0, log_bytes=65536)


@pytest.fixture(autouse=True)
def _sandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes.needed()
    assert KIND == "host"
    monkeypatch.setattr("tests.execs.KIND", "bubblewrap")


async def test_a_command_that_only_classification_allowed_ends_and_the_agent_is_told_why(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=SOON_OVER) as engine, desk_of(engine) as here:
        said = await here.call("execute", command=ENDLESS, background=True)
        assert "it is stopped after 1 s: a person is asked where you give a longer timeout" in str(said.value)
        ended = await engine.wait(said.metadata["session_id"], up_to=60)
        assert (ended.state, ended.granted_by) == (SessionState.TIMED_OUT, "classifier")
        assert ended.end is not None
        assert ended.end.ended_by is EndedBy.TIMEOUT
        polled = await here.call("process_poll", session_id=ended.id)
        assert polled.value["state"] == "timed_out"
        told = wake_text(callback_payload(ended, engine.output(ended)))
        assert "timed out" in told


async def test_a_longer_one_is_for_a_person_who_may_let_it_run_as_long_as_it_likes(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=SOON_OVER) as engine, desk_of(engine) as here:
        with pytest.raises(ApprovalRequired):
            await here.call("execute", command=ENDLESS, background=True, timeout=5.0)
        said = await here.approved("execute", command="sleep 2; echo over", background=True)
        ended = await engine.wait(said.metadata["session_id"], up_to=60)
        assert ended.state is SessionState.EXITED


async def test_the_repeat_of_such_a_call_is_the_same_session(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=SOON_OVER) as engine, desk_of(engine) as here:
        said = await here.call("execute", command=ENDLESS, background=True)
        again = await here.call("execute", command=ENDLESS, background=True, again=True)
        assert again.metadata["session_id"] == said.metadata["session_id"]
        await engine.wait(said.metadata["session_id"], up_to=60)


async def test_what_the_code_of_a_tool_starts_ends_too(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=SOON_OVER) as engine:
        made = spec(engine, "yes; touch not-read-only", background=True)
        mine = ByPolicy(engine, plain_judge(engine))
        session = await launch_permitted(engine, mine, made, "talk", origin())
        ended = await engine.wait(session.id, up_to=60)
        assert (ended.state, ended.granted_by) == (SessionState.TIMED_OUT, "read-only profile")
