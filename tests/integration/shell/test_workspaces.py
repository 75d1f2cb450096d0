"""Workspaces for tools: what a command that goes wrong raises, what a repeat does, and who may change what."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceError,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.identity import calling
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec, EndedBy
from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Grant
from shellback.exec.shell import AsyncShell, Shell, SyncShell
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.shell.workspaces.capability import ShellbackWorkspace, WorkspaceCapability
from shellback.exec.tools.toolset import plain_judge
from shellback.storage.errors import StaleTurn
from shellback.work.turn import equipment
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Fenced
from tests import execs
from tests.supervisors import cancelled

pytestmark = pytest.mark.anyio

DEFERRING: list[Any] = [str, DeferredToolRequests]


@pytest.fixture
async def files(engine: Engine) -> AsyncGenerator[Files]:
    made = files_of(engine.backend)
    yield made
    await made.close()


@pytest.fixture
def here(engine: Engine, files: Files) -> ShellbackWorkspace:
    """A workspace whose commands run by the grant of whoever makes it."""
    return ShellbackWorkspace(engine, ByOperator(engine), files, origin=execs.origin, scope="talk")


async def nothing_runs(engine: Engine) -> None:
    assert await engine.store.list(live=True) == []


async def test_a_command_that_prints_without_end_is_ended(here: ShellbackWorkspace) -> None:
    with pytest.raises(WorkspaceOutputLimitError, match="more than 10 MiB") as caught:
        await here.run(["yes", "on and on"])
    assert caught.value.stdout.startswith("on and on\n")
    assert len(caught.value.stdout) <= 64 * 1024
    await nothing_runs(here.engine)
    # Just as much as may be is no error.
    whole = await here.run("head -c 10485760 /dev/zero | tr '\\0' x", shell=True)
    assert len(whole.stdout) == 10 * 1024 * 1024


async def test_a_command_that_is_out_of_time_leaves_what_it_printed(here: ShellbackWorkspace) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await here.run("echo out; echo err >&2; sleep 60", shell=True, timeout=0.5)
    assert (caught.value.stdout, caught.value.stderr) == ("out\n", "err\n")
    await nothing_runs(here.engine)


@pytest.mark.parametrize(
    ("command", "env"),
    [("\0", None), (" ", None), (":" * 100_000, None), ("true", {"LD_PRELOAD": "x"}), ("true", {"A B": "x"})],
)
async def test_what_cannot_be_run_is_a_value_error(
    here: ShellbackWorkspace, command: str, env: dict[str, str] | None
) -> None:
    with pytest.raises(ValueError, match=r"command|env"):
        await here.run(command, shell=True, env=env)
    assert await here.engine.store.list() == []


class Once:
    """An operator who lets one command run, and says no to whatever he is asked later."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked = 0

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        self.asked += 1
        if self.asked > 1:
            raise CommandDenied("not again")
        return await ByOperator(self.engine).permit(spec, scope)


async def test_a_repeat_of_a_command_is_the_same_session_whatever_policy_would_say_by_now(
    engine: Engine, files: Files
) -> None:
    once = execs.origin()
    here = ShellbackWorkspace(engine, Once(engine), files, origin=lambda: once, scope="talk")
    first = await here.run("echo ran >> ran; cat ran", shell=True)
    again = await here.run("echo ran >> ran; cat ran", shell=True)
    assert first == again
    assert first.stdout == "ran\n"
    assert len(await engine.store.list()) == 1


async def test_a_command_outlives_the_engine_that_stops_and_its_repeat_goes_on_with_it(tmp_path: Path) -> None:
    once = execs.origin()
    place, home = execs.places(tmp_path)
    before = execs.unstarted_engine(place, home)
    files = files_of(before.backend)
    command = "echo ran >> ran; while [ ! -e go ]; do sleep 0.05; done; cat ran"

    def on(engine: Engine) -> ShellbackWorkspace:
        return ShellbackWorkspace(engine, ByOperator(engine), files, origin=lambda: once, scope="talk")

    waiting = asyncio.ensure_future(on(before).run(command, shell=True))
    await execs.running(before)
    await before.stop()
    await cancelled(waiting)
    (place / "go").touch()
    async with execs.unstarted_engine(place, home, before.store) as after:
        result = await on(after).run(command, shell=True)
    assert (result.exit_code, result.stdout) == (0, "ran\n")
    await files.close()


