"""`process_watch` in a real agent: what it answers, what it refuses, and which calls heed a watch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

from shellback.exec.core.watch import Watch
from shellback.exec.engine.engine import Engine
from shellback.exec.tools.toolset import exec_toolset
from shellback.exec.watching.memory import MemoryWatchStore
from shellback.exec.watching.watcher import Watcher
from tests.execs import launch
from tests.integration.tools.test_toolset_agent import Deps, Script, returns
from tests.watches import Fired, a_hit

pytestmark = pytest.mark.anyio


async def called(engine: Engine, watcher: Watcher, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    toolset = exec_toolset(engine, watcher=watcher)
    agent = Agent(FunctionModel(Script(*calls)), toolsets=[toolset], deps_type=object)
    return returns((await agent.run("go", deps=Deps())).all_messages())


async def only(watcher: Watcher) -> Watch:
    (watch,) = await watcher.store.list()
    return watch


async def test_a_watch_is_placed_told_of_and_taken_away(engine: Engine) -> None:
    fired = Fired()
    watcher = Watcher(engine, MemoryWatchStore(sink=fired))
    session = await launch(engine, "echo ready; sleep 600")
    about = {"session_id": session.id}
    placed, wrong, mixed, foreign = await called(
        engine,
        watcher,
        ("process_watch", {**about, "pattern": "ready"}),
        ("process_watch", {**about, "pattern": "(?<=x)y"}),
        ("process_watch", {**about, "idle": 5, "off": True}),
        ("process_watch", {"session_id": "xother", "after": 5}),
    )
    watch = await only(watcher)
    assert placed.content["watch_id"] == watch.id
    assert "fires on lines that match, from byte 0 of the output on, at most every 15 s" in placed.content["does"]
    assert placed.metadata == {"session_id": session.id, "watch_id": watch.id, "kind": "pattern"}
    assert [answer.outcome for answer in (wrong, mixed, foreign)] == ["failed"] * 3
    assert "pattern does not compile: invalid perl operator" in str(wrong.content)
    assert "off=true ends the watches" in str(mixed.content)
    assert "no session 'xother' in this conversation" in str(foreign.content)
    (told,) = await fired.times(1)
    assert told["last_lines"] == ["ready"]
    (away,) = await called(engine, watcher, ("process_watch", {**about, "off": True}))
    assert away.content == {"watch_id": None, "does": f"no watch of session {session.id} is on any more"}
    assert await watcher.store.list() == []
    await watcher.stop()


async def test_any_call_about_the_session_heeds_its_watches_and_others_do_not(engine: Engine) -> None:
    watcher = Watcher(engine, MemoryWatchStore())
    session = await launch(engine, "sleep 600")
    other = await launch(engine, "sleep 600")
    await called(engine, watcher, ("process_watch", {"session_id": session.id, "after": 86400}))
    heeding = [
        ("process_poll", {"session_id": session.id}),
        ("process_log", {"session_id": session.id}),
        ("process_wait", {"session_ids": [other.id, session.id], "timeout": 0}),
    ]
    for number, call in enumerate(heeding, 1):
        await watcher.store.hit((await only(watcher)).id, a_hit(number))
        await called(engine, watcher, ("process_poll", {"session_id": other.id}), ("process_list", {}))
        assert (await only(watcher)).strikes == 1
        await called(engine, watcher, call)
        assert (await only(watcher)).strikes == 0
    await watcher.stop()
