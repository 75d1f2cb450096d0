"""`shell` on real shells and processes: its exact shapes, its words for errors, and calls that are made again."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from typing import Any

import pytest
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import SpawnFailed
from shellback.exec.core.model import READ_ONLY, SHELL, Session, SessionEnd, SessionState
from shellback.exec.core.runner import EXEC_UID
from shellback.exec.link.supervised import Seen
from shellback.exec.persistent import PersistentShells
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.policy import Grant
from shellback.exec.policy.rules.matching import Tiers
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.shell import AsyncShell
from shellback.exec.shell.permit import ByOperator
from shellback.exec.tools.tool import Invocation
from shellback.exec.tools.tool_calls import ToolCalls, Weighed
from shellback.exec.tools.toolset import ExecTools
from tests.desks import Desk, here
from tests.execs import GATE, let_go, printed
from tests.supervisors import SOON, raising, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

__all__ = ["here"]


async def execute(here: Desk, command: str, **more: float) -> dict[str, object]:
    return (await here.approved("shell", op="execute", command=command, **more)).value


async def test_execute_keeps_directory_variables_and_aliases_and_returns_four_keys(here: Desk) -> None:
    first = await execute(here, "mkdir sub; cd sub; export A=1; shopt -s expand_aliases; alias ll='echo aliased'")
    assert list(first) == ["stdout", "stderr", "exit_code", "duration_ms"]
    assert (first["stdout"], first["stderr"], first["exit_code"]) == ("", "", 0)
    said = await execute(here, 'basename "$PWD"; echo $A; echo err >&2; (exit 4)')
    assert (said["stdout"], said["stderr"], said["exit_code"]) == ("sub\n1\nerr\n", "", 4)
    assert (await execute(here, "ll"))["stdout"] == "aliased\n"
    shells = [one for one in await here.engine.store.list() if one.kind == SHELL]
    assert len(shells) == 1
    assert (await here.call("shell", op="status")).value == {"processes": []}


async def test_a_timeout_is_a_result_with_what_was_printed_and_the_command_runs_on(here: Desk) -> None:
    said = await execute(here, f"echo before; {GATE}; echo then", timeout=1)
    assert (said["stdout"], said["exit_code"], said["timed_out"]) == ("before\n", None, True)
    assert "process_send_keys" in str(said["note"])
    with pytest.raises(ToolFailed, match="a command runs in this shell"):
        await execute(here, "echo more")
    shown = await here.call("shell", op="output", task_id=said["task_id"])
    assert shown.value["stdout"].endswith("before\n")
    assert "read -rsd" not in shown.value["stdout"]
    let_go(here.engine)


async def test_spawn_streams_into_a_block_and_kill_ends_it(here: Desk) -> None:
    command = f"echo out; echo err >&2; touch up; {GATE}; sleep 600"
    spawned = (await here.approved("shell", op="spawn", command=command)).value
    task = spawned["task_id"]
    assert spawned == {"task_id": task, "block_label": f"process:{task}"}
    (row,) = (await here.call("shell", op="status")).value["processes"]
    assert list(row) == ["task_id", "block_label", "command", "cwd", "uptime_seconds"]
    assert (row["task_id"], row["command"]) == (task, command)
    await until((here.workspace / "up").exists)
    await printed(here.engine, task, "out")
    await printed(here.engine, task, "err", err=True)
    streams = (await here.call("shell", op="output", task_id=task)).value
    assert (streams["stdout"], streams["stderr"]) == ("out\n", "err\n")
    assert (streams["cwd"], streams["exit_code"], streams["ended_at"]) == (str(here.workspace), None, None)
    killed = await here.approved("shell", op="kill", task_id=task)
    assert killed.value == {"success": True}
    assert await here.call("shell", again=True, approved=True, op="kill", task_id=task) == killed
    block = (await here.call("shell", op="output", task_id=task)).value
    assert block.items() >= {"block_label": f"process:{task}", "command": command, "task_id": task}.items()
    assert (block["cwd"], block["stdout"], block["stderr"]) == (str(here.workspace), "out\n", "err\n")
    assert (block["exit_code"], block["signal"]) == (None, signal.SIGTERM)
    assert streams["started_at"] == block["started_at"] <= block["ended_at"]
    with pytest.raises(ToolFailed, match=r"^task already completed: "):
        await here.call("shell", op="kill", task_id=task)
    with pytest.raises(ToolFailed, match=r"^unknown task: x1$"):
        await here.call("shell", op="output", task_id="x1")


async def test_a_build_that_fails_shows_its_error_line_wherever_it_is_told_of(here: Desk) -> None:
    lines = "i=0; while [ $i -lt 3000 ]; do echo compiling $i >&2; i=$((i+1)); done"
    command = f"echo building; {lines}; echo 'main.c:3: error: no such thing' >&2; exit 2"
    task = (await here.approved("shell", op="spawn", command=command)).value["task_id"]
    ended = await here.engine.wait(task, up_to=60)
    assert (await here.call("shell", op="output", task_id=task)).value["exit_code"] == 2
    told = callback_payload(ended, *here.engine.streams(ended))
    assert told["last_lines"] == ["building"]
    assert told["err_last_lines"][-1] == "main.c:3: error: no such thing"  # pyright: ignore[reportIndexIssue]
    text = wake_text(told)
    assert '"main.c:3: error: no such thing"' in text.splitlines()
    size = here.engine.output(ended, err=True).size()
    assert f"On standard error it printed {size:,} bytes; process_log(" in text

    waited = await here.call("process_wait", session_ids=[task])
    assert waited.value["sessions"][0]["output"] == "building\n"
    assert waited.value["sessions"][0]["stderr"].endswith("main.c:3: error: no such thing\n")
    assert waited.metadata["sessions"][0]["err_next_offset"] == size
    polled = await here.call("process_poll", session_id=task)
    assert (polled.value["output"], polled.value["stderr"]) == ("", "")

    read = await here.call("process_log", session_id=task, stderr=True, offset=-1)
    assert str(read.value) == "main.c:3: error: no such thing\n"
    counts = [read.metadata[name] for name in ("total", "err_bytes_total", "out_bytes_total")]
    assert counts == [3001, size, 9]
    out = await here.call("process_log", session_id=task)
    assert str(out.value) == "building\n"
    assert (out.metadata["bytes_total"], out.metadata["err_bytes_total"]) == (9, size)
    for one in (read.metadata, out.metadata, polled.metadata):
        assert one.get("err_log_path", "").endswith(f"/{task}.err")
        assert one["log_path"].endswith(f"/{task}.log")


async def test_what_was_cut_of_standard_error_is_read_as_the_result_says(here: Desk) -> None:
    command = "i=0; while [ $i -lt 9000 ]; do echo warning number $i >&2; i=$((i+1)); done"
    ran = await here.approved("run_shell", command=command)
    session_id = ran.metadata["session_id"]
    assert ran.metadata["err_bytes_total"] > ran.metadata["err_bytes_shown"] > 0
    hint = re.search(r"stderr=true, byte_offset=(\d+), byte_limit=(\d+)\)", ran.value["stderr"])
    assert hint is not None
    start, most = int(hint[1]), int(hint[2])
    part = await here.call("process_log", session_id=session_id, stderr=True, byte_offset=start, byte_limit=most)
    log = here.engine.output(await here.engine.registry.get(session_id), err=True)
    assert str(part.value).encode() == await log.raw(start, start + most)
    merged = await here.approved("execute", command="echo one")
    assert "err_log_path" not in merged.metadata
    with pytest.raises(ToolFailed, match="one log for both streams: leave stderr out"):
        await here.call("process_log", session_id=merged.metadata["session_id"], stderr=True)


async def test_spawn_says_nothing_of_an_end_that_it_does_not_tell(here: Desk) -> None:
    """Else the news of the end would be taken back, of one that was over when its call was made again."""
    task = (await here.approved("shell", op="spawn", command="exit 3")).value["task_id"]
    await here.engine.wait(task, up_to=60)
    again = await here.call("shell", again=True, approved=True, op="spawn", command="exit 3")
    assert again.value == {"task_id": task, "block_label": f"process:{task}"}
    assert again.metadata["session_id"] == task
    assert "state" not in again.metadata


async def test_what_is_refused_says_so_in_the_words_of_the_specification(here: Desk) -> None:
    with pytest.raises(ToolFailed, match=r"^command denied by policy: "):
        await here.call("shell", op="execute", command="rm -rf /")
    here.tiers = Tiers(default=Tier.READ_WRITE, strict=True, strict_path_enforcement=True)
    with pytest.raises(ToolFailed, match=r"^permission denied: requires admin, have read_write$"):
        await here.call("shell", op="execute", command="sudo ls")
    with pytest.raises(ToolFailed, match=r"^path outside sandbox: "):
        await here.call("shell", op="spawn", command="touch /root/x")
    assert await here.engine.store.list() == []


async def test_a_process_that_cannot_be_started_is_a_spawn_that_failed_and_says_why(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(session: Session, *_: object) -> Seen:
        return Seen(session_id=session.id, end=SessionEnd(state=SessionState.START_FAILED, errno=errno.EAGAIN))

    for start, why in (
        (fails, "Resource temporarily unavailable; nothing runs$"),
        (raising(SpawnFailed("the supervisor refuses")), r"the supervisor refuses\. This is for the operator"),
    ):
        monkeypatch.setattr(here.engine.supervised, "start", start)
        with pytest.raises(ToolFailed, match=f"^process spawn failed: {why}"):
            await here.approved("shell", op="spawn", command="touch ran")
    assert not (here.workspace / "ran").exists()


async def test_what_only_reads_is_asked_about_in_the_shell_and_not_beside_it(here: Desk) -> None:
    here.put("a.txt", "one\n")
    assert await here.asks("shell", op="execute", command="cat a.txt")
    sandboxed = len(here.engine.backend.profiles) > 1
    assert await here.asks("shell", op="spawn", command="cat a.txt") is not sandboxed
    await execute(here, "cd /")
    (own,) = [one for one in await here.engine.store.list(live=True) if one.kind == SHELL]
    here.standing[own.id] = "a1"
    assert not await here.asks("shell", op="execute", command="touch b")
    assert await here.asks("shell", op="execute", command="sudo ls")


async def test_the_call_that_starts_the_shell_is_one_call_wherever_it_was_interrupted(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: dict[str, Any] = {"op": "execute", "command": "echo x >> log; cat log"}
    shown = await here.seen("shell", **run)
    assert (shown["command"], shown["starts"][:10]) == ("echo x >> log; cat log", "exec bash ")

    with monkeypatch.context() as patched:
        patched.setattr(PersistentShells, "exec", raising(RuntimeError("the worker dies when the shell stands")))
        with pytest.raises(RuntimeError):
            await here.call("shell", again=True, approved=True, **run)
    said = await here.call("shell", again=True, approved=True, **run)
    assert said.value["stdout"] == "x\n"
    assert (await here.call("shell", again=True, approved=True, **run)).value == said.value
    assert len([one for one in await here.engine.store.list() if one.kind == SHELL]) == 1
    here.standing[said.metadata["session_id"]] = "a1"
    ends: dict[str, Any] = {"op": "execute", "command": "exit 3"}
    said = await here.call("shell", **ends)
    assert said.value["exit_code"] == 3
    assert (await here.call("shell", again=True, **ends)).value == said.value
    assert len(await here.engine.store.list()) == 1
    # What it did is told of its own shell, and done in no other.
    made = here.count
    await execute(here, "echo another shell")
    here.count = made
    assert (await here.call("shell", again=True, **ends)).value == said.value


async def test_a_command_runs_only_in_the_shell_that_it_was_approved_for(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await execute(here, "cd /")
    (shell,) = await here.engine.store.list()
    granted = ToolCalls.granted

    async def and_then_it_ends(self: ToolCalls, call: Invocation) -> tuple[Grant, Weighed]:
        found = await granted(self, call)
        await here.engine.supervised.port.signal(shell.id, signal.SIGHUP)
        await here.engine.wait(shell.id, up_to=SOON)
        return found

    monkeypatch.setattr(ToolCalls, "granted", and_then_it_ends)
    with pytest.raises(ToolFailed, match=r"^task already completed"):
        await here.approved("shell", op="execute", command="touch ran")
    assert not (here.workspace / "ran").exists()
    assert len(await here.engine.store.list()) == 1


WAITS = "echo part; sleep 60"
START_UP = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout", ".bash_aliases")


async def test_the_result_has_four_keys_whatever_the_exit_code(here: Desk) -> None:
    said = await here.approved("run_shell", command="echo out; echo err >&2; touch made; exit 3")
    assert said.value == {"status": "ok", "exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    assert list(said.value) == ["status", "exit_code", "stdout", "stderr"]
    assert {"session_id", "bytes_total", "bytes_dropped", "log_path"} <= said.metadata.keys()
    assert (here.workspace / "made").exists()


async def test_a_timeout_keeps_what_was_printed_and_says_so_in_its_last_line(here: Desk) -> None:
    said = await here.approved(
        "run_shell", command="echo before; printf half >&2; sleep 600 & sleep 600", timeout_ms=1500
    )
    assert said.value == {
        "status": "timeout", "exit_code": -1, "stdout": "before\n", "stderr": "half\nCommand timed out after 1.5s",
    }  # fmt: skip
    (session,) = await here.engine.store.list()
    assert session.state is SessionState.TIMED_OUT


async def test_what_was_cut_and_what_was_signalled_is_said_beside_the_four(here: Desk) -> None:
    cut = (await here.approved("run_shell", command="seq 20000; touch x")).value
    assert cut["stdout"].startswith("1\n2\n")
    assert cut["stdout"].endswith("20000\n")
    assert (cut["status"], cut["exit_code"], cut["truncated"], cut["bytes_total"]) == ("ok", 0, True, 108_894)
    assert "session_id" in cut
    killed = (await here.approved("run_shell", command="kill -9 $$")).value
    assert (killed["status"], killed["exit_code"], killed["signal"]) == ("ok", None, 9)


async def test_home_is_the_workspace_and_so_is_the_directory(here: Desk) -> None:
    (here.workspace / "sub").mkdir(mode=0o755)
    root = here.engine.backend.inner
    said = await here.approved("run_shell", command='echo "$HOME" ~ "$PWD" "$A"', env={"A": "b c"})
    assert said.value["stdout"] == f"{root} {root} {root} b c\n"
    said = await here.approved("run_shell", command="pwd", cwd="~/sub", env={"A": "1"})
    assert said.value["stdout"] == f"{root}/sub\n"


async def test_the_files_of_the_machine_are_read_as_at_a_login(here: Desk) -> None:
    login = subprocess.run(  # noqa: ASYNC221 - a moment
        ["/bin/bash", "-lc", "echo $PATH"],
        env={"PATH": CHILD_PATH, "HOME": "/proc"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        user=EXEC_UID if os.geteuid() == 0 else None,
    )
    said = await here.approved("run_shell", command='echo "$PATH"; touch x')
    assert said.value == {"status": "ok", "exit_code": 0, "stdout": login.stdout, "stderr": ""}


async def test_no_file_that_an_agent_could_write_is_read_at_its_beginning_or_end(here: Desk) -> None:
    for name in START_UP:
        here.put(name, f"echo {name} was read; touch {name}.ran\n")
    for command in ("echo hi; touch x; exit 0", "echo hi; touch x; logout", "echo hi; touch x"):
        said = (await here.approved("run_shell", command=command)).value
        assert said["stdout"] == "hi\n"
    assert not list(here.workspace.glob("*.ran"))
    assert not list(here.workspace.glob(".*.ran"))


async def test_what_only_reads_passes_in_the_profile_that_holds_it_and_nothing_else_does(here: Desk) -> None:
    here.put("a.txt", "one\n")
    sandboxed = READ_ONLY in here.engine.backend.profiles
    if sandboxed:
        said = await here.call("run_shell", command="cat ~/a.txt")
        assert said.value == {"status": "ok", "exit_code": 0, "stdout": "one\n", "stderr": ""}
        (session,) = await here.engine.store.list()
        assert (session.profile, session.granted_by) == (READ_ONLY, "classifier")
    assert await here.asks("run_shell", command="cat a.txt") is not sandboxed
    assert await here.asks("run_shell", command="cat a.txt", env={"A": "1"})
    assert await here.asks("run_shell", command="touch b")
    with pytest.raises(ToolFailed, match="refused by policy"):
        await here.call("run_shell", command="rm -rf /")


async def test_what_is_not_acceptable_names_the_bound(here: Desk) -> None:
    for args, said in (
        ({"command": " "}, "command is empty"),
        ({"command": "ls", "timeout_ms": 300_001}, "it must be 100 to 300000"),
        ({"command": "ls", "timeout_ms": 0}, "it must be 100 to 300000"),
        ({"command": "ls", "cwd": ".."}, "is outside the workspace"),
        ({"command": "ls", "cwd": f"{here.workspace}-evil"}, "is outside the workspace"),
        ({"command": "ls", "env": {"HOME": "/"}}, "'HOME' is refused"),
    ):
        with pytest.raises(ToolFailed, match=said):
            await here.call("run_shell", **args)  # type: ignore[arg-type]
    assert await here.engine.store.list() == []


async def test_a_login_shell_is_approved_as_one(here: Desk) -> None:
    shown = await here.seen("run_shell", command="touch b")
    assert (shown["command"], shown["login"], shown["timeout_s"]) == ("touch b", True, 60.0)
    plain, _ = await here.tools.propose("talk", "execute", {"command": "touch b", "timeout": 60})
    login, _ = await here.tools.propose("talk", "run_shell", {"command": "touch b"})
    assert plain != login
    with pytest.raises(ApprovalRequired):
        await here.call("run_shell", command="touch b")


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("run_shell", {"command": "touch b"}),
        ("shell_execute", {"command": ["touch", "b"]}),
        ("evaluate_python", {"code": "1"}),
        ("write_file", {"path": "b", "content": "x"}),
    ],
)
async def test_a_call_of_a_tool_that_is_switched_off_meanwhile_is_shown_as_one_that_does_not_run(
    here: Desk, tool: str, args: dict[str, Any]
) -> None:
    fewer = ExecTools(here.engine, enabled=True, sessions=False, workspace=False)
    assert (await fewer.propose("talk", tool, args))[1]["refused"] == f"{tool} is switched off here"


async def test_a_timeout_is_one_status_however_a_result_numbers_it(here: Desk) -> None:
    told = await here.approved("execute", command=WAITS, timeout=0.5)
    assert (told.metadata["state"], told.metadata["exit_code"], told.metadata["signal"]) == ("timed_out", None, 15)
    assert "part\n[timed out and stopped (signal SIGTERM)" in str(told.value)
    login = (await here.approved("run_shell", command=WAITS, timeout_ms=500)).value
    assert (login["status"], login["exit_code"], login["stdout"]) == ("timeout", -1, "part\n")
    short = (await here.approved("shell_execute", command=["bash", "-c", WAITS], timeout_seconds=1)).value
    assert (short["timed_out"], short["exit_code"], short["stdout"]) == (True, 124, "part\n")
    shell = AsyncShell(here.engine, ByOperator(here.engine))
    done = await shell.execute(WAITS, timeout_seconds=0.5)
    spawned = await (await shell.spawn(WAITS, timeout_seconds=1)).wait()
    for result in (done, spawned):
        assert (result.timed_out, result.exit_code, result.signal, result.stdout) == (True, -1, 9, "part\n")
    records = await here.engine.store.list()
    assert len(records) == 5
    ends = [one.end for one in records if one.end is not None]
    assert {(end.state, end.exit_code) for end in ends} == {(SessionState.TIMED_OUT, None)}
    # A `Shell` kills at once, as its document has it; all others let a command end by itself for a second.
    assert sorted(end.signal or 0 for end in ends) == [9, 9, 15, 15, 15]
