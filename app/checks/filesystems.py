"""Checks of the file systems of the state directory and the database."""

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
    """The mount point and type of a file system."""

    point: str
    kind: str


def mount_of(mountinfo: str, path: str) -> Mount | None:
    """The mount of an absolute path without links, from the text of /proc/self/mountinfo."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, found, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if not found or len(fields) < 5 or not source:
            continue
        point = fields[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount at the same point is on top.
        if holds and (best is None or len(point) >= len(best.point)):
            best = Mount(point, source[0])
    return best


def filesystem(name: str, directory: Path, timeout_s: float = PROBE_S) -> Check:
    """Probe a directory in a child process, which is left behind if it does not answer in time."""
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
            remedy = "repair its server or disk, or set SHELLBACK_HOME to another directory"
            return Check(name, "fail", f"{directory} does not answer within {timeout_s:.0f} s", remedy)
        with contextlib.suppress(ValueError):
            return judged(name, directory, json.loads(said), Path("/proc/self/mountinfo").read_text())
    return Check(name, "warn", f"{directory} could not be probed", "run doctor as the user that runs the worker")


def judged(name: str, directory: Path, found: dict[str, Any], mountinfo: str) -> Check:
    """The result of a probe, together with the mount of the directory."""
    mount = mount_of(mountinfo, str(found.get("path", directory)))
    kind = mount.kind if mount is not None else "an unknown file system"
    if "error" in found:
        remedy = _room(found["error"]) or (
            "check owner, mode and mount (`findmnt -T`), or set SHELLBACK_HOME to another directory"
        )
        return Check(name, "fail", f"{directory} ({kind}) cannot be written: {found['error']}", remedy)
    missing: dict[str, str] = dict(found["missing"])
    needed = {what: why for what, why in missing.items() if what not in probe.WORSE_WITHOUT}
    if needed:
        remedy = _room(*needed.values()) or "put it on a local file system (ext4, xfs, btrfs): set SHELLBACK_HOME"
        return Check(name, "fail", f"{directory} ({kind}) lacks required functions: {_listed(needed)}", remedy)
    if warned := _kind(kind):
        return Check(name, "warn", f"{directory} is on {kind}: {warned[0]}", warned[1])
    if missing:
        meaning = "; ".join(probe.WORSE_WITHOUT[what] for what in missing)
        remedy = "use a local file system (ext4, xfs, btrfs): set SHELLBACK_HOME"
        return Check(name, "warn", f"{directory} ({kind}) lacks {_listed(missing)}: {meaning}", remedy)
    return Check(name, "ok", f"{directory} ({kind}): locks, renames, syncs, sockets and holes work")


def _room(*reasons: str) -> str | None:
    """The remedy for a full disk or quota; None if neither is among the reasons."""
    full = next((reason for reason in map(os.strerror, (errno.ENOSPC, errno.EDQUOT)) if reason in reasons), None)
    return full and "make room there: `shellback prune`, or delete files"


def _kind(kind: str) -> tuple[str, str] | None:
    """The risk of a type of file system whose probe succeeded, and the remedy; None for a local disk."""
    if kind in _VOLATILE:
        return "its contents are lost at a reboot", "set SHELLBACK_HOME to a directory on a disk"
    if kind in _LAYERS:
        return (
            "the writable layer of a container, which is deleted with the container",
            "mount a volume there (docker-compose.yml has one), or set SHELLBACK_HOME to a volume",
        )
    if kind in _NETWORK or kind.startswith("fuse."):
        return (
            "locks and records may be lost in a crash of client or server, or not hold between two machines",
            "set SHELLBACK_HOME to a directory on a local disk; the workspace may stay where it is",
        )
    return None


def _listed(missing: dict[str, str]) -> str:
    return ", ".join(f"{what} ({why})" for what, why in missing.items())
