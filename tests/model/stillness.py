"""Time that stands still until somebody lets it pass: one clock for the product's modules and for the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from shellback.exec.core.sight.place import held

T = TypeVar("T")

OWNER: contextvars.ContextVar[set[asyncio.Task[Any]] | None] = contextvars.ContextVar("owner", default=None)
"""Where tasks that are made now are noted, so that whoever owns them can be killed with all of them."""


class Clock:
    """Stands in for the module `time` and for `uuid`: what they answer depends on nothing but what was done before."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.wall = 1_800_000_000.0
        self.passed = 0.0
        self._names = 0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.passed

    def clock_gettime(self, _clock: int) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def uuid4(self) -> Name:
        self._names += 1
        return Name(self._names)


class Name:
    def __init__(self, number: int) -> None:
        self.hex = f"{number:x}".rjust(4, "0")[::-1].ljust(32, "0")


@contextmanager
def ruled_by(clock: Clock) -> Generator[None]:
    """Let every module of the product that is loaded ask `clock` instead of the machine."""
    given: list[tuple[Any, str, Any]] = []
    uuid = sys.modules["uuid"]
    for name, module in list(sys.modules.items()):
        if name.startswith("shellback."):
            for attribute, real in (("time", time), ("uuid", uuid)):
                if getattr(module, attribute, None) is real:
                    given.append((module, attribute, real))
                    setattr(module, attribute, clock)
    try:
        yield
    finally:
        for module, attribute, real in given:
            setattr(module, attribute, real)


class AtOnce:
    """Stands in for the threads that look at files: theirs is the machine's time, and deadlines are the clock's."""

    held = staticmethod(held)

    async def run(self, work: Callable[[], T], *_: object, **__: object) -> T:
        return work()


def at_once(_uid: int | None) -> AtOnce:
    return AtOnce()


class _Selector(selectors.SelectSelector):
    """Nothing ever comes from outside; when nobody has anything to do, the nearest timer is due."""

    loop: StillLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > self.loop.patience:
            self.loop.stop()
        elif timeout > 0:
            self.loop.patience -= timeout
            self.loop.clock.advance(timeout)
        return []


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop on a `Clock`, without threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.patience = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_noted)
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self.clock.monotonic()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done

    def settle(self, patience: float = 0.15) -> None:
        """Run until everybody waits for what is not due within `patience` seconds."""
        self.patience = patience
        self.run_forever()


def _noted(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **more)
    owned = OWNER.get()
    if owned is not None:
        owned.add(task)
        task.add_done_callback(owned.discard)
    return task
