"""Interfaces that the engine needs: stores, sinks for ends and hits, and the supervisor.

Stores and sinks have an implementation without DBOS, so the toolset works in any Pydantic AI agent. Each method of a
store but `pause` is one transaction; a cancelled call leaves its transaction complete or not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shellback.exec.core.answers import Grown, Look
from shellback.exec.core.limits import SESSIONS_PER_CONVERSATION
from shellback.exec.core.model import Act, CallKey, PodmanWorkspace, Polled, Session, SessionEnd, SessionId
from shellback.exec.core.watch import Hit, Watch
from shellback.exec.wire.protocol import ExitRecord, Loss, Message, StartRequest


class ExitSink(Protocol):
    """Receives the end of a session, inside the transaction that records it."""

    def ended(self, tx: object, session: Session) -> None:
        """Record the news of an ended session whose delivery is `callback`; called once for such a session.

        `tx` is the store's transaction: a SQLAlchemy connection, or None for the memory store. An exception rolls the
        end back, and it is delivered again.
        """
        ...


class Store(Protocol):
    """What a store is besides its rows."""

    async def pause(self, seconds: float, *, since: float) -> None:  # noqa: ARG002 - this one is never away
        """Wait before a failed call is repeated: `seconds`, or until a store that was away answers again.

        Returns at once if it has come back `since` the failed call began (monotonic).
        """
        await asyncio.sleep(seconds)


class SessionStore(Store, Protocol):
    """Durable sessions, and the recorded outcomes of calls that change them."""

    async def claim(self, session: Session, *, limit: int = SESSIONS_PER_CONVERSATION) -> Session:
        """Commit a session in state `claimed`, or return the one that already has its id.

        Raises:
            LimitReached: The conversation has `limit` live sessions.
            StaleTurn: Another turn or epoch holds the conversation (SQL store only).
        """
        ...

    async def started(self, session_id: SessionId, *, pid: int, started_at: float) -> None:
        """Move a claimed session to `running`; a repeat, or an ended session, changes nothing."""
        ...

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        """Record the end once, and tell the sink if the delivery is `callback`; a repeat returns the first end.

        With `told_inline` a call waits for the end: the delivery `inline` becomes `settled`.

        Raises:
            SessionNotFound: No session has this id.
        """
        ...

    async def settle_inline(self, session_id: SessionId) -> bool:
        """Move the delivery from `inline` to `settled`; False if it was handed over before."""
        ...

    async def hand_over(self, session_id: SessionId) -> bool:
        """Move the delivery from `inline` to `callback`; True if it is `callback` now.

        If the session has ended meanwhile, the sink is told in the same transaction.
        """
        ...

    async def get(self, session_id: SessionId) -> Session | None: ...

    async def list(self, *, conversation_id: str | None = None, live: bool | None = None) -> Sequence[Session]:
        """Sessions, oldest first, filtered by conversation and by state."""
        ...

    async def begin_call(self, act: Act) -> dict[str, object] | None:
        """Record that a changing call begins. None: it is new. `{}`: it was begun before, with an unknown outcome.

        Any other value is the recorded outcome of an earlier execution of the same call.

        Raises:
            StaleTurn: Another turn or epoch holds the conversation (SQL store only).
        """
        ...

    async def recalled(self, key: CallKey) -> dict[str, object] | None:
        """The return value of `begin_call` for this key; changes nothing."""
        ...

    async def acted_on(self, key: CallKey) -> SessionId | None:
        """The session of the begun call with this key, or None."""
        ...

    async def typed_last(self, session_id: SessionId, *, besides: str = "") -> dict[str, object] | None:
        """The outcome of the newest call, except `besides`, that typed into a session; `{}`: unknown; None: no call."""
        ...

    async def end_call(self, key: CallKey, outcome: dict[str, object]) -> None:
        """Record the outcome of a changing call."""
        ...

    async def advance_poll(self, key: CallKey, session_id: SessionId, upto: int, err_upto: int = 0) -> Polled:
        """Move the poll cursors of both streams, and return the byte ranges; a repeat returns the same ranges."""
        ...

    async def pin(self, session_id: SessionId, pinned: bool | None) -> None:
        """Show (True) or hide (False) the session's block; None: shown until it ends. SessionNotFound without one."""
        ...


