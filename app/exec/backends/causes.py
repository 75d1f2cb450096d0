"""Why this machine cannot make a sandbox, and the command that changes it.

Only a run shows that it cannot. What is read here explains the failure.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Final

from shellback.exec.supervisor.sandbox.trial import COMMAND, Report

NEEDED: Final = (0, 8)
MISSING: Final = (
    "bubblewrap is not installed; install it: `apt install bubblewrap` (Debian, Ubuntu) or `dnf install bubblewrap`"
    " (Fedora, RHEL), version 0.8 or newer"
)
_SCARCE: Final = frozenset({errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR})
_DENIED: Final = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOSYS, errno.EUSERS})
_VERSION_S: Final = 10.0
_PROFILE: Final = "bwrap-userns-restrict"
_CONTAINER: Final = "/.dockerenv", "/run/.containerenv"


class Machine:
    """Facts from the kernel's files below `root`."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = str(root)

    def sysctl(self, name: str) -> str:
        """The value, "" where there is none."""
        return self._text(f"proc/sys/{name.replace('.', '/')}").strip()

    @property
    def contained(self) -> bool:
        """Whether this is a container of Docker or Podman."""
        return any(self.has(path) for path in _CONTAINER)

    @property
    def filtered(self) -> bool:
        """Whether this process has a system call filter."""
        return re.search(r"^Seccomp:\s*2$", self._text("proc/self/status"), re.MULTILINE) is not None

    @property
    def masked(self) -> bool:
        """Whether parts of /proc are mounted over; then the kernel refuses to mount another /proc."""
        points = [line.split()[4] for line in self._text("proc/self/mountinfo").splitlines() if line.count(" ") > 4]
        return any(point.startswith("/proc/") and not point.startswith("/proc/sys/fs/binfmt_misc") for point in points)

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(os.path.join(self._root, path.lstrip("/")))

    def _text(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def cause(report: Report, bwrap: str, machine: Machine) -> str:
    """Cause and remedy of a sandbox that could not be made, in one or two sentences."""
    said = _last(report)
    version = _version(bwrap)
    if version is not None and version < NEEDED:
        return (
            f"bubblewrap {'.'.join(map(str, version))} is too old ({said}); install version 0.8 or newer, from your"
            " distribution's backports if it has one there"
        )
    if version is None:
        return f"{bwrap} is not a bubblewrap that runs ({said}); install the package bubblewrap again"
    if report.errno in _DENIED or "namespace" in report.said:
        for found in (_sysctls(machine), _container(report, machine), _apparmor(machine)):
            if found:
                return f"{found} ({said})"
    return f"bubblewrap cannot make a sandbox here: {said}; `shellback sandbox run true` tries it again"


def passing(report: Report, machine: Machine) -> bool:
    """Whether the failure may pass: memory, descriptors or time were short."""
    if report.errno == errno.ENOSPC:
        return machine.sysctl("user.max_user_namespaces") != "0"
    return report.timed_out or report.errno in _SCARCE


def _last(report: Report) -> str:
    lines = [line for line in report.said.splitlines() if line.startswith("bwrap: ")]
    if not lines:
        # One of ours that says which file was in the way.
        lines = [line for line in report.said.splitlines() if line.endswith(f": {os.strerror(report.errno)}")]
    if lines:
        return lines[-1]
    return os.strerror(report.errno) + (" while it was being made" if report.stage != COMMAND else "")


def _version(bwrap: str) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([bwrap, "--version"], capture_output=True, timeout=_VERSION_S, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"bubblewrap (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def _sysctls(machine: Machine) -> str:
    for name, value in (("kernel.unprivileged_userns_clone", "1"), ("user.max_user_namespaces", "15000")):
        if machine.sysctl(name) == "0":
            return (
                f"user namespaces are switched off here: {name} is 0; as root run `sysctl -w {name}={value}`, and put"
                f" the line `{name}={value}` into /etc/sysctl.d/60-shellback.conf for the next boot"
            )
    return ""


def _container(report: Report, machine: Machine) -> str:
    if machine.masked and report.stage == COMMAND and not report.said.strip().startswith("bwrap: "):
        return (
            "parts of /proc are masked here, as in a container, and so no sandbox gets a /proc of its own; start the"
            " container with `--security-opt systempaths=unconfined` (Docker) or `--security-opt unmask=ALL` (Podman)"
        )
    if machine.filtered:
        return (
            "a system call filter is on this process, as in a container, and it refuses new namespaces; start the"
            " container with `--security-opt seccomp=unconfined`, or with a profile that allows clone, unshare, setns,"
            " mount, umount2 and pivot_root (a unit of systemd: SystemCallFilter=)"
        )
    if machine.contained:
        return (
            "this is a container, which may not make namespaces; start it with `--security-opt seccomp=unconfined"
            " --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
        )
    return ""


def _apparmor(machine: Machine) -> str:
    if machine.sysctl("kernel.apparmor_restrict_unprivileged_userns") != "1":
        return ""
    profile = f"/etc/apparmor.d/{_PROFILE}"
    if machine.has(profile):
        load = f"as root run `apparmor_parser -r {profile}`, or give bwrap's profile there a line `userns,`"
    elif machine.has(f"/usr/share/apparmor/extra-profiles/{_PROFILE}"):
        load = (
            f"as root run `cp /usr/share/apparmor/extra-profiles/{_PROFILE} /etc/apparmor.d/` and"
            f" `apparmor_parser -r {profile}`"
        )
    else:
        load = (
            f"install the profile {profile} (package apparmor-profiles), or one for /usr/bin/bwrap with the line"
            " `userns,`, and load it as root with `apparmor_parser -r FILE`"
        )
    return (
        "AppArmor takes the rights from user namespaces of programs without a profile"
        f" (kernel.apparmor_restrict_unprivileged_userns=1); {load}; or allow them to every program:"
        " `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
    )
