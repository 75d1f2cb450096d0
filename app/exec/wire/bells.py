"""Bells: datagrams to sockets in the state directory, by which processes of one host wake each other."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import random
import socket
from pathlib import Path
from typing import Final

from shellback.exec.wire.descriptors import short
from shellback.exec.wire.layout import ONCE

MOST: Final = 255
"""So many others are woken at most instead of one; a datagram has their number."""


def prefix(name: str) -> str:
    """How the file names of the sockets begin at which `name` is heard; of `turns.HOST` with a digest of the host."""
    kind, _, rest = name.partition(".")
    return f"{kind}.{hashlib.sha256(rest.encode()).hexdigest()[:8]}." if rest else f"{kind}."


def knock(directory: Path, name: str = "") -> bool:
    """Wake all who listen to this name, or to any; never raises, and does not wait. Whether somebody heard it."""
    with contextlib.suppress(OSError), short(directory) as folder:
        heard = [_knocked(f"{folder}/{one}", 0) for one in _listeners(directory, name)]
        return any(one is not False for one in heard)
    return False


def knock_one(directory: Path, name: str, *, behind: str = "", others: int = MOST) -> bool:
    """Wake one of those who listen to this name; else as `knock`.

    It is told how many `others` it may wake instead, if it has no use for the ring. They come in the order of their
    sockets' names, from the one that stands `behind` a name on; without a name, from any on.
    """
    with contextlib.suppress(OSError), short(directory) as folder:
        found = sorted(_listeners(directory, name))
        first = bisect.bisect_right(found, behind) if behind else random.randrange(len(found) or 1)  # noqa: S311
        order = found[first:] + found[:first]
        heard = False
        for left, one in zip(range(min(others, len(order) - 1), -1, -1), order, strict=False):
            knocked = _knocked(f"{folder}/{one}", left)
            if knocked:
                return True
            heard |= knocked is None  # it may be paused, so the next one is asked
        return heard
    return False


def _listeners(directory: Path, name: str) -> list[str]:
    return [one for one in os.listdir(directory) if not name or one.startswith(prefix(name))]


def _knocked(path: str, others: int) -> bool | None:
    """Whether somebody hears it; None if earlier rings are unread there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as ours:
        try:
            ours.sendto(bytes([others]), path)
        except BlockingIOError:
            return None
        except ConnectionRefusedError:
            # Not that of a worker: the next one of its name may just have bound it.
            if path.endswith(ONCE):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        except OSError:
            return False  # of a worker that has ended
    return True
