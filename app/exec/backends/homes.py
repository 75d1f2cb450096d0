"""The directory of a container: its supervisor's state, what it was made of, and what its first process said."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.container import SURROUNDINGS, Container
from shellback.exec.link import launch
from shellback.exec.wire import layout, linux

DESCRIPTION: Final = layout.CONTAINER


def known(home: Path) -> Container | None:
    """What the container of a home was made of; None where that cannot be read."""
    try:
        return Container.from_json((home / DESCRIPTION).read_text())
    except (OSError, ValueError):
        return None


def describe(home: Path, want: Container) -> None:
    """Have it on disk what the container of a home is made of."""
    _write(home / DESCRIPTION, want.to_json())


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
    """Whether somebody listens at the supervisor's socket of a home; answers at once."""
    return bool(peer(home))


def peer(home: Path) -> int:
    """The process that listens there, as this machine numbers them; 0 where there is none."""
    try:
        folder = os.open(home / layout.SUPERVISOR, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
            connection.connect(f"/proc/self/fd/{folder}/{layout.SOCKET}")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", credentials)[0])
    except OSError:
        return 0
    finally:
        os.close(folder)


def kept(home: Path) -> bool:
    """Whether a keeper holds this home. It is the first process of its container: without it nothing runs there."""
    try:
        fd = os.open(home / layout.SUPERVISOR, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return launch.kept(fd)
    finally:
        os.close(fd)


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        linux.write_all(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    aside.replace(path)
