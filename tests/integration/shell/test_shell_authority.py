"""Who lets a shell's commands run, and that a tool's body which is run again starts nothing twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from examples.handlers import Params, my_handler
from shellback.exec.core.identity import calling, origin_of
from shellback.exec.core.identity import session_id as session_id_of
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.engine.engine import Engine
from shellback.exec.shell import AsyncShell, ExecutionResult, HostShell, SyncShell, ToolContext
from shellback.exec.shell.permit import ByOperator, ByPolicy
from shellback.exec.tools.toolset import plain_judge
from tests.documents import ROOT
from tests.sandboxes import a_workspace
from tests.supervisors import SOON, run_to_end, until

pytestmark = pytest.mark.anyio


def by_policy(engine: Engine, **more: Any) -> AsyncShell:
    return AsyncShell(engine, ByPolicy(engine, plain_judge(engine)), scope="talk", **more)


# -- authority ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sandbox")
async def test_what_nobody_approved_is_held_to_reading(engine: Engine) -> None:
    shell = by_policy(engine)
    refused = await shell.execute("touch made && echo written")
    assert (refused.success, refused.stdout) == (False, "")
    assert list(await engine.store.list())[-1].profile == READ_ONLY
    assert not (engine.workspace / "made").exists()
    assert (await shell.execute_script("touch made || echo kept")).stdout == "kept\n"
    assert (await shell.execute(["ls"])).success
    assert (await shell.which("ls")).found


async def test_without_a_profile_that_holds_it_is_refused_naming_what_would_allow_it(engine: Engine) -> None:
    with pytest.raises(PermissionError, match=r"POLICY_FILE, or set BACKEND=bubblewrap"):
        await by_policy(engine).execute("touch made")
    assert not list(await engine.store.list())
    assert (await by_policy(engine).which("ls")).found


@pytest.mark.usefixtures("sandbox")
async def test_what_policy_denies_is_a_permission_error_in_a_script_too(engine: Engine) -> None:
    for shell in (by_policy(engine), AsyncShell(engine, ByOperator(engine))):
        with pytest.raises(PermissionError, match="refused by policy"):
            await shell.execute(["rm", "-rf", "/"])
        with pytest.raises(PermissionError, match="refused by policy"):
            await shell.execute_script("true\nrm -rf /\n", interpreter="/bin/sh")
    assert not list(await engine.store.list())


async def test_the_owner_of_a_shell_runs_what_he_likes_on_record(engine: Engine) -> None:
    shell = AsyncShell(engine, ByOperator(engine, reason="a build script"), scope="builds")
    assert (await shell.execute("touch made")).success
    (session,) = await engine.store.list(conversation_id="builds")
    assert (session.granted_by, session.profile) == ("operator", WORK)
    assert (engine.workspace / "made").exists()


async def test_the_owner_of_a_shell_may_grant_names_and_directories(engine: Engine) -> None:
    plain = AsyncShell(engine, ByOperator(engine))
    with pytest.raises(ValueError, match="PYTHONPATH"):
        await plain.execute("true", env={"PYTHONPATH": "/x"})
    with pytest.raises(ValueError, match=r"^Working directory escapes root: /usr$"):
        await plain.execute("true", cwd="/usr")
    granted = AsyncShell(engine, ByOperator(engine), env_names=["PYTHONPATH"], allowed_paths=["/usr"])
    result = await granted.execute('echo "$PYTHONPATH"', env={"PYTHONPATH": "/x"}, cwd="/usr/bin")
    assert (result.stdout, result.cwd) == ("/x\n", "/usr/bin")
    with pytest.raises(ValueError, match="LD_PRELOAD"):
        await granted.execute("true", env={"LD_PRELOAD": "/x"})


async def test_a_wait_is_cut_to_what_is_left_of_the_run(engine: Engine) -> None:
    shell = AsyncShell(engine, ByOperator(engine), deadline=lambda: 0.3)
    result = await shell.execute("echo part; sleep 60", timeout_seconds=50)
    assert (result.timed_out, result.stdout, result.stderr) == (True, "part\n", "Command timed out after 0.3s")


async def test_a_bound_that_is_used_up_is_a_runtime_error(engine: Engine) -> None:
    shell = AsyncShell(engine, ByOperator(engine))
    engine.limits = replace(engine.limits, sessions=1)
    running = await shell.spawn(["sleep", "60"])
    with pytest.raises(RuntimeError, match="1 is the limit"):
        await shell.execute("true")
    await running.kill()


# -- in the body of a tool ------------------------------------------------------------------------


@dataclass
class Deps:
    shell: Any
    conversation_id: str = "talk"
    turn_id: str = ""
    epoch: int = 0


def calls(*wanted: tuple[str, dict[str, Any]]) -> FunctionModel:
    """A model that makes these calls at once, then says what came back."""

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        back = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if back:
            return ModelResponse(parts=[TextPart("\n".join(str(part.content) for part in back))])
        return ModelResponse(parts=[ToolCallPart(name, args) for name, args in wanted])

    return FunctionModel(answer)


async def test_a_tool_body_that_is_run_again_starts_each_command_once_and_gets_the_same_results(engine: Engine) -> None:
    seen: list[list[ExecutionResult]] = []
    agent = Agent(calls(("build", {})), deps_type=Deps)

    @agent.tool
    async def build(ctx: RunContext[Deps]) -> str:
        shell: AsyncShell = ctx.deps.shell
        for _ in range(2):
            with calling(ctx):
                first = await shell.execute("echo first >> ran; wc -l < ran")
                second = await shell.execute_script("echo second >> ran\nwc -l < ran\n")
                seen.append([first, second])
        with calling(ctx), pytest.raises(ValueError, match="differs from the one of the earlier execution"):
            await shell.execute("echo something else")
        with calling(ctx):
            await shell.execute("echo first >> ran; wc -l < ran")
            with pytest.raises(ValueError, match="differs from the one of the earlier execution"):
                await shell.execute_script("echo something else\n")
        ids = [session.id for session in await engine.store.list(conversation_id="talk")]
        assert session_id_of(origin_of(ctx)) not in ids
        return f"{len(set(ids))} sessions"

    shell = AsyncShell(engine, ByOperator(engine), scope="talk")
    assert (await agent.run("go", deps=Deps(shell))).output == "2 sessions"
    assert (engine.workspace / "ran").read_text() == "first\nsecond\n"
    assert seen[0] == seen[1]
    assert [one.stdout.strip() for one in seen[0]] == ["1", "2"]


async def test_a_running_command_that_a_tool_body_started_is_found_again_by_its_repeat(engine: Engine) -> None:
    shell = AsyncShell(engine, ByOperator(engine), scope="talk")
    ids: list[str] = []
    agent = Agent(calls(("serve", {})), deps_type=Deps)

    @agent.tool
    async def serve(ctx: RunContext[Deps]) -> str:
        printed = ""
        for _ in range(2):
            with calling(ctx):
                running = await shell.spawn("read x; echo got $x", keep_stdin_open=True)
                ids.append(running.id)
                await running.write("once\n")
                printed += (await running.wait(30)).stdout
        return printed

    assert (await agent.run("go", deps=Deps(shell))).output == "got once\n" * 2
    assert len(set(ids)) == 1


async def test_a_synchronous_tool_in_its_thread_is_known_by_its_call_too(engine: Engine) -> None:
    shell = SyncShell(AsyncShell(engine, ByOperator(engine), scope="talk"), asyncio.get_running_loop())
    agent = Agent(calls(("build", {})), deps_type=Deps)

    @agent.tool
    def build(ctx: RunContext[Deps]) -> str:
        printed = ""
        for _ in range(2):
            with calling(ctx):
                printed += ctx.deps.shell.execute("echo once >> ran; wc -l < ran").stdout
        return printed

    assert (await agent.run("go", deps=Deps(shell))).output == "1\n1\n"


async def test_a_handler_tells_blocked_invalid_late_failed_and_succeeded_apart(engine: Engine) -> None:
    lines = ("echo fine", "echo no >&2; exit 3", "mkfs /dev/none", "", "echo part; sleep 60")
    agent = Agent(calls(*[("run", {"command": line}) for line in lines]), deps_type=Deps)

    @agent.tool
    def run(ctx: RunContext[Deps], command: str) -> str:
        return my_handler(Params(command), context=ToolContext(shell=ctx.deps.shell)).message

    shell = AsyncShell(engine, ByOperator(engine), scope="talk", deadline=lambda: 1.0)
    output = (await agent.run("go", deps=Deps(SyncShell(shell, asyncio.get_running_loop())))).output
    assert output.splitlines() == [
        "Command succeeded",
        *("Command failed (exit 3):", "no", ""),
        "Command blocked: refused by policy: mkfs formats a file system",
        "Invalid command: command is empty; give the text of a bash command",
        *("Command timed out after 1.0s.", "Partial output:", "part"),
    ]


def test_closing_ends_what_runs_gives_its_callers_their_results_and_leaves_nothing() -> None:
    root = a_workspace()
    shell = HostShell(root)
    shell.execute("true")
    state = shell._own._state  # pyright: ignore[reportPrivateUsage]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(shell.execute, "echo part; touch begun; sleep 600")
        asyncio.run(until((root / "begun").exists))
        shell.close()
        assert waiting.result(SOON).signal == 15
    assert not state.exists()
    assert [path.name for path in root.iterdir()] == ["begun"]
    shell.close()
    with pytest.raises(RuntimeError, match="this shell has been closed"):
        shell.execute("true")


def test_what_has_ended_is_forgotten_in_time_and_a_shell_that_nobody_closed_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.shell.standalone.KEPT", 3)
    with HostShell(a_workspace()) as shell:
        own = shell._own  # pyright: ignore[reportPrivateUsage]
        for number in range(8):
            assert shell.execute(["echo", str(number)]).stdout == f"{number}\n"
        assert len(list((own._state / "sessions").iterdir())) <= 4  # pyright: ignore[reportPrivateUsage]
        assert len(own._store.ended()) <= 3  # pyright: ignore[reportPrivateUsage]
    forgetful = f"from shellback.exec.shell import HostShell; HostShell({str(a_workspace())!r}).execute('true')"
    environ = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", forgetful], env=environ, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_forked_takes_nothing_away_and_runs_nothing() -> None:
    script = (
        "import os, sys\n"
        "from shellback.exec.shell import HostShell\n"
        f"shell = HostShell({str(a_workspace())!r})\n"
        "shell.execute('true')\n"
        "if not (pid := os.fork()):\n"
        "    try:\n"
        "        shell.execute('true')\n"
        "    except RuntimeError as error:\n"
        "        assert 'forked' in str(error), error\n"
        "        shell.close()\n"
        "        sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "print(shell.execute('echo still').stdout, end='')\n"
        "shell.close()\n"
    )
    done = run_to_end(sys.executable, "-c", script, env={"PYTHONPATH": str(ROOT)}, timeout=60)
    assert (done.returncode, done.stdout) == (0, "still\n"), done.stderr


def test_closing_in_the_middle_of_many_calls_refuses_them_by_name_and_leaves_no_state() -> None:
    shell = HostShell(a_workspace())
    state = shell._own._state  # pyright: ignore[reportPrivateUsage]

    def call_on() -> None:
        while True:
            shell.execute("true")

    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(call_on) for _ in range(8)]
        asyncio.run(until(lambda: len(list(state.glob("sessions/*"))) > 8))
        shell.close()
        refusals = {repr(call.exception(SOON)) for call in calls}
    assert refusals == {"RuntimeError('this shell has been closed; make another one')"}
    assert not state.exists()


def test_what_a_stream_was_too_slow_to_read_is_counted_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.shell.standalone.LOG_BYTES", 256 * 1024)
    with HostShell(a_workspace()) as shell:

        async def read() -> tuple[int, list[str], str]:
            running = await shell.asynchronous.spawn("yes | head -c 8000000; echo END")
            await running.wait()
            texts = [chunk.text async for chunk in running.stream()]
            notes = [text for text in texts if "dropped" in text]
            return sum(map(len, texts)) - sum(map(len, notes)), notes, texts[-1]

        kept, notes, last = shell.run(read)
    assert len(notes) == 1
    dropped = int(notes[0].split()[0].lstrip("[").replace(",", ""))
    assert kept + dropped == 8_000_004
    assert last.endswith("END\n")


def test_the_timeout_of_a_shell_is_that_of_a_call_without_one() -> None:
    with HostShell(a_workspace(), default_timeout=0.3) as shell:
        assert shell.execute("sleep 600").timed_out
        assert shell.execute_script("sleep 600").timed_out
        assert not shell.execute("sleep 0.6", timeout_seconds=600).timed_out
