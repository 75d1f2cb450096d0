"""`shell` on real shells and processes: its exact shapes, its words for errors, and calls that are made again."""

from __future__ import annotations

import errno
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ToolFailed

from shellback.exec.core.errors import SpawnFailed
from shellback.exec.core.model import SHELL, Session, SessionEnd, SessionState
from shellback.exec.link.supervised import Seen
from shellback.exec.persistent import Executed, PersistentShells
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.matching import Tiers
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.tools.tool_calls import Granted, ToolCalls
from tests.desks import Desk, desk
from tests.execs import GATE, let_go, printed
from tests.supervisors import SOON, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


async def execute(here: Desk, command: str, **more: float) -> dict[str, object]:
    return (await here.approved("shell", op="execute", command=command, **more)).value


async def test_execute_keeps_directory_variables_and_aliases_and_returns_four_keys(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
        first = await execute(here, "mkdir sub; cd sub; export A=1; shopt -s expand_aliases; alias ll='echo aliased'")
        assert list(first) == ["stdout", "stderr", "exit_code", "duration_ms"]
        assert (first["stdout"], first["stderr"], first["exit_code"]) == ("", "", 0)
        said = await execute(here, 'basename "$PWD"; echo $A; echo err >&2; (exit 4)')
        assert (said["stdout"], said["stderr"], said["exit_code"]) == ("sub\n1\nerr\n", "", 4)
        assert (await execute(here, "ll"))["stdout"] == "aliased\n"
        shells = [one for one in await here.engine.store.list() if one.kind == SHELL]
        assert len(shells) == 1
        assert (await here.call("shell", op="status")).value == {"processes": []}


async def test_a_timeout_is_a_result_with_what_was_printed_and_the_command_runs_on(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
        said = await execute(here, f"echo before; {GATE}; echo then", timeout=1)
        assert (said["stdout"], said["exit_code"], said["timed_out"]) == ("before\n", None, True)
        assert "process_send_keys" in str(said["note"])
        with pytest.raises(ToolFailed, match="a command runs in this shell"):
            await execute(here, "echo more")
        shown = await here.call("shell", op="output", task_id=said["task_id"])
        assert shown.value["stdout"].endswith("before\n")
        assert "read -rsd" not in shown.value["stdout"]
        let_go(here.engine)


async def test_spawn_streams_into_a_block_and_kill_ends_it(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
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


async def test_a_build_that_fails_shows_its_error_line_wherever_it_is_told_of(tmp_path: Path) -> None:
    lines = "i=0; while [ $i -lt 3000 ]; do echo compiling $i >&2; i=$((i+1)); done"
    command = f"echo building; {lines}; echo 'main.c:3: error: no such thing' >&2; exit 2"
    async with desk(tmp_path, shell=True) as here:
        task = (await here.approved("shell", op="spawn", command=command)).value["task_id"]
        ended = await here.engine.wait(task, up_to=60)
        assert (await here.call("shell", op="output", task_id=task)).value["exit_code"] == 2
        told = callback_payload(ended, *here.engine.streams(ended))
        assert told["last_lines"] == ["building"]
        assert told["err_last_lines"][-1] == "main.c:3: error: no such thing"  # pyright: ignore[reportIndexIssue]
        text = wake_text(told)
        assert '"main.c:3: error: no such thing"' in text.splitlines()
        size = here.engine.output(ended, err=True).size()
        assert f"On standard error it printed {size:,} bytes, 0 of them dropped for good" in text

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


async def test_what_was_cut_of_standard_error_is_read_as_the_result_says(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
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


async def test_spawn_says_nothing_of_an_end_that_it_does_not_tell(tmp_path: Path) -> None:
    """Else the news of the end would be taken back, of one that was over when its call was made again."""
    async with desk(tmp_path, shell=True) as here:
        task = (await here.approved("shell", op="spawn", command="exit 3")).value["task_id"]
        await here.engine.wait(task, up_to=60)
        again = await here.call("shell", again=True, approved=True, op="spawn", command="exit 3")
        assert again.value == {"task_id": task, "block_label": f"process:{task}"}
        assert again.metadata["session_id"] == task
        assert "state" not in again.metadata


async def test_what_is_refused_says_so_in_the_words_of_the_specification(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
        with pytest.raises(ToolFailed, match=r"^command denied by policy: "):
            await here.call("shell", op="execute", command="rm -rf /")
        here.tiers = Tiers(default=Tier.READ_WRITE, strict=True, strict_path_enforcement=True)
        with pytest.raises(ToolFailed, match=r"^permission denied: requires admin, have read_write$"):
            await here.call("shell", op="execute", command="sudo ls")
        with pytest.raises(ToolFailed, match=r"^path outside sandbox: "):
            await here.call("shell", op="spawn", command="touch /root/x")
        assert await here.engine.store.list() == []


async def test_a_process_that_cannot_be_started_is_a_spawn_that_failed_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, shell=True) as here:

        async def fails(session: Session, *_: object) -> Seen:
            return Seen(session_id=session.id, end=SessionEnd(state=SessionState.START_FAILED, errno=errno.EAGAIN))

        async def refuses(*_: object) -> Seen:
            raise SpawnFailed("the supervisor refuses")

        for start, why in (
            (fails, "Resource temporarily unavailable; nothing runs$"),
            (refuses, r"the supervisor refuses\. This is for the operator"),
        ):
            monkeypatch.setattr(here.engine.supervised, "start", start)
            with pytest.raises(ToolFailed, match=f"^process spawn failed: {why}"):
                await here.approved("shell", op="spawn", command="touch ran")
        assert not (here.workspace / "ran").exists()


async def test_what_only_reads_is_asked_about_in_the_shell_and_not_beside_it(tmp_path: Path) -> None:
    async with desk(tmp_path, shell=True) as here:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, shell=True) as here:
        run: dict[str, Any] = {"op": "execute", "command": "echo x >> log; cat log"}
        shown = await here.seen("shell", **run)
        assert (shown["command"], shown["starts"][:10]) == ("echo x >> log; cat log", "exec bash ")

        async def dies(*_: object, **__: object) -> Executed:
            raise RuntimeError("the worker dies when the shell stands")

        with monkeypatch.context() as patched:
            patched.setattr(PersistentShells, "exec", dies)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, shell=True) as here:
        await execute(here, "cd /")
        (shell,) = await here.engine.store.list()
        granted = ToolCalls.granted

        async def and_then_it_ends(self: ToolCalls, *args: Any) -> Granted:
            found = await granted(self, *args)
            await here.engine.supervised.signal(shell.id, signal.SIGHUP)
            await here.engine.wait(shell.id, up_to=SOON)
            return found

        monkeypatch.setattr(ToolCalls, "granted", and_then_it_ends)
        with pytest.raises(ToolFailed, match=r"^task already completed"):
            await here.approved("shell", op="execute", command="touch ran")
        assert not (here.workspace / "ran").exists()
        assert len(await here.engine.store.list()) == 1
