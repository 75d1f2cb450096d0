"""The front of an MCP server: it ends when its client is gone, and leaves no engine behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from shellback.mcp_server.front import Heard, Loaded, Offer
from shellback.mcp_server.replay import Replay

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0
HELLO = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})


class Gone:
    """The output to a client that has gone."""

    async def write(self, text: str) -> None:
        """Take anything."""

    async def flush(self) -> None:
        """Fail, as the pipe does."""
        raise ConnectionResetError("Connection lost")


async def heard(lines: list[str], replay: Any) -> list[str]:
    """What the SDK reads of these lines until the end."""

    async def sent() -> AsyncIterator[str]:
        for line in lines:
            yield line

    front = Heard(cast("Any", sent()), replay, cast("Any", Gone()))
    reading = asyncio.create_task(front.read())
    async with asyncio.timeout(PATIENCE_S):
        await front.first.wait()
        found = [line async for line in front]
        await reading
    return found


async def test_a_client_that_goes_while_a_kept_answer_is_written_ends_the_connection(tmp_path: Path) -> None:
    first = Replay(tmp_path, "basis")
    assert first.answer(HELLO) is None
    assert first.is_new(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}))
    kept = Replay(tmp_path, "basis")
    assert await heard([HELLO], kept) == [HELLO]


async def test_a_message_that_is_nested_too_deep_is_left_to_the_sdk(tmp_path: Path) -> None:
    deep = "[" * 60_000
    assert await heard([deep, HELLO], Replay(tmp_path, "basis")) == [deep, HELLO]


async def test_a_fault_of_the_front_ends_the_connection() -> None:
    class Faulty:
        def answer(self, line: str) -> str:
            raise RuntimeError(line)

    assert await heard([HELLO], Faulty()) == []


async def test_hands_whose_start_fails_are_stopped_before_the_next_ones_are_made(tmp_path: Path) -> None:
    did = list[str]()

    class Hands:
        async def start(self) -> None:
            did.append("start")
            if did.count("start") == 1:
                raise OSError("after the engine")

        async def stop(self) -> None:
            did.append("stop")

    @contextmanager
    def entered() -> Generator[Any]:
        did.append("made")
        yield Hands()
        did.append("left")

    loaded = Loaded(
        Offer(
            home=tmp_path, workspace=tmp_path, gate=True, groups=(), switches="", enter=entered, worded=lambda _: None
        )
    )
    with pytest.raises(OSError, match="after the engine"):
        await loaded.hands()
    assert did == ["made", "start", "stop", "left"]
    await loaded.hands()
    assert await loaded.close()
    assert did[4:] == ["made", "start", "stop", "left"]
