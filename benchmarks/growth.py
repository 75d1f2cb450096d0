"""What a long conversation, full tables and rest cost: a turn, a foreground call, an idle worker."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.harness import Bench, Figure, Options, Reading, absent
from benchmarks.loop import Stage, cpu_s, stage

SHORT: Final = 20
LONG: Final = 2_000
SESSIONS: Final = 100_000
CONVERSATIONS: Final = 10_000
BATCH: Final = 5_000
CALL: Final = "$ ls"
TURNS: Final = 40
ROUNDS: Final = 5
RESTS_AFTER_S: Final = 75.0
"""Retention has run by then, and a turn ended long enough ago for the sweep."""
RESTS_S: Final = 60.0


def answered(on: Stage, conversation: str, text: str) -> None:
    item = on.send(conversation, text, waiting=False)

    def outcome() -> str | None:
        row = on.turns(item).get(item)
        return None if row is None else row.outcome

    if (came := on.until("the turn has ended", outcome, every_s=0.01)) != "answered":
        raise RuntimeError(f"the turn of {text!r} is {came}")


def cpu_of(on: Stage, act: Callable[[], object]) -> float:
    before = cpu_s(on.worker.process.pid)
    act()
    return cpu_s(on.worker.process.pid) - before


def long_conversation(options: Options) -> Mapping[str, Reading]:
    with stage(options, HISTORY_MESSAGES="200") as on:
        for size in (SHORT, LONG):
            asyncio.run(_talked(on, f"c{size}", size))
            answered(on, f"c{size}", "hello")

        def turns(size: int) -> None:
            for _ in range(TURNS // ROUNDS):
                answered(on, f"c{size}", "hello")

        pairs = [[cpu_of(on, lambda size=size: turns(size)) for size in (LONG, SHORT)] for _ in range(ROUNDS)]
    long, short = (statistics.median(side) * 1000 / (TURNS // ROUNDS) for side in zip(*pairs, strict=True))
    return {"long conversation": Reading(measured=long, baseline=short, note=f"of {LONG} and {SHORT} messages")}


async def _talked(on: Stage, name: str, messages: int) -> None:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

    from shellback.storage.history import SqlConversationStore

    said: list[ModelMessage] = []
    for number in range(messages // 2):
        said.append(ModelRequest(parts=[UserPromptPart(f"prompt {number}, a line or two as a person writes them")]))
        said.append(ModelResponse(parts=[TextPart(f"answer {number}, a little longer than the prompt was, as usual")]))
    await SqlConversationStore(on.place.database).save(Conversation(conversation_id=name, messages=said))


def full_tables(options: Options) -> Mapping[str, Reading]:
    """Two workers, each with a database of its own, take turns; one database is full."""
    with ExitStack() as stack:
        empty, full = (stack.enter_context(stage(options, TRUST_CLASSIFIER="true")) for _ in range(2))
        for first in range(0, SESSIONS // 10 if options.quick else SESSIONS, BATCH):
            full.write(_filled, full.place.host_id, first)
        taken: dict[str, list[list[float]]] = {}
        for text in ("hello", CALL):
            for on in (full, empty):
                answered(on, "warm", text)
            pairs = [
                [cpu_of(on, lambda on=on, text=text: _some(on, text)) for on in (full, empty)] for _ in range(ROUNDS)
            ]
            taken[text] = [list(side) for side in zip(*pairs, strict=True)]
    readings = {
        text: [statistics.median(side) * 1000 / (TURNS // ROUNDS) for side in sides] for text, sides in taken.items()
    }
    return {
        name: Reading(measured=readings[text][0], baseline=readings[text][1])
        for name, text in (("full tables", "hello"), ("full tables call", CALL))
    }


def _some(on: Stage, text: str) -> None:
    for number in range(TURNS // ROUNDS):
        answered(on, f"c{number}", text)


def _filled(conn: sa.Connection, host_id: str, first: int) -> None:
    from shellback.storage import tables

    then = time.time() - 3600
    numbers = range(first, first + BATCH)
    if first < CONVERSATIONS:
        made = {"host_id": host_id, "created_at": then}
        conn.execute(sa.insert(tables.conversations), [{"id": f"old{one}", **made} for one in numbers])
    session = dict.fromkeys(("boot_id", "command", "cwd", "workspace", "log_path", "tool_call_id"), "x")
    session |= dict.fromkeys(("pty", "background", "separate_stderr", "stdin_open"), False)
    session |= {"epoch": 1, "uid": 65534, "backend": "host", "profile": "work", "lifetime": "turn", "host_id": host_id}
    session |= {"delivery": "settled", "state": "exited", "created_at": then, "ended_at": then, "end": {}}
    turn = {"item_type": "CHAT", "priority": 100, "created_at": then, "ended_at": then, "outcome": "answered"}
    letter: dict[str, Any] = {
        "kind": "message",
        "priority": 100,
        "payload": {},
        "state": "heard",
        "created_at": then,
        "heard_at": then,
    }
    sessions: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    letters: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for one in numbers:
        whose: dict[str, Any] = {"conversation_id": f"old{one % CONVERSATIONS}"}
        sessions.append({"id": f"xold{one}", "turn_id": f"old:{one}", **whose, **session})
        turns.append({"id": f"old:{one}", **whose, **turn})
        letters.append({"dedupe_key": f"old:{one}", **whose, **letter})
        calls.append({"call_key": f"c{one}", "session_id": f"xold{one}", "tool": "execute", "created_at": then})
    for table, rows in (
        (tables.sessions, sessions),
        (tables.turns, turns),
        (tables.mailbox, letters),
        (tables.calls, calls),
    ):
        conn.execute(sa.insert(table), rows)


def at_rest(database: str) -> Callable[[Options], Mapping[str, Reading]]:
    def run(options: Options) -> Mapping[str, Reading]:
        from tests.databases import TEMPLATE, NoPostgres, serving_postgres

        with ExitStack() as stack:
            environ: dict[str, str] = {}
            if database == "Postgres":
                try:
                    server = stack.enter_context(serving_postgres(durable=True))
                except NoPostgres as error:
                    return absent(_resting(database), str(error))
                environ["DATABASE_URL"] = server.url(server.create(TEMPLATE))
            on = stack.enter_context(stage(options, **environ))
            answered(on, "c", "hello")
            time.sleep(RESTS_AFTER_S / 4 if options.quick else RESTS_AFTER_S)
            pid, seconds = on.worker.process.pid, RESTS_S / 4 if options.quick else RESTS_S
            began, before = time.monotonic(), cpu_s(pid)
            time.sleep(seconds)
            share = (cpu_s(pid) - before) / (time.monotonic() - began)
            return {
                f"idle worker {database}": Reading(measured=share * 100, note=f"over {seconds:.0f} s"),
                f"worker memory {database}": Reading(measured=pss_mb(pid)),
            }

    return run


def pss_mb(pid: int) -> float:
    """The memory of a process in MB, its part of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def _resting(database: str) -> tuple[Figure, ...]:
    return (
        Figure(
            name=f"idle worker {database}", says=f"of a core, {database}, sweep and heartbeat on", unit="%", limit=1.0
        ),
        Figure(name=f"worker memory {database}", says=f"Pss of a worker at rest, {database}", unit="MB", limit=100.0),
    )


BENCHES = (
    Bench(
        name="long conversation",
        run=long_conversation,
        figures=(
            Figure(
                name="long conversation",
                says=f"CPU of a turn after {LONG} messages / after {SHORT}, with HISTORY_MESSAGES=200",
                compare="ratio",
                limit=1.3,
            ),
        ),
    ),
    Bench(
        name="full tables",
        run=full_tables,
        limit_s=600,
        figures=tuple(
            Figure(
                name=name,
                says=f"CPU of a turn{of} with {SESSIONS} sessions and {CONVERSATIONS} conversations / without",
                compare="ratio",
                limit=1.1,
            )
            for name, of in (("full tables", ""), ("full tables call", " with a command"))
        ),
    ),
    *(Bench(name=f"at rest {one}", run=at_rest(one), figures=_resting(one)) for one in ("SQLite", "Postgres")),
)
