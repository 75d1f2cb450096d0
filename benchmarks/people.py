"""What a person waits for: a command's output, a turn's start, an answer among many others."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import pty
import random
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms, say
from benchmarks.loop import Stage, stage

CONVERSATIONS: Final = 200
ITEMS: Final = 500
DRAIN_S: Final = 300.0


COMMANDS: Final = {
    "ps": ("ps",),
    "queue": ("queue",),
    "approvals list": ("approvals", "list"),
    "send": ("send", "-c", "sent", "hello"),
    "send --wait": ("send", "-c", "waited", "--wait", "hello"),
}


def commands(options: Options) -> Mapping[str, Reading]:
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "timeout": 60}

    def run(on: Stage, *argv: str) -> Any:
        async def once() -> float:
            began = time.perf_counter()
            await asyncio.to_thread(subprocess.run, argv, env=on.environ, cwd=on.where.root, check=True, **quiet)
            return time.perf_counter() - began

        return once

    program = str(Path(sys.executable).with_name("shellback"))
    with stage(options) as on:
        measures = [run(on, program, *words) for words in COMMANDS.values()]
        *took, bare = asyncio.run(
            alternate(options.samples(30), *measures, run(on, sys.executable, "-c", "pass"), warm_up=2)
        )
    return {
        name: Reading(measured=ms(one), baseline=ms(bare), note="baseline: python -c pass")
        for name, one in zip(COMMANDS, took, strict=True)
    }


def chat(options: Options) -> Mapping[str, Reading]:
    """From the start of `chat` to its prompt, and from a key to its echo, on a terminal beside a worker."""
    began_s: list[float] = []
    pressed_s: list[float] = []
    with stage(options) as on:
        for _ in range(options.samples(10)):
            began = time.perf_counter()
            with _chat(on) as terminal:
                _read_until(terminal, b">")
                began_s.append(time.perf_counter() - began)
                for key in b"shellback":
                    pressed = time.perf_counter()
                    os.write(terminal, bytes([key]))
                    _read_until(terminal, bytes([key]))
                    pressed_s.append(time.perf_counter() - pressed)
    return {
        "chat": Reading(measured=ms(statistics.median(began_s)), note=_longest(began_s)),
        "keystroke in chat": Reading(measured=ms(statistics.median(pressed_s)), note=_longest(pressed_s)),
    }


@contextlib.contextmanager
def _chat(on: Stage) -> Generator[int]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(on.where.root)
        program = str(Path(sys.executable).with_name("shellback"))
        os.execve(program, [program, "chat"], {**on.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        yield terminal
        os.write(terminal, b"\x03\x04")
        with contextlib.suppress(OSError):  # how the end of a terminal reads
            while os.read(terminal, 65536):
                pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def _read_until(terminal: int, text: bytes) -> None:
    found = b""
    while text not in found:
        found += os.read(terminal, 65536)


def starts(options: Options) -> Mapping[str, Reading]:
    names = itertools.count()

    def once(on: Stage, *, waiting: bool) -> float:
        # Anywhere between two looks at the queue.
        time.sleep(random.random() * 0.5)
        item = on.send(f"start-{next(names)}", "hello", waiting=waiting)
        sent = time.time()

        def ended() -> Any:
            row = on.turns(item).get(item)
            return row if row is not None and row.outcome is not None else None

        turn = on.until("the turn has ended", ended, 0.02)
        return max(0.0, turn.started_at - sent)

    with stage(options) as on:
        once(on, waiting=True)
        polled = [once(on, waiting=False) for _ in range(options.samples(40))]
        waited = [once(on, waiting=True) for _ in range(options.samples(40))]
    return {
        "send to turn": Reading(measured=ms(statistics.median(polled)), note=_longest(polled)),
        "send to turn waiting": Reading(measured=ms(statistics.median(waited)), note=_longest(waited)),
    }


def _longest(taken: Sequence[float]) -> str:
    return f"longest {ms(max(taken)):.0f} ms"


def answers(on: Stage, names: Sequence[str], *, beside: tuple[str, int] | None = None) -> list[float]:
    """Seconds from each conversation's one message to its answer; `beside` gets its many messages first."""
    from shellback.storage.tables import turns

    if beside is not None:
        for number in range(beside[1]):
            on.send(beside[0], f"message {number}", waiting=False)
    sent: dict[str, float] = {}
    for name in names:
        on.send(name, "hello", waiting=False)
        sent[name] = time.time()
    query = sa.select(turns.c.conversation_id, turns.c.ended_at).where(
        turns.c.outcome == "answered", turns.c.conversation_id.in_(names)
    )

    def execute(conn: sa.Connection) -> list[sa.Row[Any, Any]]:
        return list(conn.execute(query))

    def all_answered() -> dict[str, float] | None:
        found = {row.conversation_id: row.ended_at for row in on.read(execute)}
        return found if len(found) == len(names) else None

    answered = on.until("all are answered", all_answered, 0.5, patience_s=DRAIN_S)
    if beside is not None:
        on.until("everything beside them is heard", lambda: on.read(_unheard, beside[0]) == 0, 0.5, patience_s=DRAIN_S)
    return [answered[name] - sent[name] for name in names]


def _unheard(conn: sa.Connection, conversation: str) -> int:
    from shellback.storage.tables import mailbox

    query = sa.select(sa.func.count()).where(mailbox.c.conversation_id == conversation, mailbox.c.state != "heard")
    return conn.execute(query).scalar_one()


def fairness(options: Options) -> Mapping[str, Reading]:
    count, items = (CONVERSATIONS // 5, ITEMS // 5) if options.quick else (CONVERSATIONS, ITEMS)
    with stage(options) as on:
        alone = answers(on, [f"alone-{number}" for number in range(count)])
        say(f"fairness: {count} alone, median {statistics.median(alone):.1f} s")
        among = answers(on, [f"among-{number}" for number in range(count)], beside=("heavy", items))
    half = statistics.median(alone)
    return {
        "longest of 200": Reading(measured=max(alone), baseline=half, note=f"{count} conversations, baseline: median"),
        "beside 500": Reading(
            measured=statistics.median(among), baseline=half, note=f"{items} items of one conversation sent first"
        ),
    }


BENCHES = (
    Bench(
        name="commands",
        run=commands,
        figures=tuple(
            Figure(
                name=name,
                says=f"`shellback {name}` from its start to its end, beside a worker",
                limit=300.0 if "--wait" in words else 150.0,
            )
            for name, words in COMMANDS.items()
        ),
    ),
    Bench(
        name="chat",
        run=chat,
        figures=(
            Figure(name="chat", says="`shellback chat` from its start to its prompt, beside a worker", limit=400.0),
            Figure(name="keystroke in chat", says="a key in `chat` until the terminal has its echo", limit=10.0),
        ),
    ),
    Bench(
        name="send to turn",
        run=starts,
        figures=(
            Figure(name="send to turn", says="message committed to its turn's start, idle worker", limit=1200.0),
            Figure(name="send to turn waiting", says="the same with a person waiting (`send --wait`)", limit=200.0),
        ),
    ),
    Bench(
        name="fairness",
        run=fairness,
        limit_s=900,
        figures=(
            Figure(
                name="longest of 200",
                says="longest message to answer of 200 conversations on one worker, against their median",
                unit="s",
                compare="ratio",
                limit=3.0,
            ),
            Figure(
                name="beside 500",
                says="their median beside one conversation of 500 items, against theirs without it",
                unit="s",
                compare="ratio",
                limit=1.2,
            ),
        ),
    ),
)
