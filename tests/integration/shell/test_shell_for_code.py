"""A shell that stays, for code of one's own: what lets its commands run, and what is left at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.core.errors import CommandDenied, InvalidCommand, PathOutsideSandbox, TaskCompleted
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.core.secrets import Secrets
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.judge import Judge
from shellback.exec.shell import AsyncShell, CommandValidator
from shellback.exec.shell.permit import ByOperator, ByPolicy
from tests.execs import running_engine

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


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


async def test_code_gets_every_character_that_is_no_part_of_a_control_sequence(tmp_path: Path) -> None:
    every = 'for ((i=0;i<256;i++)); do printf "\\x$(printf %x $i)"; done'
    async with running_engine(tmp_path) as engine:
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
        with pytest.raises(CommandDenied, match="nobody approved"):
            await made.session()
        return
    async with await made.session() as shell:
        assert (await shell.session()).profile == READ_ONLY
        assert "Read-only file system" in (await shell.exec("touch b")).output
        with pytest.raises(CommandDenied):
            await shell.exec("rm -rf /")
    operators = await AsyncShell(engine, ByOperator(engine)).session()
    assert (await operators.session()).profile == WORK
