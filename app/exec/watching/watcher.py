"""Places watches and evaluates them until they are off, in one task per watch.

A hit is counted and told in one transaction of the store, so that several workers, or a restarted one, tell it once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import act_of, call_key, watch_id
from shellback.exec.core.model import CallOrigin, Session, SessionId
from shellback.exec.core.ports import WatchStore
from shellback.exec.core.threads import cancelled
from shellback.exec.core.watch import APART_S, BY_THE_AGENT, ENDED, FIRED, Hit, Kind, Watch, is_read
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.waiting import takes_input
from shellback.exec.watching.conditions import PATIENCE_S, Condition, Line, compiled, condition_of
from shellback.exec.wire.crashpoints import reach
from shellback.log import about

log = logging.getLogger(__name__)

IDLE_S: Final = (1.0, 3600.0)
AFTER_S: Final = (1.0, 86400.0)
AT_ONCE: Final = 2
"""Threads that scan output at a time."""
KEEP_BYTES: Final = 1 << 20
KEEP_S: Final = 30.0
"""The progress of a scan is stored at most this often; a restart scans the rest again."""
AGAIN_S: Final = 0.1
END_S: Final = 10.0
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 30.0


class Watcher:
    """Evaluates the watches of this host."""

    def __init__(
        self,
        engine: Engine,
        store: WatchStore,
        *,
        clock: Callable[[], float] = time.time,
        apart_s: float = APART_S,
    ) -> None:
        self.store = store
        self._engine = engine
        self._clock = clock
        self._apart_s = apart_s
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sessions: dict[str, str] = {}

    async def stop(self) -> None:
        """Stop evaluating; a later start resumes. It may be called twice, or without a start."""
        await cancelled(self._tasks.values())

    async def resume(self) -> None:
        """Evaluate exactly the watches of this host that are on; a repeat changes nothing."""
        on = {watch.id: watch for watch in await self.store.list(host_id=self._engine.host_id)}
        for watch in on.values():
            self._look_after(watch)
        for one in self._tasks.keys() - on.keys():
            # It may have been placed after the list was read.
            if (watch := await self.store.get(one)) is None or not watch.on:
                self._leave(one)

    start = resume

    async def place(
        self,
        session: Session,
        origin: CallOrigin,
        *,
        pattern: str | None = None,
        idle: float | None = None,
        after: float | None = None,
        waiting: bool = False,
    ) -> Watch:
        """Place a watch for exactly one condition; a repeat of the call returns the same watch.

        It inspects output after the agent's last poll. If the session has ended, it fires at once.

        Raises:
            InvalidCommand: There is not exactly one condition, or it is out of range or impossible for this session.
            LimitReached: The session or conversation has too many watches.
        """
        kind, seconds = _wish(session, pattern, idle, after, waiting=waiting)
        if session.host_id != self._engine.host_id:
            raise InvalidCommand(f"session {session.id} ran on another host; its output cannot be watched here")
        watch = Watch(
            id=watch_id(origin),
            session_id=session.id,
            conversation_id=session.conversation_id,
            turn_id=origin.turn_id,
            host_id=session.host_id,
            kind=kind,
            pattern=pattern,
            seconds=seconds,
            offset=session.poll_offset if kind == "pattern" else 0,
            created_at=self._clock(),
        )
        placed = await self.store.place(watch, epoch=origin.epoch)
        reach("watch.placed")
        if placed.on:
            self._look_after(placed)
        return placed

    async def off(self, session_id: SessionId, origin: CallOrigin) -> None:
        """End the watches of a session; a repeat of the call leaves newer watches alone."""
        key = call_key(origin)
        before = await self._engine.store.begin_call(act_of(origin, session_id, "process_watch"))
        if before:
            return
        await self.store.off(session_id, BY_THE_AGENT)
        await self._engine.store.end_call(key, {"off": True})
        for one in [one for one, of in self._sessions.items() if of == session_id]:
            self._leave(one)

    async def heed(self, session_id: str) -> None:
        """Reset the strikes of a session's watches, because the agent made a call about it."""
        if session_id in self._sessions.values():
            await self.store.heed(session_id)

    def _look_after(self, watch: Watch) -> None:
        if watch.id not in self._tasks:
            self._sessions[watch.id] = watch.session_id
            # In an empty context, because the context of the turn that placed it does not apply later.
            self._tasks[watch.id] = asyncio.get_running_loop().create_task(
                self._run(watch), name=f"watch {watch.id}", context=Context()
            )

    def _leave(self, one: str) -> None:
        if (task := self._tasks.get(one)) is not None:
            task.cancel()

    async def _run(self, watch: Watch) -> None:
        delay_s = FIRST_DELAY_S
        try:
            with about(session=watch.session_id):
                while True:
                    began = time.monotonic()
                    try:
                        found = await self.store.get(watch.id)
                        if found is None or not found.on:
                            return
                        await self._follow(found)
                        delay_s = FIRST_DELAY_S
                    except Exception as error:  # noqa: BLE001 - no error may lose the watch
                        log.warning("watch %s cannot be evaluated: %s; again within %.1f s", watch.id, error, delay_s)
                        await self.store.pause(delay_s, since=began)
                        delay_s = min(delay_s * 2, LONGEST_DELAY_S)
        finally:
            self._tasks.pop(watch.id, None)
            self._sessions.pop(watch.id, None)

    async def _follow(self, watch: Watch) -> None:
        """Evaluate a watch until it is off, or another worker has told its hit; then the caller reads it again."""
        session = await self._engine.store.get(SessionId(watch.session_id))
        if session is None:
            await self.store.off(watch.session_id, ENDED, watch_id=watch.id)
            return
        condition = condition_of(self._engine, session, watch, self._gate, self._clock)
        past_s = self._clock() - (watch.hit_at or 0.0)
        may_at = time.monotonic() + min(self._apart_s, max(0.0, self._apart_s - past_s))
        kept_at = time.monotonic()
        while True:
            patience_s = PATIENCE_S if condition.news is None else max(0.0, may_at - time.monotonic())
            if await condition.look(patience_s):
                break
            if condition.news is None:
                due = time.monotonic() - kept_at >= KEEP_S
                if due and isinstance(condition, Line) and condition.offset - watch.offset >= KEEP_BYTES:
                    await self.store.moved(watch.id, condition.offset)
                    kept_at = time.monotonic()
            elif time.monotonic() >= may_at:
                why_off = FIRED if watch.kind == "after" else None
                hit = self._hit(watch, session, condition, condition.news, why_off)
                fired = await self._tell(watch, hit)
                if fired is None or not fired.on:
                    return
                counted = fired.hits > watch.hits
                known = not counted and is_read(fired, hit)
                if counted or known:
                    condition.told()
                if not known:
                    may_at = time.monotonic() + max(self._apart_s, AGAIN_S)
                watch = fired
        await self._end(watch, await self._engine.wait(session.id, up_to=END_S), condition)

    async def _end(self, watch: Watch, session: Session, condition: Condition) -> None:
        """End the watch with its session; it fires if it has news that the report of the end lacks."""
        if session.end is None:
            return
        news = condition.news
        unheard = watch.created_at > session.end.ended_at or not session.end_is_news
        if news is None and watch.hits == 0 and unheard:
            news = {"nothing": True, "dropped": condition.dropped if isinstance(condition, Line) else 0}
        if news is None:
            await self.store.off(session.id, ENDED, watch_id=watch.id)
        else:
            news = {**news, "ended": how_it_ended(session.end)}
            await self._tell(watch, self._hit(watch, session, condition, news, ENDED))

    def _hit(
        self, watch: Watch, session: Session, condition: Condition, news: dict[str, Any], why_off: str | None
    ) -> Hit:
        return Hit(
            number=watch.hits + 1,
            offset=condition.offset,
            at=self._clock(),
            payload={**news, "command": session.command},
            why_off=why_off,
            upto=news.get("end"),
        )

    async def _tell(self, watch: Watch, hit: Hit) -> Watch | None:
        reach("watch.found")
        fired = await self.store.hit(watch.id, hit)
        reach("watch.told")
        return fired


def _wish(
    session: Session, pattern: str | None, idle: float | None, after: float | None, *, waiting: bool
) -> tuple[Kind, float | None]:
    given = [pattern is not None, idle is not None, after is not None, waiting]
    if sum(given) != 1:
        raise InvalidCommand(
            "give exactly one of pattern, idle, after and waiting=true; two conditions are two watches, "
            "and off=true alone ends those of the session"
        )
    if pattern is not None:
        compiled(pattern)
        return "pattern", None
    if idle is not None:
        return "idle", _within("idle", idle, IDLE_S)
    if after is not None:
        return "after", _within("after", after, AFTER_S)
    if session.live and not takes_input(session):
        raise InvalidCommand(
            f"session {session.id} has no terminal and no open stdin, so it waits for no input; "
            "start it with execute_pty or keep_stdin_open=true"
        )
    return "input", None


def _within(name: str, seconds: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if not low <= seconds <= high:
        raise InvalidCommand(f"{name} is {seconds:g} s; it must be {low:g} to {high:g} s")
    return float(seconds)
