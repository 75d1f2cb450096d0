"""What runs is what was approved, whoever exchanges files between the yes and the start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.model import CommandSpec, Evidence, SessionEnd, SessionState
from shellback.exec.core.runner import EXEC_UID
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.commands import proposal_for
from shellback.exec.policy.policy import Proposal
from tests import execs
from tests.execs import end_of, granted, origin, spec
from tests.integration.tools.test_toolset_agent import Script, approved, scripted
from tests.programs import swapper
from tests.supervisors import until

pytestmark = pytest.mark.anyio

SWAPPER = Path(swapper.__file__).read_text()
GOOD, EVIL = "#!/bin/sh\necho good >> out\n", "#!/bin/sh\necho evil >> out\n"


def put(path: Path, text: str) -> Path:
    """A file that commands may change."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, EXEC_UID, EXEC_UID)
        os.chown(path.parent, EXEC_UID, EXEC_UID)
    return path


def ran(engine: Engine) -> list[str]:
    """What scripts have said that they are."""
    return (engine.workspace / "out").read_text().split()


def swap(one: Path, other: Path) -> None:
    swapper.exchange(os.fsencode(one), os.fsencode(other))


def before_plan(engine: Engine, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Do something between the claim and the last look at what would run."""
    plan = engine.backend.plan

    async def late(spec: CommandSpec, scope: str) -> Any:
        act()
        return await plan(spec, scope)

    patch.setattr(engine.backend, "plan", late)


def before_start(engine: Engine, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Do something between the engine's last look and the supervisor's."""
    start = engine.supervised.start

    async def late(*args: Any) -> Any:
        act()
        return await start(*args)

    patch.setattr(engine.supervised, "start", late)


async def ended(engine: Engine, command: str, **more: Any) -> tuple[SessionEnd, str]:
    outcome = await execs.run(engine, command, **more)
    return end_of(outcome.session), outcome.output.text


@pytest.fixture
def engine(engine: Engine) -> Engine:
    for name, text in (("out", ""), ("run.sh", GOOD), ("evil", EVIL)):
        put(engine.workspace / name, text)
    return engine


async def test_a_grant_for_no_command_starts_nothing(engine: Engine) -> None:
    with pytest.raises(CommandDenied, match="nothing was started"):
        await engine.run(execs.grant_by_operator(Proposal("execute", {"command": "touch ran"}), "test"), origin())
    assert await engine.store.list() == []


@pytest.mark.usefixtures("each_backend")
async def test_a_script_that_changed_is_named_and_the_claim_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_plan(engine, lambda: swap(engine.workspace / "run.sh", engine.workspace / "evil"), monkeypatch)
    with pytest.raises(CommandDenied, match=r"changed since it was approved: run\.sh; nothing was started"):
        await execs.run(engine, "sh run.sh")
    (session,) = await engine.store.list()
    assert end_of(session).evidence is Evidence.NEVER_STARTED
    assert ran(engine) == []


@pytest.mark.usefixtures("sandbox")
async def test_the_supervisor_looks_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    before_start(engine, lambda: swap(engine.workspace / "run.sh", engine.workspace / "evil"), monkeypatch)
    end, said = await ended(engine, "./run.sh")
    assert (end.state, end.errno) == (SessionState.START_FAILED, errno.ESTALE)
    assert "run.sh: changed since it was approved" in said
    assert ran(engine) == []


@pytest.mark.parametrize("level", ["link", "folder"])
@pytest.mark.usefixtures("sandbox")
async def test_a_symlink_that_leads_elsewhere_starts_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    put(engine.workspace / "a/run.sh", GOOD)
    put(engine.workspace / "b/run.sh", EVIL)
    ways = [engine.workspace / "way", engine.workspace / "other"]
    for way, place in zip(ways, "ab", strict=True):
        way.symlink_to(f"{place}/run.sh" if level == "link" else place)
    before_start(engine, lambda: swap(*ways), monkeypatch)
    end, said = await ended(engine, "sh way" if level == "link" else "sh way/run.sh")
    assert (end.state, end.errno) == (SessionState.START_FAILED, errno.ESTALE)
    assert "changed since it was approved" in said
    assert ran(engine) == []


@pytest.mark.usefixtures("each_backend")
async def test_another_directory_under_the_name_of_cwd_starts_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine.workspace / "a/out", "")
    put(engine.workspace / "b/out", "")
    before_start(engine, lambda: swap(engine.workspace / "a", engine.workspace / "b"), monkeypatch)
    others: list[dict[str, Any]] = [{}, {"pty": True}]
    for more in others:
        end, _ = await ended(engine, "echo ran >> out", cwd="a", **more)
        assert (end.state, end.errno) == (SessionState.START_FAILED, errno.ESTALE)
        swap(engine.workspace / "a", engine.workspace / "b")
    assert (engine.workspace / "a/out").read_text() == (engine.workspace / "b/out").read_text() == ""


@pytest.mark.usefixtures("sandbox")
async def test_what_is_written_into_a_script_while_its_command_runs_is_not_run(engine: Engine) -> None:
    session = await execs.launch(engine, "echo ready; read line; ./run.sh", keep_stdin_open=True)
    await execs.printed(engine, session.id, "ready")
    with (engine.workspace / "run.sh").open("r+") as file:
        file.write(EVIL)
    await engine.supervised.port.write(session.id, b"\n", eof=True, key="k")
    await engine.wait(session.id, up_to=30)
    assert ran(engine) == ["good"]