async def test_who_is_stopped_by_a_person_ends_the_command(here: ShellbackWorkspace) -> None:
    waiting = asyncio.ensure_future(here.run(["sleep", "60"]))
    (session,) = await execs.running(here.engine)
    here.engine.give_up(session.id)
    with pytest.raises(WorkspaceError, match="was given up, and its command has been ended"):
        await waiting
    ended = await here.engine.registry.get(session.id)
    assert execs.end_of(ended).ended_by is EndedBy.AGENT


async def test_another_directory_of_the_same_name_is_not_the_workspace(here: ShellbackWorkspace) -> None:
    await here.working_dir()
    directory = here.engine.workspace
    directory.rename(directory.with_name("moved"))
    directory.mkdir()
    for act in (here.working_dir(), here.run(["true"]), here.read_bytes(f"{directory}/x")):
        with pytest.raises(WorkspaceUnavailableError, match="is gone"):
            await act
    ref = WorkspaceRef(provider="shellback", id="another")
    other = ShellbackWorkspace(
        here.engine, ByOperator(here.engine), files_of(here.engine.backend), origin=execs.origin, ref=ref
    )
    with pytest.raises(WorkspaceUnavailableError, match="another"):
        await other.working_dir()


async def test_a_run_of_a_durable_engine_begins_without_a_workspace_and_its_tool_is_told(engine: Engine) -> None:
    durable = Bare(engine, _told, place=lambda: 1)
    engine.workspace.rmdir()
    await durable.agent.run("go")
    assert durable.got == [(str(engine.workspace), f"the workspace {engine.workspace} is gone")]


async def _told(ctx: RunContext[Any]) -> tuple[str, str]:
    directory = await ctx.workspace.working_dir()
    try:
        await ctx.workspace.run(["true"])
    except WorkspaceUnavailableError as error:
        return directory, str(error)
    return directory, ""


async def test_a_replay_that_skips_recorded_steps_goes_on_with_the_command_it_had_begun(engine: Engine) -> None:
    step = 0

    async def replayed(ctx: RunContext[Any]) -> None:
        nonlocal step
        run = ctx.workspace.run
        with calling(ctx):
            step = 1
            await run("echo first >> ran; cat ran", shell=True)
            step = 2
            second = await run("echo second >> ran; cat ran", shell=True)
        with calling(ctx):
            # As after a crash: the first command's outcome is recorded, so it is not even asked for.
            assert await run("echo second >> ran; cat ran", shell=True) == second
            step = 1
            with pytest.raises(ValueError, match="differs from the one of the earlier execution"):
                await run("echo third >> ran", shell=True)

    await approved_run(Bare(engine, replayed, place=lambda: step).capability, replayed)
    assert (engine.workspace / "ran").read_text() == "first\nsecond\n"


async def test_an_execution_that_was_overtaken_ends_and_is_no_outcome_of_its_step(engine: Engine, files: Files) -> None:
    here = ShellbackWorkspace(engine, Overtaken(), files, origin=execs.origin, fenced=equipment.fenced)
    with pytest.raises(Fenced):
        await here.run(["true"])


async def test_a_plain_function_that_was_overtaken_ends_its_execution_too(engine: Engine) -> None:
    shell = AsyncShell(engine, Overtaken(), fenced=equipment.fenced)
    sync = SyncShell(shell, asyncio.get_running_loop())
    for act in (lambda: sync.execute("true"), lambda: sync.execute_script("true")):
        with pytest.raises(Fenced):
            await asyncio.to_thread(act)
    for start in (shell.spawn("true"), shell.session()):
        with pytest.raises(Fenced):
            await start


def equipped(engine: Engine, files: Files, *, seconds: float = 600.0) -> tuple[TurnDeps, Shell]:
    """What a turn of the worker has for the code of its tools, and the shell in it."""
    until = time.monotonic() + seconds
    deps = TurnDeps(conversation_id="talk", turn_id="", epoch=0, gate=True, began_at=0.0, seconds=seconds, until=until)
    equipment.equip(deps, engine, plain_judge(engine), files)
    assert deps.shell is not None
    return deps, deps.shell


