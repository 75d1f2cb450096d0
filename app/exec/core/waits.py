"""Ways to wait without an event loop for a coroutine on the loop of another thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def waited(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The synchronous form of a method of `self.asynchronous`, by `self.run`."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **options: P.kwargs) -> T:
        return self.run(lambda: getattr(self.asynchronous, method.__name__)(*args, **options))

    return call


def refuse_on_a_loop(why: str) -> None:
    """Raise RuntimeError with `why` if this thread runs an event loop, which a wait would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(why)


def result_of(future: Future[T], closed: str) -> T:
    """The result of a coroutine on another loop; an interrupted wait cancels it.

    Raises:
        RuntimeError: With `closed`: it was cancelled by the code that stops the loop. No other code has the future.
    """
    try:
        return future.result()
    except CancelledError:
        raise RuntimeError(closed) from None
    except BaseException:
        future.cancel()
        raise