class WatchSink(Protocol):
    """Receives the hits of watches, inside the transaction that counts them."""

    def hit(self, tx: object, watch: Watch, hit: Hit) -> bool:
        """Record the news of a hit; `watch` is its state after the hit. False: not recorded, the last one is unread.

        A hit that ends its watch is always recorded. `tx` is as in `ExitSink`. An exception rolls the hit back, and it
        is tried again.
        """
        ...


class WatchStore(Store, Protocol):
    """Durable watches. Each hit is counted and told once, even if several workers find it."""

    async def place(self, watch: Watch, *, epoch: int = 0) -> Watch:
        """Commit a watch, or return the unchanged one that already has its id.

        Raises:
            LimitReached: The session or conversation has too many watches.
            StaleTurn: Another turn or epoch holds the conversation (SQL store only).
        """
        ...

    async def get(self, watch_id: str) -> Watch | None: ...

    async def list(self, *, session_id: str | None = None, host_id: str | None = None) -> Sequence[Watch]:
        """Watches that are on, oldest first, filtered by session and host."""
        ...

    async def hit(self, watch_id: str, hit: Hit) -> Watch | None:
        """Count a hit and tell the sink; returns the changed watch.

        None if the watch is off or gone, or has fired with this number: another worker found the hit first. A hit in
        output that the agent has read meanwhile only moves the offset. A hit that the sink does not accept changes
        nothing.
        """
        ...

    async def moved(self, watch_id: str, offset: int) -> None:
        """Move the offset of a watch that is on, up to which nothing was found; never back."""
        ...

    async def heed(self, session_id: str) -> None:
        """Reset the strikes of the session's watches, because the agent made a call about the session."""
        ...

    async def off(self, session_id: str, why: str, *, watch_id: str | None = None) -> None:
        """Switch off one or all watches of the session."""
        ...


class WorkspaceStore(Protocol):
    """The records of this host's containers. It changes no container."""

    async def made(self, workspace: PodmanWorkspace) -> None:
        """A container was made; it replaces a record with the same name."""
        ...

    async def started(self, name: str, at: float) -> None:
        """A stopped container was started."""
        ...

    async def touched(self, name: str, at: float) -> None:
        """A container was used; recorded at most once a minute, so most commands cost no commit."""
        ...

    async def stopped(self, name: str, at: float) -> None:
        """A container was stopped; `at` is the time of its last use."""
        ...

    async def removed(self, name: str, at: float) -> None:
        """A container was removed; the first recorded time stays."""
        ...

    async def list(self, *, scope: str | None = None, live: bool | None = None) -> Sequence[PodmanWorkspace]:
        """Containers, oldest first, filtered by scope and by whether they exist."""
        ...


class SessionWatch(Protocol):
    """Observes processes for traces. Its methods neither raise nor wait."""

    def context(self) -> str | None:
        """The W3C `traceparent` for a process that the running call starts, or None."""
        ...

    def started(self, session: Session) -> None:
        """The process of a session runs."""
        ...

    def ended(self, session: Session) -> None:
        """The end of a session is recorded. It is reported again if the worker died before it acknowledged the end."""
        ...


