"""`python3 -m tests.escape.decoy KIND PLACE decoy-argument-SECRET`: a process that is there to be attacked.

It keeps a secret in memory, environment, arguments, an open file, shared memory and a message queue, and tells it to
whoever connects. Kind `whole` says on a line what there is, answers each line of its input with what has happened to
it, and ends with its input. Kind `neighbour` is a smaller one that runs in a sandbox of another conversation.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import resource
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.escape import kernel

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGRTMIN + 3, signal.SIGRTMIN + 4)


class Decoy:
    """What is there, and what has happened to it."""

    def __init__(self, told: dict[str, str], secret: str) -> None:
        self.secret = secret.encode()
        self.told = told
        self.signals: list[int] = []
        self.waiting = selectors.DefaultSelector()
        self.facts: dict[str, Any] = {"pid": os.getpid()}

    def listen(self, name: str, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
        """Tell the secret to whoever connects, or sends something."""
        one = socket.socket(family, kind)
        try:
            one.bind(address)
        except OSError:
            self.facts[name] = 0  # no IPv6 here
            return
        if kind == socket.SOCK_STREAM:
            one.listen()
        one.setblocking(False)
        self.waiting.register(one, selectors.EVENT_READ, self.answer)
        if not isinstance(address, str):
            self.facts[name] = one.getsockname()[1]

    def answer(self, one: socket.socket) -> None:
        """Tell it."""
        if one.type == socket.SOCK_DGRAM:
            _, address = one.recvfrom(4096)
            one.sendto(self.secret, address)
            return
        connected, _ = one.accept()
        with connected:
            connected.send(self.secret)

    def share(self) -> None:
        """Have what every decoy has: a server, a socket, a file, shared memory."""
        self.listen("tcp4", socket.AF_INET, ("127.0.0.1", 0))
        self.listen("", socket.AF_UNIX, "\0" + self.told["abstract"])
        Path(self.told["file"]).write_bytes(self.secret)
        Path("/dev/shm", self.told["shm_file"]).write_bytes(self.secret.ljust(64, b"\0"))

    def hold(self) -> None:
        """Have all the rest."""
        self.listen("tcp6", socket.AF_INET6, ("::1", 0))
        self.listen("udp4", socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
        self.listen("udp6", socket.AF_INET6, ("::1", 0), socket.SOCK_DGRAM)
        paths = (f"{self.told['state']}/supervisor/sock", f"{self.told['workspace']}/listening")
        os.mkfifo(f"{self.told['workspace']}/pipe")
        self.pipe = os.open(f"{self.told['workspace']}/pipe", os.O_RDWR | os.O_NONBLOCK)
        for path in (self.told["socket"], self.told["socket_in_run"], *paths):
            if os.path.isdir(os.path.dirname(path)):
                self.listen("", socket.AF_UNIX, path)
                os.chmod(path, 0o777)
        self.room = ctypes.create_string_buffer(self.secret, 128)
        ctypes.memmove(ctypes.addressof(self.room) + 64, b"original", 8)
        path = f"{self.told['outside']}/removed"
        Path(path).write_bytes(self.secret)
        self.facts |= {"address": ctypes.addressof(self.room), "held": os.open(path, os.O_RDWR)}
        os.unlink(path)
        self._messages()
        self.master, slave = pty.openpty()
        self.facts["terminal"] = os.ttyname(slave)
        os.set_blocking(self.master, False)
        self.facts |= {
            "victim": _forked(lambda: None),
            "apart": _forked(lambda: kernel.call("unshare", kernel.NEWUSER)),
        }
        kernel.libc().prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)  # Yama: anybody may trace
        resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 10, 1 << 10))
        for number in SIGNALS:
            signal.signal(number, lambda number, _frame: self.signals.append(number))

    def _messages(self) -> None:
        libc = kernel.libc()
        libc.shmat.restype = ctypes.c_void_p
        self.facts["shm"] = kernel.call("shmget", 0, 4096, 0o1600)
        where = libc.shmat(self.facts["shm"], None, 0)
        ctypes.memmove(where, self.secret, len(self.secret))
        name = self.told["queue"].encode() + b"\0"
        queue = kernel.call("mq_open", name, 0o102, 0o600, None)
        for _ in range(3):
            kernel.call("mq_timedsend", queue, self.secret, len(self.secret), 0, None)
        with contextlib.suppress(OSError):  # a kernel without keys
            kernel.call(
                "add_key", b"user\0", f"decoy:{self.told['nonce']}\0".encode(), self.secret, len(self.secret), -4
            )

    def happened(self) -> dict[str, Any]:
        """What has happened to it."""
        return {
            "signals": [int(number) for number in self.signals],
            "memory": self.room.raw[64:72].decode(errors="replace"),
            "written": _unread(self.master),
            "pipe": _unread(self.pipe),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "score": int(Path("/proc/self/oom_score_adj").read_text()),
            "victim": os.waitpid(self.facts["victim"], os.WNOHANG)[0] == 0,
        }

    def serve(self) -> None:
        """Until the input ends."""
        self.waiting.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.waiting.select():
                if key.data is not None:
                    key.data(key.fileobj)
                elif os.read(0, 4096):
                    print(json.dumps(self.happened()), flush=True)
                else:
                    return

    def close(self) -> None:
        """Take away what would stay."""
        Path("/dev/shm", self.told["shm_file"]).unlink(missing_ok=True)
        if "shm" in self.facts:
            kernel.libc().shmctl(self.facts["shm"], 0, None)
            kernel.call("mq_unlink", self.told["queue"].encode() + b"\0")
            for name in ("victim", "apart"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.facts[name], signal.SIGKILL)


def _unread(fd: int) -> str:
    try:
        return os.read(fd, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""


def _forked(first: Any) -> int:
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.libc().prctl(1, signal.SIGKILL, 0, 0, 0)
        try:
            first()
        finally:
            os.write(said, b".")
            while True:
                signal.pause()
    os.read(ready, 1)
    return pid


def main(argv: list[str]) -> None:
    """Be there."""
    kind, path, argument = argv
    with open(path) as file:
        decoy = Decoy(json.load(file), argument.removeprefix("decoy-argument-"))
    decoy.share()
    if kind == "neighbour":
        print(json.dumps(decoy.facts), flush=True)
        while True:
            for key, _ in decoy.waiting.select():
                key.data(key.fileobj)
    try:
        decoy.hold()
        print(json.dumps(decoy.facts), flush=True)
        decoy.serve()
    finally:
        decoy.close()


if __name__ == "__main__":
    time.tzset()
    main(sys.argv[1:])
