"""The thread that writes to SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Writer:
    """Runs functions in one thread of its own, in the order in which they were given.

    `run_in_executor` takes 0.07 ms more there and back, for two futures where one will do; a short command
    pays that twice. The thread is made for the first function. It keeps no process that forgets `close`
    from exiting; a transaction that this cuts off was never committed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._giving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn()` returns or raises, run in the caller's context.

        Cancelling leaves it done or not begun: what runs goes on to its end.

        Raises:
            RuntimeError: Closed before it began.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._giving:
            if self._closed:
                _refuse()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(partial(self._perform, result, contextvars.copy_context(), fn))
        return await result

    def close(self) -> None:
        """Wait for the function that runs; those that wait for their turn never begin."""
        with self._giving:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # and with it the result

    def _perform(self, result: asyncio.Future[Any], context: contextvars.Context, fn: Callable[[], Any]) -> None:
        if result.cancelled():
            return
        try:
            tell = partial(result.set_result, context.run(_refuse if self._closed else fn))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            tell = partial(result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            result.get_loop().call_soon_threadsafe(_unless_done, result, tell)


def _unless_done(result: asyncio.Future[Any], tell: Callable[[], None]) -> None:
    if not result.done():
        tell()


def _refuse() -> NoReturn:
    raise RuntimeError("the database is closed")
