"""`shell_session` on real shells: its exact shapes, who is asked about what, and calls that are made again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.exceptions import ToolFailed

from shellback.exec.core.model import SessionId
from shellback.exec.tools.toolset import ExecTools
from tests.desks import Desk, here
from tests.execs import GATE, let_go
from tests.supervisors import SOON

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

__all__ = ["here"]

TOOL = "shell_session"


async def started(here: Desk, **more: Any) -> str:
    """A shell of this conversation, started with approval."""
    return str((await here.approved(TOOL, action="start", **more)).value["session_id"])


async def test_all_of_the_flow_that_the_document_shows(here: Desk) -> None:
    (here.workspace / "project").mkdir(mode=0o755)
    first = await here.approved(TOOL, action="start", cwd="~/project")
    assert list(first.value) == ["session_id", "output"]
    assert first.value["output"].endswith("$ ")
    shell = first.value["session_id"]
    inner = here.engine.backend.inner
    said = await here.approved(TOOL, action="exec", session_id=shell, command="export MY_VAR=hello; f() { echo $1; }")
    assert said.value == {
        "output": "", "alive": True, "exit_code": 0, "cwd": f"{inner}/project", "timed_out": False,
    }  # fmt: skip
    said = await here.approved(TOOL, action="exec", session_id=shell, command="cd ..; f $MY_VAR; echo ~; (exit 7)")
    assert said.value == {
        "output": f"hello\n{inner}\n", "alive": True, "exit_code": 7, "cwd": inner, "timed_out": False,
    }  # fmt: skip
    assert {"session_id", "state", "bytes_total", "bytes_dropped"} <= said.metadata.keys()
    raw = await here.approved(TOOL, action="exec", session_id=shell, command="echo $MY_VAR", raw=True)
    assert raw.value["output"].startswith("echo $MY_VAR\r\nhello\r\n")
    assert raw.value["output"].endswith("$ ")
    listed = (await here.call(TOOL, action="list")).value
    assert [list(row) for row in listed["sessions"]] == [["session_id", "alive", "idle_seconds", "uptime_seconds"]]
    assert (listed["sessions"][0]["session_id"], listed["sessions"][0]["alive"]) == (shell, True)
    assert (await here.approved(TOOL, action="kill", session_id=shell)).value == {"ok": True}
    assert (await here.call(TOOL, action="list")).value == {"sessions": []}
    gone = (await here.call(TOOL, action="read", session_id=shell)).value
    assert gone["alive"] is False


async def test_a_shell_has_24_rows_and_80_columns_unless_told_and_the_variables_it_was_given(here: Desk) -> None:
    shell = await started(here, env={"GIVEN": "a b"})
    command = "stty size; echo $LINES $COLUMNS; printenv GIVEN; bash -c 'echo $GIVEN'"
    said = await here.approved(TOOL, action="exec", session_id=shell, command=command)
    assert said.value["output"] == "24 80\n24 80\na b\na b\n"


async def test_what_a_command_asks_is_answered_and_its_terminal_resized(here: Desk) -> None:
    shell = await started(here, rows=30, cols=90)
    asked = await here.approved(
        TOOL, action="exec", session_id=shell, command="stty size; read -p 'go on? ' x; echo got $x", timeout=20
    )
    assert asked.value["output"].startswith("30 90\n")
    assert asked.value["exit_code"] is None
    assert asked.value["waiting_for_input"] or asked.value["timed_out"]
    assert (await here.approved(TOOL, action="write", session_id=shell, input="y\n")).value == {"ok": True}
    seen = ""
    async with asyncio.timeout(SOON):
        while "got y" not in seen:
            seen += (await here.call(TOOL, action="read", session_id=shell)).value["output"]
    said = await here.approved(TOOL, action="exec", session_id=shell, command="echo after")
    assert said.value["output"] == "after\n"
    assert (await here.approved(TOOL, action="resize", session_id=shell, rows=50, cols=120)).value == {"ok": True}
    said = await here.approved(TOOL, action="exec", session_id=shell, command="stty size")
    assert said.value["output"] == "50 120\n"


async def test_nothing_of_a_shell_is_ever_let_pass_by_the_classifier(here: Desk) -> None:
    here.put("a.txt", "one\n")
    shell = await started(here)
    # What reads only as a command of its own may mean anything where aliases and functions are.
    for command in ("cat a.txt", "ls", "pwd"):
        assert await here.asks(TOOL, action="exec", session_id=shell, command=command)
    assert await here.asks(TOOL, action="start")
    assert await here.asks(TOOL, action="write", session_id=shell, input="y\n")
    assert await here.asks(TOOL, action="resize", session_id=shell, rows=10, cols=20)
    assert await here.asks(TOOL, action="kill", session_id=shell)
    assert not await here.asks(TOOL, action="list")
    assert not await here.asks(TOOL, action="read", session_id=shell)


async def test_denials_hold_in_a_shell_too(here: Desk) -> None:
    shell = await started(here)
    here.standing[shell] = "a1"
    with pytest.raises(ToolFailed, match="refused by policy"):
        await here.call(TOOL, action="exec", session_id=shell, command="true; rm -rf /")
    with pytest.raises(ToolFailed, match="refused by policy"):
        await here.call(TOOL, action="write", session_id=shell, input="rm -rf /\n")


async def test_an_approval_of_all_input_covers_it_but_not_what_is_of_tier_admin_and_no_other_shell(here: Desk) -> None:
    shell, other = await started(here), await started(here)
    here.standing[shell] = "a1"
    assert (await here.call(TOOL, action="exec", session_id=shell, command="echo hi > b; cat b")).value[
        "output"
    ] == "hi\n"
    assert (await here.call(TOOL, action="resize", session_id=shell, rows=10, cols=20)).value == {"ok": True}
    assert (await here.call(TOOL, action="write", session_id=shell, input="echo typed\n")).value == {"ok": True}
    assert await here.asks(TOOL, action="exec", session_id=shell, command="sudo ls")
    assert await here.asks(TOOL, action="kill", session_id=shell)
    assert await here.asks(TOOL, action="exec", session_id=other, command="echo hi")


async def test_a_person_sees_the_command_and_where_it_runs_and_approves_just_that(here: Desk) -> None:
    here.put("build.sh", "echo built\n")
    shell = await started(here)
    exec_: dict[str, Any] = {"action": "exec", "session_id": shell, "command": "bash build.sh"}
    shown = await here.seen(TOOL, **exec_)
    assert (shown["command"], shown["session_id"], shown["cwd"]) == (
        "bash build.sh", shell, str(here.workspace),
    )  # fmt: skip
    assert shown["timeout_s"] == 30.0
    assert (shown["tier"], shown["segments"][0]["text"]) == ("read_write", "bash build.sh")
    assert [row["name"] for row in shown["scripts"]] == ["build.sh"]
    here.put("build.sh", "echo swapped\n")
    with pytest.raises(ToolFailed, match="is not what was approved"):
        await here.call(TOOL, again=True, approved=True, **exec_)
    elsewhere: dict[str, Any] = {"action": "exec", "session_id": shell, "command": "rm -rf build"}
    await here.approved(TOOL, action="exec", session_id=shell, command="mkdir -p sub/build")
    await here.seen(TOOL, **elsewhere)
    here.standing[shell] = "a1"
    moved = replace(here, count=here.count + 1)
    await moved.call(TOOL, action="exec", session_id=shell, command="cd sub")
    with pytest.raises(ToolFailed, match="is not what was approved"):
        await here.call(TOOL, again=True, approved=True, **elsewhere)
    typed = await here.seen(TOOL, action="write", session_id=shell, input="echo 1\n")
    assert (typed["input"], typed["session_id"]) == ("echo 1\n", shell)
    begun = await here.seen(TOOL, action="start", env={"A": "1"})
    assert begun["command"].startswith("exec bash ")
    assert begun["env"] == {"A": "1"}


async def test_what_was_approved_before_a_restart_of_the_worker_is_the_same_after_it(here: Desk) -> None:
    shell = await started(here)
    await here.approved(TOOL, action="exec", session_id=shell, command="mkdir sub; cd sub")
    touch: dict[str, Any] = {"action": "exec", "session_id": shell, "command": "touch made"}
    shown = await here.seen(TOOL, **touch)
    assert shown["cwd"] == str(here.workspace / "sub")
    anew = replace(here, tools=ExecTools(here.engine, enabled=True))
    assert (await anew.call(TOOL, again=True, approved=True, **touch)).value["exit_code"] == 0
    assert (here.workspace / "sub" / "made").exists()


async def test_a_turn_that_is_to_end_waits_for_no_command(here: Desk) -> None:
    shell = await started(here)
    here.standing[shell] = "a1"
    waiting = asyncio.create_task(here.call(TOOL, action="exec", session_id=shell, command=f"touch up; {GATE}"))
    async with asyncio.timeout(SOON):
        while not (here.workspace / "up").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    here.engine.give_up(SessionId(shell))
    with pytest.raises(ToolFailed, match="runs on in shell"):
        await waiting
    # The repeat of the call goes on waiting for what it has begun.
    again = asyncio.create_task(
        here.call(TOOL, again=True, action="exec", session_id=shell, command=f"touch up; {GATE}")
    )
    let_go(here.engine)
    assert (await again).value["exit_code"] == 0


async def test_a_repeat_of_a_call_returns_what_it_did_and_does_nothing_again(here: Desk) -> None:
    first = await here.approved(TOOL, action="start")
    again = await here.call(TOOL, again=True, approved=True, action="start")
    assert first.value["session_id"] == again.value["session_id"]
    shell = first.value["session_id"]
    run: dict[str, Any] = {"action": "exec", "session_id": shell, "command": "echo x >> log; cat log"}
    said = await here.approved(TOOL, **run)
    assert said.value["output"] == "x\n"
    assert (await here.call(TOOL, again=True, approved=True, **run)).value == said.value
    here.standing[shell] = "a1"
    ends: dict[str, Any] = {"action": "exec", "session_id": shell, "command": "exit 3"}
    said = await here.call(TOOL, **ends)
    assert (said.value["alive"], said.value["exit_code"]) == (False, 3)
    # The approval ended with the shell, and nobody is asked about what has been done.
    here.standing.clear()
    assert (await here.call(TOOL, again=True, **ends)).value == said.value
    with pytest.raises(ToolFailed, match="start another"):
        await here.call(TOOL, action="exec", session_id=shell, command="echo more")


async def test_what_cannot_be_done_is_told_before_anybody_is_asked(here: Desk) -> None:
    plain = (await here.approved("execute", command="sleep 600; touch x", background=True)).metadata["session_id"]
    for args, said in (
        ({"action": "exec", "command": "ls"}, "exec needs session_id, which start has returned"),
        ({"action": "exec", "session_id": "x1", "command": "ls"}, "no session 'x1' in this conversation"),
        ({"action": "exec", "session_id": plain, "command": "ls"}, "is no shell"),
        ({"action": "start", "rows": 1}, "2 to 500"),
        ({"action": "start", "cwd": "/etc"}, "is outside the workspace"),
        ({"action": "start", "env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
    ):
        with pytest.raises(ToolFailed, match=said):
            await here.call(TOOL, **args)  # type: ignore[arg-type]
    shell = await started(here)
    with pytest.raises(ToolFailed, match="rows is 1; it must be 2 to 500"):
        await here.call(TOOL, action="resize", session_id=shell, rows=1, cols=80)
    await here.approved(TOOL, action="exec", session_id=shell, command="sleep 600", timeout=0.2)
    with pytest.raises(ToolFailed, match=r"a command runs in shell .*, so this one was not run: read"):
        await here.call(TOOL, action="exec", session_id=shell, command="ls")
    here.deps.conversation_id = "another"
    with pytest.raises(ToolFailed, match="no session"):
        await here.call(TOOL, action="read", session_id=shell)
    assert (await here.call(TOOL, action="list")).value == {"sessions": []}
