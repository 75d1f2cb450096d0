"""A look around from inside a sandbox, and what of it should not be so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from shellback.exec.backends import view
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.model import WORK
from shellback.exec.wire.sandbox import Bounds

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
