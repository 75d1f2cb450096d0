"""Watches in memory, for agents that need no durability and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shellback.exec.core.errors import LimitReached
from shellback.exec.core.ports import WatchSink, WatchStore
from shellback.exec.core.watch import PER_CONVERSATION, PER_SESSION, Hit, Watch, after, is_read, past


def check_room(of_session: int, of_conversation: int, watch: Watch) -> None:
    """Raise LimitReached if the session or the conversation has the maximum of active watches."""
    for number, limit, whose in (
        (of_session, PER_SESSION, f"session {watch.session_id}"),
        (of_conversation, PER_CONVERSATION, "this conversation"),
    ):
        if number >= limit:
            raise LimitReached(
                f"{whose} has {number} watches and {limit} is the limit; end those of a session first, with "
                "process_watch(session_id=..., off=true)"
            )


class MemoryWatchStore(WatchStore):
    """A `WatchStore` in memory. Its methods never await, so each is atomic. `sink` gets hits, with transaction None."""

    def __init__(self, *, sink: WatchSink | None = None) -> None:
        self._sink = sink
        self._watches: dict[str, Watch] = {}

    async def place(self, watch: Watch, *, epoch: int = 0) -> Watch:  # noqa: ARG002 - there are no epochs
        existing = self._watches.get(watch.id)
        if existing is not None:
            return existing
        on = [one for one in self._watches.values() if one.on]
        of_session = sum(one.session_id == watch.session_id for one in on)
        check_room(of_session, sum(one.conversation_id == watch.conversation_id for one in on), watch)
        self._watches[watch.id] = watch
        return watch

    async def get(self, watch_id: str) -> Watch | None:
        return self._watches.get(watch_id)

    async def list(self, *, session_id: str | None = None, host_id: str | None = None) -> Sequence[Watch]:
        found = [
            one
            for one in self._watches.values()
            if one.on and session_id in (None, one.session_id) and host_id in (None, one.host_id)
        ]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def hit(self, watch_id: str, hit: Hit) -> Watch | None:
        watch = self._watches.get(watch_id)
        if watch is None or not watch.on or watch.hits != hit.number - 1:
            return None
        fired = past(watch, hit) if is_read(watch, hit) else after(watch, hit)
        if self._sink is not None and fired.hits == hit.number and not self._sink.hit(None, fired, hit):
            return watch
        self._watches[watch_id] = fired
        return fired

    async def moved(self, watch_id: str, offset: int) -> None:
        self._change(lambda one: one.id == watch_id and one.offset < offset, lambda one: replace(one, offset=offset))

    async def heed(self, session_id: str) -> None:
        self._change(lambda one: one.session_id == session_id, lambda one: replace(one, strikes=0))

    async def off(self, session_id: str, why: str, *, watch_id: str | None = None) -> None:
        self._change(
            lambda one: one.session_id == session_id and watch_id in (None, one.id),
            lambda one: replace(one, state="off", why_off=why),
        )

    def _change(self, which: Callable[[Watch], bool], changed: Callable[[Watch], Watch]) -> None:
        for one in list(self._watches.values()):
            if one.on and which(one):
                self._watches[one.id] = changed(one)
