"""`python -m tests.towns.serving PLACE UID SIGN`: the servers of a town, in the namespaces that it is begun in.

PLACE has `key`, `certificate`, what is served at names below `www/NAME/`, and in `code` what UID may read. With a file
`sshd`, the configuration of a server of ssh, that one serves port 22. Who asks
for a FIFO is answered once somebody has written there. It says the process of the open proxy and "ready", then to each
line what has come: texts that begin with SIGN, each with whether it came to a host that is listed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.towns.names import FRONT, FRONT6, LISTED, RESOLVER, SILENT, ZONE, is_listed
from tests.towns.readings import requests

PORTS: Final = (22, 53, 80, 443, 853, 1080, 8080)
_UP: Final = (
    "ip link set lo up multicast on", "ip route add local default dev lo", "ip -6 route add local default dev lo",
    f"ip addr add {RESOLVER}/32 dev lo", "ip route add multicast 224.0.0.0/4 dev lo",
    f"ip route add unreachable {SILENT}/32",
)  # fmt: skip
_IDLE_S: Final = 5.0
_WEBSOCKET: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Source: RFC 6455, 1.3."""
_SETTLE_S: Final = 0.5
_PAGE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nseen\n"


class Watch:
    """The signs that have come."""

    def __init__(self, sign: str) -> None:
        self._pattern = re.compile(rf"{sign}-[0-9a-z-]+".encode(), re.IGNORECASE)
        self.seen: set[tuple[str, bool]] = set()

    def look(self, data: bytes, *, listed: bool = False) -> None:
        """Note the signs in this."""
        for found in self._pattern.findall(data):
            self.seen.add((found.decode().lower(), listed))


class Serving:
    """Serves each connection to the town by the address that it came to."""

    def __init__(self, place: Path, watch: Watch) -> None:
        self._www = place / "www"
        self._sshd = place / "sshd"
        self._watch = watch
        self._names: dict[int, str] = {}
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(place / "certificate", place / "key")
        self._context.sni_callback = self._named

    def _named(self, one: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext) -> None:
        self._names[threading.get_ident()] = name or ""
        del one

    def serve(self, client: socket.socket) -> None:
        """Serve one connection."""
        local, port = client.getsockname()[:2]
        front = local.removeprefix("::ffff:") in {FRONT, FRONT6}
        with client, contextlib.suppress(OSError):
            first = client.recv(1 << 14, socket.MSG_PEEK)
            client.settimeout(_IDLE_S)
            if port == 53:
                size = int.from_bytes(_exactly(client, 2))
                answer = answered(_exactly(client, size))
                self._watch.look(first)
                client.sendall(len(answer).to_bytes(2) + answer)
            elif first[:1] in {b"\x14", b"\x16"}:
                if first[:1] == b"\x14":  # as servers that skip what boxes in between want to see
                    client.recv(5 + int.from_bytes(first[3:5]))
                self._watch.look(first)
                with self._context.wrap_socket(client, server_side=True) as inner:
                    name = self._names.get(threading.get_ident(), "")
                    self._talk(inner, lambda data: self._watch.look(data, listed=front and is_listed(name)), name)
            elif front and port in {80, 8080}:
                self._talk(client, self._read)
            elif front and port == 22 and self._sshd.exists():
                client.setblocking(True)
                words = [shutil.which("sshd") or "sshd", "-i", "-e", "-f", self._sshd]
                subprocess.run(words, stdin=client.fileno(), stdout=client.fileno(), check=False)
            else:
                if port == 22:
                    client.sendall(b"SSH-2.0-town\r\n")
                self._talk(client, self._watch.look)

    def _read(self, data: bytes) -> None:
        for host, request in requests(data):
            self._watch.look(request, listed=is_listed(host))

    def _talk(self, client: socket.socket, look: Callable[[bytes], None], name: str = "") -> None:
        data, at = b"", 0
        while more := client.recv(1 << 16):
            data += more
            look(data)
            if re.search(rb"\r?\n\r?\n", asked := data[at:]):
                client.sendall(self._page(asked, name))
                at = len(data)
                if b"connection: close" in asked.lower() and not isinstance(client, ssl.SSLSocket):
                    client.shutdown(socket.SHUT_WR)

    def _page(self, data: bytes, name: str) -> bytes:
        words = data.lstrip().split(maxsplit=2)
        path = re.sub(rb"^https?://[^/]*", b"", words[1]).decode("latin-1") if len(words) > 1 else "/"
        named = re.search(rb"^host:\s*([^\s:]+)", data, re.IGNORECASE | re.MULTILINE)
        if key := re.search(rb"^sec-websocket-key:\s*(\S+)", data, re.IGNORECASE | re.MULTILINE):
            digest = base64.b64encode(hashlib.sha1(key[1] + _WEBSOCKET).digest())
            head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            return head + b"Sec-WebSocket-Accept: " + digest + b"\r\n\r\n\x81\x04seen"
        if path.startswith("/redirect/"):
            where = path.removeprefix("/redirect/")
            return f"HTTP/1.1 302 Found\r\nLocation: http://{where}\r\nContent-Length: 0\r\n\r\n".encode()
        host = name or (named[1].decode() if named else "")
        file = self._www / host / path.partition("?")[0].strip("/")
        file = file / "index.html" if file.is_dir() else file
        if not (self._www / host).is_dir() or not host:
            return _PAGE
        if not file.is_file() and not file.is_fifo():
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        body = file.read_bytes()
        kind = {".html": "text/html", ".json": "application/json"}.get(file.suffix, "application/octet-stream")
        return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data


