"""Notices of output and ends of background processes, for display, without the output itself.

Notices that were not taken yet are merged: a slow reader gets fewer, at most one for each stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final, Literal

from shellback.exec.core.answers import Grown
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session, SessionId
from shellback.exec.core.threads import cancelled
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.reports.blocks import in_background, label_of

log = logging.getLogger(__name__)

REST_S: Final = 0.1
WAITING: Final = 1_024
"""Notices that wait to be taken; further ones are dropped and counted."""
_PATIENCE_S: Final = 300.0
_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEvent:
    """One notice. `label` is that of the process's block. `dropped`: `count` notices are missing.

    `output`: `bytes` more of `stream`, `total` in all. `exit`: how the process ended, `ending` in words.
    """

    kind: Literal["output", "exit", "dropped"]
    session_id: str = ""
    conversation_id: str = ""
    turn_id: str = ""
    label: str = ""
    stream: str = ""
    bytes: int = 0
    total: int = 0
    exit_code: int | None = None
    signal: int | None = None
    ending: str = ""
    count: int = 0

    @property
    def message(self) -> str:
        """The notice in words."""
        if self.kind == "dropped":
            return f"{self.count} notices were dropped"
        if self.kind == "output":
            return f"process {self.session_id}: {self.bytes} bytes {self.stream}"
        how = f"exited with code {self.exit_code}" if self.exit_code is not None else f"ended: {self.ending}"
        return f"process {self.session_id} {how}"


class OutputFeed:
    """Follows present and future background processes of one conversation, or of all, from now on.

    A stream is read again `rest_s` seconds after it grew. Sees only what this host runs and what `engine` starts.
    """

    def __init__(self, engine: Engine, conversation_id: str | None = None, *, rest_s: float = REST_S) -> None:
        self._engine = engine
        self._conversation_id = conversation_id
        self._rest_s = rest_s
        self._following: dict[SessionId, asyncio.Task[None]] = {}
        self._waiting: dict[tuple[SessionId, str], OutputEvent] = {}
        self._dropped = 0
        self._news = asyncio.Event()

    async def __aenter__(self) -> OutputFeed:
        """Start following."""
        self._engine.registry.listeners.add(self._heard)
        try:
            for session in await self._engine.store.list(conversation_id=self._conversation_id, live=True):
                self._follow(session, from_now=True)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop following; processes go on."""
        self._engine.registry.listeners.discard(self._heard)
        await cancelled(self._following.values())

    async def new(self) -> list[OutputEvent]:
        """Wait for notices, and return all since the last call. Cancelling loses none."""
        await self._news.wait()
        self._news.clear()
        events, self._waiting = list(self._waiting.values()), {}
        if self._dropped:
            events.append(OutputEvent(kind="dropped", count=self._dropped))
            self._dropped = 0
        return events

    def _heard(self, session: Session) -> None:
        if session.live and self._conversation_id in {None, session.conversation_id}:
            self._follow(session, from_now=False)

    def _follow(self, session: Session, *, from_now: bool) -> None:
        ours = session.host_id == self._engine.host_id and in_background(session)
        if ours and session.id not in self._following:
            task = asyncio.get_running_loop().create_task(
                self._followed(session, from_now=from_now), name=f"notices {session.id}"
            )
            self._following[session.id] = task
            task.add_done_callback(lambda _: self._following.pop(session.id, None))

    async def _followed(self, session: Session, *, from_now: bool) -> None:
        follower, separate = Follower(self._engine, session), session.separate_stderr
        seen = Grown(size=0)
        if from_now:
            seen = Grown(
                size=self._engine.output(session).size(),
                err_size=self._engine.output(session, err=True).size() if separate else 0,
            )
        while not seen.ended:
            try:
                now = await follower.grown(
                    seen.size,
                    err_beyond=seen.err_size if separate else None,
                    rest_s=self._rest_s,
                    timeout_s=_PATIENCE_S,
                )
            except Exception as error:  # noqa: BLE001 - the database may be away; nothing else follows the process
                await _later(session, error)
                continue
            self._grew(session, "stdout", now.size - seen.size, now.size)
            self._grew(session, "stderr", now.err_size - seen.err_size, now.err_size)
            seen = now
        await self._ended(session)

    async def _ended(self, session: Session) -> None:
        while (end := session.end) is None:
            try:
                session = await self._engine.wait(session.id, up_to=_PATIENCE_S)
            except ExecError:  # it has been forgotten
                return
            except Exception as error:  # noqa: BLE001 - as above
                await _later(session, error)
        self._put(
            (session.id, "exit"),
            replace(_of(session, "exit"), exit_code=end.exit_code, signal=end.signal, ending=how_it_ended(end)),
        )

    def _grew(self, session: Session, stream: str, new: int, total: int) -> None:
        if new > 0:
            before = self._waiting.get((session.id, stream))
            event = replace(
                _of(session, "output"), stream=stream, bytes=new + (before.bytes if before else 0), total=total
            )
            self._put((session.id, stream), event)

    def _put(self, key: tuple[SessionId, str], event: OutputEvent) -> None:
        if key not in self._waiting and len(self._waiting) >= WAITING:
            self._dropped += 1
        else:
            self._waiting[key] = event
        self._news.set()


async def output_events(
    engine: Engine, conversation_id: str | None = None, *, rest_s: float = REST_S
) -> AsyncGenerator[OutputEvent]:
    """Yield notices of one conversation or of all, as they come; leaving the loop ends no process."""
    async with OutputFeed(engine, conversation_id, rest_s=rest_s) as feed:
        while True:
            for event in await feed.new():
                yield event


async def _later(session: Session, error: Exception) -> None:
    log.info("process %s cannot be followed: %s; again in %.0f s", session.id, error, _AGAIN_S)
    await asyncio.sleep(_AGAIN_S)


def _of(session: Session, kind: Literal["output", "exit"]) -> OutputEvent:
    return OutputEvent(
        kind=kind,
        session_id=session.id,
        conversation_id=session.conversation_id,
        turn_id=session.turn_id,
        label=label_of(session.id),
    )
