"""A command that was out of time: one status in its record, and in a result what the document of that call wants."""

from __future__ import annotations

import pytest

from shellback.exec.core.model import SessionState
from shellback.exec.shell import AsyncShell
from shellback.exec.shell.permit import ByOperator
from tests.desks import Desk, here

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

__all__ = ["here"]
WAITS = "echo part; sleep 60"


async def test_a_timeout_is_one_status_however_a_result_numbers_it(here: Desk) -> None:
    told = await here.approved("execute", command=WAITS, timeout=0.5)
    assert (told.metadata["state"], told.metadata["exit_code"], told.metadata["signal"]) == ("timed_out", None, 15)
    assert "part\n[timed out and stopped (signal SIGTERM)" in str(told.value)
    login = (await here.approved("run_shell", command=WAITS, timeout_ms=500)).value
    assert (login["status"], login["exit_code"], login["stdout"]) == ("timeout", -1, "part\n")
    short = (await here.approved("shell_execute", command=["bash", "-c", WAITS], timeout_seconds=1)).value
    assert (short["timed_out"], short["exit_code"], short["stdout"]) == (True, 124, "part\n")
    shell = AsyncShell(here.engine, ByOperator(here.engine))
    done = await shell.execute(WAITS, timeout_seconds=0.5)
    spawned = await (await shell.spawn(WAITS, timeout_seconds=1)).wait()
    for result in (done, spawned):
        assert (result.timed_out, result.exit_code, result.signal, result.stdout) == (True, -1, 9, "part\n")
    records = await here.engine.store.list()
    assert len(records) == 5
    ends = [one.end for one in records if one.end is not None]
    assert {(end.state, end.exit_code) for end in ends} == {(SessionState.TIMED_OUT, None)}
    # A `Shell` kills at once, as its document has it; all others let a command end by itself for a second.
    assert sorted(end.signal or 0 for end in ends) == [9, 9, 15, 15, 15]
