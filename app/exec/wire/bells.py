"""Bells: datagrams to sockets in the state directory, by which processes of one host wake each other."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from shellback.exec.wire.descriptors import short
from shellback.exec.wire.layout import ONCE


def prefix(name: str) -> str:
    """How the file names of the sockets begin at which `name` is heard."""
    return f"{name.partition('.')[0]}."


def knock(directory: Path, name: str) -> bool:
    """Wake who listens to this name; never raises, and does not wait. Whether somebody heard it."""
    heard = False
    with contextlib.suppress(OSError), short(directory) as folder:
        for one in os.listdir(directory):
            if one.startswith(prefix(name)):
                heard |= _knocked(f"{folder}/{one}")
    return heard


def _knocked(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as ours:
        try:
            ours.sendto(b"1", path)
        except BlockingIOError:
            return True  # earlier rings are unread, and are for this item too
        except ConnectionRefusedError:
            # Not that of a worker: the next one of its name may just have bound it.
            if path.endswith(ONCE):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        except OSError:
            return False  # of a worker that has ended
    return True
