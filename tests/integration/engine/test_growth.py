"""Being told that output came, by the supervisor or its successor."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.answers import Grown
from shellback.exec.core.errors import LimitReached, SessionNotFound
from shellback.exec.core.model import CallKey
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import growth
from tests.execs import launch, run
from tests.supervisors import SOON, Rig, end

pytestmark = pytest.mark.anyio

ECHO = "while read line; do echo $line; done"


async def asking(sup: Rig, name: str, beyond: int, **more: Any) -> asyncio.Task[Grown]:
    """A request that has reached the supervisor and is not answered."""
    task = asyncio.ensure_future(sup.client.grown(name, beyond, timeout_s=SOON, **more))
    await asyncio.sleep(0)
    await sup.client.info()
    assert not task.done()
    return task


async def test_who_waits_is_told_of_the_next_output_and_of_the_end(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    task = await asking(sup, "a", 0)
    await sup.client.write("a", b"hello\n")
    assert await task == Grown(size=6)
    assert await sup.client.grown("a", 3) == Grown(size=6)
    tasks = [await asking(sup, "a", 6) for _ in range(3)]
    await sup.client.write("a", b"", eof=True)
    assert await asyncio.gather(*tasks) == [Grown(size=6, ended=True)] * 3
    assert await sup.client.grown("a", 6) == Grown(size=6, ended=True)
    await sup.client.ack("a")
    assert await sup.client.grown("a", 6) == Grown(size=6, ended=True)
    with pytest.raises(SessionNotFound):
        await sup.client.grown("b", 0)


async def test_a_write_is_told_with_the_output_that_it_brings_and_once(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    for _ in range(2):
        told = await sup.client.write("a", b"hello\n", key="1", beyond=5, timeout_s=SOON)
        assert told.accepted == 6
        assert await sup.client.grown("a", 0, timeout_s=0) == Grown(size=6)
    told = await sup.client.write("a", b"x", key="2", beyond=6, timeout_s=0.05)
    assert (told.accepted, await sup.client.grown("a", 6, timeout_s=0)) == (1, Grown(size=6))
    waits = asyncio.ensure_future(sup.client.write("a", b"", eof=True, key="3", beyond=100, timeout_s=SOON))
    assert (await waits).eof
    assert await sup.client.grown("a", 0, timeout_s=0) == Grown(size=6, ended=True)


async def test_a_write_is_told_at_once_where_too_many_wait(sup: Rig) -> None:
    await sup.start("a", "read line; sleep 60", stdin=b"", keep_stdin_open=True)
    waits = [await asking(sup, "a", 0) for _ in range(growth.PER_SESSION)]
    assert (await sup.client.write("a", b"x", key="1", beyond=0, timeout_s=SOON)).accepted == 1
    assert not any(task.done() for task in waits)
    for task in waits:
        task.cancel()


async def test_the_second_stream_is_asked_for_by_its_own_size(sup: Rig) -> None:
    await sup.start("a", "echo out; read x; echo err >&2; read x", stdin=b"", keep_stdin_open=True,
                    separate_stderr=True)  # fmt: skip
    await sup.until_log("a", b"out\n")
    task = await asking(sup, "a", 4)
    both = await asking(sup, "a", 4, err_beyond=0)
    await sup.client.write("a", b"\n")
    assert await both == Grown(size=4, err_size=4)
    assert not task.done()
    task.cancel()


async def test_the_time_is_up_and_no_answer_comes_before_the_rest(sup: Rig) -> None:
    await sup.start("a", "echo x; exec sleep 60")
    await sup.until_log("a", b"x\n")
    assert await sup.client.grown("a", 2, timeout_s=0) == Grown(size=2)
    began = time.monotonic()
    assert await sup.client.grown("a", 2, timeout_s=0.2) == Grown(size=2)
    assert await sup.client.grown("a", 0, rest_s=0.2, timeout_s=SOON) == Grown(size=2)
    assert time.monotonic() - began >= 0.4


async def test_what_comes_within_the_rest_is_told_in_one_piece(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    task = await asking(sup, "a", 0, rest_s=1.0)
    for _ in range(5):
        await sup.client.write("a", b"1\n")
    await sup.until_log("a", b"1\n" * 5)
    assert (await task).size == 10


async def test_who_stops_waiting_leaves_nothing_behind(sup: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await sup.start("a", "exec sleep 60")
    for _ in range(3):
        tasks = [await asking(sup, "a", 0) for _ in range(growth.PER_SESSION)]
        with pytest.raises(LimitReached):
            await sup.client.grown("a", 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    other = sup.another()
    tasks = [asyncio.ensure_future(other.grown("a", 0)) for _ in range(growth.PER_SESSION)]
    await asyncio.sleep(0)
    await other.info()
    await other.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    (await asking(sup, "a", 0)).cancel()


async def test_a_follower_hears_of_output_and_end_while_the_supervisor_is_replaced(
    tmp_path: Path, engine: Engine
) -> None:
    session = await launch(engine, ECHO, keep_stdin_open=True)
    follower = Follower(engine, session)
    assert await follower.grown(0, timeout_s=0) == Grown(size=0)
    task = asyncio.ensure_future(follower.grown(0))
    other = SupervisorClient(tmp_path / "home")
    pid = (await other.info())["pid"]
    await other.close()
    await end(pid)
    await engine.supervised.write(session.id, b"hello\n", eof=True, key=CallKey("k"))
    assert (await task).size == 6
    assert await follower.grown(6) == Grown(size=6, ended=True)
    ended = await engine.wait(session.id, up_to=SOON)
    assert await Follower(engine, ended).grown(6) == Grown(size=6, ended=True)
    done = await run(engine, "echo over")
    assert await Follower(engine, done.session).grown(99) == Grown(size=5, ended=True)
