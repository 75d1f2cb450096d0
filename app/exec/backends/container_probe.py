"""Checks from inside a container, made as for every command, that containers hold what they promise.

What an engine drops without an error (for example limits, if it may not make cgroups) shows only in what the kernel
says inside the container.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.container import SCRATCHES, WORKSPACE
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.core.base import Found, Plan
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec
from shellback.exec.link.client import SupervisorClient
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import StartRequest

LOOK_S: Final = 30.0
_OUTSIDE: Final = ("/", "/usr", "/etc", "/var", "/opt", "/dev", "/run", "/home", "/root", "/proc/sys/kernel")
_LIMITS: Final = {
    "memory": ("memory.max", "memory/memory.limit_in_bytes"),
    "processes": ("pids.max", "pids/pids.max"),
    "cpu": ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us"),
}
_SCRIPT: Final = r"""
import ctypes, json, os, sys
name, decoy, outside, limits, private = json.loads(sys.argv[1])
def writable(place):
    path = os.path.join(place, name)
    try:
        open(path, "w").close()
    except OSError:
        return False
    os.unlink(path)
    return True
def text(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
place = os.stat(".")
print(json.dumps({
    "status": dict(line.split(":", 1) for line in text("/proc/self/status").splitlines() if ":" in line),
    "network": [line.split(":")[0].strip() for line in text("/proc/net/dev").splitlines() if ":" in line],
    "namespaces": {kind: os.readlink("/proc/self/ns/" + kind) for kind in ("pid", "ipc", "uts", "mnt", "net")},
    "outside": [place for place in outside if writable(place)],
    "decoy": os.path.lexists(decoy),
    "init": bool(text("/proc/1/environ")),
    "spaces": ctypes.CDLL(None).unshare(0x10000000) == 0,
    "ours": os.access("/run/shellback", os.R_OK | os.X_OK),
    "writable": [place for place in (".", *private) if writable(place)],
    "cwd": os.getcwd(),
    "place": [place.st_dev, place.st_ino],
    "limits": {kind: next(filter(None, (text("/sys/fs/cgroup/" + name) for name in names)), "")
               for kind, names in limits.items()},
    "end": name,
}))
"""
"""For any Python 3: the image's runs it, as the user of commands."""


@dataclass(frozen=True, slots=True)
class _Look:
    seen: dict[str, Any]
    made_ms: float
    ran_ms: float


def probe(backend: ContainerBackend) -> Found:
    """Look around in a container of each profile and judge what was seen. Blocks for about a second.

    Leaves no container behind; other containers are not touched. The backend knows afterwards which shell and which
    bounds there are.

    Raises:
        BackendUnavailable: No container can be had: its engine, the image or a runtime is missing, say.
        WorkspaceUnusable: The workspace is what is in the way.
    """
    backend.check()
    found: list[_Look] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.extend(asyncio.run(_looks(backend)))
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the thread
            failed.append(error)

    # Whoever asks may have a loop of his own already.
    thread = threading.Thread(target=run, name="shellback-probe")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    wrong = [
        f"{what} (profile {profile})"
        for profile, look in zip((WORK, READ_ONLY), found, strict=True)
        for what in _wrong(backend, profile, look.seen)
    ]
    if wrong:
        return Found(
            ok=False,
            why=f"a container was made, and does not hold what it has to: {'; '.join(dict.fromkeys(wrong))}. See that"
            f" {backend.name} and its runtime are those of your distribution",
        )
    work = found[0]
    backend.unbounded = tuple(_unbounded(backend, work.seen["limits"]))
    return Found(
        ok=True,
        in_force=tuple(_in_force(backend)),
        limits=_limits(backend),
        unbounded=tuple(_NAMES[kind] for kind in backend.unbounded),
        instance_ms=round(work.made_ms, 1),
        start_ms=round(work.ran_ms, 1),
    )


_NAMES: Final = {
    "memory": "memory of all processes together (SANDBOX_MEMORY_BYTES)",
    "processes": "processes (SANDBOX_PROCESSES)",
    "cpu": "CPU time",
}


async def _looks(backend: ContainerBackend) -> list[_Look]:
    with backend.apart("probe") as apart:
        decoy = apart.containers.root.parent
        try:
            looks = (_look(apart, profile, decoy) for profile in (WORK, READ_ONLY))
            # Both end before their containers are taken away: one that comes up later would stay.
            found = await asyncio.gather(*looks, return_exceptions=True)
        finally:
            backend.shell = apart.shell
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, _Look)]


async def _look(backend: ContainerBackend, profile: str, decoy: Path) -> _Look:
    began = time.perf_counter()
    spec = CommandSpec(command=":", cwd=str(backend.workspace), profile=profile)
    plan = await backend.plan(spec, f"probe {profile}")
    made = time.perf_counter()
    name = f".shellback-probe-{secrets.token_hex(6)}"
    told = json.dumps([name, str(decoy), _OUTSIDE, _LIMITS, SCRATCHES])
    text = await _printed(replace(plan, argv=("python3", "-I", "-S", "-c", _SCRIPT, told)))
    try:
        seen: dict[str, Any] = json.loads(text.splitlines()[-1])
        assert seen["end"] == name
    except (ValueError, IndexError, KeyError, AssertionError):
        raise BackendUnavailable(
            f"a container of {backend.image} started, but the check inside it did not finish:"
            f" {text.strip()[-300:] or 'it printed nothing'}"
        ) from None
    return _Look(seen, (made - began) * 1000, (time.perf_counter() - made) * 1000)


