"""What the protocol's document could not: no blocking, streams, terminals, background, signals, threads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shellback.exec.core.errors import CommandDenied, InvalidCommand, PathOutsideSandbox, PtyError, TaskCompleted
from shellback.exec.core.model import READ_ONLY, WORK, WindowSize
from shellback.exec.core.secrets import Secrets
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.judge import Judge
from shellback.exec.shell import AsyncShell, Chunk, CommandValidator, SyncShell
from shellback.exec.shell.permit import ByOperator, ByPolicy
from shellback.exec.shell.words import quoted
from tests.execs import end_all, places, unstarted_engine
from tests.supervisors import SOON

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

WAITS = "trap : TERM; wait; wait; wait"
TRAP = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncGenerator[AsyncShell]:
    workspace, home = places(tmp_path)
    engine = unstarted_engine(workspace, home)
    try:
        yield AsyncShell(engine, ByOperator(engine))
        await end_all(engine)
    finally:
        await engine.stop()


async def until_printed(chunks: AsyncGenerator[Chunk], text: str) -> str:
    """Everything up to and with what is waited for."""
    seen = ""
    async with asyncio.timeout(SOON):
        while text not in seen:
            seen += (await anext(chunks)).text
    return seen


async def test_nothing_starts_before_the_first_command_and_commands_run_side_by_side(shell: AsyncShell) -> None:
    assert not shell.engine.started
    results = await asyncio.gather(*(shell.execute(["echo", str(number)]) for number in range(8)))
    assert [one.stdout for one in results] == [f"{number}\n" for number in range(8)]


async def test_output_comes_while_the_command_runs_each_stream_in_its_order(shell: AsyncShell) -> None:
    running = await shell.spawn("echo one; read x; echo two-$x; echo err >&2", keep_stdin_open=True)
    chunks = running.stream()
    assert await until_printed(chunks, "one\n") == "one\n"
    assert await running.output() == ("one\n", "")
    assert await running.write("ü\n") == 3
    rest = [chunk async for chunk in chunks]
    assert "".join(one.text for one in rest if one.stream == "stdout") == "two-ü\n"
    assert "".join(one.text for one in rest if one.stream == "stderr") == "err\n"
    result = await running.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\ntwo-ü\n", "err\n")
    with pytest.raises(TaskCompleted):
        await running.write("late")


async def test_a_stream_has_every_byte_and_no_half_characters(shell: AsyncShell) -> None:
    text = "".join([chunk.text async for chunk in shell.stream("yes äöü | head -n 40000; printf '\\303'")])
    assert text == "äöü\n" * 40000 + "\ufffd"


async def test_leaving_a_stream_ends_its_command(shell: AsyncShell) -> None:
    async with contextlib.aclosing(shell.stream("echo ready; sleep 600")) as chunks:
        assert await until_printed(chunks, "ready\n")
    assert not await shell.engine.store.list(live=True)


async def test_an_input_that_is_closed_is_at_its_end(shell: AsyncShell) -> None:
    running = await shell.spawn(["cat"], stdin="a", keep_stdin_open=True)
    await running.write(b"b")
    await running.close_stdin()
    assert (await running.wait(SOON)).stdout == "ab"
    with pytest.raises(InvalidCommand):
        await (await shell.spawn(["sleep", "60"])).write("x")


async def test_a_signal_reaches_the_command_and_only_kill_is_certain(shell: AsyncShell) -> None:
    running = await shell.spawn(TRAP)
    chunks = running.stream()
    await until_printed(chunks, "ready\n")
    await running.send_signal(signal.SIGINT)
    result = await running.wait(SOON)
    assert (result.exit_code, result.signal) == (5, None)
    with pytest.raises(TaskCompleted):
        await running.send_signal(signal.SIGINT)
    with pytest.raises(ValueError, match="signal is 99"):
        await running.send_signal(99)


async def test_a_signal_reaches_every_process_of_the_tree(shell: AsyncShell) -> None:
    inner = "trap 'echo $0 caught; exit 0' TERM; echo $0 ready; while :; do sleep 0.05; done"
    running = await shell.spawn(f"setsid sh -c {quoted(inner)} one & sh -c {quoted(inner)} two & {WAITS}")
    seen = ""
    async with asyncio.timeout(SOON):
        async for chunk in running.stream():
            ready_before = seen.count("ready")
            seen += chunk.text
            if seen.count("ready") == 2 and ready_before < 2:
                await running.send_signal(signal.SIGTERM)
    assert {"one caught", "two caught"} <= set(seen.splitlines())
    assert (await running.wait(SOON)).exit_code == 0


async def test_a_stopped_command_goes_on_when_it_is_told_to(shell: AsyncShell) -> None:
    running = await shell.spawn("echo ready; read x; echo done", keep_stdin_open=True)
    await until_printed(running.stream(), "ready\n")
    await running.send_signal(signal.SIGSTOP)
    await running.write("x\n")
    with pytest.raises(TimeoutError):
        await running.wait(0.3)
    await running.send_signal(signal.SIGCONT)
    assert (await running.wait(SOON)).stdout == "ready\ndone\n"


async def test_kill_gives_the_result_and_leaves_an_end_alone(shell: AsyncShell) -> None:
    running = await shell.spawn("echo part; sleep 600")
    await until_printed(running.stream(), "part\n")
    killed = await running.kill()
    assert (killed.exit_code, killed.signal, killed.stdout, killed.timed_out) == (-15, 15, "part\n", False)
    assert await running.kill() == killed
    by_signal = await shell.spawn("trap '' TERM; echo ready; sleep 600")
    await until_printed(by_signal.stream(), "ready\n")
    await by_signal.send_signal(signal.SIGKILL)
    assert not (await by_signal.wait(SOON)).success


async def test_a_command_in_the_background_has_a_timeout_of_its_own(shell: AsyncShell) -> None:
    result = await (await shell.spawn("echo part; sleep 600", timeout_seconds=0.5)).wait(SOON)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, -1, "part\n")
    assert result.stderr == "Command timed out after 0.5s"
    with pytest.raises(ValueError, match=r"0.1 to 604800"):
        await shell.spawn("true", timeout_seconds=604801)


async def test_a_terminal_is_one_and_changes_its_size(shell: AsyncShell) -> None:
    running = await shell.spawn(
        "stty size; test -t 0 && echo terminal; read x; stty size; echo got $x", pty=WindowSize(10, 33)
    )
    chunks = running.stream()
    assert "10 33" in await until_printed(chunks, "terminal")
    await running.resize(20, 44)
    await running.write("word\n")
    assert "20 44" in await until_printed(chunks, "got word")
    result = await running.wait(SOON)
    assert result.stderr == ""
    with pytest.raises(PtyError):
        await (await shell.spawn(["sleep", "60"])).resize(1, 1)


async def test_a_synchronous_shell_serves_threads_and_refuses_a_running_loop(shell: AsyncShell) -> None:
    sync = SyncShell(shell, asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match=r"use AsyncShell, or `await asyncio\.to_thread"):
        sync.execute("true")
    result = await asyncio.to_thread(sync.execute, ["echo", "from a thread"])
    assert result.stdout == "from a thread\n"
    assert (await asyncio.to_thread(sync.env)).cwd == str(shell.engine.workspace)


async def test_it_keeps_what_commands_leave_behind_and_is_ended_with_its_context(engine: Engine) -> None:
    made = AsyncShell(engine, ByOperator(engine), validator=CommandValidator(blocked_patterns=("forbidden",)))
    async with await made.session(env={"A": "1"}, rows=30, cols=90) as shell:
        assert shell.prompt.endswith("$ ")
        await shell.exec("mkdir sub; cd sub; f() { echo $A; }")
        done = await shell.exec("f; stty size; (exit 3)")
        assert (done.output, done.exit_code, done.cwd) == (
            "1\n30 90\n", 3, f"{engine.backend.inner}/sub",
        )  # fmt: skip
        asked = await shell.exec("read -p 'go on? ' x")
        assert asked.waiting
        await shell.write("y\n")
        await shell.resize(10, 20)
        assert (await shell.exec("echo $x; stty size")).output == "y\n10 20\n"
        with pytest.raises(CommandDenied, match="it would remove"):
            await shell.exec("rm -rf /")
        with pytest.raises(CommandDenied, match="blocked pattern"):
            await shell.exec("forbidden")
    (session,) = await engine.store.list()
    assert (session.granted_by, session.live) == ("operator", False)
    with pytest.raises(TaskCompleted):
        await shell.exec("echo more")
    await shell.close()
    with pytest.raises(PathOutsideSandbox):
        await made.session(cwd="/etc")
    with pytest.raises(InvalidCommand, match="2 to 500"):
        await made.session(rows=1)
    few = AsyncShell(engine, ByOperator(engine), validator=CommandValidator(allowed_commands=("ls",)))
    with pytest.raises(CommandDenied, match="not in allowlist: bash"):
        await few.session()


async def test_code_gets_every_character_that_is_no_part_of_a_control_sequence(engine: Engine) -> None:
    every = 'for ((i=0;i<256;i++)); do printf "\\x$(printf %x $i)"; done'
    made = AsyncShell(engine, ByOperator(engine))
    printed = (await made.execute(every)).stdout
    assert printed == bytes(range(256)).decode("utf-8", "replace")
    async with await made.session() as shell:
        assert (await shell.exec(every)).output == printed.replace("\x1b", "")
        styled = await shell.exec("printf 'a\\rb\\n\\e[31mred\\e[0m\\a\\n\\n'")
        assert styled.output == "a\rb\nred\a\n\n"
        assert (await shell.exec("sleep 0.5; printf 'x\\x01y'", timeout_seconds=0.1)).timed_out
        seen = ""
        while "y" not in seen:
            seen += (await shell.read()).output
        assert seen.startswith("x\x01y")


async def test_what_nobody_approved_is_held_to_reading_or_not_started(engine: Engine) -> None:
    judge = Judge(runs=engine.backend, secret=Secrets())
    made = AsyncShell(engine, ByPolicy(engine, judge))
    if READ_ONLY not in engine.backend.profiles:
        with pytest.raises(CommandDenied, match="has no approval"):
            await made.session()
        return
    async with await made.session() as shell:
        assert (await shell.session()).profile == READ_ONLY
        assert "Read-only file system" in (await shell.exec("touch b")).output
        with pytest.raises(CommandDenied):
            await shell.exec("rm -rf /")
    operators = await AsyncShell(engine, ByOperator(engine)).session()
    assert (await operators.session()).profile == WORK
