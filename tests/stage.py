"""A whole Shellback in a temporary directory: state, workspace, database, and workers as real processes."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessagesTypeAdapter

from shellback.cli.children import WorkerChild
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import Session
from shellback.exec.core.runner import make_workspace
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout
from shellback.settings import Settings, plain_environment
from shellback.storage import history
from shellback.storage import sessions as session_rows
from shellback.storage.tables import mailbox, turns
from shellback.wiring import supervision, wiring
from shellback.work.approvals import approvals, sending
from shellback.work.approvals.approvals import Request
from shellback.work.turn import stopping
from tests import supervisors
from tests.nursery import ForkedWorker
from tests.supervisors import kill

T = TypeVar("T")
PATIENCE_S = 60.0
LEAVE_S = 20.0
DIFFERING = str(Path(__file__).parent / "programs" / "differing.py")
IMPORTED_BY = ("AGENT", "PYTHON", "OTEL_")


class Stage:
    """Sends, approves and looks, as the command line does; kills workers and supervisors, as life does."""

    def __init__(self, root: Path, database_url: str | None = None, **environ: str) -> None:
        root.chmod(0o755)
        self.root = root
        self.home = root / "home"
        self.workspace = root / "workspace"
        self.points = root / "points"
        self.points.mkdir()
        make_workspace(self.workspace)
        self.environ = {
            **plain_environment(),
            "SHELLBACK_HOME": str(self.home),
            "WORKSPACE_ROOT": str(self.workspace),
            "ENABLE_EXECUTE": "true",
            "MODEL": "offline",
            # A probe at each of the many starts of a worker takes its time; BACKEND="auto" gives what it would choose.
            "BACKEND": "host",
            "SWEEP_SECONDS": "1",
            "SUPERVISOR_IDLE_SECONDS": "600",
            "SHELLBACK_CRASH_POINTS": str(self.points),
            "LOG_LEVEL": "WARNING",
            **({"DATABASE_URL": database_url} if database_url else {}),
            **environ,
        }
        self.settings = Settings.load(self.environ)
        self.stack = ExitStack()
        self.workers: list[WorkerChild] = []
        self.crew: dict[str, WorkerChild] = {}
        """Who is meant to be there now, by what it is."""
        self.kept = False
        self.patience_s = PATIENCE_S
        self.left = threading.Event()

    def open(self) -> None:
        self.where = self.stack.enter_context(wiring.place(self.settings))
        self.enqueuer = self.stack.enter_context(wiring.enqueuing(self.where))

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        asyncio.run(self._end_supervisor())
        self.stack.close()

    async def _end_supervisor(self) -> None:
        deadline = time.monotonic() + LEAVE_S
        while True:
            client = supervision.supervisor_client(self.settings, spawn=False)
            try:
                await client.connect()
                # All that it has: the database may not know of some, or take them for lost.
                for row in (await client.list())[0]:
                    await client.kill(row["session_id"], grace_s=0.0, ended_by="shutdown")
                await client.stop()
            except SupervisorUnreachable:
                # One that is just being started, or replaced, would stay when we have gone.
                if not self._kept_by_somebody() or time.monotonic() > deadline:
                    return
                await asyncio.sleep(0.05)
            else:
                return
            finally:
                await client.close()

    def _kept_by_somebody(self) -> bool:
        try:
            with (self.home / layout.SUPERVISOR / layout.KEEPER_LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def hire(
        self,
        version: str | None = None,
        *,
        executed: bool = False,
        before: Sequence[str] = (),
        boot_id: Path | None = None,
        ready: bool = True,
        words: Sequence[str] = ("worker",),
        **environ: str,
    ) -> WorkerChild:
        """Start a worker, or what these `words` say, and wait until it is `ready`; `version` makes it another one.

        It is forked off the nursery, with `boot_id` on a machine of its own, unless it is to be `executed`, with these
        words `before`, as happens by itself where the environment says what a program imports.
        """
        environ = {**self.environ, **environ}
        worker: WorkerChild
        if version is not None:
            worker = ForkedWorker(self.where, environ, program=DIFFERING, arguments=[version, *words])
        elif executed or any(name.startswith(IMPORTED_BY) for name in environ):
            worker = WorkerChild(self.where, environ, [*before, sys.executable, "-m", "shellback", *words])
        else:
            worker = ForkedWorker(self.where, environ, boot_id, arguments=words)
        self.workers.append(worker)
        self.crew["worker"] = worker
        if ready:
            worker.wait_ready()
        return worker

    def arm(self, point: str, order: str = "kill self") -> None:
        supervisors.arm(self.points, point, order)

    def fired(self, point: str) -> bool:
        return not (self.points / point).exists()

    def send(self, text: str, conversation: str = "c1", **more: Any) -> str:
        sent = self.write(
            sending.send, self.enqueuer, conversation, text, host_id=self.where.host_id, by="test", **more
        )
        return sent.item_id

    def pending(self, conversation: str = "c1") -> Request:
        found = self.until(
            "an approval request",
            lambda: self.read(approvals.find, conversation_id=conversation, state="pending"),
        )
        return found[0]

    def requests(self) -> list[Request]:
        return self.read(approvals.find, state="pending")

    def at_rest(self) -> bool:
        """Every item has an outcome and nothing is unread."""
        unread = sa.select(sa.cast(mailbox.c.id, sa.String)).where(mailbox.c.state != "heard")
        return not self.scalars(sa.select(turns.c.id).where(turns.c.outcome.is_(None)).union_all(unread).limit(1))

    def no_turn(self, conversation: str) -> bool:
        """No turn of the conversation runs, or is about to; others may, and mail may wait behind an approval."""
        return not self.read(stopping.stoppable, conversation)

    def decide(self, request: Request, decision: Any = "approved", note: str | None = None) -> Request:
        return self.write(approvals.decide, self.enqueuer, request.id, decision, by="test", surface="test", note=note)

    def approve(self, conversation: str = "c1") -> Request:
        return self.decide(self.pending(conversation))

    def started(self, text: str, part: str, conversation: str = "c1", *, rest: bool = False) -> Session:
        """Send `text`, approve what it asks for; the session of the command with `part`, with `rest` after the turn."""
        self.send(text, conversation)
        self.approve(conversation)
        session = self.session(part)
        if rest:
            self.until("the turn that has started it is over", self.at_rest)
        return session

    def answer(self, item_id: str) -> str:
        """The first answer given after the item's message was heard."""
        return self.until(f"an answer to {item_id}", lambda: next(iter(self.answers(since=item_id)), None))

    def answers(self, *, since: str | None = None, conversation: str = "c1") -> list[str]:
        """All answers in a conversation, or those of the turn that heard the message `since` and of later ones."""
        query = sa.select(turns.c.answer).where(turns.c.answer.is_not(None)).order_by(turns.c.ended_at)
        if since is None:
            return self.scalars(query.where(turns.c.conversation_id == conversation))
        hearing = sa.select(turns.c.conversation_id, turns.c.ended_at).join(mailbox, mailbox.c.taken_by == turns.c.id)
        heard = hearing.where(mailbox.c.dedupe_key == since).subquery()
        return self.scalars(
            query.where(turns.c.conversation_id == heard.c.conversation_id, turns.c.ended_at >= heard.c.ended_at)
        )

    def turn(self, item_id: str) -> dict[str, Any] | None:
        query = sa.select(turns).where(turns.c.id == item_id)
        found = self.where.database.read_now(lambda conn: conn.execute(query).mappings().all())
        return dict(found[0]) if found else None

    def ended(self, item_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            turn = self.turn(item_id)
            return turn if turn and turn["outcome"] is not None else None

        return self.until(f"{item_id} ends", look)

    def sessions(self, *, live: bool | None = None) -> list[Session]:
        return self.read(session_rows.find, live=live)

    def session(self, part: str) -> Session:
        return self.until(
            f"a session of {part!r}",
            lambda: next((s for s in self.sessions() if part in s.command and (s.pid or not s.live)), None),
        )

    def history(self, conversation: str = "c1") -> str:
        """All that the history of a conversation holds, as JSON text."""

        def look(conn: sa.Connection) -> str:
            record = history.read_record_in(conn, conversation)
            entries = history.read_history_in(conn, record.head_id) if record is not None else []
            return ModelMessagesTypeAdapter.dump_json([entry.message for entry in entries]).decode()

        return self.read(look)

    def callbacks(self) -> list[str]:
        """Ids of EXEC_CALLBACK workflows, counted in DBOS's own table."""
        table = "workflow_status" if self.where.database.dialect == "sqlite" else "dbos.workflow_status"
        return self.scalars(sa.text(f"select workflow_uuid from {table} where workflow_uuid like 'EXEC_CALLBACK:%'"))

    def steps(self, item_id: str) -> list[str]:
        """Names of the steps that DBOS has recorded of an item's turn."""
        table = "operation_outputs" if self.where.database.dialect == "sqlite" else "dbos.operation_outputs"
        query = sa.text(f"select function_name from {table} where workflow_uuid = :id order by function_id")
        return self.scalars(query.bindparams(id=item_id))

    def rows(self, query: sa.Executable) -> list[tuple[Any, ...]]:
        return self.where.database.read_now(lambda conn: [tuple(row) for row in conn.execute(query)])

    def scalars(self, query: sa.Executable) -> list[Any]:
        return [row[0] for row in self.rows(query)]

    def change(self, statement: sa.Executable) -> int:
        """Change rows behind everybody's back; how many there were."""
        return self.where.database.write_now(lambda conn: conn.execute(statement).rowcount)

    def supervisor_pids(self) -> tuple[int, int]:
        """The supervisor and its parent, the keeper."""
        pid = int(asyncio.run(supervision.hello(self.settings))["pid"])
        found = procfs.read(pid)
        assert found is not None
        return pid, found.ppid

    def kill_supervisor(self) -> int:
        pid, _ = self.supervisor_pids()
        kill(pid)
        return pid

    def write(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.where.database.write_now(fn, *args, **kwargs)

    def read(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.where.database.read_now(fn, *args, **kwargs)

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline and not self.left.is_set():
            found = look()
            if found:
                return found
            time.sleep(0.05)
        log = self.home / "worker.log"
        said = log.read_text()[-6000:] if log.exists() else ""
        raise AssertionError(f"waited {self.patience_s:.0f} s until {what}, in vain\n{said}")


@contextmanager
def stage(database_url: str | None = None, **environ: str) -> Generator[Stage]:
    """A stage that leaves no process behind, in a directory that the uid of commands can pass through."""
    root = Path(tempfile.mkdtemp(prefix="shellback-stage-"))
    made = Stage(root, database_url, **environ)
    try:
        made.open()
        yield made
    finally:
        made.close()
        if not made.kept:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def working(database_url: str | None = None, **environ: str) -> Generator[Stage]:
    """A stage with a worker."""
    with stage(database_url, **environ) as made:
        made.hire()
        yield made


def staged(
    needed: Callable[[], None] = lambda: None, *, worker: bool = False, scope: Any = "module", **environ: str
) -> Any:
    """A fixture: a stage, with or without a worker, for all tests of a module or as `scope` says."""

    @pytest.fixture(scope=scope)
    def made() -> Generator[Stage]:
        needed()
        with (working if worker else stage)(**environ) as one:
            yield one

    return made
