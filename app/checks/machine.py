"""Checks of the machine: kernel, descriptors, disk, clock."""

from __future__ import annotations

import os
import platform
import resource
import time
from typing import Final

import sqlalchemy as sa

from shellback.checks.check import Check
from shellback.exec.core.display import age
from shellback.exec.log.logs import kept_logs
from shellback.exec.wire import layout
from shellback.storage import rows
from shellback.storage.tables import hosts
from shellback.wiring.wiring import Place
from shellback.work.hosts.clock import LEAP_S

KERNEL: Final = (5, 10)
DESCRIPTORS: Final = 4096
DISK_BYTES: Final = 1024**3
_DAY_S: Final = 86400.0


def kernel() -> Check:
    """Whether the kernel is new enough."""
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if platform.system() != "Linux" or numbers < KERNEL:
        return Check("kernel", "fail", f"{platform.system()} {release}", "use Linux 5.10 or newer (for pidfd)")
    return Check("kernel", "ok", f"Linux {release}")


def descriptors() -> Check:
    """Whether the limit of descriptors allows many processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS:
        remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE= of a unit); each process takes up to four"
        return Check("descriptors", "warn", f"hard limit {hard}", remedy)
    return Check("descriptors", "ok", f"hard limit {hard}")


def disk(where: Place) -> Check:
    """Room where the state directory is."""
    found = os.statvfs(where.home)
    free = found.f_bavail * found.f_frsize
    if free < DISK_BYTES:
        return Check("disk", "warn", f"{free // 1024**2} MiB free in {where.home}", "make room, or logs are dropped")
    return Check("disk", "ok", f"{free // 1024**3} GiB free in {where.home}")


def logs(where: Place) -> Check:
    """How much room logs take."""
    taken = sum(one.all_bytes for one in kept_logs(where.home / layout.SESSIONS))
    text = f"{taken // 1024**2} MiB of logs"
    budget = where.settings.log_total_bytes
    if 0 < budget < taken:
        remedy = "a worker empties the logs of ended sessions; otherwise end sessions, or raise LOG_TOTAL_BYTES"
        return Check("logs", "warn", f"{text}, beyond LOG_TOTAL_BYTES ({budget // 1024**2} MiB)", remedy)
    return Check("logs", "ok", text)


def clock(conn: sa.Connection, host_id: str) -> Check:
    """Whether the clock agrees with the database's, and has not jumped for a day."""
    before = time.time()
    theirs = rows.now(conn)
    # The database read its clock at some time between the two.
    apart = max(before - theirs, theirs - time.time(), 0.0)
    row = conn.execute(sa.select(hosts.c.jumped_at, hosts.c.jumped_by).where(hosts.c.host_id == host_id)).one_or_none()
    remedy = "synchronise it: chrony, or systemd-timesyncd (`timedatectl set-ntp true`)"
    if apart > LEAP_S:
        return Check("clock", "warn", f"differs by {apart:.1f} s from the database's clock", remedy)
    if row is not None and row.jumped_at is not None and abs(theirs - row.jumped_at) < _DAY_S:
        text = f"jumped by {row.jumped_by:+.1f} s, {age(theirs - row.jumped_at)} ago"
        return Check("clock", "warn", f"{text}; approvals may have expired early", remedy)
    return Check("clock", "ok", "no jump in the last 24 hours; agrees with the database")
