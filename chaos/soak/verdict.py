"""What became of every process: compared with what the command itself wrote, and with what its agent was told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from pydantic_ai.messages import ModelMessage, ModelRequest

from chaos.soak.batch_agent import heard as heard_in
from chaos.soak.crowd import Task, lines_of
from chaos.soak.staff import Outage
from shellback.agent.offline import Say
from shellback.exec.core.model import Evidence, Session, SessionState
from shellback.storage import history
from shellback.storage.tables import mailbox, sessions, turns
from tests.stage import Stage

TOLD: Final = re.compile(r"^Session (\w+): (.*), after", re.MULTILINE)
WRONG: Final = ("lost", "doubled", "double_starts", "wrong_status", "unheard", "heard_twice")
FORK_S: Final = 15.0
"""A start that a supervisor's death broke off was asked for at most this long before it."""


@dataclass(slots=True)
class Verdict:
    """Counts; all but `never_started` are failures."""

    sessions: int = 0
    callbacks: int = 0
    lost: int = 0
    doubled: int = 0
    double_starts: int = 0
    wrong_status: int = 0
    unheard: int = 0
    heard_twice: int = 0
    never_started: int = 0
    notes: list[str] = field(default_factory=list[str])

    @property
    def wrong(self) -> dict[str, int]:
        """What is not as promised."""
        return {name: number for name in WRONG if (number := getattr(self, name))}


def judge(stage: Stage, tasks: Sequence[Task], outages: Sequence[Outage]) -> Verdict:
    """Count what went wrong with `tasks`; what a command wrote itself is the truth."""
    verdict = Verdict()
    by_command: dict[str, list[Session]] = {}
    for session in stage.sessions():
        by_command.setdefault(session.command, []).append(session)
    callbacks = Counter(name.removeprefix("EXEC_CALLBACK:") for name in stage.callbacks())
    heard, said = _heard(stage)
    for task in tasks:
        wrote = lines_of(stage.workspace, task)
        made = by_command.get(task.command, [])
        verdict.sessions += len(made)
        verdict.doubled += len(made) > 1
        verdict.double_starts += wrote.count(task.nonce) > 1
        if not made:
            verdict.lost += 1
            verdict.notes.append(f"{task.number}: no session")
        for session in made:
            verdict.callbacks += callbacks[session.id]
            verdict.lost += callbacks[session.id] == 0
            verdict.doubled += callbacks[session.id] > 1
            verdict.unheard += heard[session.id] == 0 or said[session.id] == 0
            verdict.heard_twice += heard[session.id] > 1 or said[session.id] > 1
            if heard[session.id] != 1 or said[session.id] != 1:
                verdict.notes.append(f"{task.number}: {session.id} heard {heard[session.id]}, said {said[session.id]}")
            _judge_end(verdict, task, session, wrote, outages)
    return verdict


def _judge_end(verdict: Verdict, task: Task, session: Session, wrote: Sequence[str], outages: Sequence[Outage]) -> None:
    end = session.end
    if end is not None and end.state is SessionState.EXITED:
        if end.exit_code != task.code or wrote != [task.nonce, "over"]:
            verdict.wrong_status += 1
            verdict.notes.append(f"{task.number}: exit code {end.exit_code}, it wrote {wrote}")
        return
    said = "no end" if end is None else f"{end.state.value} {(end.evidence and end.evidence.value) or end.signal}"
    its = [outage for outage in outages if outage.victim.startswith("supervisor")]
    kills = (outage.gone_at for outage in its if outage.host_id == session.host_id)
    killed = any(-FORK_S < session.created_at - gone_at < FORK_S for gone_at in kills)
    if end is not None and end.evidence is Evidence.NEVER_STARTED and killed and not wrote:
        verdict.never_started += 1
    elif end is None or end.state is SessionState.LOST:
        verdict.lost += 1
    else:
        verdict.wrong_status += 1
    verdict.notes.append(f"{task.number}: {session.id} {said}, it wrote {list(wrote)}")


def _heard(stage: Stage) -> tuple[Counter[str], Counter[str]]:
    """How often each session's end stands in what its agent read, and in what it answered."""

    def look(conn: sa.Connection) -> tuple[list[list[ModelMessage]], list[str]]:
        names = conn.execute(sa.select(sessions.c.conversation_id).distinct()).scalars().all()
        records = [history.read_record_in(conn, name) for name in names]
        read_ones = [
            [entry.message for entry in history.read_history_in(conn, record.head_id)] for record in records if record
        ]
        answers = conn.execute(sa.select(turns.c.answer).where(turns.c.answer.is_not(None))).scalars()
        return read_ones, list(answers)

    histories, answers = stage.read(look)
    requests = (one for messages in histories for one in messages if isinstance(one, ModelRequest))
    news = (one for request in requests for one in heard_in(request) if isinstance(one, Say))
    heard = Counter(one.session_id for one in news if one.session_id is not None)
    said = Counter(session for answer in answers for session, _ in TOLD.findall(answer))
    return heard, said


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """From an end to what follows, in seconds; `ended_at` is wall-clock."""

    session: str
    ended_at: float
    seconds: float


def delays(stage: Stage) -> list[Delay]:
    """From the kernel's end of each process to its news."""

    def look(conn: sa.Connection) -> list[Delay]:
        query = sa.select(sessions.c.id, sessions.c.ended_at, mailbox.c.created_at).join(
            mailbox, mailbox.c.dedupe_key == "exit:" + sessions.c.id
        )
        return [Delay(session=row[0], ended_at=row[1], seconds=row[2] - row[1]) for row in conn.execute(query)]

    return stage.read(look)


def starts(stage: Stage) -> list[Delay]:
    """From each item of a conversation that was at rest to its turn; a lost ring shows here."""

    def look(conn: sa.Connection) -> list[Delay]:
        other = turns.alias()
        # It waits for nobody: no other turn of the conversation had begun and not ended.
        busy = sa.exists().where(
            other.c.conversation_id == turns.c.conversation_id,
            other.c.id != turns.c.id,
            other.c.created_at <= turns.c.started_at,
            sa.or_(other.c.ended_at.is_(None), other.c.ended_at > turns.c.created_at),
        )
        its = turns.c
        query = sa.select(its.id, its.created_at, its.started_at).where(its.started_at.is_not(None), ~busy)
        return [Delay(session=row[0], ended_at=row[1], seconds=row[2] - row[1]) for row in conn.execute(query)]

    return stage.read(look)
