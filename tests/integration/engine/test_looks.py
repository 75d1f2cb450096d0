"""What the kernel says of who waits for input, asked of real programs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from shellback.exec.core.answers import Look
from shellback.exec.core.model import EndedBy, Session
from shellback.exec.engine.engine import Engine
from tests.databases import unavailable
from tests.execs import each_backend, launch, printed, run, running_engine
from tests.supervisors import SOON, Rig, stop

pytestmark = pytest.mark.anyio
__all__ = ["each_backend"]

Row = tuple[str, str, dict[str, Any], str, str]
TERMINAL: dict[str, Any] = {"pty": True}
PIPE: dict[str, Any] = {"keep_stdin_open": True}
PASSWORD = "import getpass; getpass.getpass()"
SERVER = (
    "import select, socket; s = socket.create_server(('', 0)); print('ready', flush=True); select.select([s], [], [])"
)
READERS: list[Row] = [
    ("read", "read -p 'name? ' x", TERMINAL, "bash", "read"),
    ("cat", "cat", TERMINAL, "cat", "read"),
    ("input", "python3 -c 'input()'", TERMINAL, "python3", "read"),
    ("repl", "python3 -q", TERMINAL, "python3", "poll"),
    ("node", "node", TERMINAL, "node", "poll"),
    ("password", f'python3 -c "{PASSWORD}"', TERMINAL, "python3", "read"),
    ("shell", "bash --norc -i", TERMINAL, "bash", "poll"),
    ("pager", "seq 1000 | less", TERMINAL, "less", "read"),
    ("pipe", "cat | sort", PIPE, "cat", "read"),
    ("pipe of input()", "python3 -c 'input()'", PIPE, "python3", "read"),
]
OTHERS: list[Row] = [
    ("sleep", "echo ready; exec sleep 600", TERMINAL, "", "none"),
    ("busy", "echo ready; while :; do :; done", TERMINAL, "", "none"),
    ("pipeline", "echo ready; sleep 600 | cat", TERMINAL, "", "none"),
    ("server", f'python3 -c "{SERVER}"', TERMINAL, "", "none"),
    ("pipe", "echo ready; exec sleep 600", PIPE, "", "none"),
    ("no input", "echo ready; exec cat /dev/zero > /dev/null", {}, "", "none"),
]


async def look_at(engine: Engine, session: Session) -> Look:
    look = await engine.supervised.look(session.id)
    assert look is not None
    return look


async def waiting(engine: Engine, session: Session) -> Look:
    """What is seen once somebody waits for input."""
    async with asyncio.timeout(SOON):
        while (look := await look_at(engine, session)).how == "none":  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)
    return look


async def started(engine: Engine, rows: list[Row]) -> list[Session]:
    found = await asyncio.gather(*(launch(engine, command, **more) for _, command, more, _, _ in rows))
    return list(found)


async def test_real_programs_are_seen_to_wait_and_others_are_not(tmp_path: Path, each_backend: str) -> None:
    if shutil.which("node") is None or shutil.which("less") is None:
        unavailable("node and less are to be looked at")
    async with running_engine(tmp_path) as engine:
        sessions = await started(engine, READERS)
        looks = await asyncio.gather(*(waiting(engine, session) for session in sessions))
        for (name, _, more, reader, how), look in zip(READERS, looks, strict=True):
            assert (name, look.name, look.how) == (name, reader, how)
            assert look.reader > 1
            assert (look.terminal is not None) == (more is TERMINAL)
        modes = {row[0]: look.terminal for row, look in zip(READERS, looks, strict=True)}
        assert modes["cat"] is not None
        assert (modes["cat"].echo, modes["cat"].canonical) == (True, True)
        assert modes["password"] is not None
        assert (modes["password"].echo, modes["password"].canonical) == (False, True)
        assert modes["shell"] is not None
        assert not modes["shell"].canonical
        assert (modes["cat"].rows, modes["cat"].cols, modes["cat"].foreground) == (40, 120, looks[1].reader)
        sessions = await started(engine, OTHERS)
        for session, (name, *_, how) in zip(sessions, OTHERS, strict=True):
            await printed(engine, session.id, "ready")
            for _ in range(5):
                assert (name, (await look_at(engine, session)).how) == (name, how)


async def test_who_has_been_written_to_waits_no_more_and_one_that_ended_is_not_looked_at(engine: Engine) -> None:
    session = await launch(engine, "read x; echo ready; exec sleep 600", **PIPE)
    await waiting(engine, session)
    await engine.supervised.write(session.id, b"x\n", eof=False, key="a")  # pyright: ignore[reportArgumentType]
    await printed(engine, session.id, "ready")
    look = await look_at(engine, session)
    assert look.how == "none"
    assert look.quiet_s < SOON
    await engine.supervised.kill(session.id, by=EndedBy.AGENT)
    assert await engine.supervised.look(session.id) is None
    done = await run(engine, "true")
    assert await engine.supervised.look(done.session.id) is None


async def test_processes_that_come_and_go_while_they_are_looked_at_do_no_harm(engine: Engine) -> None:
    session = await launch(engine, "while :; do (true | true) & (sleep 0.001); wait; done", pty=True)
    for _ in range(300):
        assert (await look_at(engine, session)).how in {"none", "read", "unknown"}


async def test_a_stopped_reader_does_not_wait_and_quiet_counts_from_the_last_output(sup: Rig) -> None:
    began = time.monotonic()
    await sup.start("a", "echo x; exec cat", stdin=b"", keep_stdin_open=True, background=True)

    async def how() -> str:
        look = await sup.client.look("a")
        return "" if look is None else look.how

    async def reading() -> None:
        async with asyncio.timeout(SOON):
            while await how() != "read":  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)

    await reading()
    look = await sup.client.look("a")
    assert look is not None
    assert look.quiet_s <= time.monotonic() - began
    await stop(look.reader)
    assert await how() == "none"
    os.kill(look.pid, signal.SIGCONT)
    await sup.kill_supervisor()
    await reading()
    again = await sup.client.look("a")
    assert again is not None
    assert look.quiet_s <= again.quiet_s <= time.monotonic() - began + 1
    assert await sup.client.look("b") is None


WITHOUT: Final = """
import os, subprocess, sys, time
from shellback.exec.supervisor.process import looks as readers
ours, theirs = os.pipe()
cat = subprocess.Popen(["cat"], stdin=ours, user=65534, group=65534, extra_groups=[])
pipe = os.fstat(ours)
while (seen := readers.reader([cat.pid], readers.Source(pipe=(pipe.st_dev, pipe.st_ino)), 0)).how == "none":
    time.sleep(0.02)
print(seen.name, seen.how, readers._libc.setfsuid(-1), readers._libc.setfsgid(-1))
os.close(theirs), os.close(ours), cat.wait()
"""


@pytest.mark.parametrize("less", ["-sys_ptrace", "-dac_override,-dac_read_search,-sys_ptrace"])
def test_root_without_its_powers_as_in_a_container_sees_what_the_user_sees(less: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has powers to be without")
    if shutil.which("setpriv") is None:
        unavailable("setpriv is not installed")
    weak = ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}"]
    made = subprocess.run(
        [*weak, sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert made.stdout.split() == ["cat", "read", "0", "0"], made.stderr