class Unwatched(SessionWatch):
    """Observes nothing."""

    def context(self) -> str | None: ...

    def started(self, session: Session) -> None: ...

    def ended(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """A second input: `data`, written with `key` once `asks` + `says` + BEL was printed; over at `done` and BEL."""

    asks: bytes
    says: bytes
    data: bytes
    key: str
    done: bytes


class SupervisorPort(Protocol):
    """The supervisor, in its wire types; `SupervisorClient` implements it.

    A request raises `SupervisorUnreachable` if the supervisor neither answers nor can be started; it is then unknown
    whether it acted. The same holds for a cancelled request.
    """

    on_exit: Callable[[ExitRecord], None] | None
    """Receives every unacknowledged end, again after each reconnection. Set it before `connect`."""
    on_reconnect: Callable[[], None] | None
    on_losses: Callable[[str, list[Loss]], None] | None
    """Receives the lost covers of running sessions, again after each reconnection. Set it before `connect`."""

    async def connect(self) -> Message:
        """Reach or start the supervisor; returns its description, with `boot_id`."""
        ...

    async def close(self) -> None:
        """Disconnect; commands continue."""
        ...

    async def start(self, request: StartRequest, *, home: Path | None = None) -> Message:
        """Start a command, at most once for its session id. `home` is the state directory of the supervisor to use.

        `outcome` is `started` (with pid and started_at), `start_failed` (with record: the kernel did not execute it) or
        `already` (started or abandoned before, with status). If nothing was started, `ok` is false, `error` is a code,
        and `message` has the reason.
        """
        ...

    async def status(self, session_id: str) -> Message:
        """`state` is unknown, abandoned, running (with pid and started_at), or the end (with record)."""
        ...

    async def list(self) -> tuple[list[Message], list[ExitRecord]]:
        """The `status` of each running session, and the unacknowledged exit records."""
        ...

    async def ack(self, session_id: str) -> bool:
        """Acknowledge that the end is recorded; a repeat changes nothing."""
        ...

    async def abandon(self, session_id: str) -> Message:
        """Prevent the start of a session; returns its status, `abandoned` on success."""
        ...

    async def write(
        self,
        session_id: str,
        data: bytes,
        *,
        eof: bool = False,
        key: str = "",
        beyond: int | None = None,
        timeout_s: float = 0.0,
        then: Then | None = None,
    ) -> Message:
        """Write input, at most once for a key; answers `accepted` and `total` (bytes), `eof` and `closed`.

        With `beyond` the answer comes when the output exceeds so many bytes, when the session has ended, or `timeout_s`
        seconds after the write. With `then` too, it comes when that is done or cannot be: it has `given`, and mostly
        `printed` with the output from offset `at` on; a supervisor of an earlier version knows no `then`.

        Raises:
            TaskCompleted: The session has ended; nothing was written.
            InvalidCommand: Its input is closed; nothing was written.
            LimitReached: Too many writes wait; nothing was written.
            InputUnknown: It is unknown whether the data was written, because of a crash.
        """
        ...

    async def written(self, session_id: str, key: str) -> Message | None:
        """The result of the write with this key; None if this supervisor has served no such write."""
        ...

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        """Change the size of the terminal."""
        ...

    async def signal(self, session_id: str, number: int) -> None:
        """Send a signal to the whole process tree, once for each call."""
        ...

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> tuple[int, ...]:
        """End the whole process tree; returns the pids that still exist after SIGKILL."""
        ...

    async def grown(
        self,
        session_id: str,
        beyond: int,
        *,
        err_beyond: int | None = None,
        rest_s: float = 0.0,
        timeout_s: float = 30.0,
    ) -> Grown:
        """Wait until the output exceeds `beyond` bytes, or the session has ended, at most `timeout_s` seconds.

        `err_beyond` is the same for the second stream. The answer comes after `rest_s` at the earliest, so that a loop
        gets output in larger pieces.
        """
        ...

    async def look(self, session_id: str) -> Look | None:
        """The present state of a session; None if it does not run or the state is unknown."""
        ...

    async def serve(self, home: Path, facts: Mapping[str, object]) -> None:
        """Have commands in the container of this home reach what is listed in `facts`, until it ends; may be repeated.

        Raises an ExecError if there is no such container, or the host's supervisor cannot do it.
        """
        ...

    async def expire(self, lifetime: str, owner: str) -> list[str]:
        """End all sessions with this lifetime and owner (the id of a turn or conversation); returns their ids."""
        ...
