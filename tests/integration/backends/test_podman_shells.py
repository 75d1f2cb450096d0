"""Persistent shells in containers: the same calls, with the paths that are seen in there."""

from __future__ import annotations

import asyncio

import pytest

from shellback.exec.persistent import PersistentShells
from tests.podmans import in_pod
from tests.shells import Shell, hung_up, started

pytestmark = pytest.mark.anyio


async def test_a_shell_in_a_container_is_like_any_other() -> None:
    async with in_pod() as (_, engine):
        shells = PersistentShells(engine)
        shell = await started(engine, shells)
        assert await shell.says("printf ' a\\n b'; export X=1; echo $HOME >/dev/null") == " a\n b"
        done = await shell.exec("mkdir -p in; cd in; (exit 3)")
        assert (done.exit_code, done.cwd) == (3, "/workspace/in")
        assert await shell.says("echo $? $X $HOME") == "3 1 /workspace\n"
        done = await shell.exec("cd /etc")
        assert done.cwd == "/workspace/in"
        assert "outside of the workspace" in done.note
        done = await shell.exec("echo 'unclosed")
        assert done.exit_code not in {0, None}
        await _interrupted(shell)
        await _asked(shell)
        done = await shell.exec("exit 5")
        assert (done.exit_code, done.alive) == (5, False)
        await shells.expiry.stop()
        await hung_up(engine)


async def _interrupted(shell: Shell) -> None:
    call = asyncio.create_task(shell.exec("sh -c 'echo begun; exec sleep 600'"))
    await shell.read_until("begun\r\n")
    await shell.write("\x03")
    assert (await call).exit_code == 130


async def _asked(shell: Shell) -> None:
    asked = await shell.exec("read -p 'name? ' name", timeout_s=20)
    assert asked.output == "name? "
    assert asked.exit_code is None
    await shell.write("bob\n")
    assert (await shell.at_rest()).exit_code == 0
    assert await shell.says("echo $name") == "bob\n"
