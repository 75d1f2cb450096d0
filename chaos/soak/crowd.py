"""Many processes, asked for by messages to many conversations, approved by the script, counted from outside."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns
from shellback.work.errors import ApprovalSettled
from tests.stage import Stage

FORGOTTEN_S: Final = 15.0
"""After which a conversation at rest is asked again for what it never started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One command: it writes its nonce into a file of its own, sleeps, and exits with a code of its own."""

    number: int
    nonce: str
    seconds: float

    @property
    def file(self) -> str:
        """Its file, below the workspace."""
        return f"nonces/{self.number}"

    @property
    def code(self) -> int:
        """What it exits with."""
        return self.number % 120

    @property
    def command(self) -> str:
        """What runs."""
        return f"echo {self.nonce} >> {self.file}; sleep {self.seconds:.1f}; echo over >> {self.file}; exit {self.code}"


@dataclass(slots=True)
class Batch:
    """Commands of one message."""

    conversation: str
    tasks: list[Task]
    sent_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far it has come, by the product's own rows."""

    claimed: int
    ended: int
    pending: int


class Crowd:
    """Sends, approves and looks; `step` is called again and again. It never waits."""

    def __init__(
        self, stages: Sequence[Stage], tasks: Sequence[Task], *, at_once: int, batch: int, conversations: int
    ) -> None:
        self._stages = stages
        self._stage = stage = stages[0]
        self.tasks = list(tasks)
        self._backlog = list(tasks)
        self._at_once = at_once
        self._batch = min(batch, at_once)
        self._names = [f"soak-{number}" for number in range(conversations)]
        self._next = 0
        self._batches: list[Batch] = []
        self._looked_at = time.monotonic()
        self._before = self._state().ended
        self.asked_again: list[Task] = []
        self.state = self._state()
        nonces = stage.workspace / "nonces"
        nonces.mkdir(exist_ok=True)
        nonces.chmod(0o777)

    @property
    def ended(self) -> int:
        """How many of these have ended."""
        return self.state.ended - self._before

    @property
    def in_flight(self) -> int:
        """Asked for and not ended."""
        return len(self.tasks) - len(self._backlog) - self.ended

    def step(self) -> bool:
        """Do what can be done now; True when all have ended and everything is heard."""
        self.state = self._state()
        if self.state.pending:
            self._approve()
        while self._backlog and self.in_flight + min(self._batch, len(self._backlog)) <= self._at_once:
            self._send()
        if time.monotonic() - self._looked_at > FORGOTTEN_S / 3:
            self._looked_at = time.monotonic()
            self._ask_again()
        return not self._backlog and self.ended >= len(self.tasks) and self._stage.at_rest()

    def _approve(self) -> None:
        for request in self._stage.requests():
            with suppress(ApprovalSettled):
                self._stage.decide(request)

    def _send(self) -> None:
        tasks, self._backlog = self._backlog[: self._batch], self._backlog[self._batch :]
        name = self._names[self._next % len(self._names)]
        # A conversation lives where its first message was sent; later ones come from other hosts, too.
        stage = self._stages[self._next % len(self._stages)]
        self._next += 1
        self._batches.append(Batch(name, tasks))
        stage.send("\n".join(f"$ {task.command} &" for task in tasks), name, waiting=False)

    def _ask_again(self) -> None:
        """A call that was refused, or fell with its turn, has no session: a person would ask again."""
        old = [batch for batch in self._batches if time.monotonic() - batch.sent_at > FORGOTTEN_S]
        if not old:
            return
        started, busy = self._stage.read(_started_and_busy)
        for batch in old:
            missing = [task for task in batch.tasks if task.command not in started]
            if not missing or batch.conversation not in busy:
                self._batches.remove(batch)
                self._backlog += missing
                self.asked_again += missing

    def _state(self) -> State:
        return self._stage.read(_look)


def make_tasks(rng: random.Random, count: int, *, first: int, seconds: tuple[float, float]) -> list[Task]:
    """Commands with numbers from `first`, each of a random length."""
    return [
        Task(number=number, nonce=f"{rng.getrandbits(64):016x}", seconds=rng.uniform(*seconds))
        for number in range(first, first + count)
    ]


def at_rest(conn: sa.Connection, hosts: Sequence[str], numbers: Iterable[int]) -> None:
    """Add conversations that have heard a message each, spread over these hosts."""
    found, heard, now = list[dict[str, Any]](), list[dict[str, Any]](), time.time()
    for number in numbers:
        name = f"rest-{number}"
        found.append({"id": name, "host_id": hosts[number % len(hosts)], "created_at": now})
        letter = {"conversation_id": name, "kind": "message", "priority": 100, "payload": {"text": "hello"}}
        heard.append({**letter, "dedupe_key": name, "state": "heard", "created_at": now, "heard_at": now})
    conn.execute(sa.insert(conversations), found)
    conn.execute(sa.insert(mailbox), heard)


def _look(conn: sa.Connection) -> State:
    claimed, ended = conn.execute(sa.select(sa.func.count(), sa.func.count(sessions.c.ended_at))).one()
    pending = conn.execute(sa.select(sa.func.count()).where(approvals.c.state == "pending")).scalar_one()
    return State(claimed=claimed, ended=ended, pending=pending)


def _started_and_busy(conn: sa.Connection) -> tuple[set[str], set[str]]:
    # In this order: what is idle now has started all it will, as long as we send nothing.
    busy = set(conn.execute(sa.select(turns.c.conversation_id).where(turns.c.outcome.is_(None))).scalars())
    unheard = sa.select(mailbox.c.conversation_id).where(mailbox.c.state != "heard")
    held = sa.select(conversations.c.id).where(
        sa.or_(conversations.c.state == "claimed", conversations.c.blocked_reason == "approval")
    )
    busy |= set(conn.execute(unheard).scalars()) | set(conn.execute(held).scalars())
    return set(conn.execute(sa.select(sessions.c.command)).scalars()), busy


def lines_of(workspace: Path, task: Task) -> list[str]:
    """What the command wrote."""
    path = workspace / task.file
    return path.read_text().split() if path.exists() else []


def rows(conn: sa.Connection) -> dict[str, Any]:
    """Rows of every table in the database, ours and DBOS's."""
    names = conn.execute(
        sa.text(
            "select table_schema, table_name from information_schema.tables"
            " where table_schema not in ('pg_catalog', 'information_schema') and table_type = 'BASE TABLE'"
        )
    ).all()
    return {f"{schema}.{name}": _count(conn, schema, name) for schema, name in sorted(names)}


def _count(conn: sa.Connection, schema: str, name: str) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(sa.table(name, schema=schema))).scalar_one()
