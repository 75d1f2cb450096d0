"""A client that speaks the protocol 2026-07-28 itself, tasks included, over pipes of `shellback mcp`."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from tests.commands import OURS, PROGRAM
from tests.stage import Stage

TASKS: Final = "io.modelcontextprotocol/tasks"
VERSION: Final = "2026-07-28"


class WireError(Exception):
    """An error of the protocol."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Any = error.get("data")


class Wire:
    """A client that speaks the protocol itself."""

    def __init__(self, on: Stage, process: asyncio.subprocess.Process) -> None:
        self.on = on
        self.told = list[dict[str, Any]]()
        self._process = process
        self._numbers = itertools.count(1)
        self._answers = dict[int, asyncio.Future[Any]]()
        self._reading = asyncio.create_task(self._read())
        self._news = asyncio.Event()

    async def _read(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            message = json.loads(line)
            if "id" not in message:
                self.told.append(message)
                self._news.set()
            elif "error" in message:
                self._answers.pop(message["id"]).set_exception(WireError(message["error"]))
            else:
                self._answers.pop(message["id"]).set_result(message["result"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EOFError())

    async def arrived(self) -> None:
        """Wait for a notification that comes from now on."""
        self._news.clear()
        await self._news.wait()

    def ask(self, method: str, params: dict[str, Any] | None = None, *, extension: bool = True) -> asyncio.Future[Any]:
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}} if extension else {},
        }
        if self._reading.done():
            raise EOFError
        number, given = next(self._numbers), params or {}
        request = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {**given, "_meta": {**meta, **given.get("_meta", {})}},
        }
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return answer

    def call(self, tool: str, key: str = "", *, extension: bool = True, **args: Any) -> asyncio.Future[Any]:
        meta = {"_meta": {"shellback/key": key}} if key else {}
        return self.ask("tools/call", {"name": tool, "arguments": args, **meta}, extension=extension)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def task(self, name: str) -> dict[str, Any]:
        return await self.ask("tasks/get", {"taskId": name})

    async def ended(self, name: str) -> dict[str, Any]:
        """The task as the notification of its end has it."""
        filters = {"notifications": {"taskIds": [name]}}
        await self.ask("subscriptions/listen", filters)
        (told,) = [one["params"] for one in self.told if one["method"] == "notifications/tasks"][-1:]
        return {field: value for field, value in told.items() if field != "_meta"}

    async def close(self, number: signal.Signals = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        await self._process.wait()
        await asyncio.wait({self._reading})


@asynccontextmanager
async def wire(on: Stage, *options: str) -> AsyncGenerator[Wire]:
    """A client and the server that it has started; a kill ends it."""
    # A session of its own, as the SDK's client does: Linux gives each session one share of the cores (autogroup), and
    # many servers in that of the tests get so little under load that their start takes minutes.
    with (on.root / "said").open("a") as said:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, "mcp", "--conversation", "build", *options,
            env={**OURS, **on.environ}, cwd=on.root, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=said, limit=2**24, start_new_session=True,
        )  # fmt: skip
    made = Wire(on, process)
    try:
        yield made
    finally:
        await made.close()
