"""A web server whose answers stop in the middle until a test lets them go on, and commands that want all of one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator
from pathlib import Path

from shellback.exec.wire import layout

PIECE = 1000
END = b"whole\n"
_HEAD = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {PIECE + len(END)}\r\n\r\n".encode()
CURL = "curl -sSN --noproxy '' --retry 30 --retry-delay 1 --retry-all-errors"


class Server:
    """Answers each request with a piece; the rest, and the end, come when a test says so."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        self.go = threading.Event()
        self.flowing = threading.Semaphore(0)
        self._listener = listener

    def listed(self, home: Path) -> None:
        """Have the address of this server listed in a state directory, and its names be asked about."""
        file = home / "shellback.toml"
        file.write_text(f'[network]\nhosts = ["127.0.0.1:{self.port}"]\nprivate = ["127.0.0.0/8"]\n')
        file.chmod(0o600)

    def run(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted:
            accepted.recv(1 << 16)
            accepted.sendall(_HEAD + b"." * PIECE)
            self.flowing.release()
            self.go.wait()
            with contextlib.suppress(OSError):  # its proxy may have been killed
                accepted.sendall(END)


@contextlib.contextmanager
def pieces() -> Generator[Server]:
    """The server, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Server(listener)
        threading.Thread(target=found.run, daemon=True).start()
        try:
            yield found
        finally:
            found.go.set()


def records(home: Path) -> list[Path]:
    """The records of connections of a state directory that are no rows yet."""
    return [path for path in (home / layout.NETWORK).rglob("*") if path.is_file()]
