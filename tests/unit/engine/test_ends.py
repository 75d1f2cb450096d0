"""What an end is recorded with: its own context, whoever's connection has brought it."""

from __future__ import annotations

import io
import logging
from typing import Any, cast

import pytest

from shellback import log
from shellback.exec.core.model import Delivery, SessionEnd, SessionId
from shellback.exec.engine.ends import Ends, Recovery
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.registry import ExecRegistry
from tests.sessions import EXITED, a_session

pytestmark = pytest.mark.anyio


async def test_an_end_that_comes_over_the_connection_of_a_turn_is_not_logged_as_that_turns() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.TextLines())
    handler.addFilter(log._with_ids)  # pyright: ignore[reportPrivateUsage]
    logger = logging.getLogger("shellback.exec.engine.ends")
    logger.addHandler(handler)

    async def acknowledge(_: SessionId) -> None:
        raise AssertionError("nothing was recorded")

    store = MemorySessionStore()
    ends = Ends(store, ExecRegistry(store), acknowledge)
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
    await recovery.reconcile()
    assert waiting.done()
    assert waiting.result() == await store.get(session.id)
