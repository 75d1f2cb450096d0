"""What the file system of our directories is, and whether it does what we ask of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellback.checks.check import Check
from shellback.exec.supervisor.sandbox import probe

PROBE_S: Final = 10.0
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_CODE: Final = "import sys; sys.path.append({root!r}); from shellback.exec.supervisor.sandbox.probe import main; main()"
_NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "glusterfs", "lustre", "beegfs", "gfs2", "ocfs2",
    "virtiofs",
})  # fmt: skip
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_LAYERS: Final = frozenset({"overlay", "overlayfs", "aufs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, and of which type it is."""

    point: str
    kind: str


def mount_of(mountinfo: str, path: str) -> Mount | None:
    """The mount that holds an absolute path without links, by the text of /proc/self/mountinfo."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, found, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if not found or len(fields) < 5 or not source:
            continue
        point = fields[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two at one place the later one is on top.
        if holds and (best is None or len(point) >= len(best.point)):
            best = Mount(point, source[0])
    return best


def filesystem(name: str, directory: Path, timeout_s: float = PROBE_S) -> Check:
    """Probe a directory in a process of its own, which is left behind when it does not come back in time."""
    code = _CODE.format(root=_ROOT)
    with contextlib.suppress(FileNotFoundError):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", "-c", code, str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        try:
            said, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            assert child.stdout is not None
            child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            return _hangs(name, directory, timeout_s)
        with contextlib.suppress(ValueError):
            return judged(name, directory, json.loads(said), Path("/proc/self/mountinfo").read_text())
    return Check(name, "warn", f"{directory} could not be probed", "run doctor as whoever runs the worker")


def _hangs(name: str, directory: Path, timeout_s: float) -> Check:
    remedy = "see to the server or the disk behind it, or name another place with SHELLBACK_HOME"
    return Check(name, "fail", f"{directory} does not answer within {timeout_s:.0f} s", remedy)


def judged(name: str, directory: Path, found: dict[str, Any], mountinfo: str) -> Check:
    """What a probe and the mount under a directory mean together."""
    mount = mount_of(mountinfo, str(found.get("path", directory)))
    kind = mount.kind if mount is not None else "a file system that is not known"
    if "error" in found:
        remedy = _room(found["error"]) or (
            "check owner, mode and mount (`findmnt -T`), or name another place with SHELLBACK_HOME"
        )
        return Check(name, "fail", f"{directory} ({kind}) cannot be written: {found['error']}", remedy)
    missing: dict[str, str] = dict(found["missing"])
    needed = {what: why for what, why in missing.items() if what not in probe.WORSE_WITHOUT}
    if needed:
        remedy = _room(*needed.values()) or "put it on a local file system (ext4, xfs, btrfs): set SHELLBACK_HOME"
        return Check(name, "fail", f"{directory} ({kind}) does not do what is needed: {_listed(needed)}", remedy)
    if warned := _kind(kind):
        return Check(name, "warn", f"{directory} is on {kind}: {warned[0]}", warned[1])
    if missing:
        meaning = "; ".join(probe.WORSE_WITHOUT[what] for what in missing)
        remedy = "a local file system (ext4, xfs, btrfs) does both; set SHELLBACK_HOME"
        return Check(name, "warn", f"{directory} ({kind}) lacks {_listed(missing)}: {meaning}", remedy)
    return Check(name, "ok", f"{directory} ({kind}): locks, renames, syncs, sockets and holes work")


def _room(*reasons: str) -> str | None:
    """What to do about a disk or quota that is full, where that is a reason; None where it is none."""
    full = next((reason for reason in map(os.strerror, (errno.ENOSPC, errno.EDQUOT)) if reason in reasons), None)
    return full and "make room there: `shellback prune`, or delete what nobody needs"


def _kind(kind: str) -> tuple[str, str] | None:
    """What is wrong with a type of file system that seems to work, and what to do; None for a local disk."""
    if kind in _VOLATILE:
        return "all of it is gone after a reboot", "set SHELLBACK_HOME to a place on a disk"
    if kind in _LAYERS:
        return (
            "the writable layer of a container, gone with it",
            "mount a volume there (docker-compose.yml has one), or set SHELLBACK_HOME to where one is",
        )
    if kind in _NETWORK or kind.startswith("fuse."):
        return (
            "locks and records may not hold after a crash of either side, nor between two machines",
            "put it on a local disk: set SHELLBACK_HOME; the workspace may stay where it is",
        )
    return None


def _listed(missing: dict[str, str]) -> str:
    return ", ".join(f"{what} ({why})" for what, why in missing.items())
