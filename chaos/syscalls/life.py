"""One session's life under a disturbance, and what came of it, counted from outside."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from chaos.syscalls import tracer
from chaos.syscalls.points import ALL, THREADS, Point, Process, Story, between_mark_and_fork
from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import ExecError, SupervisorUnreachable
from shellback.exec.core.model import Evidence, Session, SessionEnd, SessionId, SessionState, WindowSize
from shellback.exec.core.ports import ExitSink
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout
from shellback.storage import schema
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore
from tests.execs import granted, origin, run, spec
from tests.supervisors import UID, end

CODE: Final = 7
NEXT_CODE: Final = 3
COMMAND: Final = f"echo nonce >> nonce.txt; echo first; read -r line < go; echo then $line; exit {CODE}"
PRINTED: Final = b"first\nthen on\n"
SOON_S: Final = 20.0
_HUNG_S: Final = 75.0
_STAYS_S: Final = 0.1
"""How long after its session was acknowledged a process may still come to the call at which it is disturbed."""
_SYNCED_S: Final = 0.12
"""A worker so slow that the record is synced before it is acknowledged, as it is not with a quick one."""
_SWEEPS: Final = 3
_SWEEP_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Count:
    """What came of one run; all but `reached`, `refused` and `never_started` are zero as promised."""

    reached: int = 0
    refused: int = 0
    never_started: int = 0
    lost: int = 0
    doubled: int = 0
    double_starts: int = 0
    wrong_status: int = 0
    output: int = 0
    left_over: int = 0
    died: int = 0
    hung: int = 0
    note: str = ""

    @property
    def clean(self) -> bool:
        """Nothing went wrong."""
        return not any(getattr(self, name) for name in WRONG)


WRONG: Final = ("lost", "doubled", "double_starts", "wrong_status", "output", "left_over", "died", "hung")
"""Counts of which each is a broken promise."""


class _TableSink(ExitSink):
    """Tells an end as a row of the store's own transaction."""

    def ended(self, tx: object, session: Session) -> None:
        assert isinstance(tx, sa.Connection)
        tx.execute(sa.text("INSERT INTO told (session) VALUES (:id)"), {"id": session.id})


class _SlowStore(SqlSessionStore):
    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        await asyncio.sleep(_SYNCED_S)
        return await super().finish(session_id, end, told_inline=told_inline)


