"""Clients on the socket: frames in and out, without ever blocking the loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final

from shellback.exec.supervisor.loop import IN, OUT, Loop
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import MAX_FRAME, Decoder, Message, ProtocolError, encode

_BACKLOG: Final = 512
_MAX_UNSENT: Final = 64 * 1024 * 1024
_READ: Final = 1 << 16


class Peer:
    """One connected client."""

    def __init__(self, loop: Loop, connection: socket.socket, handle: Callable[[Peer, Message], None]) -> None:
        self._loop = loop
        self._socket = connection
        self._fd = connection.fileno()
        self._handle = handle
        self._decoder = Decoder(MAX_FRAME)
        self._unsent = bytearray()
        self.open = True
        self.watches = False
        self.waits: dict[object, Any] = {}
        """Requests for more output that wait, by number."""
        self.closed: Callable[[Peer, str], None] = lambda _peer, _why: None
        connection.setblocking(False)
        loop.watch(self._fd, self._ready, IN)

    def _ready(self, events: int) -> None:
        if events & OUT and self.open:
            self._flush()
        if events & ~OUT and self.open:
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close("")
            return
        try:
            messages = self._decoder.feed(data)
        except ProtocolError as error:
            self.send({"id": None, "ok": False, "error": "malformed", "message": str(error)})
            self.close(str(error))
            return
        for message in messages:
            if self.open:
                self._handle(self, message)

    def send(self, message: Message) -> None:
        """Send now, or as soon as the client reads; a client that does not read is disconnected."""
        if not self.open:
            return
        data = encode(message)
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except (BrokenPipeError, ConnectionResetError):
                return  # the loop sees the hang-up next, after the client's last messages
            except OSError as error:
                # Disconnected, the client asks again; otherwise it would wait forever.
                self.close(f"cannot be answered: {error.strerror}")
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.change(self._fd, IN | OUT)
        self._unsent += data
        if len(self._unsent) > _MAX_UNSENT:
            self.close("does not read")

    def _flush(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent[: 1 << 20])]
        except BlockingIOError:
            return
        except OSError:
            self.close("")
            return
        if not self._unsent:
            self._loop.change(self._fd, IN)

    def close(self, why: str) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._fd)
            self._socket.close()
            self.closed(self, why)


def listen(folder_fd: int) -> socket.socket:
    """Listen in the folder, whose path may have any length; an existing socket is replaced."""
    path = f"/proc/self/fd/{folder_fd}/{layout.SOCKET}"
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
