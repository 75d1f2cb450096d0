"""Logs: the middle goes, and the table says what was in it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.link import launch
from shellback.exec.wire import layout
from tests.supervisors import SOON, Rig, rig

pytestmark = pytest.mark.anyio

CAP = 256 * 1024
LINES = 40_000


def line(number: int) -> bytes:
    return b"%099d\n" % number


def holes(sup: Rig, name: str) -> list[dict[str, int]]:
    rows: Any = json.loads((sup.folder(name) / layout.HOLES).read_text())
    return rows


def check(data: bytes, rows: list[dict[str, int]]) -> None:
    """Outside of the holes every byte is right; the newlines of each hole are as many as there were."""
    whole = b"".join(line(number) for number in range(LINES))
    assert len(data) == len(whole)
    at = 0
    for row in rows:
        assert data[at : row["start"]] == whole[at : row["start"]]
        assert whole[row["start"] : row["end"]].count(b"\n") == row["newlines"]
        at = row["end"]
    assert data[at:] == whole[at:]
    assert all(one["end"] < two["start"] for one, two in pairwise(rows))


@pytest.mark.parametrize("kills", [0, 3])
async def test_the_middle_of_a_long_log_is_dropped_and_on_record(sup: Rig, kills: int) -> None:
    await sup.start("a", f"seq -f %099.0f 0 {LINES - 1}", log_cap=CAP)
    for _ in range(kills):
        await sup.kill_supervisor()
    record = await sup.exit("a")
    rows = holes(sup, "a")
    check(sup.log("a"), rows)
    assert record["bytes_total"] == LINES * 100
    assert record["bytes_dropped"] == sum(row["end"] - row["start"] for row in rows)
    assert CAP * 7 // 8 <= record["bytes_total"] - record["bytes_dropped"] <= CAP
    # Blocks at the edges of a hole stay.
    assert (sup.folder("a") / layout.LOG).stat().st_blocks * 512 <= CAP + 4 * 4096


async def test_zeroes_are_bytes_like_others(sup: Rig) -> None:
    record = await sup.run("a", "head -c 1000000 /dev/zero", log_cap=0)
    assert sup.log("a") == b"\0" * 1_000_000
    assert (record["bytes_total"], record["bytes_dropped"]) == (1_000_000, 0)


async def test_a_loud_command_does_not_starve_a_quiet_one(sup: Rig) -> None:
    for number in range(3):
        await sup.start(f"loud{number}", "exec yes", log_cap=CAP)
    async with asyncio.timeout(SOON):
        for number in range(10):
            assert (await sup.run(f"quiet{number}", "echo here"))["exit_code"] == 0


async def answers(sup: Rig, data: bytes) -> bytes:
    folder = launch.folder(sup.home)
    try:
        connection = launch.connect(folder)
    finally:
        os.close(folder)
    with connection:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        async with asyncio.timeout(SOON):
            while part := await loop.sock_recv(connection, 65_536):
                got += part
        return got


def frame(value: object) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">I", 1 << 30), b"malformed"),
        (struct.pack(">I", 3) + b"{{{", b"malformed"),
        (frame([1]), b"malformed"),
        (struct.pack(">I", 200_000) + b"[" * 200_000, b"malformed"),
        (frame({"id": 1, "op": "dance"}), b"unknown_op"),
        (frame({"id": 1, "op": ["start"]}), b"unknown_op"),
        (frame({"id": 1, "op": "hello", "version": 99}), b"unsupported_version"),
        (frame({"id": 1, "op": "start"}), b"bad_request"),
        (frame({"id": 1, "op": "start", "session_id": "a", "argv": ["x"], "env": [], "cwd": "/"}), b"bad_request"),
        (frame({"id": 1, "op": "kill", "session_id": "a", "grace_s": "x", "ended_by": "me"}), b"bad_request"),
        (frame({"id": 1, "op": "kill", "session_id": "a", "grace_s": float("inf"), "ended_by": "me"}), b"bad_request"),
    ],
)
async def test_a_bad_frame_harms_only_its_sender(sup: Rig, data: bytes, code: bytes) -> None:
    pid, _ = await sup.pids()
    assert code in await answers(sup, data)
    assert (await sup.run("a", "exit 3"))["exit_code"] == 3
    assert (await sup.pids())[0] == pid


async def test_a_home_with_a_very_long_path(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(["x" * 60] * 4))
    async with rig(deep) as sup:
        assert (await sup.run("a", "exit 3"))["exit_code"] == 3


async def test_too_many_descriptors_are_refused_by_name(sup: Rig) -> None:
    _, keeper = await sup.pids()
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (40, 40))
    await sup.kill_supervisor()
    refused = [await sup.start(f"b{number}", "exec sleep 60") for number in range(10)]
    assert {(answer.outcome, answer.code) for answer in refused if answer.outcome != "started"} == {
        ("refused", "descriptors")
    }
    assert refused[0].outcome == "started"
    assert (await sup.client.status("b9"))["state"] == "unknown"


@pytest.mark.parametrize("more", [{}, {"separate_stderr": True}, {"pty": (24, 80)}], ids=["pipe", "pipes", "terminal"])
async def test_whichever_descriptor_is_missing_the_start_is_refused_by_name(tmp_path: Path, more: Any) -> None:
    async with rig(tmp_path, crash_dir=None) as sup:
        pid, _ = await sup.pids()
        used, (_, hard) = len(os.listdir(f"/proc/{pid}/fd")), resource.prlimit(pid, resource.RLIMIT_NOFILE)
        free = 0
        for free in range(40):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + free, hard))
            answer = await sup.start("a", "exit 3", **more)
            if answer.outcome == "started":
                break
            assert (answer.outcome, answer.code) == ("refused", "descriptors"), f"with {free} descriptors"
        assert free > 4
        assert (await sup.exit("a"))["exit_code"] == 3


async def test_the_diary_is_bounded_and_knows_no_secret(sup: Rig) -> None:
    diary = sup.home / layout.SUPERVISOR / layout.DIARY
    diary.write_bytes(b"x" * (1 << 20))
    await sup.start("a", "exec sleep 60 HUSH", env={"PATH": "/usr/bin:/bin", "TOKEN": "HUSH"})
    await sup.kill_supervisor()
    await sup.client.info()
    text = diary.read_text()
    assert "ready" in text
    assert len(text) < 10_000
    assert "HUSH" not in text
