"""Attempts to reach sockets and networks. They run inside, with the standard library only."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from tests.escape.probe import DONE, Place, Probes, done, first_of, told

probe = Probes()
UNIX = "Unix sockets"
NETWORK = "Network and DNS"
TIME_S = 4.0


def asked(family: socket.AddressFamily, kind: socket.SocketKind, address: object) -> str:
    """What is told by whoever listens there."""
    with socket.socket(family, kind) as one:
        one.settimeout(TIME_S)
        one.connect(address)  # pyright: ignore[reportArgumentType]
        if kind == socket.SOCK_DGRAM:
            one.send(b"?")
        return one.recv(80).decode(errors="replace")


def asked_by_path(path: str) -> str:
    """What a socket tells that has this path."""
    return asked(socket.AF_UNIX, socket.SOCK_STREAM, path)


@probe(UNIX, seen=told)
def connect_abstract(place: Place) -> object:
    """Connect to an abstract socket."""
    return asked_by_path("\0" + place.abstract)


@probe(UNIX, seen=told)
def connect_path(place: Place) -> object:
    """Connect to a socket by its path outside, as an agent's for keys has one."""
    return asked_by_path(place.socket)


@probe(UNIX, seen=told)
def connect_in_run(place: Place) -> object:
    """Connect to a socket in /run, as the message bus and container engines have them."""
    return asked_by_path(place.socket_in_run)


@probe(UNIX, seen=told)
def connect_by_symlink(place: Place) -> object:
    """Connect by a symlink in the workspace."""
    os.symlink(place.socket, f"{place.workspace}/sock-link")
    return asked_by_path(f"{place.workspace}/sock-link")


@probe(UNIX, seen=told)
def connect_by_root_of_another(place: Place) -> object:
    """Connect by /proc/PID/root of a process outside."""
    os.symlink(f"/proc/{place.pid}/root{place.outside}", f"{place.workspace}/out")
    return asked_by_path(f"{place.workspace}/out/sock")


@probe(UNIX, seen=done)
def list_sockets(place: Place) -> object:
    """Read the names of all abstract sockets (/proc/net/unix)."""
    pids = ("self", "1", place.pid)
    first_of(pids, lambda pid: _line(f"/proc/{pid}/net/unix", f"@{place.abstract}"))


def _line(path: str, text: str) -> str:
    lines = [line for line in Path(path).read_text().splitlines() if text in line]
    if not lines:
        raise FileNotFoundError(path)
    return lines[0][-80:]