_asked: Counter[str] = Counter()


def answered(query: bytes) -> bytes:
    """The answer to one question of DNS."""
    at, labels = 12, list[str]()
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size
    name, kind = ".".join(labels).lower(), int.from_bytes(query[at + 1 : at + 3])
    rounds = ZONE.get(name) or next(
        (ZONE[above] for above in (LISTED, "evil.example") if name.endswith(f".{above}")), ()
    )
    found = rounds[min(_asked[name], len(rounds) - 1)] if rounds else ()
    _asked[name] += kind == 1
    packed = [socket.inet_pton(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in found]
    records = [one for one in packed if len(one) == {1: 4, 28: 16}.get(kind)]
    head = query[:2] + (b"\x81\x80" if rounds else b"\x81\x83") + b"\0\1" + len(records).to_bytes(2) + bytes(4)
    body = b"".join(b"\xc0\x0c" + kind.to_bytes(2) + b"\0\1" + bytes(4) + len(one).to_bytes(2) + one for one in records)
    return head + query[12 : at + 5] + body


def _resolve() -> None:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((RESOLVER, 53))
    while True:
        with contextlib.suppress(IndexError):
            query, who = one.recvfrom(1 << 16)
            one.sendto(answered(query), who)


def _sniff(watch: Watch) -> None:
    """See the packets that are not of TCP, whatever they are."""
    one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    print("ready", flush=True)
    while True:
        data = one.recv(1 << 16)
        version = data[0] >> 4
        if data[{4: 9, 6: 6}.get(version, 0)] != socket.IPPROTO_TCP:
            watch.look(data)


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def _hear(watch: Watch, listener: socket.socket) -> None:
    def serve(client: socket.socket) -> None:
        with client:
            while data := client.recv(1 << 16):
                watch.look(data)

    _accept(listener, serve)


def main(place: Path, uid: int, sign: str) -> None:
    """Serve until the end of the input."""
    for line in _UP:
        subprocess.run(line.split(), check=True)
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")
    for name, text in {
        "resolv.conf": f"nameserver {RESOLVER}\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }.items():
        (place / name).write_text(text)
        (place / name).chmod(0o644)
        subprocess.run(["mount", "--bind", place / name, os.path.realpath(f"/etc/{name}")], check=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    watch = Watch(sign)
    serving = Serving(place, watch)
    for port in PORTS:
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        threading.Thread(target=_accept, args=(listener, serving.serve), daemon=True).start()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{sign}")
    abstract.listen()
    threading.Thread(target=_hear, args=(watch, abstract), daemon=True).start()
    threading.Thread(target=_resolve, daemon=True).start()
    who: dict[str, Any] = {} if os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
    words = ["/usr/bin/env", "python3", "-m", "tests.towns.opening"]
    env = {"PATH": os.defpath, "PYTHONPATH": str(place / "code")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env, **who) as proxy:
        assert proxy.stdout is not None
        proxy.stdout.readline()
        print(proxy.pid, flush=True)
        threading.Thread(target=_sniff, args=(watch,), daemon=True).start()
        for _ in sys.stdin:
            time.sleep(_SETTLE_S)  # what has come is read meanwhile
            print(json.dumps(sorted(watch.seen)), flush=True)
        proxy.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
