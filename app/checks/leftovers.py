"""Checks for supervisors and keepers on this machine that are no longer needed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from shellback.checks.check import Check
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout

KEEPER: Final = "shellback-keep"
SUPERVISOR: Final = "shellback-sup"
_GONE: Final = " (deleted)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A keeper or supervisor. `home` is the state directory that it has open, by its present path."""

    pid: int
    name: str
    home: str
    gone: bool
    since: float
    service: bool
    parent: int
    children: int


def servings() -> list[Serving]:
    """Every keeper and supervisor of this user that this process may inspect, except those in containers."""
    found: list[Serving] = []
    everybody, here = procfs.snapshot(), os.readlink("/proc/self/ns/pid")
    for proc in everybody:
        with contextlib.suppress(OSError):
            about = Path(f"/proc/{proc.pid}")
            name = (about / "comm").read_text().strip()
            if name not in {KEEPER, SUPERVISOR} or not proc.alive or about.stat().st_uid != os.geteuid():
                continue
            if os.readlink(about / "ns/pid") != here:
                continue  # in a container, where its state directory has another path
            home, gone = home_of([os.readlink(fd) for fd in (about / "fd").iterdir()])
            found.append(
                Serving(
                    pid=proc.pid,
                    name=name,
                    home=home,
                    gone=gone,
                    since=time.time() - (procfs.ticks() - proc.start) / procfs.TICKS,
                    service=b"--service" in (about / "cmdline").read_bytes().split(b"\0"),
                    parent=proc.ppid,
                    # Children of all its threads: the second one starts the commands.
                    children=sum(one.ppid == proc.pid for one in everybody),
                )
            )
    return found


def home_of(files: Sequence[str]) -> tuple[str, bool]:
    """The state directory of a process, from the targets of its descriptors, and whether it was removed."""
    for target in files:
        path = target.removesuffix(_GONE)
        folder, _, name = path.rpartition("/")
        if name in {layout.KEEPER_LOCK, layout.SUPERVISOR_LOCK} and folder.endswith(f"/{layout.SUPERVISOR}"):
            return folder.removesuffix(f"/{layout.SUPERVISOR}"), target.endswith(_GONE)
    return "", False


def leftovers(found: Sequence[Serving], home: str) -> Check:
    """The leftovers among `found`; supervisors of other, existing state directories are only listed."""
    keepers = {one.pid: one for one in found if one.name == KEEPER}
    wrong: list[tuple[str, _End]] = []
    for one in found:
        above = keepers.get(one.parent)
        if one.name == KEEPER and any(below.parent == one.pid and below.name == SUPERVISOR for below in found):
            continue  # reported with its supervisor
        if one.gone:
            wrong.append((f"{_named(one)} serves {one.home}, which was removed", _ending(one, above)))
        elif one.name == SUPERVISOR and above is None:
            wrong.append((f"{_named(one)} of {one.home} has lost its keeper", _ending(one, above)))
        elif _served_twice(one, found):
            wrong.append((f"{_named(one)} is one of several for {one.home}", _ending(one, above)))
    if wrong:
        return Check("leftovers", "warn", "; ".join(text for text, _ in wrong), _endings([end for _, end in wrong]))
    others = sorted({one.home for one in found if one.home and one.home != home})
    return Check("leftovers", "ok", f"none; other supervisors serve {', '.join(others)}" if others else "none")


def _served_twice(one: Serving, found: Sequence[Serving]) -> bool:
    """Whether a newer supervisor serves the same, existing directory."""
    same = [other for other in found if other.name == one.name and other.home == one.home and not other.gone]
    return one.name == SUPERVISOR and len(same) > 1 and one.since < max(other.since for other in same)


def _named(one: Serving) -> str:
    kind = "keeper" if one.name == KEEPER else "supervisor"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.since))
    return f"{kind} {one.pid} (since {since}, {one.children} process(es))"


class _End(NamedTuple):
    """How to end a leftover: the pid to `kill`, if any; what happens `then`; whose commands `below` delay it."""

    kill: int | None
    then: str
    below: int | None


def _ending(one: Serving, keeper: Serving | None) -> _End:
    first = keeper or one
    if first.service:
        return _End(first.pid, "ends its commands and then the process", None)
    below = one.pid if one.children else None
    if one.name == SUPERVISOR and keeper is None:
        return _End(None, f"{one.pid} exits by itself when it has no child processes", below)
    return _End(first.pid, "is enough when there are no child processes", below)


def _endings(ends: Sequence[_End]) -> str:
    """The remedy for all leftovers, each step once."""
    said: list[str] = []
    for then in dict.fromkeys(end.then for end in ends):
        killed = dict.fromkeys(str(end.kill) for end in ends if end.then == then and end.kill is not None)
        said.append(f"`kill {' '.join(killed)}` {then}" if killed else then)
    below = dict.fromkeys(str(end.below) for end in ends if end.below is not None)
    if below:
        said.append(f"`ps --ppid {','.join(below)}` lists the child processes; `kill` those that you do not need")
    return "; ".join(said)