async def _printed(plan: Plan) -> str:
    """What a command prints, as one of these containers runs it."""
    assert plan.home is not None
    ended = asyncio.Event()
    client = SupervisorClient(plan.home, spawn=False, wait_s=5.0, on_exit=lambda _: ended.set())
    try:
        info = await client.connect()
        request = StartRequest(
            session_id="probe",
            argv=plan.argv,
            env=plan.env,
            cwd=plan.cwd,
            boot_id=info["boot_id"],
            uid=plan.uid,
            gid=plan.gid,
            umask=plan.umask,
            timeout_s=LOOK_S,
        )
        answer = await client.start(request)
        if answer.get("outcome") == "started":
            await asyncio.wait_for(ended.wait(), LOOK_S + 10)
        await client.ack("probe")
        return (plan.home / layout.SESSIONS / "probe" / layout.LOG).read_text("utf-8", "replace")
    except (SupervisorUnreachable, TimeoutError, OSError) as error:
        raise BackendUnavailable(f"a container was made, and its supervisor does not run commands: {error}") from None
    finally:
        await client.close()


_REACHED: Final = {
    "init": "it can read the environment of its first process",
    "ours": "it can reach its supervisor's files",
    "spaces": "it can make user namespaces: our system call filter is not on it",
    "decoy": "it sees /tmp of the host",
}


def _wrong(backend: ContainerBackend, profile: str, seen: dict[str, Any]) -> Iterator[str]:
    """What is not in force and has to be, in words; WorkspaceUnusable if commands cannot write it."""
    work = profile == WORK
    status = {key: value.strip() for key, value in seen["status"].items()}
    if set(status["Uid"].split()) != {str(backend.user)} or set(status["Gid"].split()) != {str(backend.group)}:
        yield f"it runs as user {status['Uid']} and group {status['Gid']}"
    yield from _of_rights(status)
    for key, what in _REACHED.items():
        if seen[key]:
            yield what
    if seen["outside"]:
        yield f"it can write {', '.join(seen['outside'])}"
    for kind, theirs in seen["namespaces"].items():
        if theirs == os.readlink(f"/proc/self/ns/{kind}"):
            yield f"it shares the {kind} namespace of the host"
    if not (backend.network and work) and seen["network"] != ["lo"]:
        yield f"it has network interfaces: {', '.join(seen['network'])}"
    yield from _of_places(backend, seen, work=work)


def _of_rights(status: dict[str, str]) -> Iterator[str]:
    if any(int(status[key], 16) for key in ("CapEff", "CapPrm", "CapInh")):
        yield f"it has capabilities ({status['CapEff']})"
    if status["NoNewPrivs"] != "1":
        yield "set-uid programs gain rights in it"
    if status.get("Seccomp") != "2":
        yield "it has no system call filter"


def _of_places(backend: ContainerBackend, seen: dict[str, Any], *, work: bool) -> Iterator[str]:
    place = os.stat(backend.workspace)
    if seen["cwd"] != WORKSPACE or seen["place"] != [place.st_dev, place.st_ino]:
        yield f"what it has for the workspace {backend.workspace} is another directory"
    if work and "." not in seen["writable"]:
        raise WorkspaceUnusable(
            f"commands in containers cannot write the workspace {backend.workspace}: see its file system (read-only, or"
            " one that knows its users only), or set WORKSPACE_ROOT"
        )
    if not work and "." in seen["writable"]:
        yield "it can write the workspace"
    yield from (f"it cannot write {path}" for path in SCRATCHES if path not in seen["writable"])


def _unbounded(backend: ContainerBackend, seen: dict[str, str]) -> Iterator[str]:
    wanted = {"memory": backend.limits.memory_bytes, "processes": backend.limits.processes}
    for kind, most in wanted.items():
        value = seen[kind]
        # The kernel rounds down to pages.
        if not (value.isdecimal() and int(value) <= most):
            yield kind
    quota = seen["cpu"].split(" ")[0]
    if not (quota.isdecimal() and int(quota) > 0):
        yield "cpu"


def _in_force(backend: ContainerBackend) -> Iterator[str]:
    who = f"user id {backend.user} of the container"
    also = f", which is {backend.uid} here" if backend.uid != backend.user else ""
    yield f"{who}{also}, no capabilities, no gain by set-uid programs, system call filters of {backend.name} and ours"
    yield "namespaces of its own: pid, ipc, uts, mnt, net" + (", user" if backend.rootless else "")
    alone = f"network: only a loopback of its own{backend.listed.counted}"
    yield f"network: {backend.name}'s" if backend.network else alone
    yield (
        f"writable: the workspace, and {', '.join(SCRATCHES)} of its own; nothing in profile {READ_ONLY} but these"
        f" three"
    )
    yield f"of this machine it has the workspace only; programs are those of {backend.image}"
    yield f"commands run in {backend.shell}"


def _limits(backend: ContainerBackend) -> str:
    limits = backend.limits
    held = {
        "memory": f"{limits.memory_bytes >> 20} MiB of memory, no swap",
        "processes": f"{limits.processes} processes",
        "cpu": f"{limits.cpus:g} CPU",
    }
    words = [text for kind, text in held.items() if kind not in backend.unbounded]
    return f"of all commands of a container: {', '.join(words)}" if words else "by cgroup: none"
