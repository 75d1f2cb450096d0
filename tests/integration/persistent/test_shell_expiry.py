"""How shells end that do not end by themselves: killed, or because nobody uses them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand, SessionNotFound, TaskCompleted
from shellback.exec.persistent import PersistentShells
from tests.execs import end_of, launch, origin
from tests.shells import Shell, a_shell

pytestmark = pytest.mark.anyio


async def test_list_and_kill(shell: Shell) -> None:
    await shell.says("sleep 60 & sleep 0")
    (listed,) = await shell.shells.list("talk")
    assert listed.session.id == shell.id
    assert await shell.shells.list("other") == []
    session, survivors = await shell.shells.kill(shell.id, origin())
    assert (end_of(session).ended_by, survivors) == ("agent", ())
    assert await shell.shells.list("talk") == []


async def test_an_idle_shell_expires_and_says_so(tmp_path: Path) -> None:
    async with a_shell(tmp_path, idle_s=1.0) as shell:
        begun = time.monotonic()
        assert end_of(await shell.engine.wait(shell.id, up_to=30)).ended_by == "lifetime"
        assert time.monotonic() - begun > 0.5
        with pytest.raises(TaskCompleted, match="it expired, after"):
            await shell.exec("echo x")
        assert "it expired" in (await shell.read()).note
        with pytest.raises(TaskCompleted, match="it expired, after"):
            await shell.write("x")


async def test_a_shell_expires_that_was_idle_while_nobody_watched(shell: Shell) -> None:
    await shell.shells.expiry.stop()
    used = shell.log.modified_at()
    await asyncio.sleep(0.3)
    await shell.says("true")
    assert shell.log.modified_at() > used
    # A worker that comes later: the first look is its own, no call's.
    later = PersistentShells(shell.engine, idle_s=0.2, clock=lambda: time.time() + 60)
    await later.expiry.start()
    assert end_of(await shell.engine.wait(shell.id, up_to=30)).ended_by == "lifetime"
    await later.expiry.stop()


async def test_a_due_shell_is_ended_by_the_call_that_finds_it(shell: Shell) -> None:
    later = PersistentShells(shell.engine, idle_s=5, clock=lambda: time.time() + 60)
    with pytest.raises(TaskCompleted, match="it expired"):
        await later.exec(shell.id, "echo x", origin())
    assert await later.list("talk") == []
    await later.expiry.stop()


async def test_sessions_that_are_no_shells_of_this_conversation(shell: Shell) -> None:
    other = await launch(shell.engine, "sleep 60", pty=True)
    with pytest.raises(InvalidCommand, match="is no shell"):
        await shell.shells.exec(other.id, "echo x", origin())
    with pytest.raises(SessionNotFound):
        await shell.shells.exec(shell.id, "echo x", origin("elsewhere"))
    with pytest.raises(SessionNotFound):
        await shell.shells.read("x0000000000000000", origin())
