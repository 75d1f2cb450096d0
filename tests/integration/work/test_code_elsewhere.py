"""The code of tools in a turn elsewhere: what its host lets it do, and that a command of it runs once."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceUnavailableError

from shellback.exec.core.errors import BackendUnavailable, CommandDenied, WorkspaceUnusable
from shellback.exec.core.identity import calling
from shellback.exec.engine.engine import Engine
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.workspaces.authority import ByCall, files_of
from shellback.exec.shell.workspaces.capability import ShellbackWorkspace
from shellback.exec.tools.toolset import plain_judge
from shellback.work.elsewhere import acting
from shellback.work.elsewhere import code as codes
from shellback.work.elsewhere import host as hosting
from shellback.work.elsewhere.code import WorkspaceElsewhere
from shellback.work.queue.mailbox import Workspace
from shellback.work.turn import equipment
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Fenced
from tests import execs
from tests.far import Far, far
from tests.integration.work.test_elsewhere_link import until
from tests.supervisors import cancelled, raising

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio


@pytest.fixture
async def turn(engine: Engine, tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Far]:
    async with far(engine, tmp_path, sqlite_template) as made:
        made.listener.orphan_s = 0.0
        yield made


def shell_of(turn: Far) -> AsyncShell:
    assert turn.deps.async_shell is not None
    return turn.deps.async_shell


def workspace_of(turn: Far) -> WorkspaceElsewhere:
    found = turn.tools.workspaces.get_workspace(turn.context(), ref=None)
    assert isinstance(found, WorkspaceElsewhere)
    return found


async def refused(turn: Far) -> None:
    """The code may neither run a command that changes something nor write a file."""
    files, workspace = turn.deps.async_filesystem, workspace_of(turn)
    assert files is not None
    with pytest.raises(CommandDenied, match="this command has no approval"):
        await shell_of(turn).execute("touch ran")
    with pytest.raises(PermissionError, match="this command has no approval"):
        await workspace.run(["touch", "ran"])
    with pytest.raises(PermissionError, match="nobody approved"):
        await files.write_bytes("ran", b"")
    with pytest.raises(PermissionError, match="nobody approved"):
        await workspace.write_bytes(f"{await workspace.working_dir()}/ran", b"")
    assert not await files.exists("ran")


async def test_without_an_approval_on_record_code_changes_nothing_whatever_its_worker_says(
    turn: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    await refused(turn)
    with turn.calling(approved=False):
        await refused(turn)
    monkeypatch.setattr(codes, "approved", bool)  # a worker that lies
    ctx = turn.context()
    with calling(ctx):
        await refused(turn)
    turn.approve(ctx, tool="another_tool")
    with calling(ctx):
        await refused(turn)
    turn.approve(ctx)
    with calling(ctx):
        assert (await shell_of(turn).execute("touch ran now")).success


async def test_the_approval_of_a_command_of_ours_covers_no_code(turn: Far) -> None:
    ctx = turn.context(tool="execute")
    turn.approve(ctx, tool="execute")
    with calling(ctx):
        await refused(turn)


async def test_code_acts_in_its_own_conversation_whatever_its_worker_says(turn: Far, engine: Engine) -> None:
    with turn.calling() as call:
        made = replace(call.origin(), conversation_id="c2", turn_id="other", epoch=7)
        code = codes.Code(turn.link, turn.deps)
        asked = code._asked("shell.execute", ["true"], {}) | {"named": asdict(made)}
        assert "value" in await code._answer(asked)
    (session,) = await engine.store.list()
    assert (session.conversation_id, session.turn_id) == ("c1", turn.deps.turn_id)


async def test_an_operation_that_code_does_not_have_is_refused(turn: Far) -> None:
    code = codes.Code(turn.link, turn.deps)
    for operation in ("shell.spawn", "shell._run", "files.close", "workspace.engine", "engine.stop", ""):
        with pytest.raises(ValueError, match="is no operation that code elsewhere has"):
            await code.ask(operation)


async def test_code_of_an_execution_that_was_overtaken_ends(turn: Far) -> None:
    turn.deps.epoch -= 1
    with turn.calling(), pytest.raises(Fenced):
        await shell_of(turn).execute("touch ran")
    sync = turn.deps.shell
    assert sync is not None
    with turn.calling(), pytest.raises(Fenced):
        await asyncio.to_thread(sync.execute, "touch ran")


async def test_a_command_runs_once_though_its_connection_breaks(turn: Far, engine: Engine) -> None:
    with turn.calling():
        first = asyncio.create_task(
            shell_of(turn).execute(f"echo ran >> ran; {execs.GATE}; cat ran", timeout_seconds=60)
        )
        # It names no file of the first, or it is refused if that one appears between its approval and its start.
        second = asyncio.create_task(workspace_of(turn).run(f"{execs.GATE}; echo two >> two", shell=True))
        await until((engine.workspace / "ran").exists)
        for writer in tuple(turn.listener._open):
            writer.transport.abort()
        await until(lambda: not turn.link.connected)
        await until(lambda: turn.link.connected)
        execs.let_go(engine)
        assert (await first).stdout.startswith("ran\n")
        assert (await second).exit_code == 0
    assert [(engine.workspace / name).read_text() for name in ("ran", "two")] == ["ran\n", "two\n"]
    assert len(await engine.store.list()) == 2


async def test_a_command_goes_on_when_its_worker_is_gone_and_the_next_one_gets_its_result(
    turn: Far, engine: Engine
) -> None:
    line = f"echo ran >> ran; {execs.GATE}; cat ran"
    with turn.calling():
        left = asyncio.create_task(workspace_of(turn).run(line, shell=True))
        await until((engine.workspace / "ran").exists)
    await turn.link.stop()
    await cancelled(left)
    await until(lambda: not turn.listener._open)
    (session,) = await engine.store.list(live=True)
    await turn.link.start()
    with turn.calling():
        again = asyncio.create_task(workspace_of(turn).run(line, shell=True))
        await until(lambda: any(one.waiting for one in turn.listener._calls.values()))
        execs.let_go(engine)
        assert (await again).stdout == "ran\n"
    assert [one.id for one in await engine.store.list()] == [session.id]


async def test_cancelling_ends_a_command_of_the_workspace_and_not_the_connection(turn: Far, engine: Engine) -> None:
    with turn.calling():
        running = asyncio.create_task(workspace_of(turn).run("touch ran; sleep 600", shell=True))
        await until((engine.workspace / "ran").exists)
        (connection,) = turn.listener._open
        await cancelled(running)
    assert await engine.store.list(live=True) == []
    assert [*turn.listener._open] == [connection]
    assert turn.link.connected


async def test_a_replay_on_the_host_finds_each_command_of_code_elsewhere(turn: Far, engine: Engine) -> None:
    async def course(shell: AsyncShell, workspace: WorkspaceBackend) -> list[str]:
        found = list[str]()
        for line in ("echo one >> ran", "", "echo two >> ran"):
            try:
                found.append(str((await shell.execute(line)).exit_code))
            except ValueError:
                found.append("refused")
        found.append(str((await shell.which("sh")).path))
        found.append((await shell.env()).cwd)
        for line in ("echo three >> ran", "\0", "echo four >> ran"):
            try:
                found.append(str((await cast("Any", workspace).run(line, shell=True)).exit_code))
            except ValueError:
                found.append("refused")
        return found

    ctx = turn.context()
    turn.approve(ctx)
    with calling(ctx):
        there = await course(shell_of(turn), workspace_of(turn))
    here: TurnDeps = replace(turn.deps)
    files = files_of(engine.backend)
    equipment.equip(here, engine, plain_judge(engine), files)
    with calling(replace(ctx, deps=here)) as call:
        by = ByCall(engine, plain_judge(engine))
        local = ShellbackWorkspace(engine, by, files, origin=lambda: call.origin(1), scope="c1", eager=False)
        assert await course(shell_of(replace(turn, deps=here)), local) == there
    await files.close()
    assert (engine.workspace / "ran").read_text() == "one\ntwo\nthree\nfour\n"
    assert there[1] == there[6] == "refused"


async def test_a_host_whose_gate_is_off_does_nothing_for_code(turn: Far) -> None:
    turn.listener.carried = replace(turn.listener.carried, gate=False)
    with turn.calling(), pytest.raises(RuntimeError, match="ENABLE_EXECUTE"):
        await shell_of(turn).execute("true")


async def test_without_its_workspace_a_turn_elsewhere_has_no_shell_and_says_why(turn: Far) -> None:
    async def gone(_: Workspace) -> Any:
        raise BackendUnavailable("it is gone")

    turn.listener.carried = replace(turn.listener.carried, ground_at=gone)
    turn.deps.shell = turn.deps.async_shell = None
    await turn.tools.equip(turn.deps, Workspace())
    assert (turn.deps.ground, turn.deps.shell, turn.deps.async_shell) == ("it is gone", None, None)
    found = turn.tools.workspaces.get_workspace(turn.context(), ref=None)
    with pytest.raises(WorkspaceUnavailableError, match="it is gone"):
        await cast("Any", found).run(["true"])


async def test_what_a_connection_cannot_carry_is_said(
    turn: Far, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "BYTES_MOST", 10)
    (engine.workspace / "large").write_bytes(b"x" * 11)
    files = turn.deps.async_filesystem
    assert files is not None
    with pytest.raises(OSError, match="11 bytes of at most 10 between machines") as caught:
        await files.read_bytes("large")
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="11 bytes of at most 10 between machines"):
        await files.write_bytes("larger", b"x" * 11)
    for start in (shell_of(turn).spawn("true"), shell_of(turn).session(), anext(shell_of(turn).stream("true"))):
        with pytest.raises(RuntimeError, match="starts no background commands"):
            await start
    with pytest.raises(TypeError, match="cannot be sent"):
        await shell_of(turn).execute(cast("Any", object()))


async def test_an_end_of_time_of_the_turn_ends_the_wait_of_code(turn: Far) -> None:
    turn.deps.seconds = 0.5
    with turn.calling():
        result = await shell_of(turn).execute("sleep 600", timeout_seconds=60)
    assert result.timed_out


async def test_what_was_refused_is_tried_anew_when_it_is_asked_for_again(turn: Far, engine: Engine) -> None:
    shell = shell_of(turn)
    with turn.calling():
        with pytest.raises(ValueError, match="create it first"):
            await shell.execute("pwd", cwd="sub")
        assert (await shell.which("./mine")).path is None
        (engine.workspace / "sub").mkdir()
        (engine.workspace / "mine").touch(mode=0o755)
        assert (await shell.execute("pwd", cwd="sub")).stdout.endswith("/sub\n")
        assert (await shell.which("./mine")).found


async def test_a_host_keeps_nothing_of_what_code_has_read_and_the_result_of_what_it_changed_for_a_while(
    turn: Far,
) -> None:
    files = turn.deps.async_filesystem
    assert files is not None
    with turn.calling():
        await files.write_bytes("made", b"text")
        assert await files.read_bytes("made") == b"text"
        assert (await shell_of(turn).execute("cat made")).stdout == "text"
    await until(lambda: len(turn.listener._calls) <= 1)
    assert [one.of_code for one in turn.listener._calls.values()] == ["files.write_bytes"]


async def test_commands_that_begin_together_have_the_numbers_that_they_would_have_on_the_host(
    turn: Far, engine: Engine
) -> None:
    async def together(shell: AsyncShell) -> None:
        await asyncio.gather(shell.which("sh"), shell.execute("echo ran >> ran"), shell.env())

    with turn.calling():
        await together(shell_of(turn))
    files = files_of(engine.backend)
    here = replace(turn.deps)
    equipment.equip(here, engine, plain_judge(engine), files)
    with calling(replace(turn.context(), deps=here)):
        await together(shell_of(replace(turn, deps=here)))
    await files.close()
    assert (engine.workspace / "ran").read_text() == "ran\n"


async def test_a_command_that_was_cancelled_before_its_host_had_begun_it_never_begins(
    turn: Far, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, held, goes_on = turn.listener._in_workspace, threading.Event(), threading.Event()

    def late(*asked: Any) -> Any:
        found = read(*asked)
        held.set()
        goes_on.wait(60)
        return found

    monkeypatch.setattr(turn.listener, "_in_workspace", late)
    with turn.calling():
        running = asyncio.create_task(workspace_of(turn).run(["touch", "ran"]))
        await asyncio.to_thread(held.wait, 60)
        await cancelled(running)
        goes_on.set()
        monkeypatch.undo()
        await workspace_of(turn).run(["touch", "next"])
    assert [one.command for one in await engine.store.list()] == ["'touch' 'next'"]


async def test_a_cancelled_wait_of_the_shell_leaves_the_command_whose_end_is_told(
    turn: Far, engine: Engine, told: execs.Told
) -> None:
    with turn.calling():
        running = asyncio.create_task(shell_of(turn).execute(f"touch ran; {execs.GATE}", timeout_seconds=60))
        await until((engine.workspace / "ran").exists)
        await cancelled(running)
    assert len(await engine.store.list(live=True)) == 1
    execs.let_go(engine)
    await until(lambda: len(told.sessions) == 1)


async def test_a_failed_cancellation_of_a_command_is_still_a_cancellation(
    turn: Far, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turn.calling():
        running = asyncio.create_task(workspace_of(turn).run(f"touch ran; {execs.GATE}", shell=True))
        await until((engine.workspace / "ran").exists)
        monkeypatch.setattr(turn.listener, "_cancel", raising(AssertionError("a fault of the host")))
        await cancelled(running)
    execs.let_go(engine)


async def test_the_ends_that_code_was_told_are_recorded_before_it_has_them(turn: Far) -> None:
    with turn.calling():
        await shell_of(turn).execute("true")
    assert turn.recorded == ["c1"]


async def test_a_workspace_that_is_lost_during_a_turn_is_told_as_on_the_host(
    turn: Far, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(_: Workspace) -> Any:
        raise WorkspaceUnusable("it is gone")

    workspace = workspace_of(turn)
    turn.listener.carried = replace(turn.listener.carried, ground_at=gone)
    with turn.calling():
        with pytest.raises(WorkspaceUnavailableError, match="it is gone"):
            await workspace.run(["true"])
        with pytest.raises(WorkspaceUnavailableError, match="it is gone"):
            await workspace.read_bytes("/workspace/x")
        with pytest.raises(WorkspaceUnusable, match="it is gone"):
            await shell_of(turn).execute("true")
    assert "a call of a turn elsewhere failed" not in caplog.text


async def test_what_code_of_one_turn_does_at_once_is_bounded(
    turn: Far, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "AT_ONCE", 1)
    with turn.calling():
        running = asyncio.create_task(workspace_of(turn).run(f"touch ran; {execs.GATE}", shell=True))
        await until((engine.workspace / "ran").exists)
        with pytest.raises(RuntimeError, match="at most 1 things at once"):
            await shell_of(turn).execute("true")
        execs.let_go(engine)
        await running
        assert (await shell_of(turn).execute("true")).success
