"""`python -m tests.towns.opening`: a proxy that refuses nobody, and reads each name as the most careless program does.

What goes out through it goes out where a list does not hold. It says its port once it listens.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import unicodedata
import urllib.parse
from typing import Final

from tests.towns.names import EVIL

PORT: Final = 3128
TIME_S: Final = 10.0


def dialled(host: str, port: int) -> socket.socket:
    """A connection to what the name may mean to anyone."""
    name = (
        unicodedata.normalize("NFKC", urllib.parse.unquote(host)).replace("。", ".").split("\0")[0].strip().strip("[]")
    )
    return socket.create_connection((name.rpartition("@")[2].split("#")[0].split("\\")[0], port), TIME_S)


def serve(client: socket.socket) -> None:
    """Serve one connection."""
    with client, contextlib.suppress(OSError, ValueError, IndexError):
        client.settimeout(TIME_S)
        first = client.recv(1, socket.MSG_PEEK)
        server = {b"\4": _socks4, b"\5": _socks5}.get(first, _http)(client)
        if server is not None:
            with server:
                thread = threading.Thread(target=_carry, args=(server, client), daemon=True)
                thread.start()
                _carry(client, server)
                thread.join(TIME_S)


def _carry(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data


def _text(client: socket.socket) -> str:
    data = b""
    while (one := client.recv(1)) not in {b"\0", b""}:
        data += one
    return data.decode("latin-1")


def _socks4(client: socket.socket) -> socket.socket | None:
    _, _, *port_address = _exactly(client, 8)
    _text(client)
    port, address = int.from_bytes(bytes(port_address[:2])), bytes(port_address[2:])
    host = _text(client) if address[:3] == b"\0\0\0" else socket.inet_ntoa(address)
    server = dialled(host, port)
    client.sendall(b"\0\x5a" + bytes(6))
    return server


def _socks5(client: socket.socket) -> socket.socket | None:
    _, count = _exactly(client, 2)
    methods = _exactly(client, count)
    if 0 in methods:
        client.sendall(b"\5\0")
    else:
        client.sendall(b"\5\2")
        _exactly(client, _exactly(client, 2)[1])
        _exactly(client, _exactly(client, 1)[0])
        client.sendall(b"\1\0")
    _, command, _, kind = _exactly(client, 4)
    if kind == 3:
        host = _exactly(client, _exactly(client, 1)[0]).decode("latin-1")
    else:
        host = socket.inet_ntop(
            *((socket.AF_INET, _exactly(client, 4)) if kind == 1 else (socket.AF_INET6, _exactly(client, 16)))
        )
    port = int.from_bytes(_exactly(client, 2))
    if command == 3:
        return _relay(client)
    server = dialled(host if command == 1 else EVIL, port)
    client.sendall(b"\5\0\0\1" + bytes(6))
    if command == 2:  # and who was waited for is there
        client.sendall(b"\5\0\0\1" + bytes(6))
    return server


def _relay(client: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(TIME_S)
        client.sendall(b"\5\0\0\1\x7f\0\0\1" + one.getsockname()[1].to_bytes(2))
        data = one.recv(1 << 16)
        one.sendto(data[10:], (socket.inet_ntoa(data[4:8]), int.from_bytes(data[8:10])))


def _http(client: socket.socket) -> socket.socket | None:
    head = b""
    while not re.search(rb"\r?\n\r?\n$", head) and (one := client.recv(1)):
        head += one
    words = head.lstrip().split(b"\n")[0].rstrip(b"\r")
    method, _, target = words.partition(b" ")
    where = re.sub(r" HTTP/[\d.]+$", "", target.decode("utf-8", "replace"), flags=re.IGNORECASE)
    if method.upper() == b"CONNECT":
        host, _, port = where.rpartition(":")
        server = dialled(host, int(port))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return server
    url = re.match(r"\w+://([^/?]*)", where)
    named = re.search(rb"^host:\s*(\S+)", head, re.IGNORECASE | re.MULTILINE)
    place = url[1] if url else named[1].decode("latin-1") if named else ""
    host, port = (place[: found.start()], int(found[1])) if (found := re.search(r":(\d+)$", place)) else (place, 80)
    server = dialled(host, port)
    server.sendall(head.replace(url[0].encode("utf-8"), b"", 1) if url else head)
    return server


def main() -> None:
    """Serve at the address of the proxy."""
    with socket.create_server(("127.0.0.1", PORT)) as listener:
        print(PORT, flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
