"""What a command passes from the call of its tool to the socket of the supervisor, and how often it is looked at."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.link.reaching import Connection
from shellback.exec.policy import commands
from shellback.exec.tools.all import exec_tool
from tests.desks import desk_of
from tests.execs import backend_of, end_all, places

pytestmark = pytest.mark.anyio

APP = Path(__file__).parents[2] / "app"
FUNCTIONS, MODULES = 25, 10
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "foreground": ("execute", {"command": "true"}),
    "background": ("execute", {"command": "true", "background": True}),
    "terminal": ("execute_pty", {"command": "true"}),
    "login shell": ("run_shell", {"command": "true"}),
    "words": ("shell_execute", {"command": ["true"]}),
    "Python": ("evaluate_python", {"code": "1"}),
    "shell that stays": ("shell_session", {"action": "start"}),
}


def _waiting(frame: FrameType | None) -> Iterator[str]:
    """Our functions that wait for what runs in a frame, from the outermost one."""
    if frame is not None:
        yield from _waiting(frame.f_back)
        path = Path(frame.f_code.co_filename).resolve()
        if path.is_relative_to(APP):
            yield f"{path.relative_to(APP)}: {frame.f_code.co_qualname}"


class _Wire:
    """A connection's way out that notes who waits while the start of a command is written to it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.chain: list[str] = []

    def write(self, data: bytes) -> None:
        if b'"op":"start"' in data.replace(b" ", b""):
            self.chain = list(_waiting(inspect.currentframe()))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> list[_Wire]:
    """The ways out of all connections that are made meanwhile."""
    made: list[_Wire] = []
    connected = Connection.connection_made

    def noted(self: Connection, transport: asyncio.BaseTransport) -> None:
        made.append(_Wire(transport))
        connected(self, made[-1])  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Connection, "connection_made", noted)
    return made


@pytest.mark.parametrize("way", WAYS)
async def test_a_command_passes_at_most_25_functions_in_10_modules_and_is_looked_at_twice(
    tmp_path: Path, wires: list[_Wire], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It is made once; what it would run once for the grant, and once more directly before the start."""
    counted: Counter[str] = Counter()

    def counting(where: object, name: str) -> None:
        real = getattr(where, name)

        def call(*args: Any, **more: Any) -> Any:
            counted[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(where, name, call)

    workspace, home = places(tmp_path)
    port = Supervisors(SupervisorClient(home, idle_s=0.5), home)
    async with Engine(MemorySessionStore(), port, backend_of("host", workspace), home=home) as engine:
        async with desk_of(engine) as here:
            tool, args = WAYS[way]
            await here.seen(tool, **args)
            counting(commands, "proposal_for")
            counting(exec_tool, "command_spec")
            await here.call(tool, again=True, approved=True, **args)
        await end_all(engine)
    (chain,) = (wire.chain for wire in wires if wire.chain)
    shown = "\n".join(chain)
    assert chain[0].startswith("exec/tools/toolset.py"), shown
    assert chain[-1] == "exec/link/reaching.py: Connection.ask", shown
    assert len(set(chain)) <= FUNCTIONS, shown
    assert len({line.partition(":")[0] for line in chain}) <= MODULES, shown
    assert counted["proposal_for"] == 2, shown
    assert counted["command_spec"] == (1 if tool.startswith("execute") else 0)
