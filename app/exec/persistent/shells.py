"""Shells that stay: start one, have it run commands, read it, type into it, end it. All else is as for any session.

What a shell has done is in its log and its process, so both outlive a worker: a repeat of a call finds there what the
first execution of it did.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.errors import BackendUnavailable, ExecError, InputUnknown, InvalidCommand, TaskCompleted
from shellback.exec.core.identity import act_of, call_key
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import SHELL, CallKey, CallOrigin, CommandSpec, EndedBy, Session, SessionId, WindowSize
from shellback.exec.core.threads import cancelled
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Listed, Sessions
from shellback.exec.log.output import Slice
from shellback.exec.persistent import telling
from shellback.exec.persistent.exchange import Exchange, Outcome, ShellBusy
from shellback.exec.persistent.known import Known
from shellback.exec.persistent.marks import Names, before_unfinished
from shellback.exec.persistent.payload import Bounds
from shellback.exec.persistent.telling import Executed, Read, Started
from shellback.exec.policy.commands import check_command, command_spec
from shellback.exec.policy.policy import Grant
from shellback.exec.policy.typed_lines import UNFINISHED
from shellback.exec.wire.crashpoints import reach

IDLE_S: Final = 1800.0
TIMEOUT_S: Final = 30.0
_BEHIND: Final = 64 * 1024
"""Bytes of output up to which the outcome is recorded behind the answer; more could drop its marks from the log."""


class PersistentShells:
    """The persistent shells of an engine. Whose shells a call may see is a matter of its origin's conversation.

    A shell ends once it had neither a call nor output for `idle_s` seconds, also where that was while nobody watched.
    A command may leave it in the workspace, in what is private to the sandbox, and in `allowed`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        idle_s: float = IDLE_S,
        allowed: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self._idle_s = idle_s
        self._allowed = tuple(allowed)
        self._clock = clock
        self.expiry = Expiry(engine, self._left_of)
        """Ends shells that nobody uses; started with the worker, and by the first call at the latest."""
        self._made: Names | None = None
        self._known: dict[SessionId, Known] = {}

    def at(self, engine: Engine) -> PersistentShells:
        """These shells, for conversations in the workspace of `engine`; what is known of shells is shared."""
        made = copy.copy(self)
        made.engine = engine
        return made

    async def start(self, grant: Grant, origin: CallOrigin) -> Started:
        """Start a shell, once for this call, and wait for its prompt; it may have ended by itself before.

        Raises what `Engine.launch` does, and ShellBusy where it does not answer.
        """
        session = await self.engine.launch(grant, origin)
        exchange = Exchange(self.engine, session, self._names, CallKey(f"{call_key(origin)}.0"))
        begun: Outcome | None = None
        with self._held(session) as known, suppress(TaskCompleted):
            begun = await exchange.begin(self._bounds(session, known), PROMPT)
        session = await self.engine.registry.get(session.id)
        if begun is None or session.end is not None:
            return Started(session=session, output=(await known.log.ends()).text)
        known.note(begun, exchange.frame, exchange.options)
        self.expiry.watch(session.id, self._idle_s)
        prompt, upto = await telling.prompt(self.engine, session, begun.upto)
        known.told(upto)
        return Started(session=session, output=prompt)

    async def exec(  # noqa: PLR0913
        self,
        session_id: str,
        command: str,
        origin: CallOrigin,
        *,
        timeout_s: float = TIMEOUT_S,
        raw: bool = False,
        tool: str = "shell_session",
        by_model: bool = True,
        granted_by: str = "",
        digest: str = "",
    ) -> Executed:
        """Have a shell run a command, once for this call, and wait for its end, at most `timeout_s` seconds.

        After that, and while it waits for input, the command runs on. Cancelling leaves it running too; a repeat of the
        call goes on waiting, or returns what was recorded.

        Raises:
            InvalidCommand: The command or the timeout is not acceptable, or the session is no shell.
            ShellBusy: Another command runs in it.
            TaskCompleted: It has ended.
            InputUnknown: A crash hides whether the command ran; it is not run again.
            SessionNotFound: There is none here.
        """
        check_line(command, timeout_s, self.engine.limits)
        key = call_key(origin)
        # The supervisor refuses the input if the shell has ended meanwhile.
        session = await self.get(session_id, origin.conversation_id, ended=True, remembered=True)
        shown: Slice | None = None
        with self._held(session) as known:
            await self.engine.behind.settled(session.id, key)
            recorded = await self.engine.store.begin_call(
                act_of(origin, session.id, tool, "typed" if by_model else "fed", granted_by=granted_by, digest=digest)
            )
            if not recorded:
                again = recorded is not None
                recorded, shown = await self._executed(session, known, key, command, timeout_s, again=again)
        if "ended" in recorded:
            raise TaskCompleted(session.id, str(recorded["ended"]))
        if "refused" in recorded:
            raise (InputUnknown if recorded["unknown"] else ShellBusy)(str(recorded["refused"]))
        if recorded["how"] == "gone":
            session = await self.engine.registry.get(session.id)
        executed = await telling.executed(self.engine, session, recorded, command, raw=raw, shown=shown)
        found = () if self.engine.inspector is None else await self.engine.inspector.look(session.id)
        return replace(executed, note=" ".join((*(f"{one}." for one in found), executed.note))) if found else executed

    async def read(self, session_id: str, origin: CallOrigin, *, raw: bool = True) -> Read:
        """What the shell printed since it was read last; a repeat of the call returns the same.

        Raises:
            InvalidCommand: The session is no shell.
            SessionNotFound: There is none here.
        """
        session = await self.get(session_id, origin.conversation_id, ended=True)
        known = self._of(session)
        upto = await known.log.readable_end(ended=session.end is not None)
        if session.end is None:
            upto = before_unfinished(known.log, upto)
        start, end, *_ = await self.engine.store.advance_poll(call_key(origin), session.id, upto)
        start = max(start, min(end, known.told()))
        known.told(end)
        running, status = await known.pending(session)
        return Read(
            session=session,
            output=await telling.piece(known.log, start, end, raw=raw),
            alive=session.end is None,
            running=running and session.end is None,
            exit_code=status,
            note=telling.note_of_read(session, self._idle_s, running=running),
            slice=await known.log.ends(start, end),
        )

    async def write(
        self, session_id: str, data: bytes, origin: CallOrigin, *, tool: str = "shell_session", **more: Any
    ) -> int:
        """Type into a shell, or into what runs in it; as `Sessions.write`."""
        session = await self.get(session_id, origin.conversation_id)
        self._of(session).typed()
        return await Sessions(self.engine, origin.conversation_id).write(session.id, data, origin, tool=tool, **more)

    async def resize(self, session_id: str, size: WindowSize, conversation_id: str | None) -> None:
        """Change the size of its terminal; as `Sessions.resize`."""
        session = await self.get(session_id, conversation_id)
        await Sessions(self.engine, conversation_id).resize(session.id, size)

    async def kill(self, session_id: str, origin: CallOrigin) -> tuple[Session, tuple[int, ...]]:
        """End a shell and all that runs in it; as `Sessions.kill`."""
        session = await self.get(session_id, origin.conversation_id, ended=True)
        self.expiry.forget(session.id)
        return await Sessions(self.engine, origin.conversation_id).kill(session.id, origin)

    async def get(
        self, session_id: str, conversation_id: str | None, *, ended: bool = False, remembered: bool = False
    ) -> Session:
        """The shell as it is now, one that runs unless `ended`. Counts as a use of it; one that is due expires.

        `remembered` is that of `ExecRegistry.get`.

        Raises:
            InvalidCommand: The session is no shell.
            TaskCompleted: It has ended, and was not to have.
            SessionNotFound: There is none here.
        """
        session = await self.engine.registry.get(session_id, conversation_id, remembered=remembered)
        if session.kind != SHELL:
            raise InvalidCommand(f"session {session_id} is no shell; the process tools are for it")
        if session.end is None and self._left_of(session) <= 0:
            await self.expiry.end(session.id)
            session = await self.engine.registry.get(session_id, conversation_id)
        if session.end is None:
            self._of(session).log.touch()
            self.expiry.watch(session.id, self._idle_s)
        elif not ended:
            raise TaskCompleted(session.id, telling.how_ended(session, self._idle_s))
        return session

    async def check_free(self, session: Session) -> None:
        """Whether a shell would take a command now; ShellBusy if a command runs in it."""
        known = self._of(session)
        if known.busy or not (known.rests() or await known.ready()):
            raise ShellBusy(telling.BUSY.format(session.id))

    async def cwd(self, session_id: str, conversation_id: str | None) -> str:
        """The directory that a shell is in, as the shell sees it, without symlinks: the kernel's word.

        In a container it is the last that the shell said.

        Raises:
            InvalidCommand: The session is no shell, or nobody can tell.
            SessionNotFound: There is none here.
        """
        session = await self.get(session_id, conversation_id, ended=True)
        place = await self._of(session).place()
        if not place and session.end is None:
            raise InvalidCommand(
                f"the directory of shell {session.id} is unknown, perhaps because its name is too long; nothing was "
                "run. Change the directory with write, or kill the shell and start another"
            )
        return place or self.engine.backend.inner

    @property
    def _names(self) -> Names:
        if self._made is None:
            try:
                self._made = Names(self.engine.links.sessions.parent)
            except OSError as error:
                raise BackendUnavailable(f"shells need a key that cannot be read or made: {error}") from None
        return self._made

    def _of(self, session: Session) -> Known:
        known = self._known.get(session.id)
        if known is None:
            known = self._known[session.id] = Known(self.engine, session)
        if session.end is not None and not known.busy:
            del self._known[session.id]
        return known

    @contextmanager
    def _held(self, session: Session) -> Generator[Known]:
        known = self._of(session)
        if known.busy:
            raise ShellBusy(telling.BUSY.format(session.id))
        known.busy = True
        try:
            yield known
        finally:
            known.busy = False

    async def list(self, conversation_id: str | None) -> list[Listed]:
        """The running shells."""
        found = await Sessions(self.engine, conversation_id).list()
        return [one for one in found if one.session.kind == SHELL and one.session.live]

    async def _executed(
        self, session: Session, known: Known, key: CallKey, command: str, timeout_s: float, *, again: bool
    ) -> tuple[Mapping[str, Any], Slice | None]:
        """What is recorded of the call, and its output if that need not be read."""
        begun = time.monotonic()
        exchange = Exchange(self.engine, session, self._names, key)
        facts: dict[str, object]
        held, shown = False, None
        try:
            if again:
                known.begins()
            done = await exchange.before(timeout_s=timeout_s) if again else None
            if done is None:
                done = await self._run(session, known, exchange, command, timeout_s)
            known.note(done, exchange.frame, exchange.options)
            took_ms = round((time.monotonic() - begun) * 1000)
            # The output itself stays in the log.
            facts = {**asdict(done), "cwd": done.cwd or await known.place(), UNFINISHED: "", "took_ms": took_ms}
            shown = exchange.shown(done)
            # Then the marks in the log hold the outcome: a repeat of the call finds them there.
            held = done.how == "ended" and done.upto - done.start <= _BEHIND
        except (ShellBusy, InputUnknown) as error:
            facts = {"refused": str(error), "unknown": isinstance(error, InputUnknown)}
        except TaskCompleted as error:
            session = await self.engine.registry.get(session.id)
            facts = {"ended": error.end if session.end is None else telling.how_ended(session, self._idle_s)}
        reach("shell.told")
        if held:
            await self.engine.behind.end_call(key, session.id, facts)
        else:
            await self.engine.store.end_call(key, facts)
        return facts, shown

    async def _run(self, session: Session, known: Known, exchange: Exchange, command: str, timeout_s: float) -> Outcome:
        if session.end is not None:
            raise TaskCompleted(session.id, telling.how_ended(session, self._idle_s))
        foreseen = known.foreseen
        if not known.rests():
            foreseen = None
            if not await known.ready():
                raise ShellBusy(telling.BUSY.format(session.id))
            await exchange.clear()
        known.begins()
        return await exchange.run(command, self._bounds(session, known), timeout_s=timeout_s, foreseen=foreseen)

    def _bounds(self, session: Session, known: Known) -> Bounds:
        inner = self.engine.backend.inner
        private = self.engine.backend.facts(session.profile)["mounts"]["private"]
        return Bounds(roots=(inner, *private, *self._allowed), back=known.kept or inner)

    def _left_of(self, session: Session) -> float:
        """Seconds until a shell expires; the log's modification time also counts calls, and outlives this process."""
        known = self._of(session)
        used = max(session.started_at or session.created_at, known.log.modified_at())
        return self._idle_s if known.busy else used + self._idle_s - self._clock()


log = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
"""Seconds until the next attempt to end a shell."""


class Expiry:
    """Ends idle shells of this host: those with no seconds `left`.

    Each shell has one timer, which is set again if it fires early; there is no polling.
    """

    def __init__(self, engine: Engine, left: Callable[[Session], float]) -> None:
        self._engine = engine
        self._left = left
        self._timers: dict[SessionId, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """End shells that expired while no worker ran, and set timers for the others; repeating is harmless."""
        for one in await self._engine.store.list(live=True):
            if one.kind == SHELL and one.host_id == self._engine.host_id:
                self.watch(one.id, 0)

    def watch(self, session_id: SessionId, after_s: float) -> None:
        """Check a shell after this time; a timer that exists is kept."""
        if session_id not in self._timers:
            self._timers[session_id] = asyncio.get_running_loop().call_later(after_s, self._fire, session_id)

    def forget(self, session_id: SessionId) -> None:
        """Cancel the timer of a shell."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    async def end(self, session_id: SessionId) -> None:
        """End a shell because its lifetime is over."""
        session = await self._engine.registry.get(session_id)
        await Sessions(self._engine, None).end(session, by=EndedBy.LIFETIME)

    async def stop(self) -> None:
        """Cancel all timers; shells go on. Stopping twice, or without a start, is harmless."""
        for session_id in list(self._timers):
            self.forget(session_id)
        await cancelled(self._tasks)

    def _fire(self, session_id: SessionId) -> None:
        del self._timers[session_id]
        task = asyncio.get_running_loop().create_task(self._look(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, session_id: SessionId) -> None:
        try:
            session = await self._engine.store.get(session_id)
            if session is None or session.end is not None:
                return
            if (left := self._left(session)) > 0:
                self.watch(session_id, left)
            else:
                await self.end(session_id)
        except ExecError as error:
            log.warning("shell %s, idle for too long, could not be ended and is tried again: %s", session_id, error)
            self.watch(session_id, _AGAIN_S)


SHELL_COMMAND: Final = "exec bash --noprofile --norc --noediting -i"
"""Bash without start-up files and without an editor of its own for lines: what is typed arrives as it is."""
ROWS, COLS = 24, 80
TIMEOUT_MIN_S: Final = 0.1
TIMEOUT_MAX_S: Final = 300.0
PROMPT: Final = r"\u@\h:\w\$ "


def shell_command(
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    rows: int = ROWS,
    cols: int = COLS,
    workspace: Path,
    limits: Limits,
) -> CommandSpec:
    """Check the arguments for a new shell.

    Raises:
        InvalidCommand: The size is out of range, or a variable is refused.
        PathOutsideSandbox: `cwd` leaves the workspace.
    """
    if not (2 <= rows <= 500 and 2 <= cols <= 1000):
        raise InvalidCommand(f"the size is {rows} rows by {cols} columns; it must be 2 to 500 by 2 to 1000")
    made = command_spec(
        command=SHELL_COMMAND, cwd=cwd, env=env, background=True, pty=True, workspace=workspace, limits=limits
    )
    return replace(made, pty=WindowSize(rows, cols), kind=SHELL, on_exit="never")


def check_line(command: str, timeout_s: float, limits: Limits) -> None:
    """Check a command for a shell, and the time that the call waits.

    Raises:
        InvalidCommand: It is not acceptable; the message names the bound.
    """
    check_command(command, limits)
    if not TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        raise InvalidCommand(f"timeout is {timeout_s:g} s; it must be {TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g} s")
