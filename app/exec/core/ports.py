"""What the engine needs from outside: a place for sessions, and somebody to tell about ends.

Both have an implementation without DBOS, so that the toolset works in any Pydantic AI agent.
Every method of a store is one transaction; cancelling a call leaves the transaction done or not
begun, never half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from shellback.exec.core.answers import Grown, Killed, Look, StartAnswer, Written
from shellback.exec.core.model import Act, CallKey, PodmanWorkspace, Polled, Session, SessionEnd, SessionId
from shellback.exec.core.watch import Hit, Watch
from shellback.exec.wire.protocol import ExitRecord, Loss, Message, StartRequest


class ExitSink(Protocol):
    """Told about the end of a session, inside the transaction that records it."""

    def ended(self, tx: object, session: Session) -> None:
        """Record the news of an ended session whose delivery is `callback`.

        Called exactly once for such a session, in the store's own transaction; `tx` is the
        store's handle for it (a SQLAlchemy connection, None for the memory store). Raising rolls
        the end back: it is delivered again.
        """
        ...


class SessionStore(Protocol):
    """Durable sessions and the recorded outcomes of calls that change them."""

    async def claim(self, session: Session) -> Session:
        """Commit a session in state `claimed`, or return the one that already has its id.

        Raises:
            LimitReached: The conversation already has its live sessions.
            StaleTurn: Epoch and turn no longer hold the conversation (SQL store only).
        """
        ...

    async def started(self, session_id: SessionId, *, pid: int, started_at: float) -> None:
        """Move a claimed session to `running`; repeating it, or an ended session, changes nothing."""
        ...

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        """Record the end once and tell the sink if the delivery is `callback`; repeats return the first end.

        `told_inline` says that a call waits for it: a delivery that is still `inline` becomes `settled` with it.

        Raises:
            SessionNotFound: No session has this id.
        """
        ...

    async def settle_inline(self, session_id: SessionId) -> bool:
        """Move the delivery from `inline` to `settled`; False when it was handed over before."""
        ...

    async def hand_over(self, session_id: SessionId) -> bool:
        """Move the delivery from `inline` to `callback`; True if it is `callback` now.

        A session that has ended meanwhile tells the sink in the same transaction.
        """
        ...

    async def get(self, session_id: SessionId) -> Session | None:
        """The session, or None."""
        ...

    async def list(self, *, conversation_id: str | None = None, live: bool | None = None) -> Sequence[Session]:
        """Sessions, oldest first; of one conversation, or all; live, ended, or both."""
        ...

    async def begin_call(self, act: Act) -> dict[str, object] | None:
        """Note that a changing call is about to act. None: it is new. `{}`: begun before, outcome not known.

        Anything else is the recorded outcome of an earlier execution of the same call.

        Raises:
            StaleTurn: Epoch and turn no longer hold the conversation (SQL store only).
        """
        ...

    async def recalled(self, key: CallKey) -> dict[str, object] | None:
        """What `begin_call` would return for this key; changes nothing."""
        ...

    async def acted_on(self, key: CallKey) -> SessionId | None:
        """The session that `begin_call` was given with this key; None where it was not begun."""
        ...

    async def typed_last(self, session_id: SessionId, *, besides: str = "") -> dict[str, object] | None:
        """The outcome of the newest call that typed into a session, of `besides` apart; None where nothing was typed.

        `{}` for one whose outcome is not known.
        """
        ...

    async def end_call(self, key: CallKey, outcome: dict[str, object]) -> None:
        """Record what a changing call did."""
        ...

    async def advance_poll(self, key: CallKey, session_id: SessionId, upto: int, err_upto: int = 0) -> Polled:
        """Move the poll cursors of both streams and return the byte ranges read; a repeat returns the same ranges."""
        ...

    async def pin(self, session_id: SessionId, pinned: bool | None) -> None:
        """Note whether the session's block is wanted; None leaves it to its end.

        Raises:
            SessionNotFound: No session has this id.
        """
        ...


class WatchSink(Protocol):
    """Told when a watch fires, inside the transaction that counts it."""

    def hit(self, tx: object, watch: Watch, hit: Hit) -> bool:
        """Record the news of a hit; `watch` is as it is after it. False: not yet, the one before it is unread.

        A hit that ends its watch is always recorded. `tx` is as an `ExitSink` gets it. Raising rolls the hit back: it
        is tried again.
        """
        ...


class WatchStore(Protocol):
    """Durable watches. Each hit is counted and told once, however often and by how many it is found."""

    async def place(self, watch: Watch, *, epoch: int = 0) -> Watch:
        """Commit a watch, or return the one that already has its id, untouched.

        Raises:
            LimitReached: Its session or conversation already has its watches.
            StaleTurn: `epoch` and its turn no longer hold the conversation (SQL store only).
        """
        ...

    async def get(self, watch_id: str) -> Watch | None:
        """The watch, or None."""
        ...

    async def list(self, *, session_id: str | None = None, host_id: str | None = None) -> Sequence[Watch]:
        """Watches that are on, oldest first; of one session, of one host, or all."""
        ...

    async def hit(self, watch_id: str, hit: Hit) -> Watch | None:
        """Count a hit and tell the sink; the watch as it is then.

        None where the watch is off, gone, or has fired under this number: somebody else found it first. A hit of
        output that the agent has read meanwhile moves the offset, and is neither counted nor told. One that the sink
        does not take yet changes nothing.
        """
        ...

    async def moved(self, watch_id: str, offset: int) -> None:
        """Note up to where nothing was found; never back, and nothing of a watch that is off."""
        ...

    async def heed(self, session_id: str) -> None:
        """Forget the strikes of the session's watches: the agent has made a call about it."""
        ...

    async def off(self, session_id: str, why: str, *, watch_id: str | None = None) -> None:
        """Switch off the session's watches that are on, or one of them."""
        ...