@pytest.mark.usefixtures("sandbox")
async def test_a_held_script_is_read_only_and_itself(engine: Engine) -> None:
    text = "import os, sys\nprint(__file__, sys.path[0], os.stat(__file__).st_mtime_ns)\nopen(__file__, 'a')\n"
    path = put(engine.workspace / "run.py", text)
    end, said = await ended(engine, "python3 run.py")
    assert end.exit_code == 1
    assert f"run.py {engine.workspace} {path.stat().st_mtime_ns}" in said
    assert "Read-only file system" in said


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Generator[None]:
    """Somebody else exchanges two files all the time."""
    command = [sys.executable, "-I", "-S", swapper.__file__, str(one), str(other)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


async def race(engine: Engine, times: int, command: str = "sh run.sh") -> dict[str, int]:
    """Start an approved script so often; what came of it."""
    came: dict[str, int] = {"ran": 0, "refused": 0}
    good = hashlib.sha256(GOOD.encode()).hexdigest()
    for _ in range(times):
        made = spec(engine, command)
        while True:
            proposal = proposal_for(made, engine.backend)
            rows: Any = proposal.facts["scripts"]
            if [row["sha256"] for row in rows] == [good]:
                break
            await asyncio.sleep(0)
        try:
            outcome = await engine.run(execs.grant_by_operator(proposal, "test"), origin())
        except CommandDenied:
            came["refused"] += 1
        else:
            came["ran" if end_of(outcome.session).state is SessionState.EXITED else "refused"] += 1
    return came


@pytest.mark.usefixtures("sandbox")
async def test_no_command_can_exchange_what_another_was_approved_to_run(engine: Engine) -> None:
    put(engine.workspace / "swapper.py", SWAPPER)
    async with other_conversation(engine, "python3 swapper.py run.sh evil"):
        came = await race(engine, 25)
    assert set(ran(engine)) <= {"good"}, came
    assert came["ran"] == len(ran(engine))


@pytest.mark.parametrize(("script", "name"), [("run.sh", "run.sh"), ("way/run.sh", "way"), ("tools/run.sh", "tools")])
@pytest.mark.usefixtures("sandbox")
async def test_no_name_on_the_way_to_an_approved_script_can_be_given_away(
    engine: Engine, script: str, name: str
) -> None:
    put(engine.workspace / "tools/run.sh", GOOD)
    (engine.workspace / "way").symlink_to("tools")
    before = spec(engine, f"echo ready; read line; mv {name} away || rm {name}; echo told", keep_stdin_open=True)
    before = replace(before, background=True)
    other = await engine.launch(granted(engine, before), origin("other"))
    await execs.printed(engine, other.id, "ready")
    session = await execs.launch(engine, f"echo ready; read line; sh {script}", keep_stdin_open=True)
    await execs.printed(engine, session.id, "ready")
    for one in (other, session):
        await engine.supervised.port.write(one.id, b"\n", eof=True, key="k")
        await engine.wait(one.id, up_to=30)
    said = (await engine.output(other).ends()).text
    assert "Device or resource busy" in said
    assert ran(engine) == ["good"]
    # What held the name went with the last process of its command; the kernel may take a moment to unmount it.
    again = [(await ended(engine, f"mv {name} away"))[0].exit_code]
    while again[-1] != 0 and len(again) < 50:
        again.append((await ended(engine, f"mv {name} away"))[0].exit_code)
    assert again[-1] == 0, again


@contextlib.asynccontextmanager
async def other_conversation(engine: Engine, command: str) -> AsyncGenerator[None]:
    """A command of another conversation, that was approved before; it goes on when it cannot exchange."""
    made = spec(engine, command, background=True)
    session = await engine.launch(granted(engine, made), origin("other"))
    await execs.printed(engine, session.id, "ready")
    try:
        yield
    finally:
        await execs.Sessions(engine, None).end(session, by=execs.EndedBy.SHUTDOWN)


@pytest.mark.parametrize("died", [False, True])
async def test_a_repeat_of_a_call_whose_script_changed_itself_has_its_result(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    put(engine.workspace / "run.sh", f"{GOOD}echo true >> run.sh\nsleep 0.5\n")
    agent = scripted(engine, Script(("execute", {"command": "sh run.sh"})))
    pending = await agent.run("go", conversation_id="talk")
    metadata = pending.output.metadata
    start = engine.supervised.start

    async def last(*args: Any) -> Any:
        await start(*args)
        await until(lambda: ran(engine) == ["good"])
        raise Died

    if died:
        # Nobody recorded that it runs.
        monkeypatch.setattr(engine.supervised, "start", last)
        with pytest.raises(Died):
            await approved(agent, pending, metadata=metadata)
        monkeypatch.setattr(engine.supervised, "start", start)
    for _ in range(1 if died else 2):
        assert (await approved(agent, pending, metadata=metadata)).metadata["exit_code"] == 0
    assert ran(engine) == ["good"]


class Died(Exception):
    """A worker ends here."""
