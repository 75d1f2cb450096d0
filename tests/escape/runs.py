"""The same probes in the real sandbox and without one, and what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.exec.backends.base import Plan
from app.exec.backends.bubblewrap import BubblewrapBackend
from app.exec.commands import command_spec, proposal_for
from app.exec.engine import Engine
from app.exec.limits import Limits
from app.exec.memory_store import MemorySessionStore
from app.exec.model import READ_ONLY, WORK, CommandSpec, Session
from app.exec.policy import grant_by_operator
from app.exec.supervisor.client import SupervisorClient
from app.exec.supervisor.sandbox import Bounds
from tests.escape.inside import MARK
from tests.escape.probe import Probe, Way
from tests.escape.protected import SWAPS
from tests.escape.scene import FILE_BYTES, PROCESSES, PYTHON, SCRATCH_BYTES, UID, Scene, scene, unprivileged
from tests.execs import end_all, origin

RUN_S: Final = 240.0
WAYS: Final[tuple[Way, ...]] = ("work", "terminal", "read_only", "bounded")


@dataclass(frozen=True)
class Verdict:
    """What came of one probe; `without` is None where the attempt was not made without a sandbox."""

    probe: Probe
    inside: bool
    said: str
    without: bool | None
    said_without: str


class Moving(BubblewrapBackend):
    """A workspace in which a directory has become a symlink when the sandbox is made that was planned for it."""

    target = "/"

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        made = await super().plan(spec, scope)
        await asyncio.to_thread(self._move)
        return made

    def _move(self) -> None:
        path = self.workspace / ".husky"
        path.rename(self.workspace / "husky-before")
        path.symlink_to(os.path.relpath(self.target, self.workspace))


def run(probes: Sequence[Probe], say: Callable[[str], None] = lambda _: None) -> list[Verdict]:
    """Make every attempt, first in the sandbox, then without."""
    found: list[Verdict] = []
    together = [[one for one in probes if one.way == way] for way in WAYS]
    alone = [[one] for one in probes if one.way == "moved"]
    for here in [batch for batch in (*together, *alone) if batch]:
        way = here[0].way
        say(f"{len(here)} probes, {way}, in the sandbox")
        with scene(here, scratch="/tmp") as made:
            said = asyncio.run(_sandboxed(made, here, way))
            inside = {probe.name: probe.seen(made, probe.name, said.get(probe.name, "")) for probe in here}
        with_control = [probe for probe in here if probe.control]
        say(f"{len(with_control)} probes, {way}, without a sandbox")
        bare: dict[str, str] = {}
        without: dict[str, bool] = {}
        if with_control:
            with scene(with_control) as made:
                bare = _bare(made, with_control, way)
                without = {probe.name: probe.seen(made, probe.name, bare.get(probe.name, "")) for probe in with_control}
        found += [
            Verdict(one, inside[one.name], said.get(one.name, ""), without.get(one.name), bare.get(one.name, ""))
            for one in here
        ]
    return found


async def _sandboxed(made: Scene, probes: Sequence[Probe], way: Way) -> dict[str, str]:
    async with _engine(made, probes, way) as engine:
        made.supervisor = _supervisor(made)
        place = made.place()
        if way in {"work", "read_only"}:
            conversation = "another talk" if way == "work" else "talk"
            place = replace(place, **await _neighbour(engine, made, conversation))
        path = made.tell(place)
        names = " ".join(probe.name for probe in probes)
        session = await _command(engine, f"cd {made.code} && exec {PYTHON} -m tests.escape.inside {path} {names}", way)
        made.look()
        if way == "work":  # the worker makes a link once more
            await _command(engine, "true", way, background=True)
        text = _log(made, session).read_text(errors="replace")
    await asyncio.to_thread(_wait_for_end, made.supervisor)
    _ = made.after
    if MARK not in text and way == "moved":
        return {probes[0].name: " ".join(text.split())[-200:]}  # refused, and why
    if MARK not in text:
        raise RuntimeError(f"nothing was attempted ({session.end}): {text[-2000:]}")
    return _said(text)


@contextlib.asynccontextmanager
async def _engine(made: Scene, probes: Sequence[Probe], way: Way) -> AsyncGenerator[Engine]:
    kind = Moving if way == "moved" else BubblewrapBackend
    bounds = Bounds(processes=PROCESSES, file_bytes=FILE_BYTES) if way == "bounded" else None
    more = {"bounds": bounds, "scratch_bytes": SCRATCH_BYTES} if bounds else {}
    backend = kind(
        made.workspace,
        exec_uid=UID,
        network=way == "read_only",
        readable=(made.code,),
        hidden=(made.workspace / "hidden", made.state, made.engine_home),
        **more,  # pyright: ignore[reportArgumentType]
    )
    if isinstance(backend, Moving):
        backend.target = SWAPS[probes[0].name]
    given = os.open(made.given, os.O_RDONLY)
    os.set_inheritable(given, True)
    try:
        client = SupervisorClient(made.engine_home, idle_s=0.5)
        async with Engine(MemorySessionStore(), client, backend, home=made.engine_home) as engine:
            try:
                yield engine
            finally:
                await end_all(engine)
    finally:
        os.close(given)


async def _command(
    engine: Engine, command: str, way: Way, conversation: str = "talk", *, background: bool = False
) -> Session:
    spec = command_spec(
        command=command,
        workspace=engine.workspace,
        limits=Limits(),
        pty=way == "terminal",
        timeout=RUN_S,
        background=background,
    )
    spec = replace(spec, profile=READ_ONLY if way == "read_only" else WORK)
    grant = grant_by_operator(proposal_for(spec, engine.backend), "test")
    if spec.background:
        return await engine.launch(spec, origin(conversation), grant)
    return (await engine.run(spec, origin(conversation), grant)).session


async def _neighbour(engine: Engine, made: Scene, conversation: str) -> dict[str, object]:
    """A decoy in another sandbox, of profile work: where it can be found."""
    told = {"file": f"/tmp/other-{made.nonce}", "abstract": f"other-{made.nonce}", "shm_file": f"other-{made.nonce}"}
    path = made.code / "neighbour.json"
    path.write_text(json.dumps(told))
    path.chmod(0o644)
    command = f"cd {made.code} && exec {PYTHON} -m tests.escape.decoy neighbour {path} decoy-argument-{made.secret}"
    session = await _command(engine, command, "work", conversation, background=True)
    async with asyncio.timeout(60):
        while "}" not in (text := _log(made, session).read_text()):  # noqa: ASYNC110 - nobody notifies
            await asyncio.sleep(0.02)
    return {
        "other_tcp": json.loads(text)["tcp4"],
        "other_file": told["file"],
        "other_abstract": told["abstract"],
        "other_shm": told["shm_file"],
    }


def _wait_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [], 60)


def _log(made: Scene, session: Session) -> Path:
    return made.engine_home / "sessions" / session.id / "log"


def _supervisor(made: Scene) -> int:
    found = re.findall(r"supervisor\[(\d+)\] ready", (made.engine_home / "supervisor" / "supervisor.log").read_text())
    return int(found[-1]) if found else 0


def _bare(made: Scene, probes: Sequence[Probe], way: Way) -> dict[str, str]:
    given = os.open(made.given, os.O_RDONLY)
    place = made.place(given=given)
    argv = [PYTHON, "-m", "tests.escape.inside", str(made.tell(place)), *(probe.name for probe in probes)]
    environment = {"PATH": os.defpath, "HOME": str(made.home), "PYTHONPATH": str(made.code), "LC_ALL": "C.UTF-8"}
    whole = unprivileged(argv, with_pid=made.facts["pid"])
    if way == "terminal":
        text = _in_terminal(whole, environment)
    else:
        text = subprocess.run(
            whole, capture_output=True, env=environment, pass_fds=(given,), timeout=RUN_S, check=False,
            start_new_session=True, cwd=made.workspace, text=True, errors="replace",
        ).stdout  # fmt: skip
    os.close(given)
    if MARK not in text:
        raise RuntimeError("nothing was attempted without a sandbox")
    made.look()
    return _said(text)


def _in_terminal(argv: list[str], environment: dict[str, str]) -> str:
    master, slave = pty.openpty()
    if os.geteuid() == 0:
        os.fchown(slave, UID, UID)
    with subprocess.Popen(["setsid", "--ctty", "--wait", *argv], stdin=slave, stdout=slave, env=environment) as process:
        os.close(slave)
        text = b""
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
            while part := os.read(master, 4096):
                text += part
        process.wait(RUN_S)
    os.close(master)
    return text.decode(errors="replace")


def _said(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(MARK):
            heard = json.loads(line.removeprefix(MARK))
            found[heard["name"]] = heard.get("said", heard.get("error", ""))
    return found