async def test_commands_of_a_plain_function_and_of_the_workspace_are_numbered_as_one_row_in_each_step(
    engine: Engine, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0

    async def replayed(ctx: RunContext[Any]) -> None:
        nonlocal step
        _, shell = equipped(engine, files)

        async def plainly(line: str) -> str:
            return (await asyncio.to_thread(shell.execute, line)).stdout

        with calling(ctx):
            step = 1
            await plainly("echo first >> ran; cat ran")
            step = 2
            second = await ctx.workspace.run("echo second >> ran; cat ran", shell=True)
            third = await plainly("echo third >> ran; cat ran")
        with calling(ctx):
            # As after a crash: the first command's outcome is recorded, so it is not even asked for.
            assert await ctx.workspace.run("echo second >> ran; cat ran", shell=True) == second
            assert await plainly("echo third >> ran; cat ran") == third
            step = 1
            with pytest.raises(ValueError, match="differs from the one of the earlier execution"):
                await plainly("echo fourth >> ran")

    monkeypatch.setattr(equipment, "place_in_turn", lambda: step)
    await approved_run(Bare(engine, replayed, place=lambda: step).capability, replayed)
    assert (engine.workspace / "ran").read_text() == "first\nsecond\nthird\n"


@pytest.mark.usefixtures("sandbox")
async def test_what_goes_on_when_its_call_is_over_takes_no_command_away_from_a_repeat(
    engine: Engine, files: Files
) -> None:
    """A thread cannot be cancelled: that of a run which was cut off goes on with its next command."""

    async def replayed(ctx: RunContext[Any]) -> None:
        _, shell = equipped(engine, files)
        half, cut_off = threading.Event(), threading.Event()

        def both(*, wait: bool) -> list[str]:
            first = shell.execute("echo first >> ran; cat ran").stdout
            half.set()
            if wait:
                cut_off.wait(30)
            return [first, shell.execute("echo second >> ran; cat ran").stdout]

        with calling(ctx):
            going = asyncio.create_task(asyncio.to_thread(both, wait=True))
            assert await asyncio.to_thread(half.wait, 30)
        cut_off.set()
        # What nobody approved any more is held to reading.
        assert await going == ["first\n", "first\n"]
        with calling(ctx):
            assert await asyncio.to_thread(both, wait=False) == ["first\n", "first\nsecond\n"]
        profiles = [one.profile for one in await engine.store.list()]
        assert profiles == [WORK, READ_ONLY, WORK]

    await approved_run(Bare(engine, replayed).capability, replayed)


class Overtaken:
    """What a claim says to an execution that is not the conversation's last."""

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        raise StaleTurn("talk", "turn", 1)


@pytest.mark.usefixtures("sandbox")
async def test_a_number_that_one_command_wrote_down_is_no_process_of_the_next(here: ShellbackWorkspace) -> None:
    await here.run("echo $$ > pid", shell=True)
    for _ in range(3):
        assert (await here.run('kill -0 "$(cat pid)"', shell=True)).exit_code == 1


class Bare:
    """A plain agent, without any queue, whose one tool works in the workspace."""

    def __init__(self, engine: Engine, work: Callable[[RunContext[Any]], Any], **more: Any) -> None:
        self.capability = WorkspaceCapability(engine, plain_judge(engine), files_of(engine.backend), **more)
        self.agent = Agent(TestModel(), capabilities=[self.capability], output_type=DEFERRING)
        self.got: list[Any] = []

        @self.agent.tool
        async def work_on(ctx: RunContext[Any]) -> str:
            self.got.append(await work(ctx))
            return "done"


async def approved_run(capability: WorkspaceCapability, tool: Callable[[RunContext[Any]], Any]) -> None:
    """Let an agent with this capability call a tool, and approve the call."""
    agent = Agent(TestModel(), capabilities=[capability], output_type=DEFERRING)
    agent.tool(requires_approval=True)(tool)
    first = await agent.run("go")
    assert isinstance(first.output, DeferredToolRequests)
    yes = DeferredToolResults(approvals={call.tool_call_id: ToolApproved() for call in first.output.approvals})
    await agent.run(message_history=first.all_messages(), deferred_tool_results=yes)


async def _writes(ctx: RunContext[Any]) -> list[str]:
    found: list[str] = []
    for act in (ctx.workspace.run(["touch", "ran"]), ctx.workspace.write_text("made", "text")):
        try:
            found.append(str(await act))
        except PermissionError as error:
            found.append(str(error))
    return found


async def test_a_tool_that_nobody_approved_changes_nothing_and_an_approved_one_does(engine: Engine) -> None:
    plain = Bare(engine, _writes)
    await plain.agent.run("go")
    assert "this command has no approval" in plain.got[0][0]
    assert "BACKEND=bubblewrap" in plain.got[0][0]
    assert "nobody approved this call of work_on" in plain.got[0][1]
    assert not {path.name for path in engine.workspace.iterdir()} & {"ran", "made"}

    await approved_run(plain.capability, _writes)
    assert {path.name for path in engine.workspace.iterdir()} >= {"ran", "made"}
    assert [session.granted_by for session in await engine.store.list()] == ["approved call"]


async def test_the_yes_to_a_call_is_lent_neither_to_an_agent_in_it_nor_to_what_outlives_it(engine: Engine) -> None:
    over = asyncio.Event()
    left: list[asyncio.Task[list[str]]] = []
    dug: list[list[str]] = []

    async def later(ctx: RunContext[Any]) -> list[str]:
        await over.wait()
        return await _writes(ctx)

    async def lends(ctx: RunContext[Any]) -> None:
        inner = Agent(TestModel())

        @inner.tool_plain
        async def dig() -> None:
            dug.append(await _writes(ctx))

        await inner.run("go")
        left.append(asyncio.create_task(later(ctx)))
        await ctx.workspace.write_text("mine", "text")

    await approved_run(Bare(engine, _writes).capability, lends)
    over.set()
    for refused in (dug[0], await left[0]):
        assert "this command has no approval" in refused[0]
        assert "nobody approved this call of lends" in refused[1]
    assert {path.name for path in engine.workspace.iterdir()} & {"ran", "made", "mine"} == {"mine"}


async def test_a_link_to_a_secret_is_a_secret(engine: Engine) -> None:
    async def reads(ctx: RunContext[Any]) -> str:
        try:
            return await ctx.workspace.read_text("plain")
        except PermissionError as error:
            return str(error)

    (engine.workspace / ".env").write_text("hidden")
    (engine.workspace / "plain").symlink_to(".env")
    bare = Bare(engine, reads)
    await bare.agent.run("go")
    assert "may be a secret" in bare.got[0]


async def test_the_next_run_and_the_agent_of_a_tool_are_in_the_same_workspace(engine: Engine) -> None:

    async def delegates(ctx: RunContext[Any]) -> tuple[str, WorkspaceRef | None]:
        inner = Bare(engine, lambda inner: inner.workspace.read_text("plain"))
        result = await inner.agent.run("go", workspace=ctx.workspace)
        return inner.got[0], result.workspace.ref

    (engine.workspace / "plain").write_text("text")
    outer = Bare(engine, delegates)
    first = await outer.agent.run("go")
    ref = first.response.workspace_ref
    assert outer.got == [("text", ref)]
    assert ref is not None
    assert ref.provider == "shellback"
    assert str(engine.workspace) not in ref.id
    second = await outer.agent.run("again", message_history=first.all_messages())
    assert second.response.workspace_ref == ref
    with pytest.raises(UserError, match="none of the agent's workspace capabilities recognized it"):
        await outer.agent.run("go", workspace=WorkspaceRef(provider="shellback", id="another"))


async def test_while_the_gate_is_off_nothing_is_attached_whatever_the_history_names(engine: Engine) -> None:
    closed = Bare(engine, _attached, enabled=False, name="mine")
    await closed.agent.run("go")
    await closed.agent.run("go", workspace=WorkspaceRef(provider="shellback", id="mine"))
    assert closed.got == [(False, "tools have no workspace: ENABLE_EXECUTE is off")] * 2


async def _attached(ctx: RunContext[Any]) -> tuple[bool, str]:
    try:
        await Workspace(ctx.workspace).working_dir()
    except WorkspaceUnavailableError as error:
        return ctx.workspace.attached, str(error)
    return True, ""


@pytest.mark.usefixtures("sandbox")
async def test_a_turn_has_a_shell_for_as_long_as_it_lasts_and_leaves_it_behind_when_it_is_carried(
    engine: Engine, files: Files
) -> None:
    deps, shell = equipped(engine, files, seconds=1.0)
    assert deps.filesystem is not None
    result = await asyncio.to_thread(shell.execute, "sleep 60")
    assert result.timed_out
    assert result.duration_seconds < 30
    with pytest.raises(PermissionError, match="nobody approved code outside of a tool call"):
        await asyncio.to_thread(deps.filesystem.write, "made", "text")
    carried = pickle.loads(pickle.dumps(deps))
    assert carried == deps
    assert (carried.shell, carried.filesystem, carried.async_shell, carried.async_filesystem) == (None,) * 4
