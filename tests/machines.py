"""Machines for tests: network namespaces with an address each, joined by a switch. Their files are this machine's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.runner import found
from tests.databases import unless

_PROGRAMS: Final = ("unshare", "nsenter", "ip")
_NETWORK: Final = "10.71.0."
_DEVICE: Final = "net"


@dataclass(frozen=True)
class Machine:
    """`pid` holds its namespace."""

    pid: int
    address: str

    def inside(self, *argv: str) -> list[str]:
        """The words that run a program on it."""
        return ["nsenter", "--net", "--target", str(self.pid), "--", *argv]

    def run(self, *argv: str) -> None:
        subprocess.run(self.inside(*argv), check=True, capture_output=True)

    def listening(self, port: int) -> socket.socket:
        """A socket that listens on it."""
        made: list[socket.socket] = []

        def listen() -> None:
            with open(f"/proc/{self.pid}/ns/net") as place:
                assert ctypes.CDLL(None).setns(place.fileno(), 0) == 0
            made.append(socket.create_server((self.address, port)))

        # The thread alone is on that machine, and ends there.
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        return made[0]

    def unplug(self) -> None:
        """What it sends is lost from now on, and what is sent to it."""
        self.run("ip", "link", "set", _DEVICE, "down")

    def plug(self) -> None:
        """It is reached again."""
        self.run("ip", "link", "set", _DEVICE, "up")


@contextlib.contextmanager
def machines(number: int) -> Generator[list[Machine]]:
    """As many machines that reach each other, and nothing else. Where none can be made, the test is skipped."""
    lacking = [name for name in _PROGRAMS if found(name) is None]
    unless(f"not installed: {' '.join(lacking)}" if lacking else None)
    unless("only root can make network namespaces" if os.geteuid() else None)
    with contextlib.ExitStack() as stack:
        switch, *made = (
            Machine(stack.enter_context(_namespace()), f"{_NETWORK}{order}") for order in range(number + 1)
        )
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        for order, one in enumerate(made):
            port = f"port{order}"
            peer = ("type", "veth", "peer", "name", _DEVICE, "netns", str(one.pid))
            switch.run("ip", "link", "add", port, *peer)
            switch.run("ip", "link", "set", port, "master", "switch", "up")
            one.run("ip", "addr", "add", f"{one.address}/24", "dev", _DEVICE)
            one.run("ip", "link", "set", "lo", "up")
            one.plug()
        yield made


@contextlib.contextmanager
def _namespace() -> Generator[int]:
    # It says that it is there when it has its namespace, and ends when its input does.
    command = ["unshare", "--net", "--", "sh", "-c", "echo there; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process.pid
        process.communicate()
