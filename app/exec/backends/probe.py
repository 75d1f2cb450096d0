"""Checks from inside a sandbox, made as for every command, that sandboxes hold what they promise."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from shellback.exec.backends import view
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.causes import Machine, cause, passing
from shellback.exec.backends.trial import tried
from shellback.exec.core.base import Found, Plan
from shellback.exec.core.environment import child_env
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.supervisor.sandbox.bwrap import words_in
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.exec.wire.sandbox import Bounds

TRIAL_S: Final = 30.0


def probe(backend: BubblewrapBackend, machine: Machine | None = None) -> Found:
    """Run a look-around in a sandbox of each profile and judge what it saw. Blocks for some tenths of a second.

    Leaves nothing behind. Other sandboxes of the workspace are not touched.

    Raises:
        BackendUnavailable: Nothing can be tried: bubblewrap is missing, say.
        WorkspaceUnusable: The workspace is what is in the way.
    """
    backend.check()
    machine = machine or Machine()
    with _decoy() as decoy, ThreadPoolExecutor(2) as pool:
        name = f".shellback-probe-{secrets.token_hex(6)}"
        reports = list(pool.map(partial(_look, backend, name, decoy), (WORK, READ_ONLY)))
        signs = ["it can write /tmp of the host"] if os.path.exists(f"{decoy}/written") else []
    for report in reports:
        failed = _failure(backend, report, machine)
        if failed is not None:
            return failed
    work = reports[0]
    seen = [Seen(report.output) for report in reports]
    by_rlimit = "processes by rlimit" in work.limits
    for profile, one in zip((WORK, READ_ONLY), seen, strict=True):
        found = wrong(backend, profile, one, name, by_rlimit=by_rlimit)
        signs += [f"{what} (profile {profile})" for what in found]
    if signs:
        text = "; ".join(dict.fromkeys(signs))
        return Found(
            ok=False,
            why=f"a sandbox was made, and does not hold what it has to: {text}. Look with `shellback sandbox run`, and"
            " see that bubblewrap is the one of your distribution",
        )
    backend.limits = _limits(backend.bounds, work)
    return Found(
        ok=True,
        in_force=tuple(_in_force(backend, seen[0])),
        limits=work.limits,
        unbounded=tuple(_unbounded(backend.bounds, work)),
        instance_ms=work.instance_ms,
        start_ms=work.start_ms,
    )


def _look(backend: BubblewrapBackend, name: str, decoy: str, profile: str) -> Report:
    # Without the stand-ins for what is missing, which others who work there may need or remove.
    covers = replace(backend.protected.covers(), stubs=(), placeholders=())
    uid, gid = backend.runner.dropped
    hidden = [str(path) for path in backend.hidden if os.path.lexists(path)]
    words = ("/bin/bash", "--noprofile", "--norc", "-c", SCRIPT, "probe", name, decoy, " ".join(OUTSIDE))
    plan = Plan(
        argv=(*words, *hidden),
        cwd=str(backend.workspace),
        env=child_env({}, home=view.HOME, user=backend.runner.user),
        uid=uid,
        gid=gid,
        sandbox=backend.sandbox(profile, f"probe {name}", covers),
    )
    report = tried(plan, timeout_s=TRIAL_S)
    # What commands run in for a long time is decided by this: a moment's trouble must not do that.
    return tried(plan, timeout_s=TRIAL_S) if report.stage or report.timed_out else report


@contextlib.contextmanager
def _decoy() -> Generator[str]:
    """A directory outside that everybody may write, with a file in it that everybody may read."""
    path = tempfile.mkdtemp(prefix="shellback-probe-", dir="/tmp")
    try:
        os.chmod(path, 0o777)  # noqa: S103
        Path(path, "decoy").write_text("outside\n", "ascii")
        yield path
    finally:
        # `TemporaryDirectory` raises if another user made a directory in it, and may follow symlinks (CVE-2023-6597).
        shutil.rmtree(path, ignore_errors=True)


def _failure(backend: BubblewrapBackend, report: Report, machine: Machine) -> Found | None:
    scarce = report.signal == signal.SIGKILL or "fork: " in report.output
    if not report.stage and not report.timed_out and report.exit_code == 0 and not scarce:
        return None
    if report.stage:
        if str(backend.workspace) in report.said:
            raise WorkspaceUnusable(
                f"the workspace {backend.workspace} cannot be brought into a sandbox: {words_in(report.said).strip()};"
                " set WORKSPACE_ROOT to a directory of a local disk"
            )
        why = cause(report, backend.bwrap or "", machine)
    elif report.timed_out:
        why = f"a sandbox was made, and a look around in it took longer than {TRIAL_S:g} s"
    else:
        how = f"signal {report.signal}" if report.signal else f"exit code {report.exit_code}"
        why = f"a sandbox was made, and bash in it ended with {how}: {report.output.strip()[-300:]}"
    return Found(ok=False, why=why, passing=scarce or passing(report, machine))


def _in_force(backend: BubblewrapBackend, seen: Seen) -> Iterator[str]:
    yield f"user id {backend.uid}, no capabilities, no gain by set-uid programs, a system call filter"
    kinds = [one.partition(":")[0] for one in seen.every("namespace")]
    yield "namespaces of its own: " + ", ".join(kind for kind in kinds if kind != "net" or not backend.network)
    alone = f"network: only a loopback of its own{backend.listed.counted}"
    yield "network: that of the host" if backend.network else alone
    yield f"writable: the workspace, and /tmp and {view.HOME} of its own; nothing in profile {READ_ONLY} but these two"
    also = "".join(f", {path}" for path in backend.readable)
    yield f"readable of this machine: installed programs{also}; {len(backend.hidden)} listed secrets are out of sight"


def _limits(bounds: Bounds, report: Report) -> str:
    words = ""
    if bounds.processes and report.processes_bounded:
        words += f" At most {bounds.processes} processes at a time."
    if bounds.memory_bytes and report.memory_bounded:
        words += f" At most {bounds.memory_bytes >> 20} MiB of memory for all commands of the sandbox together."
    elif bounds.data_bytes:
        words += f" At most {bounds.data_bytes >> 20} MiB of memory for each process."
    return words


def _unbounded(bounds: Bounds, report: Report) -> Iterator[str]:
    if bounds.processes and not report.processes_bounded:
        yield "processes (SANDBOX_PROCESSES)"
    if bounds.memory_bytes and not report.memory_bounded:
        yield "memory of all processes together (SANDBOX_MEMORY_BYTES)"


_KINDS: Final = ("user", "pid", "ipc", "uts", "mnt")
OUTSIDE: Final = ("/", "/usr", "/etc", "/var", "/opt", "/dev", "/proc/sys/kernel")
SCRIPT: Final = r"""
say() { printf '%s\t%s\n' "$1" "$2"; }
can_write() { { : >"$1"; } 2>/dev/null; }
shopt -s nullglob dotglob
name=$1 decoy=$2 outside=$3; shift 3
while read -r key value; do
  case $key in Uid:|CapEff:|CapPrm:|CapBnd:|NoNewPrivs:|Seccomp:) say "$key" "$value";; esac
