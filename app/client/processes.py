"""Sessions of this host: found by their ids, ended, and typed into."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from shellback.exec.core import limits
from shellback.exec.core.errors import InputUnknown, SessionNotFound, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import Session, SessionEnd, SessionId
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.supervised import end_of
from shellback.exec.log.output import OutputLog
from shellback.exec.wire import layout
from shellback.work.errors import NoInput, ServerUnreachable, SessionElsewhere, SessionOver, UnknownSession

if TYPE_CHECKING:
    from shellback.exec.terminals.attaching import Attachment
    from shellback.wiring.wiring import Place
    from shellback.work.queue.callbacks import CallbackSink

T = TypeVar("T")
READ_S: Final = 30.0
"""The time in which a process has to read what is typed."""


def how(end: SessionEnd) -> str:
    """The end of a process in a few words."""
    if end.exit_code is not None:
        return f"exit {end.exit_code}"
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"errno {end.errno}" if end.errno is not None else str(end.evidence or "not known")


def ending(session: Session) -> str:
    """The end of a session in a few words, "not yet" while it lives."""
    return "not yet" if session.end is None else how(session.end)


async def find_end(where: Place, attachment: Attachment) -> SessionEnd | None:
    """The end of the session: from its supervisor or, once a worker has taken the record over, from the database."""
    from shellback.storage import sessions

    end = await attachment.end()
    if end is None:
        row = await where.database.read(sessions.get, attachment.session.id)
        end = None if row is None else row.end
    return end


def the_session(where: Place, session_id: str) -> Session:
    """The session of this host with this id.

    Raises:
        UnknownSession: None has it.
        SessionElsewhere: It belongs to another host.
    """
    from shellback.storage import sessions

    session = where.database.read_now(sessions.get, SessionId(session_id))
    if session is None:
        raise UnknownSession(f"no session {session_id!r}: `shellback ps --all` lists them")
    require_here(where, session)
    return session


def require_here(where: Place, session: Session) -> None:
    """Raise `SessionElsewhere` unless the session belongs to this host."""
    if session.host_id != where.host_id:
        raise SessionElsewhere(
            f"session {session.id} belongs to host {session.host_id}: run the command there, or with its SHELLBACK_HOME"
        )


class Ended(NamedTuple):
    """`survivors` are processes that outlived SIGKILL. `lost`: a restored state directory did not know the session."""

    survivors: list[int]
    lost: bool = False


class Asks:
    """Questions to supervisors, for which threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._over = False

    def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, for which this thread waits.

        Raises:
            ServerUnreachable: `end` came first; what was asked for may have been done.
        """

        async def noted() -> T:
            task = asyncio.current_task()
            assert task is not None
            with self._lock:
                self._open[task] = asyncio.get_running_loop()
                if self._over:
                    task.cancel()
            try:
                return await ask()
            finally:
                with self._lock:
                    del self._open[task]

        try:
            return asyncio.run(noted())
        except asyncio.CancelledError:
            raise ServerUnreachable("this client closes: what was asked for may have been done") from None

    def end(self) -> None:
        """Have no thread wait any more, now and from now on."""
        with self._lock:
            self._over = True
            for task, loop in self._open.items():
                loop.call_soon_threadsafe(task.cancel)


def end(where: Place, session: Session, asks: Asks | None = None) -> Ended:
    """End a session and everything it started: SIGTERM, and after two seconds SIGKILL. Its agent is told.

    Raises:
        ServerUnreachable: `asks` were ended meanwhile.
        SessionOver: It has ended already.
        SupervisorUnreachable: No supervisor of this host answers, or none runs it.
    """
    # A session recorded as lost may still be running: its supervisor knows.
    if not session.live and session.state.value != "lost":
        raise SessionOver(f"session {session.id} has ended already: {ending(session)}. Nothing was signalled")
    survivors = _asked(where, lambda port: _kill(port, session, lambda: give_up(where, session)), asks)
    return Ended([], lost=True) if survivors is None else Ended(survivors)


async def _kill(port: SupervisorPort, session: Session, given_up: Callable[[], bool]) -> list[int] | None:
    """End the session and return its survivors; None if the supervisor does not know it and `given_up` settled it."""
    try:
        await port.connect()
        record = (await port.status(session.id)).get("record")
        if record is not None:
            raise SessionOver(
                f"session {session.id} has ended already: {how(end_of(record))}. Nothing was signalled; "
                "the next worker tells the agent"
            )
        left = await port.kill(session.id, grace_s=limits.KILL_GRACE_S, ended_by="person")
    except (SessionNotFound, SupervisorUnreachable) as error:
        if session.end is not None:
            said = f"session {session.id} has ended already: {ending(session)}. No process of it runs here"
            raise SessionOver(said) from None
        if isinstance(error, SessionNotFound) and await asyncio.to_thread(given_up):
            return None
        raise SupervisorUnreachable(
            f"no supervisor on this host runs session {session.id}, so nothing was signalled ({error}): start a worker "
            "(shellback worker), which finds out how it ended"
        ) from None
    except TaskCompleted:
        raise SessionOver(f"session {session.id} has just ended. Nothing was signalled") from None
    return list(left)


def typed(
    where: Place, session: Session, data: bytes, *, eof: bool, by: str, surface: str, asks: Asks | None = None
) -> None:
    """Type into a session, and close its input with `eof`. The agent is told how many bytes; the text is not stored.

    Raises:
        NoInput: It takes no input.
        SessionOver: It has ended.
        InputUnknown: It did not read everything within 30 s, or its supervisor went away: a part may have arrived.
        SupervisorUnreachable: No supervisor of this host answers.
    """
    from shellback.exec.terminals.attaching import Attachment
    from shellback.work.approvals.typed import Typing

    if not session.live:
        raise SessionOver(f"session {session.id} has ended already: {ending(session)}. Nothing was typed")
    if not session.stdin_open:
        raise NoInput(f"session {session.id} takes no input. Nothing was typed")

    async def type_(port: SupervisorPort) -> None:
        attachment = Attachment(port, session, where.home)
        typing = Typing(where.database, session, by, surface)
        try:
            await port.connect()
        except SupervisorUnreachable as error:
            said = f"{error}: start a worker (shellback worker), which starts a supervisor. Nothing was typed"
            raise SupervisorUnreachable(said) from None
        await typing.count(len(data))
        try:
            async with asyncio.timeout(READ_S):
                await attachment.write(data)
                if eof:
                    await attachment.close_input()
        except TimeoutError:
            said = f"session {session.id} did not read all of its input within {READ_S:g} s: a part may have arrived"
            raise InputUnknown(said) from None
        except (SessionNotFound, TaskCompleted) as error:
            gone = "has ended" if isinstance(error, SessionNotFound) else f"has ended: {error.end}"
            raise SessionOver(f"session {session.id} {gone}; a part of the input may have arrived") from None
        finally:
            await typing.close()

    _asked(where, type_, asks)


def _asked(where: Place, ask: Callable[[SupervisorPort], Awaitable[T]], asks: Asks | None = None) -> T:
    from shellback.wiring import supervision

    return (asks or Asks()).answer(lambda: supervision.ask(where.settings, ask))


def give_up(where: Place, session: Session) -> bool:
    """Record a session as lost that a restored, older state directory does not know; False if none was restored.

    Raises:
        SessionElsewhere: A process of the session runs.
    """
    from shellback.work.hosts import generation
    from shellback.work.hosts import unknown as strangers

    if generation.absence_tells(where.home, session.created_at):
        return False
    if alive := strangers.marked(session.id):
        raise SessionElsewhere(
            f"this state directory has no record of session {session.id}, but its process "
            f"{', '.join(map(str, alive))} runs. Restore the state directory that started it "
            "(`shellback doctor`: leftovers). If it is lost, end the process with `kill`. Then repeat"
        )
    with callbacks(where) as sink:
        where.database.write_now(strangers.give_up, session.id, sink)
    return True


@contextmanager
def callbacks(where: Place) -> Generator[CallbackSink]:
    """The sink that reports the end of a session of this host, as a worker does."""
    from shellback.exec.reports.callback_text import callback_payload
    from shellback.wiring import wiring
    from shellback.work.queue.callbacks import CallbackSink

    def payload(session: Session) -> dict[str, object]:
        logs = where.home / layout.SESSIONS / session.id
        out, err = (OutputLog(logs, session.id, err=err, end=session.end, mask=where.mask) for err in (False, True))
        return callback_payload(session, out, err if session.separate_stderr else None)

    with wiring.enqueuing(where) as enqueuer:
        yield CallbackSink(enqueuer, where.host_id, payload)


def settled(where: Place) -> None:
    """Forget that one of the counts was restored, if no process is left to settle."""
    from shellback.work.hosts import unknown as strangers
    from shellback.work.hosts.generation import Generation

    count = Generation(where.home, where.host_id, where.database)
    _asked(where, lambda port: strangers.settle(port, where.database, where.host_id, count, where.home))
