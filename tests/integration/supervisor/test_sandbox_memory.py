"""Memory in sandboxes: who is ended when it is short, and that nobody else is. Commands run as an unprivileged user."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.supervisor.sandbox import cgroups
from shellback.exec.wire.sandbox import Bounds
from tests.databases import unavailable
from tests.sandboxes import Boxes, boxes

pytestmark = pytest.mark.anyio

EXPENDABLE = 500
LIMIT = 96 << 20
HOG = "room = bytearray(512 << 20); room[:: 4096] = b'x' * len(room[:: 4096]); print('had it')"


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.parametrize("pty", [None, (24, 80)], ids=["pipes", "terminal"])
async def test_a_command_in_a_sandbox_is_ended_before_its_supervisor_where_memory_is_short(
    box: Boxes, pty: tuple[int, int] | None
) -> None:
    # The second one goes by what stands there before it.
    for name in ("first", "second"):
        await box.run(name, "/bin/sh", "-c", "cat /proc/self/oom_score_adj", pty=pty)
        assert int(box.log(name)) == max(EXPENDABLE, score(os.getpid()))
    for pid in await box.pids():
        assert score(pid) == score(os.getpid())


async def test_a_command_that_takes_more_than_the_limit_is_ended_and_nobody_else(tmp_path: Path) -> None:
    probed = cgroups.Cgroups(f"test.{os.getpid():x}", lambda _note: None).probe()
    if not probed.memory and os.geteuid() != 0:
        pytest.skip("no group of cgroups is this user's")
    if not probed.memory:
        unavailable(f"no cgroup limits memory here: {probed.says}")
    async with boxes(tmp_path) as box:
        more = {"sandbox": await bounded(box, Bounds(memory_bytes=LIMIT))}
        await box.start("bystander", "/bin/sh", "-c", "echo ready; exec sleep 600", **more)
        await box.until_log("bystander", b"ready")
        before = await box.pids()
        async with asyncio.timeout(60):
            record = await box.run("hog", "python3", "-c", HOG, **more)
        assert (record["signal"], box.log("hog")) == (signal.SIGKILL, b"")
        assert await box.live() == ["bystander"]
        assert await box.pids() == before
        assert (await box.run("next", "/bin/sh", "-c", "exit 7", **more))["exit_code"] == 7


async def bounded(box: Boxes, bounds: Bounds) -> Any:
    planned = (await box.plan()).sandbox
    assert planned is not None
    return replace(planned, bounds=bounds)
