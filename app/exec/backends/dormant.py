"""Reads the records of a home without a running supervisor, and abandons sessions there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from shellback.exec.supervisor.process.job import ITSELF, Job
from shellback.exec.supervisor.records.records import ABANDONED, Records, Unreadable
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import Message


def gone(home: Path, session_id: str) -> bool:
    """Whether the directory of a session that was placed in this home is missing."""
    return not (home / layout.SESSIONS / session_id).is_dir()


def lost(session_id: str, evidence: Literal["container_restarted", "machine_rebooted", "record_unreadable"]) -> Message:
    """The status of a session whose end is unknown."""
    return {
        "state": "lost",
        "record": Job(session_id, {}).end(linux.boot_id(), state="lost", evidence=evidence, ended_by=ITSELF),
    }


def status(home: Path, session_id: str) -> Message | None:
    """A session's status by its records alone; None where it was started and its end is not on record.

    Blocks.
    """
    if gone(home, session_id):
        return lost(session_id, "record_unreadable")
    records = Records(str(home))
    try:
        for name in (layout.EXIT, layout.ACKED):
            record = records.ended(session_id, name)
            if record is not None:
                return {"state": record["state"], "record": record, "acknowledged": name == layout.ACKED}
        claim = records.claimed_by(session_id)
    except Unreadable:
        return lost(session_id, "record_unreadable")
    finally:
        os.close(records.fd)
    return {"state": "unknown"} if claim is None else {"state": "abandoned"} if claim == ABANDONED else None


def ended(home: Path, session_id: str) -> Message:
    """As `status`, for a home in which nothing runs: a started session without an exit record is lost. Blocks."""
    told = status(home, session_id)
    if told is not None:
        return told
    claim = (home / layout.SESSIONS / session_id / layout.STARTED).read_text("ascii", "replace").split()
    if not claim:
        return lost(session_id, "record_unreadable")
    return lost(session_id, "container_restarted" if claim[0] == linux.boot_id() else "machine_rebooted")


def abandon(home: Path, session_id: str) -> bool:
    """Make sure that a session never starts, whoever tries at the same time; False where it was begun. Blocks."""
    records = Records(str(home))
    try:
        claim = records.claim(session_id, ABANDONED)
        if claim is not None:
            os.close(claim)
        return claim is not None or records.claimed_by(session_id) == ABANDONED
    except Unreadable:
        return False
    finally:
        os.close(records.fd)
