"""The same probes in real sandboxes and without one, and what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from tests.escape.grounds import GROUNDS, RUN_S, TALK, Ground, command
from tests.escape.inside import MARK
from tests.escape.probe import Probe, Way
from tests.escape.scene import PYTHON, UID, Scene, scene, unprivileged
from tests.towns.town import Town, town

WAYS: Final[tuple[Way, ...]] = ("work", "terminal", "read_only", "bounded", "listed", "listed_read_only")


@dataclass(frozen=True)
class Verdict:
    """What came of one probe in one kind of sandbox; `without` is None where it was not made without one."""

    probe: Probe
    backend: str
    inside: bool
    said: str
    without: bool | None
    said_without: str


def run(
    probes: Sequence[Probe],
    say: Callable[[str], None] = lambda _: None,
    grounds: Sequence[Ground] = (GROUNDS["bubblewrap"],),
    *,
    control: bool = True,
) -> list[Verdict]:
    """Make every attempt, first in each kind of sandbox, then without unless `control` is False."""
    found: list[Verdict] = []
    together = [[one for one in probes if one.way == way] for way in WAYS]
    alone = [[one] for one in probes if one.way == "moved"]
    for batch in (*together, *alone):
        tried = {ground.name: _tried(ground, batch, say) for ground in grounds}
        names = {name for said in tried.values() for name in said} if control else set[str]()
        with_control = [one for one in batch if one.control and one.name in names]
        bare, without = _without(with_control, say) if with_control else ({}, {})
        for backend, verdicts in tried.items():
            for probe in (one for one in batch if one.name in verdicts):
                inside, said = verdicts[probe.name]
                found.append(Verdict(probe, backend, inside, said, without.get(probe.name), bare.get(probe.name, "")))
    return sorted(found, key=lambda one: [ground.name for ground in grounds].index(one.backend))


def _tried(ground: Ground, batch: Sequence[Probe], say: Callable[[str], None]) -> dict[str, tuple[bool, str]]:
    here = [probe for probe in batch if not ground.lacks(probe)]
    if not here:
        return {}
    say(f"{len(here)} probes, {here[0].way}, in {ground.name}")
    with _town(batch[0].way) as place, scene(here, scratch="/tmp", image=ground.image, town=place) as made:
        said = asyncio.run(_sandboxed(ground, made, here, here[0].way))
        texts = {probe.name: said.get(probe.name, "") for probe in here}
        return {probe.name: (probe.seen(made, probe.name, texts[probe.name]), texts[probe.name]) for probe in here}


def _town(way: Way) -> contextlib.AbstractContextManager[Town | None]:
    return town(UID) if way.startswith("listed") else contextlib.nullcontext()


def _without(probes: Sequence[Probe], say: Callable[[str], None]) -> tuple[dict[str, str], dict[str, bool]]:
    say(f"{len(probes)} probes, {probes[0].way}, without a sandbox")
    with _town(probes[0].way) as place, scene(probes, town=place) as made:
        bare = _bare(made, probes, probes[0].way)
        return bare, {probe.name: probe.seen(made, probe.name, bare.get(probe.name, "")) for probe in probes}


async def _sandboxed(ground: Ground, made: Scene, probes: Sequence[Probe], way: Way) -> dict[str, str]:
    async with ground.engine(made, probes, way) as engine:
        facts = await ground.first(engine, made, way)
        if way in {"work", "read_only"}:
            facts |= await _neighbour(ground, engine, made, "another talk" if way == "work" else TALK)
        path = made.tell("place.json", asdict(replace(made.place(), **facts)))
        names = " ".join(probe.name for probe in probes)
        attempts = f"cd {made.inside(made.code)} && exec {ground.python} -m tests.escape.inside {path} {names}"
        try:
            session = await command(engine, attempts, way)
        except ExecError as error:
            if way != "moved":
                raise
            return {probes[0].name: str(error)[-200:]}  # refused, and why
        finally:
            made.look()
        if way == "work":  # the worker makes a link once more
            await command(engine, "true", way, background=True)
        text = _log(made, session).read_text(errors="replace")
    _ = made.after
    if MARK not in text and way == "moved":
        return {probes[0].name: " ".join(text.split())[-200:]}
    said = _said(text)
    if session.end and session.end.signal == signal.SIGKILL:  # memory ran out: the kernel chose the one that attempts
        cut = next((probe.name for probe in probes if probe.name not in said), None)
        return said | ({cut: "the kernel ended the attempt"} if cut else {})
    if MARK not in text:
        raise RuntimeError(f"nothing was attempted ({session.end}): {text[-2000:]}")
    return said


async def _neighbour(ground: Ground, engine: Engine, made: Scene, conversation: str) -> dict[str, object]:
    """A decoy in another sandbox, of profile work: where it can be found."""
    told = {"file": f"/tmp/other-{made.nonce}", "abstract": f"other-{made.nonce}", "shm_file": f"other-{made.nonce}"}
    path = made.tell("neighbour.json", told)
    decoy = f"{ground.python} -m tests.escape.decoy neighbour {path} decoy-argument-{made.secret}"
    text = f"cd {made.inside(made.code)} && exec {decoy}"
    session = await command(engine, text, "work", conversation, background=True)
    async with asyncio.timeout(60):
        while "}" not in (text := _log(made, session).read_text()):  # noqa: ASYNC110 - nobody notifies
            await asyncio.sleep(0.02)
    return {
        "other_tcp": json.loads(text)["tcp4"],
        "other_file": told["file"],
        "other_abstract": told["abstract"],
        "other_shm": told["shm_file"],
    }


def _log(made: Scene, session: Session) -> Path:
    return made.engine_home / "sessions" / session.id / "log"


def _bare(made: Scene, probes: Sequence[Probe], way: Way) -> dict[str, str]:
    given = made.open_given()
    place = made.place(given=given)
    argv = [
        PYTHON,
        "-m",
        "tests.escape.inside",
        made.tell("place.json", asdict(place)),
        *(probe.name for probe in probes),
    ]
    environment = {"PATH": os.defpath, "HOME": str(made.home), "PYTHONPATH": str(made.code), "LC_ALL": "C.UTF-8"}
    whole = unprivileged(argv, with_pid=made.facts["pid"])
    if made.town:
        whole = made.town.inside(*whole)
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
