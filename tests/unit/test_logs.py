"""Old logs go; never one that somebody may still need."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from app.exec.links import LogLinks
from app.exec.logs import cleanup_exec_logs
from app.exec.memory_store import MemorySessionStore
from app.exec.model import SessionEnd, SessionId, SessionState
from tests.unit.test_render import SESSION

HOUR = 3600.0
NOW = 1_000_000.0


def test_only_old_ended_and_delivered_ones_go(tmp_path: Path) -> None:
    workspace, sessions = tmp_path / "ws", tmp_path / "sessions"
    workspace.mkdir()
    links, store = LogLinks(workspace, sessions), MemorySessionStore()

    async def scene() -> list[str]:
        for name, age in (("old", 200.0), ("young", 100.0), ("untold", 200.0), ("running", None)):
            session = replace(SESSION, id=SessionId(name), state=SessionState.CLAIMED)
            await store.claim(session)
            (sessions / name).mkdir(parents=True)
            (sessions / name / "log").write_text("x")
            links.add(name, separate_stderr=False)
            if age is not None:
                end = SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=NOW - age * HOUR)
                await store.finish(SessionId(name), end)
        return await cleanup_exec_logs(store, links, undelivered={"untold"}, now=NOW)

    assert asyncio.run(scene()) == ["old"]
    assert sorted(path.name for path in sessions.iterdir()) == ["running", "untold", "young"]
    assert sorted(path.name for path in (workspace / ".tmp/exec").iterdir()) == [
        "running.log",
        "untold.log",
        "young.log",
    ]
    assert asyncio.run(cleanup_exec_logs(store, links, undelivered={"untold"}, now=NOW)) == []
    assert asyncio.run(store.get(SessionId("old"))) is not None
    links.close()


def test_the_age_is_that_of_the_end_and_168_hours_by_default(tmp_path: Path) -> None:
    store, links = MemorySessionStore(), LogLinks(tmp_path, tmp_path / "sessions")

    async def scene() -> list[str]:
        for name, age in (("a", 167.9), ("b", 168.1)):
            await store.claim(replace(SESSION, id=SessionId(name), state=SessionState.CLAIMED))
            end = SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=NOW - age * HOUR)
            await store.finish(SessionId(name), end)
            (tmp_path / "sessions" / name).mkdir(parents=True)
        return await cleanup_exec_logs(store, links, now=NOW)

    assert asyncio.run(scene()) == ["b"]
