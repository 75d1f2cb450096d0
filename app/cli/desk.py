"""The desk: where a worker answers the questions of commands of its host."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from shellback.cli.asking import DESK, VERSION, WAITS, answering
from shellback.cli.shared import LOOK_S, json_text
from shellback.exec.link.counter import Counter
from shellback.settings import Settings

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

log = logging.getLogger(__name__)

CLIENTS: Final = 64
"""Connections at once; a command that gets none answers itself."""
THREADS: Final = 4
LINE_BYTES: Final = 2**21
"""A question is shorter, because a message has at most 100,000 characters."""


class Desk:
    """Within the block, a socket in the state directory answers questions. Only processes of our user are heard."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._known = [name.upper() for name in Settings.model_fields]
        self._threads = ThreadPoolExecutor(THREADS, "desk")
        self._counter = Counter(where.home / DESK, where.executor_id, self._talk, most=CLIENTS, line_bytes=LINE_BYTES)

    async def __aenter__(self) -> Self:
        await self._counter.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._counter.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(line.encode() + b"\n")
            await writer.drain()

        def answer(question: str, how: dict[str, Any]) -> Any:
            if reader.at_eof():  # it has left, and may have answered itself
                return None
            found = answering(question)(self._where, **how)
            return found if callable(found) else json_text(found)

        try:
            await say(json_text([VERSION, self._known]))
            given = json.loads(await reader.readline())
            # The settings are checked as this command would check them.
            asked, ours = Settings.load(given), self._where.settings
            if (asked.database_url, asked.telemetry_endpoint) != (ours.database_url, ours.telemetry_endpoint):
                return
            await say(json_text(True))
            while line := await reader.readline():
                found = await self._in_thread(partial(answer, *json.loads(line)))
                if found is None:
                    return
                await say(found if isinstance(found, str) else await self._at_last(found, reader, say))
        except Exception:
            # The command repeats the question itself, and then shows the error.
            log.debug("a question of a command was not answered", exc_info=True)

    async def _at_last(
        self, look: Callable[[], Any], reader: asyncio.StreamReader, say: Callable[[str], Awaitable[None]]
    ) -> str:
        """What `look` returns at last; until then the command is told once a second that this worker lives."""
        told = time.monotonic()
        while (found := await self._in_thread(look)) is None and not reader.at_eof():
            # With many that wait, each is looked at more rarely: the looks take time from the turns of this process.
            await asyncio.sleep(LOOK_S * max(1.0, len(self._counter) / 4))
            if time.monotonic() - told >= 1:
                await say(json_text(WAITS))
                told = time.monotonic()
        return json_text(found)

    async def _in_thread(self, fn: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn)
