"""Every line that reaches a shell is judged, whichever tools have typed it, and however many calls it took."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ToolFailed

from shellback.exec.core.model import SessionId
from shellback.exec.engine.sessions import Sessions
from tests.desks import Desk, desk
from tests.supervisors import SOON

pytestmark = pytest.mark.anyio


async def shell_of(here: Desk, kind: str) -> str:
    """A shell all of whose input was approved."""
    if kind == "shell_session":
        made = str((await here.approved("shell_session", action="start")).value["session_id"])
    else:
        made = str((await here.approved("execute_pty", command="bash --norc -i")).metadata["session_id"])
    here.standing[made] = "a1"
    return made


@pytest.mark.parametrize("kind", ["shell_session", "execute_pty"])
async def test_no_tool_types_what_another_would_be_refused_or_asked_about(tmp_path: Path, kind: str) -> None:
    async with desk(tmp_path) as here:
        shell = await shell_of(here, kind)
        write, keys = "process_write", "process_send_keys"
        cases: tuple[tuple[str, dict[str, Any]], ...] = (
            (write, {"data": "rm -rf /\n"}),
            (keys, {"literal": "rm -rf /"}),
            (keys, {"literal": "rm -rf /", "keys": ["Enter"]}),
            (keys, {"paste": "rm -rf /\n"}),
            (keys, {"hex": b"rm -rf /\r".hex()}),
        )
        for tool, args in cases:
            with pytest.raises(ToolFailed, match="refused by policy"):
                await here.call(tool, session_id=shell, **args)
        for tool, args in (
            (write, {"data": "sudo id\n"}),
            (keys, {"literal": "sudo id", "keys": ["Enter"]}),
            (keys, {"hex": b"sudo id\n".hex()}),
            (keys, {"paste": "true\nsudo id\n"}),
            (keys, {"keys": ["Up", "Enter"]}),
            (keys, {"literal": "echo a", "keys": ["C-u"]}),
            (write, {"data": "echo a"}),
            (write, {"data": "!!\n"}),
        ):
            assert await here.asks(tool, session_id=shell, **args), (tool, args)
        for tool, args in ((write, {"data": "echo a\n"}), (keys, {"literal": "echo b", "keys": ["Enter"]})):
            assert not await here.asks(tool, session_id=shell, **args), (tool, args)


@pytest.mark.parametrize("kind", ["shell_session", "execute_pty"])
async def test_a_line_of_several_calls_is_asked_about_until_it_is_ended(tmp_path: Path, kind: str) -> None:
    async with desk(tmp_path) as here:
        shell = await shell_of(here, kind)
        await here.call("process_write", session_id=shell, data="echo whole\n")
        await here.approved("process_send_keys", session_id=shell, literal="rm -rf ")
        session = await here.engine.registry.get(SessionId(shell), None)
        assert await Sessions(here.engine, None).unfinished(session) == "rm -rf "
        with pytest.raises(ToolFailed, match="refused by policy"):
            await here.call("process_write", session_id=shell, data="/\n")
        assert await here.asks("process_write", session_id=shell, data="nothing\n")
        if kind == "shell_session":
            assert await here.asks("shell_session", action="exec", session_id=shell, command="echo a")
        await here.approved("process_write", session_id=shell, data="nothing\n")
        assert not await here.asks("process_write", session_id=shell, data="echo after\n")


async def test_a_call_that_is_made_again_does_not_wait_for_itself(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        shell = await shell_of(here, "execute_pty")
        first = await here.call("process_write", session_id=shell, data="echo a\n")
        again = await here.call("process_write", again=True, session_id=shell, data="echo a\n")
        assert again.metadata == first.metadata


async def test_another_program_may_be_typed_into_as_it_takes_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        made = str((await here.approved("execute_pty", command="cat")).metadata["session_id"])
        here.standing[made] = "a1"
        async with asyncio.timeout(SOON):
            while (look := await here.engine.supervised.look(SessionId(made))) is None or look.how != "read":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for args in ({"literal": "a"}, {"keys": ["Up"]}, {"literal": "it's", "keys": ["Enter"]}):
            assert not await here.asks("process_send_keys", session_id=made, **args)
