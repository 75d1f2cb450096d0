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
class Namespace:
    """A network namespace; the process `pid` holds it."""

    pid: int

    def inside(self, *argv: str) -> list[str]:
        """The words that run a program in it."""
        return [_path("nsenter"), "--net", "--target", str(self.pid), "--", *argv]

    def ip(self, *words: str) -> None:
        subprocess.run(self.inside(_path("ip"), *words), check=True, capture_output=True)


@dataclass(frozen=True)
class Machine(Namespace):
    """One that is reached at `address`, by a `port` of the switch."""

    address: str
    switch: Namespace
    port: str

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
        self.switch.ip("link", "set", self.port, "down")

    def plug(self) -> None:
        """It is reached, again."""
        self.switch.ip("link", "set", self.port, "up")


def free_port() -> int:
    """A port of this machine at which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def machines(number: int) -> Generator[list[Machine]]:
    """As many machines that reach each other, and nothing else. Where none can be made, the test is skipped."""
    unless(_refusal())
    with contextlib.ExitStack() as stack:
        switch = Namespace(stack.enter_context(_namespace()))
        switch.ip("link", "add", "switch", "type", "bridge")
        switch.ip("link", "set", "switch", "up")
        made = list[Machine]()
        for order in range(1, number + 1):
            pid = stack.enter_context(_namespace())
            made.append(one := Machine(pid, f"{_NETWORK}{order}", switch, f"port{order}"))
            switch.ip("link", "add", one.port, "type", "veth", "peer", "name", _DEVICE, "netns", str(pid))
            switch.ip("link", "set", one.port, "master", "switch")
            one.plug()
            one.ip("addr", "add", f"{one.address}/24", "dev", _DEVICE)
            for device in ("lo", _DEVICE):
                one.ip("link", "set", device, "up")
        yield made


def _refusal() -> str | None:
    if lacking := [name for name in _PROGRAMS if found(name) is None]:
        return f"not installed: {' '.join(lacking)}"
    if os.geteuid():
        return "only root can make network namespaces"
    for words in (("probe", "type", "bridge"), ("probe", "type", "veth")):
        tried = [_path("unshare"), "--net", "--", _path("ip"), "link", "add", *words]
        done = subprocess.run(tried, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"no network of namespaces can be made: {done.stderr.strip()}"
    return None


def _path(name: str) -> str:
    return str(found(name))


@contextlib.contextmanager
def _namespace() -> Generator[int]:
    # It says that it is there when it has its namespace, and ends when its input does.
    command = [_path("unshare"), "--net", "--", "sh", "-c", "echo there; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process.pid
        process.communicate()
