"""The registry forgets; the store does not."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from shellback import log
from shellback.exec.core.errors import SessionNotFound
from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.engine.ends import Ends, Recovery
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.registry import ExecRegistry
from tests.sessions import EXITED, a_session
from tests.supervisors import raising
from tests.unit.reports.test_render import SESSION

pytestmark = pytest.mark.anyio

CLAIMED = replace(SESSION, state=SessionState.CLAIMED)
END = SessionEnd(state=SessionState.EXITED, exit_code=0)


class CountingStore(MemorySessionStore):
    reads = 0

    async def get(self, session_id: SessionId) -> Session | None:
        self.reads += 1
        return await super().get(session_id)


async def test_a_session_is_found_by_its_own_conversation_only() -> None:
    store = MemorySessionStore()
    registry = ExecRegistry(store)
    registry.add(await store.claim(CLAIMED))
    assert (await registry.get("xsession", "talk")).id == "xsession"
    assert (await registry.get("xsession")).id == "xsession"
    for wanted, conversation in (("xsession", "another"), ("xnone", "talk")):
        with pytest.raises(SessionNotFound):
            await registry.get(wanted, conversation)
    assert await registry.list("another") == []
    assert len(await registry.list()) == 1


async def test_a_live_session_is_read_anew_and_an_ended_one_from_memory() -> None:
    store = CountingStore()
    registry = ExecRegistry(store)
    registry.add(await store.claim(CLAIMED))
    assert (await registry.get("xsession")).live
    await store.finish(SessionId("xsession"), END)
    assert (await registry.get("xsession")).end == END
    reads = store.reads
    assert (await registry.get("xsession")).end == END
    assert store.reads == reads


async def test_marking_an_exit_is_seen_without_the_store() -> None:
    store = CountingStore()
    registry = ExecRegistry(store)
    registry.add(await store.claim(CLAIMED))
    registry.mark_exited(replace(CLAIMED, state=SessionState.EXITED, end=END))
    assert (await registry.get("xsession")).end == END
    assert store.reads == 0


def test_an_end_is_never_replaced_by_an_older_state() -> None:
    registry = ExecRegistry(MemorySessionStore())
    registry.mark_exited(replace(CLAIMED, state=SessionState.EXITED, end=END))
    assert registry.add(CLAIMED).session.end == END


async def test_it_is_bounded_and_what_it_forgot_is_still_found() -> None:
    store = MemorySessionStore()
    registry = ExecRegistry(store, capacity=2)
    for name in ("a", "b", "c"):
        registry.add(await store.claim(replace(CLAIMED, id=SessionId(name))))
    assert len(registry._cached) == 2  # pyright: ignore[reportPrivateUsage]
    assert (await registry.get("a")).id == "a"


def test_cleanup_forgets_ended_sessions_that_nobody_asked_for() -> None:
    now = 0.0
    registry = ExecRegistry(MemorySessionStore(), clock=lambda: now)
    registry.add(replace(CLAIMED, id=SessionId("live")))
    registry.mark_exited(replace(CLAIMED, id=SessionId("ended"), state=SessionState.EXITED, end=END))
    assert registry.cleanup(1.0) == 0
    now = 2 * 3600.0
    assert registry.cleanup(1.0) == 1
    assert registry.touched_at("ended") == 0.0


async def test_an_end_that_comes_over_the_connection_of_a_turn_is_not_logged_as_that_turns() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.TextLines())
    handler.addFilter(log._with_ids)  # pyright: ignore[reportPrivateUsage]
    logger = logging.getLogger("shellback.exec.engine.ends")
    logger.addHandler(handler)

    store = MemorySessionStore()
    ends = Ends(store, ExecRegistry(store), raising(AssertionError("nothing was recorded")))
    try:
        with log.about(conversation="another", work_item="CHAT:1"):
            ends.received(SessionId("s1"), cast("SessionEnd", cast("Any", None)))
            await ends.settled()
    finally:
        logger.removeHandler(handler)
    assert "session=s1" in stream.getvalue()
    assert "another" not in stream.getvalue()
    assert "CHAT:1" not in stream.getvalue()


async def test_who_waits_for_an_end_that_another_worker_recorded_and_acknowledged_is_told_by_the_comparison() -> None:
    class Nothing:
        async def list(self) -> list[Any]:
            return []

    async def acknowledge(_: SessionId) -> None: ...

    store = MemorySessionStore()
    ends = Ends(store, ExecRegistry(store), acknowledge)
    recovery = Recovery(store, cast("Any", Nothing()), ends, "h")
    session = await store.claim(a_session(delivery=Delivery.INLINE))
    waiting = ends.expect(session.id)
    await store.finish(session.id, EXITED)
    await recovery.reconcile(live=False)
    assert waiting.done()
    assert waiting.result() == await store.get(session.id)
