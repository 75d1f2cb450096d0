"""Who is at the other end of a socket. Loads little: short commands need it."""

from __future__ import annotations

import os
import socket
import struct


def peer_is_ours(connection: socket.socket) -> bool:
    """Whether a process of our user is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.geteuid()
