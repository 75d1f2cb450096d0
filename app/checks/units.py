"""Checks for a unit, login session or container whose end would end the supervisor and so every command.

The functions take texts, so that tests can give them samples of real machines.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.checks.check import Check

_ASK_S: Final = 2.0
_INITS: Final = frozenset(
    {"systemd", "init", "openrc-init", "runit", "runit-init", "s6-svscan", "dinit", "finit", "launchd"}
)
_DEPLOYED: Final = "or set SUPERVISOR=external and install deploy/shellback-supervisor.service (docs/operations.md)"


@dataclass(frozen=True, slots=True)
class Unit:
    """The innermost systemd unit of a process; `user`: it belongs to the systemd of a user."""

    name: str
    user: bool


def unit_of(cgroup: str) -> Unit | None:
    """The unit that the text of /proc/PID/cgroup (v2 or v1) names, if any."""
    path = ""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, where = rest.partition(":")
        if controllers == "name=systemd" or (number == "0" and not controllers and not path):
            path = where
    parts = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    if not parts:
        return None
    return Unit(parts[-1], any(part.startswith("user@") for part in parts[:-1]))


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions to the machine about units; None means no answer."""

    kill_mode: Callable[[Unit], str | None]
    lingers: Callable[[], bool | None]
    kills_user_processes: Callable[[], bool | None]


def unit(supervisor: str, workers: Sequence[str], asked: Asked) -> Check:
    """Whether a unit or a login session ends the supervisor, from the cgroups of supervisor and workers."""
    where = unit_of(supervisor)
    if where is None:
        return Check("unit", "ok", "the supervisor is in no unit of systemd")
    if where.name.startswith("session-") and where.name.endswith(".scope"):
        return _session(where, asked)
    if (found := _user(where, asked)) is not None:
        return found
    if where.name.endswith(".service") and where in {unit_of(text) for text in workers}:
        return _shared(where, asked.kill_mode(where))
    shared = where in {unit_of(text) for text in workers}
    return Check("unit", "ok", f"the supervisor is in {where.name}{'' if shared else ', apart from the workers'}")


def _shared(where: Unit, mode: str | None) -> Check:
    text = f"worker and supervisor are both in {where.name}"
    if mode in {"process", "none"}:
        return Check("unit", "ok", f"{text}, which ends only the worker (KillMode={mode})")
    user = " --user" if where.user else ""
    said = f"KillMode={mode}" if mode else "unless it has KillMode=process"
    remedy = f"`systemctl{user} edit {where.name}`: [Service] KillMode=process; {_DEPLOYED}"
    return Check("unit", "warn", f"{text}: stopping it ends every command ({said})", remedy)


def _session(where: Unit, asked: Asked) -> Check:
    kills = asked.kills_user_processes()
    if kills is False:
        return Check("unit", "ok", f"the supervisor is in {where.name}, whose processes survive a logout")
    said = "ends its processes at logout (KillUserProcesses=yes)" if kills else "may end its processes at logout"
    remedy = (
        f"run the worker as a service; or `loginctl enable-linger` and start it with `systemd-run --user`; {_DEPLOYED}"
    )
    return Check("unit", "warn", f"the supervisor is in {where.name}, and logind {said}", remedy)


def _user(where: Unit, asked: Asked) -> Check | None:
    if not (where.user or where.name.startswith("user@")) or asked.lingers() is not False:
        return None
    text = f"the supervisor is in {where.name} of a user's systemd, which ends at the user's last logout"
    return Check("unit", "warn", text, "run `loginctl enable-linger`, so that it does not end")


def in_container(first: str, marks: Sequence[str]) -> bool:
    """Whether the name of process 1, or marker files of engines, show a container."""
    return bool(marks) or bool(first and first.partition("(")[0] not in _INITS)  # WSL has its name behind `init`


def container(first: str, marks: Sequence[str], *, apart: bool) -> Check:
    """Whether a container ends supervisor and worker together; `apart`: the supervisor has its own."""
    if not in_container(first, marks):
        return Check("container", "ok", "none")
    if apart:
        return Check("container", "ok", "the supervisor has its own container")
    signs = ", ".join([*marks, *([f"process 1 is {first}"] if in_container(first, []) else [])])
    remedy = "give the supervisor its own container, with SUPERVISOR=external (see docker-compose.yml)"
    return Check("container", "warn", f"the supervisor ends with this container ({signs})", remedy)


def surroundings(supervisor: int | None, workers: Sequence[int], *, external: bool) -> list[Check]:
    """Both checks. Without a supervisor, they are about one that this process would start."""
    marks = [mark for mark in ("/run/.containerenv", "/.dockerenv") if Path(mark).exists()]
    first = _read("/proc/1/comm").strip()  # "" if the processes of other users are hidden
    # The pid is valid in the supervisor's namespace: use it only if the process with it here has the name.
    ours = supervisor if supervisor is not None and _read(f"/proc/{supervisor}/comm").startswith("shellback-") else None
    found = [container(first, marks, apart=external and ours is None)]
    if supervisor is not None and ours is None:
        return [*found, Check("unit", "ok", "the supervisor is in its own pid namespace")]
    asked = Asked(_kill_mode, _lingers, _kills_user_processes)
    cgroup = _read(f"/proc/{'self' if ours is None else ours}/cgroup")
    return [*found, unit(cgroup, [_read(f"/proc/{pid}/cgroup") for pid in workers], asked)]


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def _kill_mode(where: Unit) -> str | None:
    return _asked("systemctl", *(["--user"] if where.user else []), "show", "-p", "KillMode", "--value", where.name)


def _kills_user_processes() -> bool | None:
    login = "org.freedesktop.login1"
    said = _asked("busctl", "get-property", login, "/org/freedesktop/login1", f"{login}.Manager", "KillUserProcesses")
    return None if said not in {"b true", "b false"} else said == "b true"


def _lingers() -> bool | None:
    with contextlib.suppress(KeyError, OSError):
        kept = Path("/var/lib/systemd/linger")
        return (kept / pwd.getpwuid(os.geteuid()).pw_name).exists() if kept.is_dir() else None
    return None


def _asked(*argv: str) -> str | None:
    """The one-line answer of a systemd program; None if it is missing, fails or is too slow."""
    if shutil.which(argv[0]) is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False)
        return done.stdout.strip() or None if done.returncode == 0 else None
    return None
