"""A way to Postgres that can be cut: it stands between a test and its server, on a unix socket of its own."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Final, Literal

NAME: Final = ".s.PGSQL.5432"
_COMMIT: Final = b"COMMIT\0"

Way = Literal["open", "cut after commit", "cut before commit", "stalled"]


class Severed:
    """Passes bytes both ways until it is told otherwise.

    `cut after commit` lets the next COMMIT through and ends the connection once the server has answered, before the
    client hears of it; `cut before commit` ends it instead of letting the COMMIT through. Each happens once.
    `stalled` passes nothing on, as a network does that has gone.
    """

    def __init__(self, server: Path, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self.way: Way = "open"
        self.cuts = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server / NAME))
                self._pairs.append((client, server))
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as ready, contextlib.suppress(OSError, ValueError):
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    source = client if key.fileobj is client else server
                    data = source.recv(1 << 16)
                    if not data or not self._forward(source is client, data, server if source is client else client):
                        return

    def _forward(self, from_client: bool, data: bytes, target: socket.socket) -> bool:
        if self.way == "stalled":
            return True
        if self.way != "open" and _COMMIT in data:
            if self.way == "cut before commit" and from_client:
                self.way, self.cuts = "open", self.cuts + 1
                return False
            if self.way == "cut after commit" and not from_client:
                self.way, self.cuts = "open", self.cuts + 1
                return False
        target.sendall(data)
        return True

    def cut_all(self) -> None:
        """End every connection there is now."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()


@contextlib.contextmanager
def severed(url: str) -> Generator[tuple[Severed, str]]:
    """The way, and the URL that leads over it instead of directly to the server of `url`."""
    before, _, server = url.partition("host=")
    folder = Path(tempfile.mkdtemp(prefix="sbcut", dir="/tmp"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / NAME))
        listener.listen()
        way = Severed(Path(server), listener)
        try:
            yield way, f"{before}host={folder}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            way.cut_all()
            shutil.rmtree(folder)
