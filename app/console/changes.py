"""Tells open pages that something they show has changed. One reader of events serves all of them.

A page is told what changed, not how: it asks again for what it shows. So a page that is slow, or was away, misses
nothing, and nothing is kept for it but the names of what it has not been told of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Collection, Generator, Iterable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shellback.console.access import Page
from shellback.exec.core.threads import cancelled
from shellback.storage.errors import StorageError

if TYPE_CHECKING:
    from shellback.client.local import Local
    from shellback.work.queue.stream import Event

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""The time between two attempts to read a database that does not answer."""
REST_S: Final = 0.2
"""The least time between two things that a page is told."""
PING_S: Final = 15.0
AWAY: Final = "away"
"""The database does not answer."""
BACK: Final = "back"
"""It answers again, or the page has connected: all that is shown may have changed."""
_DECISIONS: Final = frozenset({"approval", "decision"})
_PROCESSES: Final = frozenset({"tool_call", "tool_result", "exit", "output"})


def names_of(event: Event) -> Iterable[str]:
    """What changes by an event, as pages name it."""
    if event.kind in _DECISIONS:
        yield "decisions"
    if event.kind in _PROCESSES:
        yield "processes"
    if event.kind in {"output", "exit"}:
        yield f"process {event.payload.get('session_id', '')}"
    yield f"conversation {event.conversation_id}"
    if event.kind not in {"text", "output"}:
        yield "conversations"


class _Viewer:
    """A page that is open; it is told of what it `wants`."""

    def __init__(self, wants: Collection[str]) -> None:
        self._wants = {*wants, AWAY, BACK}
        self._changed: set[str] = {BACK}
        self._woken = asyncio.Event()
        self._woken.set()

    def tell(self, names: Iterable[str]) -> None:
        if changed := self._wants.intersection(names):
            self._changed |= changed
            self._woken.set()

    async def told(self) -> AsyncGenerator[bytes]:
        """What has changed, as a stream of events."""
        while True:
            try:
                await asyncio.wait_for(self._woken.wait(), PING_S)
            except TimeoutError:
                yield b": nothing new\n\n"
                continue
            self._woken.clear()
            changed, self._changed = self._changed, set()
            # An event is named by its kind only: what follows it may hold anything.
            for name in sorted({name.partition(" ")[0] for name in changed}):
                yield f"event: {name}\ndata: -\n\n".encode()
            await asyncio.sleep(REST_S)


class Changes:
    """The pages that are open, and the reader that serves them while there are any."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._viewers = set[_Viewer]()
        self._reading: asyncio.Task[None] | None = None

    def pages(self) -> list[Page]:
        """The routes."""
        return [Page("/changes", self._changes, role="viewer")]

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            await cancelled([self._reading])

    async def _changes(self, request: Request) -> Response:
        wants = {"decisions", *request.query_params.getlist("of")[:10]}
        # A proxy that collects answers would pass nothing on.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self.told(wants), media_type="text/event-stream", headers=headers)

    async def told(self, wants: Collection[str]) -> AsyncGenerator[bytes]:
        """What a page is told that shows what it `wants`, until it is closed."""
        with self._viewing(wants) as viewer:
            async with contextlib.aclosing(viewer.told()) as told:
                async for line in told:
                    yield line

    @contextlib.contextmanager
    def _viewing(self, wants: Collection[str]) -> Generator[_Viewer]:
        viewer = _Viewer(wants)
        self._viewers.add(viewer)
        self._reading = self._reading or asyncio.create_task(self._read())
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._reading.cancel()
                self._reading = None

    def _tell(self, *names: str) -> None:
        for viewer in self._viewers:
            viewer.tell(names)

    async def _read(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._local.news()) as news:
                    self._tell(BACK)
                    async for events in news:
                        self._tell(*{name for event in events for name in names_of(event)})
            except Exception as error:  # all open pages depend on it
                bug = None if isinstance(error, StorageError) else error
                log.warning("open pages of the console are not told of changes: %s", error, exc_info=bug)
                self._tell(AWAY)
            await asyncio.sleep(AGAIN_S)
