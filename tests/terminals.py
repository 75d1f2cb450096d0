"""Talking to a program through the tools for terminals, as a model does, and waiting for what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from shellback.exec.core.model import Session
from shellback.exec.core.runner import found
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.terminals.screen import Screen, Screens
from tests.databases import unavailable
from tests.execs import launch
from tests.integration.tools.test_toolset_agent import converse

PATIENCE_S = 60.0


def needed(program: str) -> None:
    """Skip the test where the program is not installed."""
    if found(program) is None:
        unavailable(f"{program} is not installed")


class Typist:
    """Somebody who types into one session and looks at its screen."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.engine = engine
        self.session = session
        self.screens = Screens(engine)

    async def press(self, *keys: str, **more: str) -> Any:
        """Call process_send_keys, approved; its answer."""
        given = {"keys": list(keys)} if keys else {}
        args = {"session_id": self.session.id, **given, **more}
        (answer,) = await converse(self.engine, ("process_send_keys", args))
        return answer

    async def sees(self, wanted: str, *keys: str, **more: str) -> Screen:
        """Press keys; the screen once it has what matches `wanted`."""
        await self.press(*keys, **more)
        return await self.until(wanted)

    async def call(self, tool: str, **args: Any) -> Any:
        """Call another tool about this session, approved; its answer."""
        (answer,) = await converse(self.engine, (tool, {"session_id": self.session.id, **args}))
        return answer

    async def until(self, wanted: str | Callable[[Screen], bool]) -> Screen:
        """The screen once it has what matches `wanted`; looks only when something was printed."""
        follower = Follower(self.engine, self.session)
        pattern = re.compile(wanted, re.MULTILINE) if isinstance(wanted, str) else None
        until = time.monotonic() + PATIENCE_S
        size = 0
        while True:
            self.session = await self.engine.registry.get(self.session.id)
            screen = await self.screens.of(self.session)
            if pattern.search(screen.text) if pattern else wanted(screen):  # pyright: ignore[reportCallIssue]
                return screen
            assert time.monotonic() < until, f"it does not show {wanted}:\n{screen.text}"
            grown = await follower.grown(size, timeout_s=1.0)
            assert not (grown.ended and grown.size == size), f"it ended and does not show {wanted}:\n{screen.text}"
            size = grown.size

    async def ended(self) -> Session:
        """The session once it has ended."""
        return await self.engine.wait(self.session.id, up_to=PATIENCE_S)


async def typist(engine: Engine, command: str) -> Typist:
    """Start a program in a terminal."""
    return Typist(engine, await launch(engine, command, pty=True))