def template(path: Path) -> Path:
    """Make the database that each run gets a copy of, from a migrated one where there is one."""
    if not path.exists():
        schema.migrate(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE told (session TEXT)")
    return path


def watch(story: Story, process: Process, thread: str, database: Path, trace: Path) -> Count:
    """Live through a story undisturbed, tracing one thread."""
    return asyncio.run(_Life(story, database).live(process, thread, trace, None))


def disturb(point: Point, database: Path, trace: Path) -> Count:
    """Live through a point's story with its disturbance, tracing the thread that it happens to."""
    return asyncio.run(_Life(point.story, database).live(point.process, point.thread, trace, point))


class _Hung(Exception):
    """Raised when something that is promised does not come."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Supervisor and keeper, and what each had open when nothing ran."""

    supervisor: int
    keeper: int
    open: tuple[Counter[str], Counter[str]]

    def pid(self, process: Process) -> int:
        return self.supervisor if process == "supervisor" else self.keeper


class _Life:
    def __init__(self, story: Story, database: Path) -> None:
        self._story = story
        self._base = Path(tempfile.mkdtemp(prefix="shellback-sweep-")).resolve()
        self._base.chmod(0o755)
        self._home, self._workspace = self._base / "home", self._base / "ws"
        self._home.mkdir(mode=0o700)
        self._workspace.mkdir()
        os.mkfifo(self._workspace / "go")
        for path in (self._workspace, self._workspace / "go"):
            os.chown(path, UID or -1, UID or -1)
        self._file = self._home / "db.sqlite"
        shutil.copyfile(database, self._file)
        # Longer than a life: where a client takes its time to come back, a pair that leaves has not died.
        self._client = SupervisorClient(self._home, idle_s=_HUNG_S)
        self._count = Count()

    async def live(self, process: Process, thread: str, trace: Path, point: Point | None) -> Count:
        database = Database(f"sqlite:///{self._file}")
        try:
            async with asyncio.timeout(_HUNG_S), self._engine(database) as engine:
                await self._live(engine, process, thread, trace, point)
        except (_Hung, TimeoutError) as error:
            self._count.hung = 1
            self._note(str(error) or "nothing came")
        finally:
            database.close()
            shutil.rmtree(self._base, ignore_errors=True)
        return self._count

    @contextlib.asynccontextmanager
    async def _engine(self, database: Database) -> AsyncGenerator[Engine]:
        """An engine on a supervisor of its own; every process of theirs is gone at the end."""
        store = _SlowStore(database, sink=_TableSink())
        try:
            async with Engine(store, self._client, HostBackend(self._workspace), home=self._home) as engine:
                yield engine
                with contextlib.suppress(ExecError):
                    await self._client.stop()
        finally:
            for pid in _ours(self._home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # noqa: TID251 - it has just been seen to name our directory

    def _note(self, text: str) -> None:
        self._count.note = self._count.note or text.splitlines()[0]

    # -- the story -------------------------------------------------------------------------------

    async def _live(self, engine: Engine, process: Process, thread: str, trace: Path, point: Point | None) -> None:
        pair = await self._pair()
        go = os.open(self._workspace / "go", os.O_RDWR)
        inject = point.inject if point else None
        try:
            if self._story == "recovery":
                session = await self._launch(engine)
                assert session is not None
                await self._until("the first line", lambda: b"first" in self._log(session))
                async with self._restarted(pair, process, thread, trace, inject) as victim:
                    os.write(go, b"on\n")
                    await self._ended(engine, session)
                    reached = await self._reached(victim, trace, point)
            else:
                victim = os.pidfd_open(pair.pid(process))
                with contextlib.closing(_Fd(victim)):
                    traced = _thread_of(pair.pid(process), thread)
                    async with _tracing(traced, trace, inject, follow=thread == ALL):
                        session = await self._launch(engine)
                        os.write(go, b"on\n")
                        if session is not None:
                            await self._ended(engine, session)
                        reached = await self._reached(victim, trace, point)
            self._count.reached = int(reached)
            self._judge(await engine.store.list(), trace, point)
            await self._next(engine)
            await self._afterwards(pair, point)
        finally:
            os.close(go)

    async def _launch(self, engine: Engine) -> Session | None:
        """The session, or None where the start was refused; then it has ended without having begun."""
        pty = WindowSize(24, 80) if self._story == "terminal" else None
        made = replace(spec(engine, COMMAND, background=True), pty=pty)
        who = origin()
        try:
            return await engine.launch(granted(engine, made), who)
        except ExecError as error:
            self._count.refused = 1
            self._note(f"refused: {error}")
            return None

    async def _ended(self, engine: Engine, session: Session) -> None:
        """Wait until the end is recorded, told and acknowledged."""
        if (await engine.wait(session.id, up_to=SOON_S)).end is None:
            raise _Hung("no end is recorded")
        acked = self._home / layout.SESSIONS / session.id / layout.ACKED
        for _ in range(_SWEEPS):
            with contextlib.suppress(_Hung):
                await self._until("the acknowledgement", acked.exists, _SWEEP_S)
                return
            # What is left over the worker's sweep settles.
            await engine.reconcile()
        await self._until("the acknowledgement", acked.exists)

    async def _reached(self, victim: int, trace: Path, point: Point | None) -> bool:
        """Whether the disturbance came; it may still be about to."""
        if point is None:
            await asyncio.sleep(_STAYS_S)
            return True
        if point.error is None:
            return await asyncio.to_thread(_gone, victim, _STAYS_S)
        with contextlib.suppress(_Hung):
            await self._until("the error", lambda: tracer.injected(trace), _STAYS_S)
        return tracer.injected(trace)

    @contextlib.asynccontextmanager
    async def _restarted(
        self, pair: _Pair, process: Process, thread: str, trace: Path, inject: str | None
    ) -> AsyncGenerator[int]:
        """Kill the supervisor and trace the keeper, or the next supervisor from where it wants the lock."""
        lock = os.open(self._home / layout.SUPERVISOR / layout.SUPERVISOR_LOCK, os.O_RDWR | os.O_CLOEXEC)
        async with contextlib.AsyncExitStack() as stack:
            release = stack.enter_context(contextlib.closing(_Fd(lock)))
            victim = pair.keeper
            if process == "keeper":
                await stack.enter_async_context(_tracing(_thread_of(victim, thread), trace, inject))
            # Stopped, so that we and not its next supervisor get the lock.
            _send(pair.keeper, signal.SIGSTOP)
            await end(pair.supervisor)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _send(pair.keeper, signal.SIGCONT)
            if process == "supervisor":
                victim = await self._successor(pair)
                _send(victim, signal.SIGSTOP)
                await stack.enter_async_context(_tracing(victim, trace, inject, follow=True))
            with contextlib.closing(_Fd(os.pidfd_open(victim))) as fd:
                release.close()
                if process == "supervisor":
                    _send(victim, signal.SIGCONT)
                yield fd.number

    async def _successor(self, pair: _Pair) -> int:
        own = os.getsid(pair.keeper)

        def found() -> list[int]:
            procs = map(procfs.read, procfs.children(pair.keeper))
            return [one.pid for one in procs if one and one.alive and one.sid == own and one.pid != pair.supervisor]

        await self._until("the next supervisor", lambda: bool(found()))
        return found()[0]

    # -- what came of it -------------------------------------------------------------------------

    def _judge(self, sessions: Sequence[Session], trace: Path, point: Point | None) -> None:
        count = self._count
        nonces = self._workspace / "nonce.txt"
        starts = len(nonces.read_text().split()) if nonces.exists() else 0
        told = self._told()
        count.double_starts = int(starts > 1)
        count.doubled = int(len(sessions) > 1 or len(told) > 1)
        count.lost = int(len(told) < 1)
        end = sessions[0].end
        if end is None:
            raise _Hung("no end is recorded")
        if end.state is SessionState.START_FAILED:
            count.refused = 1
        if count.refused:
            # Nothing may have run, and the row says so.
            said = end.state is SessionState.START_FAILED or end.evidence is Evidence.NEVER_STARTED
            if starts or not said or point is None or point.error is None:
                self._wrong(end, starts)
        elif end.state is SessionState.LOST:
            self._judge_lost(end, starts, tracer.calls(trace), point)
        elif (end.state, end.exit_code, starts) == (SessionState.EXITED, CODE, 1):
            # What is in a pipe when both who hold it are killed is gone with them.
            count.output = int(not (self._printed(sessions[0], end) or _unwitnessed(point)))
        elif not (_unwitnessed(point) and end.signal == signal.SIGPIPE):
            self._wrong(end, starts)

    def _wrong(self, end: SessionEnd, starts: int) -> None:
        self._count.wrong_status = 1
        self._note(f"{end.state.value} {end.evidence} {end.exit_code} {end.signal} {end.errno} after {starts} starts")

    def _judge_lost(self, end: SessionEnd, starts: int, trace: list[tracer.Call], point: Point | None) -> None:
        count = self._count
        self._note(f"lost({end.evidence and end.evidence.value}) after {starts} starts")
        if end.evidence is Evidence.NEVER_STARTED and point is not None and point.error is None:
            # The one window of a kill in which nothing has run; seen where the thread that starts was traced.
            seen = point.thread != "serve" or between_mark_and_fork(trace)
            count.never_started = int(starts == 0 and seen and point.story != "recovery")
        excused = end.evidence is Evidence.SUPERVISOR_KILLED and _unwitnessed(point)
        count.lost |= int(not (count.never_started or excused))

    def _told(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(self._file, timeout=SOON_S)) as file:
            return [row[0] for row in file.execute("SELECT session FROM told").fetchall()]

    def _log(self, session: Session) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self._home / layout.SESSIONS / session.id / layout.LOG).read_bytes()
        return b""

    def _printed(self, session: Session, end: SessionEnd) -> bool:
        """Whether the log is whole, or what it lacks is counted."""
        expected = PRINTED if self._story != "terminal" else PRINTED.replace(b"\n", b"\r\n")
        log = self._log(session)
        whole = log == expected and end.bytes_dropped == 0
        holed = end.bytes_dropped > 0 and len(log) == end.bytes_total
        if (whole or holed) and end.bytes_total == len(expected):
            return True
        self._note(f"printed {log!r}: {end.bytes_total} bytes of which {end.bytes_dropped} are said to be dropped")
        return False

    async def _next(self, engine: Engine) -> None:
        """The next session is served like any other."""
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    outcome = await run(engine, f"exit {NEXT_CODE}")
                except ExecError as error:
                    # A supervisor about to be replaced says so, and nothing has been begun.
                    self._note(f"the next one: {error}")
                    await asyncio.sleep(0.05)
                else:
                    break
        end = outcome.session.end
        if end is None or end.exit_code != NEXT_CODE:
            self._count.wrong_status = 1
            self._note(f"the next one ended otherwise: {end}")

    async def _afterwards(self, before: _Pair, point: Point | None) -> None:
        """Wait until supervisor and keeper are as when nothing had run; count what is not."""
        after, rested = before, False

        def clean() -> bool:
            return after.open == before.open and not _children(after)

        try:
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(ExecError, OSError):
                        after, rested = await self._pair(), True
                        if clean():
                            break
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self._count.left_over = 1
            more = [dict(now - then) for now, then in zip(after.open, before.open, strict=True)]
            less = [dict(then - now) for now, then in zip(after.open, before.open, strict=True)]
            left = f"left open {more}, closed {less}, processes {_children(after)}"
            self._note(left if rested else "they never came to rest")
        same = (after.supervisor, after.keeper) == (before.supervisor, before.keeper)
        if self._story == "recovery":
            same = after.keeper == before.keeper
        if point is not None and point.error is not None and not same:
            self._count.died = 1
            diary = (self._home / layout.SUPERVISOR / layout.DIARY).read_text().splitlines()
            self._note(next((line for line in diary if "fails" in line), diary[-1] if diary else "died"))

    async def _pair(self) -> _Pair:
        """Supervisor and keeper."""
        info = await self._client.info()
        if not info["keeper"]:
            raise SupervisorUnreachable("without a keeper it is about to leave")
        supervisor, keeper = info["pid"], info["keeper_pid"]
        return _Pair(supervisor, keeper, (_open(supervisor), _open(keeper)))

    async def _until(self, what: str, true: Callable[[], bool], seconds: float = SOON_S) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not true():  # noqa: ASYNC110 - files tell nobody
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise _Hung(f"waited in vain for {what}") from None


class _Fd:
    """A descriptor that is closed once."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


def _unwitnessed(point: Point | None) -> bool:
    """Whether supervisor and keeper have both been killed while the command ran: nobody need have its status."""
    return point is not None and point.story == "recovery" and point.process == "keeper" and point.error is None


@contextlib.asynccontextmanager
async def _tracing(thread: int, trace: Path, inject: str | None, *, follow: bool = False) -> AsyncGenerator[None]:
    context = tracer.attached(thread, trace, inject=inject, follow=follow)
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _send(pid: int, number: int) -> None:
    with contextlib.closing(_Fd(os.pidfd_open(pid))) as fd:
        signal.pidfd_send_signal(fd.number, number)


def _thread_of(pid: int, thread: str) -> int:
    """The thread's id; they began in the order of their names."""
    numbers = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid))
    return pid if thread == ALL else numbers[THREADS.index(thread)]


def _gone(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _open(pid: int) -> Counter[str]:
    """What a process has open, by kind."""
    found: Counter[str] = Counter()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found[re.sub(r":\[\d+\]", "", os.readlink(f"{folder}/{name}"))] += 1
    return found


def _children(pair: _Pair) -> list[int]:
    """What supervisor and keeper have as children beside each other, zombies included."""
    below = {pair.supervisor, pair.keeper}
    return [proc.pid for proc in procfs.snapshot() if proc.ppid in below and proc.pid not in below]


def _ours(home: Path) -> Generator[int]:
    """Processes that name the state directory in their environment or command line."""
    found = os.stat(home)
    marks = f"@{found.st_dev:x}.{found.st_ino:x}\0".encode(), f"\0{home}\0".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = b"".join(Path(f"/proc/{name}/{file}").read_bytes() + b"\0" for file in ("environ", "cmdline"))
            if any(mark in words for mark in marks) and int(name) != os.getpid():
                yield int(name)
