"""Who is at the other end of a socket. Loads little: short commands need it."""

from __future__ import annotations

import os
import socket
import struct


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """The pid, user and group of the process at the other end; raises OSError."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", found)
    return pid, uid, gid


def listening(folder: int, name: str) -> int:
    """The pid of who listens at the socket `name` in the directory of this descriptor; at once, or raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as one:
        one.connect(f"/proc/self/fd/{folder}/{name}")
        return peer_of(one)[0]


def peer_is_ours(connection: socket.socket) -> bool:
    """Whether a process of our user is at the other end."""
    return peer_of(connection)[1] == os.geteuid()