@probe(NETWORK, seen=told)
def connect_tcp(place: Place) -> object:
    """Connect to a server on the host's loopback, TCP over IPv4."""
    return asked(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", place.tcp4))


@probe(NETWORK, seen=told)
def connect_tcp_to_any(place: Place) -> object:
    """The same by the address 0.0.0.0 and by mapped addresses of IPv6."""
    hosts = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::ffff:127.0.0.1"))
    return first_of(hosts, lambda one: asked(one[0], socket.SOCK_STREAM, (one[1], place.tcp4)))


@probe(NETWORK, seen=told)
def connect_tcp6(place: Place) -> object:
    """Connect to a server on the host's loopback, TCP over IPv6."""
    return asked(socket.AF_INET6, socket.SOCK_STREAM, ("::1", place.tcp6))


@probe(NETWORK, seen=told)
def send_udp(place: Place) -> object:
    """Ask a server on the host's loopback, UDP over IPv4."""
    return asked(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", place.udp4))


@probe(NETWORK, seen=told)
def send_udp6(place: Place) -> object:
    """Ask a server on the host's loopback, UDP over IPv6."""
    return asked(socket.AF_INET6, socket.SOCK_DGRAM, ("::1", place.udp6))


@probe(NETWORK, seen=told)
def ask_name_server(place: Place) -> object:
    """Ask a name server on the host's loopback for a name, with a packet of DNS."""
    labels = b"".join(bytes([len(one)]) + one for one in (place.nonce.encode(), b"test"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(TIME_S)
        packet = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 16, 1)
        one.connect(("127.0.0.1", place.udp4))
        one.send(packet)
        return one.recv(512).decode(errors="replace")


@probe(NETWORK, seen=done)
def resolve_name(_place: Place) -> object:
    """Resolve a name of the Internet."""
    return DONE if socket.getaddrinfo("example.org", 80) else "no address"


@probe(NETWORK, seen=done)
def route_outside(_place: Place) -> object:
    """Have a route to an address of the Internet (a UDP socket is connected; nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 53))
        return DONE if one.getsockname()[0] not in {"0.0.0.0", "127.0.0.1"} else one.getsockname()[0]


@probe(NETWORK, seen=done)
def see_interfaces(_place: Place) -> object:
    """See another interface than a loopback (netlink route)."""
    return DONE if [name for _, name in socket.if_nameindex() if name != "lo"] else "lo"


@probe(NETWORK, seen=done)
def see_connections(place: Place) -> object:
    """See the host's listening sockets (/proc/net/tcp)."""
    pids = ("self", "1", place.pid)
    first_of(pids, lambda pid: _line(f"/proc/{pid}/net/tcp", f"0100007F:{place.tcp4:04X}"))


@probe(NETWORK, seen=done)
def ask_socket_diagnosis(place: Place) -> object:
    """List the host's sockets by netlink (NETLINK_SOCK_DIAG)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as one:
        one.settimeout(TIME_S)
        request = struct.pack("BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 1 << 10) + bytes(48)
        one.send(struct.pack("IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
        text = b""
        while len(part := one.recv(1 << 16)) > 20:
            text += part
        return DONE if struct.pack(">H", place.tcp4) in text else "not there"


@probe(NETWORK, seen=done)
def hear_devices(_place: Place) -> object:
    """Listen to the kernel's news of devices (NETLINK_KOBJECT_UEVENT)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as one:
        one.bind((0, 1))


@probe(NETWORK, seen=done)
def other_netlinks(_place: Place) -> object:
    """Have a netlink of audit, netfilter, SELinux, crypto, generic or connector."""
    return _made((socket.AF_NETLINK, socket.SOCK_RAW, one) for one in (9, 12, 7, 21, 16, 11, 18))


def _made(wanted: Iterable[tuple[int, int, int]]) -> None:
    first_of(wanted, lambda one: socket.socket(*one).close())


@probe(NETWORK, seen=done)
def virtual_machine_socket(_place: Place) -> object:
    """Have a socket to the host of the virtual machine (AF_VSOCK), which no network namespace keeps apart."""
    return _made([(40, socket.SOCK_STREAM, 0), (40, socket.SOCK_DGRAM, 0)])


@probe(NETWORK, seen=done)
def kernel_crypto_socket(_place: Place) -> object:
    """Have a socket to the kernel's ciphers (AF_ALG)."""
    return _made([(38, socket.SOCK_SEQPACKET, 0)])


@probe(NETWORK, seen=done)
def other_families(_place: Place) -> object:
    """Have a socket of any other family: Bluetooth, CAN, TIPC, RDS, NFC, KCM, SMC, XDP, QIPCRTR, PPPoX and more."""
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
    families = [one for one in range(3, 48) if one not in {10, 16, 38, 40}]
    return _made((family, kind, 0) for family in families for kind in kinds)


@probe(NETWORK, seen=done)
def raw_sockets(_place: Place) -> object:
    """Have a raw or packet socket, or one that pings."""
    return _made(
        [
            (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
            (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
            (socket.AF_PACKET, socket.SOCK_RAW, 0x300),
            (socket.AF_PACKET, socket.SOCK_DGRAM, 0x300),
            (socket.AF_INET, 10, 0x300),
            (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        ]
    )


@probe(NETWORK, seen=told, way="read_only")
def connect_tcp_read_only(place: Place) -> object:
    """Connect by TCP where the network is on, but not for this profile."""
    return connect_tcp(place)


@probe(NETWORK, seen=told, way="read_only")
def send_udp_read_only(place: Place) -> object:
    """Ask by UDP where the network is on, but not for this profile."""
    return send_udp(place)


@probe(UNIX, seen=told, way="read_only")
def connect_abstract_read_only(place: Place) -> object:
    """Connect to an abstract socket where the network is on, but not for this profile."""
    return connect_abstract(place)
