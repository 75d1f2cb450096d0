"""Messages between keeper and supervisor, with descriptors, over one sequenced-packet socket.

To the keeper: `hold` (session, names of the descriptors that come along, notes), `drop` (session,
names, or all), `keep` (a wait status), `forget` (numbers of wait statuses). From it: `ended`.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Final, cast

from app.exec.supervisor.protocol import Message

MAX_MESSAGE: Final = 1 << 15
MAX_FDS: Final = 8


@dataclass(slots=True)
class Held:
    """What the keeper has of one session: descriptors by name, and the supervisor's notes."""

    fds: dict[str, int] = field(default_factory=dict[str, int])
    notes: Message = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Dead:
    """A process that the keeper reaped: identity and wait status as waitid gave it."""

    number: int
    pid: int
    start: int
    sid: int
    code: int
    status: int


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ends


def send(link: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Send one message; the receiver has it, and the descriptors, even if we are gone by then."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if fds:
        socket.send_fds(link, [data], fds)
    else:
        link.send(data)


def receive(link: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message, or None when the other side has gone.

    Raises:
        BlockingIOError: There is none now.
    """
    try:
        data, fds, _, _ = socket.recv_fds(link, MAX_MESSAGE, MAX_FDS)
    except ConnectionError:
        return None
    return (cast("Message", json.loads(data)), fds) if data else None
