"""The directory of a container: its supervisor's state, what it was made of, and what its first process said.

The records of its sessions are read here if no supervisor runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final, Literal

from shellback.exec.backends.container import SURROUNDINGS, Container
from shellback.exec.link import launch
from shellback.exec.supervisor.process.job import ITSELF, Job
from shellback.exec.supervisor.records.records import ABANDONED, Records, Unreadable
from shellback.exec.wire import layout, linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.peers import listening
from shellback.exec.wire.protocol import Message

DESCRIPTION: Final = layout.CONTAINER
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def known(home: Path) -> Container | None:
    """The description of a home's container; None if it cannot be read."""
    try:
        return Container.from_json((home / DESCRIPTION).read_text())
    except (OSError, ValueError):
        return None


def describe(home: Path, want: Container) -> None:
    """Write the description of a home's container to disk."""
    aside = home / f"{DESCRIPTION}.new"
    with linux.opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        linux.write_all(fd, want.to_json().encode())
        os.fsync(fd)
    aside.replace(home / DESCRIPTION)


def surroundings(home: Path) -> dict[str, Any]:
    """What was found in its image when it came up: `python` (a version) and `shell` (a path)."""
    try:
        return dict(json.loads((home / SURROUNDINGS).read_text()))
    except (OSError, ValueError):
        return {}


def emptied(home: Path) -> bool:
    """Whether nothing of any session is left in it."""
    try:
        return not any((home / layout.SESSIONS).iterdir())
    except FileNotFoundError:
        return True


def listens(home: Path) -> bool:
    """Whether a process listens at the supervisor's socket of a home; returns at once."""
    return bool(peer(home))


def peer(home: Path) -> int:
    """The pid, on this machine, of the process that listens there; 0 if there is none."""
    with contextlib.suppress(OSError), linux.opened(home / layout.SUPERVISOR, _FOLDER) as folder:
        return listening(folder, layout.SOCKET)
    return 0


def kept(home: Path) -> bool:
    """Whether a keeper holds this home. It is the first process of its container: without it nothing runs there."""
    try:
        folder = os.open(home / layout.SUPERVISOR, _FOLDER)
    except OSError:
        return False
    with closing(folder):
        return launch.kept(folder)


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
    with closing(records.fd):
        try:
            return records.standing(session_id, layout.EXIT, layout.ACKED)
        except Unreadable:
            return lost(session_id, "record_unreadable")


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