class WorkspaceStore(Protocol):
    """The record of this host's containers: what was made, used last, stopped, taken away. Changes nothing itself."""

    async def made(self, workspace: PodmanWorkspace) -> None:
        """A container was made; takes the place of one that had the same name."""
        ...

    async def started(self, name: str, at: float) -> None:
        """A stopped container runs again."""
        ...

    async def touched(self, name: str, at: float) -> None:
        """A container was used; recorded at most once a minute, so that a command costs no commit."""
        ...

    async def stopped(self, name: str, at: float) -> None:
        """A container was stopped, `at` being the last moment of its use."""
        ...

    async def removed(self, name: str, at: float) -> None:
        """A container is gone; of repeats the first moment stays."""
        ...

    async def list(self, *, scope: str | None = None, live: bool | None = None) -> Sequence[PodmanWorkspace]:
        """Containers, oldest first; of one scope, or all; those that are there, those that are gone, or both."""
        ...


class SessionWatch(Protocol):
    """Told about processes. Neither raises nor waits."""

    def context(self) -> str | None:
        """What a process that the running call starts is to be known by: a W3C `traceparent`, or None."""
        ...

    def started(self, session: Session) -> None:
        """The process of `session` runs."""
        ...

    def ended(self, session: Session) -> None:
        """The end of `session` is recorded. Told again when a worker died before it could acknowledge it."""
        ...


class Unwatched(SessionWatch):
    """Nobody is told."""

    def context(self) -> str | None: ...

    def started(self, session: Session) -> None: ...

    def ended(self, session: Session) -> None: ...


class SupervisorPort(Protocol):
    """The process that outlives us and holds the commands, in its own wire types; `SupervisorClient` is one.

    Every request raises `SupervisorUnreachable` when the supervisor neither answers nor can be started;
    whether it acted is then not known. Cancelling a request leaves it done or not, unanswered.
    """

    on_exit: Callable[[ExitRecord], None] | None
    """Hears every end that is not acknowledged, again after each reconnection. Set before `connect`."""
    on_reconnect: Callable[[], None] | None
    on_losses: Callable[[str, list[Loss]], None] | None
    """Hears what covers a session that runs has lost so far, again after each reconnection. Set before `connect`."""

    async def connect(self) -> Message:
        """Reach or start the supervisor; what it says of itself, `boot_id` among it."""
        ...

    async def close(self) -> None:
        """Let go of the supervisor; commands go on."""
        ...

    async def start(self, request: StartRequest, *, home: Path | None = None) -> StartAnswer:
        """Start a command, at most once however often its session id is asked for.

        `home` is the state directory of the supervisor that is to start it, where there are several.
        """
        ...

    async def status(self, session_id: str) -> Message:
        """`state`: unknown, abandoned, running (with pid and started_at), else the end (with record)."""
        ...

    async def list(self) -> list[Message]:
        """The sessions that run, each as `status` has it."""
        ...

    async def unacknowledged(self) -> list[ExitRecord]:
        """Ends that nobody has acknowledged."""
        ...

    async def ack(self, session_id: str) -> bool:
        """Say that the end is recorded; repeating it changes nothing."""
        ...

    async def abandon(self, session_id: str) -> Message:
        """Make sure that the session never starts; its status, `abandoned` if that worked."""
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
    ) -> Written:
        """Write input, at most once for a key.

        With `beyond` the answer comes with what the input brings: once there are more than so many bytes of output, or
        the session has ended, or `timeout_s` seconds after the write at the latest.
        """
        ...

    async def written(self, session_id: str, key: str) -> Written | None:
        """What the write with this key did; None if this supervisor has served none."""
        ...

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        """Change the size of the terminal."""
        ...

    async def signal(self, session_id: str, number: int) -> None:
        """Send a signal to the whole tree, once for each call."""
        ...

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> Killed:
        """End the whole tree; answers when that is settled."""
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
        """Wait until the output has more than `beyond` bytes, or the session has ended, at most `timeout_s` seconds.

        `err_beyond` asks the same of the second stream. Answers at once where that is so already, but not before
        `rest_s` have passed, so that a loop over it takes what came meanwhile in one piece.
        """
        ...

    async def look(self, session_id: str) -> Look | None:
        """What the session does at this moment; None of one that does not run, or where nobody can tell."""
        ...

    async def expire(self, lifetime: str, owner: str) -> list[str]:
        """End all that has this lifetime and owner (the id of a turn or conversation); the sessions that it ends."""
        ...