done </proc/self/status
while IFS=: read -r key value; do case $key in *'|'*) ;; *) say interface "${key// /}";; esac; done </proc/net/dev
readlink /proc/self/ns/{user,pid,ipc,uts,mnt,net} | while read -r value; do say namespace "$value"; done
for place in $outside; do can_write "$place/$name" && say outside "$place"; done
[[ -e $decoy ]] && say decoy "$decoy"
mkdir -p "$decoy" && can_write "$decoy/written"
for place in "$@"; do
  found=("$place"/*)
  if [[ -r $place && ( -f $place && -s $place || ${#found[@]} -gt 0 ) ]]; then say secret "$place"; fi
done
for place in . /tmp "$HOME"; do can_write "$place/$name" && say writable "$place" && rm -f "$place/$name"; done
say place "$(stat -c %d:%i .)"
say processes "$(ulimit -u)"
say blocks "$(ulimit -f)"
{ : </proc/1/environ; } 2>/dev/null && say init readable
command -v unshare >/dev/null && unshare -U true 2>/dev/null && say userns made
say end "$name"
"""


class Seen:
    """What the script said, by keys."""

    def __init__(self, text: str) -> None:
        self._all: dict[str, list[str]] = {}
        for line in text.splitlines():
            key, tab, value = line.partition("\t")
            if tab:
                self._all.setdefault(key.removesuffix(":"), []).append(value)

    def every(self, key: str) -> list[str]:
        return self._all.get(key, [])

    def one(self, key: str) -> str:
        return " ".join(self.every(key))


def wrong(backend: BubblewrapBackend, profile: str, seen: Seen, name: str, *, by_rlimit: bool) -> Iterator[str]:
    """What is not in force and has to be, in words; `by_rlimit` is whether processes are bounded by that.

    Raises:
        WorkspaceUnusable: Commands cannot write it.
    """
    work = profile == WORK
    if seen.one("end") != name:
        yield "the look around did not come to its end"
        return
    yield from _of_rights(backend.uid, seen)
    yield from _of_namespaces(seen, network=backend.network and work)
    if seen.every("outside"):
        yield f"it can write outside the workspace: {seen.one('outside')}"
    if seen.every("decoy"):
        yield "it sees /tmp of the host"
    yield from (f"it can read {path}" for path in seen.every("secret"))
    yield from _of_places(backend, seen, work=work)
    yield from _of_limits(backend.bounds, seen, by_rlimit=by_rlimit)


def _of_rights(uid: int, seen: Seen) -> Iterator[str]:
    if set(seen.one("Uid").split()) != {str(uid)}:
        yield f"it runs as user {seen.one('Uid')} and not as {uid}"
    if any(int(seen.one(key) or "1", 16) for key in ("CapEff", "CapPrm", "CapBnd")):
        yield f"it has capabilities ({seen.one('CapEff')})"
    if seen.one("NoNewPrivs") != "1":
        yield "set-uid programs gain rights in it"
    if seen.one("Seccomp") != "2":
        yield "it has no system call filter"
    if seen.every("init"):
        yield "it can read the environment of its first process"
    if seen.every("userns"):
        yield "it can make user namespaces"


def _of_namespaces(seen: Seen, *, network: bool) -> Iterator[str]:
    private = _KINDS if network else (*_KINDS, "net")
    ours = {f"{kind}:[{os.stat(f'/proc/self/ns/{kind}').st_ino}]": kind for kind in private}
    theirs = seen.every("namespace")
    if len(theirs) != len(_KINDS) + 1:
        yield "its namespaces cannot be seen"
    yield from (f"it shares the {ours[one]} namespace of the host" for one in theirs if one in ours)
    if not network and seen.every("interface") != ["lo"]:
        yield f"it has network interfaces: {seen.one('interface')}"


def _of_places(backend: BubblewrapBackend, seen: Seen, *, work: bool) -> Iterator[str]:
    writable = seen.every("writable")
    place = os.stat(backend.workspace)
    if seen.one("place") != f"{place.st_dev}:{place.st_ino}":
        yield f"what it has for the workspace {backend.workspace} is another directory"
    if work and "." not in writable:
        raise WorkspaceUnusable(
            f"commands, as user id {backend.uid}, cannot write the workspace {backend.workspace}: see its file system"
            " (read-only, or one that knows its users only), or set WORKSPACE_ROOT"
        )
    if not work and "." in writable:
        yield "it can write the workspace"
    yield from (f"it cannot write {path}" for path in ("/tmp", view.HOME) if path not in writable)  # noqa: S108


def _of_limits(bounds: Bounds, seen: Seen, *, by_rlimit: bool) -> Iterator[str]:
    processes, blocks = seen.one("processes"), seen.one("blocks")
    if bounds.processes and by_rlimit and not (processes.isdecimal() and int(processes) <= bounds.processes):
        yield f"it may start {processes} processes and not {bounds.processes}"
    if bounds.file_bytes and not (blocks.isdecimal() and int(blocks) * 1024 <= bounds.file_bytes):
        yield f"it may write files of {blocks} blocks"
