"""Attempts to reach sockets and networks. They run inside, with the standard library only."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from tests.escape.probe import DONE, Group, Place, but, done, first_of, told

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


def _line(path: str, text: str) -> str:
    lines = [line for line in Path(path).read_text().splitlines() if text in line]
    if not lines:
        raise FileNotFoundError(path)
    return lines[0][-80:]


def _made(wanted: Iterable[tuple[int, int, int]]) -> None:
    first_of(wanted, lambda one: socket.socket(*one).close())


class Unix(Group, called="Unix sockets", seen=told):
    def connect_abstract(self, place: Place) -> object:
        """Connect to an abstract socket."""
        return asked_by_path("\0" + place.abstract)

    def connect_path(self, place: Place) -> object:
        """Connect to a socket by its path outside, as an agent's for keys has one."""
        return asked_by_path(place.socket)

    def connect_in_run(self, place: Place) -> object:
        """Connect to a socket in /run, as the message bus and container engines have them."""
        return asked_by_path(place.socket_in_run)

    def connect_by_symlink(self, place: Place) -> object:
        """Connect by a symlink in the workspace."""
        os.symlink(place.socket, f"{place.workspace}/sock-link")
        return asked_by_path(f"{place.workspace}/sock-link")

    def connect_by_root_of_another(self, place: Place) -> object:
        """Connect by /proc/PID/root of a process outside."""
        os.symlink(f"/proc/{place.pid}/root{place.outside}", f"{place.workspace}/out")
        return asked_by_path(f"{place.workspace}/out/sock")

    @but(seen=done)
    def list_sockets(self, place: Place) -> object:
        """Read the names of all abstract sockets (/proc/net/unix)."""
        pids = ("self", "1", place.pid)
        first_of(pids, lambda pid: _line(f"/proc/{pid}/net/unix", f"@{place.abstract}"))

    @but(way="read_only")
    def connect_abstract_read_only(self, place: Place) -> object:
        """Connect to an abstract socket where the network is on, but not for this profile."""
        return self.connect_abstract(place)


class Network(Group, called="Network and DNS"):
    @but(seen=told)
    def connect_tcp(self, place: Place) -> object:
        """Connect to a server on the host's loopback, TCP over IPv4."""
        return asked(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", place.tcp4))

    @but(seen=told)
    def connect_tcp_to_any(self, place: Place) -> object:
        """The same by the address 0.0.0.0 and by mapped addresses of IPv6."""
        hosts = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::ffff:127.0.0.1"))
        return first_of(hosts, lambda one: asked(one[0], socket.SOCK_STREAM, (one[1], place.tcp4)))

    @but(seen=told)
    def connect_tcp6(self, place: Place) -> object:
        """Connect to a server on the host's loopback, TCP over IPv6."""
        return asked(socket.AF_INET6, socket.SOCK_STREAM, ("::1", place.tcp6))

    @but(seen=told)
    def send_udp(self, place: Place) -> object:
        """Ask a server on the host's loopback, UDP over IPv4."""
        return asked(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", place.udp4))

    @but(seen=told)
    def send_udp6(self, place: Place) -> object:
        """Ask a server on the host's loopback, UDP over IPv6."""
        return asked(socket.AF_INET6, socket.SOCK_DGRAM, ("::1", place.udp6))

    @but(seen=told)
    def ask_name_server(self, place: Place) -> object:
        """Ask a name server on the host's loopback for a name, with a packet of DNS."""
        labels = b"".join(bytes([len(one)]) + one for one in (place.nonce.encode(), b"test"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.settimeout(TIME_S)
            packet = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 16, 1)
            one.connect(("127.0.0.1", place.udp4))
            one.send(packet)
            return one.recv(512).decode(errors="replace")

    def resolve_name(self, _place: Place) -> object:
        """Resolve a name of the Internet."""
        return DONE if socket.getaddrinfo("example.org", 80) else "no address"

    def route_outside(self, _place: Place) -> object:
        """Have a route to an address of the Internet (a UDP socket is connected; nothing is sent)."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect(("192.0.2.1", 53))
            return DONE if one.getsockname()[0] not in {"0.0.0.0", "127.0.0.1"} else one.getsockname()[0]

    def see_interfaces(self, _place: Place) -> object:
        """See another interface than a loopback (netlink route)."""
        return DONE if [name for _, name in socket.if_nameindex() if name != "lo"] else "lo"

    def see_connections(self, place: Place) -> object:
        """See the host's listening sockets (/proc/net/tcp)."""
        pids = ("self", "1", place.pid)
        first_of(pids, lambda pid: _line(f"/proc/{pid}/net/tcp", f"0100007F:{place.tcp4:04X}"))

    def ask_socket_diagnosis(self, place: Place) -> object:
        """List the host's sockets by netlink (NETLINK_SOCK_DIAG)."""
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as one:
            one.settimeout(TIME_S)
            request = struct.pack("BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 1 << 10) + bytes(48)
            one.send(struct.pack("IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
            text = b""
            while len(part := one.recv(1 << 16)) > 20:
                text += part
            return DONE if struct.pack(">H", place.tcp4) in text else "not there"

    def hear_devices(self, _place: Place) -> object:
        """Listen to the kernel's news of devices (NETLINK_KOBJECT_UEVENT)."""
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as one:
            one.bind((0, 1))

    def other_netlinks(self, _place: Place) -> object:
        """Have a netlink of audit, netfilter, SELinux, crypto, generic or connector."""
        return _made((socket.AF_NETLINK, socket.SOCK_RAW, one) for one in (9, 12, 7, 21, 16, 11, 18))

    def virtual_machine_socket(self, _place: Place) -> object:
        """Have a socket to the host of the virtual machine (AF_VSOCK), which no network namespace keeps apart."""
        return _made([(40, socket.SOCK_STREAM, 0), (40, socket.SOCK_DGRAM, 0)])

    def kernel_crypto_socket(self, _place: Place) -> object:
        """Have a socket to the kernel's ciphers (AF_ALG)."""
        return _made([(38, socket.SOCK_SEQPACKET, 0)])

    def other_families(self, _place: Place) -> object:
        """Have a socket of any other family: Bluetooth, CAN, TIPC, RDS, NFC, KCM, SMC, XDP, QIPCRTR, PPPoX and more."""
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
        families = [one for one in range(3, 48) if one not in {10, 16, 38, 40}]
        return _made((family, kind, 0) for family in families for kind in kinds)

    def raw_sockets(self, _place: Place) -> object:
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

    @but(seen=told, way="read_only")
    def connect_tcp_read_only(self, place: Place) -> object:
        """Connect by TCP where the network is on, but not for this profile."""
        return self.connect_tcp(place)

    @but(seen=told, way="read_only")
    def send_udp_read_only(self, place: Place) -> object:
        """Ask by UDP where the network is on, but not for this profile."""
        return self.send_udp(place)
