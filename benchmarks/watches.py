"""What it costs to be told: a watch on much output, and the model requests of an agent that is woken."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.harness import Bench, Figure, Options, Reading
from benchmarks.loop import Stage, stage
from benchmarks.rig import SOON_S, Gate, Rig, ground, rig

MB: Final = 1_000_000
PACE_S: Final = 0.1
SECONDS: Final = 8.0
PATTERNS: Final = {"a word": "server is listening", "a class": r"(error|fail(ed|ure)?)\b.*code \d+"}
LINE: Final = b"2026-11-22 12:00:00.000 INFO  app.requests handled path=/items/42 status=200 ms=12 bytes=4711\n"
STORY_S: Final = {"test one": 2.0, "test two": 4.0, "build": 6.0}
"""A tenth of 20, 40 and 60 s; the poller looks every 0.5 s, a tenth of the 5 s that are the least with peers."""
POLL_S: Final = 0.5


def watch(options: Options) -> Mapping[str, Reading]:
    """Share of a core that our process has while a command prints 100 MB a second, less what it has without a watch."""
    return asyncio.run(_watched(options))


async def _watched(options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    (where.workspace / "block").write_bytes(LINE * int(100 * MB * PACE_S // len(LINE)))
    readings: dict[str, Reading] = {}
    async with rig(where) as made:
        baseline, _, _ = await _share(made, options, None)
        for name, pattern in PATTERNS.items():
            share, speed, told = await _share(made, options, pattern)
            dropped = told[-1]["dropped"] / MB if told else 0.0
            late = told[-1]["late_s"] * 1e3 if told else float("nan")
            readings[f"watch on 100 MB/s, {name}"] = Reading(
                measured=100 * (share - baseline),
                note=f"{speed:.0f} MB/s; a match at the end told {late:.0f} ms later, {dropped:.0f} MB dropped unseen",
            )
    return readings


async def _share(made: Rig, options: Options, pattern: str | None) -> tuple[float, float, list[dict[str, Any]]]:
    """Our share of a core, the MB a second that were printed, and what was told."""
    from shellback.exec.core.ports import WatchSink
    from shellback.exec.core.watch import Hit, Watch
    from shellback.exec.watching.memory import MemoryWatchStore
    from shellback.exec.watching.watcher import Watcher

    told: list[dict[str, Any]] = []
    rung = asyncio.Event()

    class Sink(WatchSink):
        def hit(self, tx: object, watch: Watch, hit: Hit) -> bool:
            del tx, watch
            told.append({**hit.payload, "late_s": time.monotonic() - ended})
            rung.set()
            return True

    seconds = SECONDS / 4 if options.quick else SECONDS
    ended = float("inf")
    watcher = Watcher(made.engine, MemoryWatchStore(sink=Sink()))
    rounds = int(seconds / PACE_S)
    gate = Gate(made.where.workspace, f"gate-{time.monotonic_ns()}")
    session = await made.launch(
        f"for i in $(seq {rounds}); do sleep {PACE_S} & cat block; wait; done; {gate.command}; "
        "echo server is listening, error code 7; sleep 600"
    )
    if pattern is not None:
        _, origin = made._call("true")  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        await watcher.place(await made.engine.registry.get(session.id), origin, pattern=pattern)
    began, cpu = time.monotonic(), time.process_time()
    await gate.reached()
    took = time.monotonic() - began
    share = (time.process_time() - cpu) / took
    speed = made.engine.output(session).size() / took / MB
    ended = time.monotonic()
    gate.open()
    if pattern is not None:
        await asyncio.wait_for(rung.wait(), SOON_S)
    await watcher.stop()
    await made.engine.supervised.kill(session.id, by=_shutdown())
    return share, speed, told


def _shutdown() -> Any:
    from shellback.exec.core.model import EndedBy

    return EndedBy.SHUTDOWN


def story(options: Options) -> Mapping[str, Reading]:
    """A build and two tests are started; requests to the model from there until each end has been reacted to."""
    with stage(options, OFFLINE_SECONDS="0") as on:
        woken = _woken(on)
    polling = asyncio.run(_polling(options))
    return {"model requests of a story": Reading(measured=woken, baseline=polling, note=f"{polling:.0f} by polling")}


def _woken(on: Stage) -> float:
    from shellback.storage.tables import turns
    from shellback.work.approvals import approvals

    gates = {name: Gate(on.where.workspace, name.replace(" ", "-")) for name in STORY_S}
    lines = [f"$ {gate.command} && echo {name} passed &" for name, gate in gates.items()]
    on.send("story", "\n".join([*lines, "then:", "react to it"]))
    for _ in gates:
        (request,) = on.until("a command is asked for", lambda: on.read(approvals.find, state="pending"))
        on.write(approvals.decide, on.enqueuer, request.id, "approved", by="benchmark", surface="benchmark")

    def unended(conn: sa.Connection) -> int:
        return conn.execute(sa.select(sa.func.count()).where(turns.c.outcome.is_(None))).scalar_one()

    def at_rest() -> bool:
        return on.read(unended) == 0

    for gate in gates.values():
        asyncio.run(gate.reached())
    on.until("the turn that started them is over", at_rest)
    before, began = _responses(on), time.monotonic()
    for name, gate in gates.items():
        time.sleep(max(0.0, began + STORY_S[name] - time.monotonic()))
        gate.open()
    on.until("each end is told", lambda: _reactions(on) == len(gates) and at_rest())
    return _responses(on) - before


def _messages(on: Stage) -> list[Any]:
    from shellback.storage import history

    def look(conn: sa.Connection) -> list[Any]:
        record = history.read_record_in(conn, "story")
        return [] if record is None else list(history.read_history_in(conn, record.head_id))

    return [entry.message for entry in on.read(look)]


def _responses(on: Stage) -> int:
    return sum(message.kind == "response" for message in _messages(on))


def _reactions(on: Stage) -> int:
    parts = [part for one in _messages(on) if one.kind == "response" for part in one.parts]
    return sum(str(getattr(part, "content", "")).count("You said: react to it") for part in parts)


async def _polling(options: Options) -> float:
    """Requests of an agent that looks at what runs every `POLL_S` seconds, all of it in one response."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from shellback.exec.tools.toolset import exec_toolset

    requests = 0
    async with rig(ground(options.directory)) as made:
        open_ones = {
            (await made.launch(f"sleep {seconds}; echo {name} passed")).id for name, seconds in STORY_S.items()
        }
        names = itertools.count()

        async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG001
            nonlocal requests
            requests += 1
            for part in messages[-1].parts:
                if isinstance(part, ToolReturnPart) and "running" not in str(part.content):
                    open_ones.discard(part.tool_call_id.partition(" ")[0])
            if not open_ones:
                return ModelResponse(parts=[TextPart("all have ended")])
            if requests > 1:
                await asyncio.sleep(POLL_S)
            calls = [ToolCallPart("process_poll", {"session_id": one}, f"{one} {next(names)}") for one in open_ones]
            return ModelResponse(parts=calls)

        agent = Agent(FunctionModel(respond), toolsets=[exec_toolset(made.engine)])
        await agent.run("tell me when they have ended", conversation_id="bench")
    return float(requests)


BENCHES = (
    Bench(
        name="watches",
        run=watch,
        figures=tuple(
            Figure(
                name=f"watch on 100 MB/s, {name}",
                says=f"of a core, above none; the pattern is {name}",
                unit="%",
                limit=10.0,
            )
            for name in PATTERNS
        ),
    ),
    Bench(
        name="story",
        run=story,
        figures=(
            Figure(
                name="model requests of a story",
                says="a build and two tests, each reacted to: woken, compared with polling",
                unit="requests",
                compare="ratio",
                limit=0.5,
            ),
        ),
    ),
)
