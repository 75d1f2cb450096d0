"""A town for tests: made, entered by supervisors and programs, and gone at the end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from shellback.exec.core.runner import found
from shellback.exec.supervisor.process import procfs
from tests.databases import unless
from tests.sandboxes import adjust
from tests.supervisors import UID, words_of
from tests.towns.names import LISTED
from tests.towns.registries import fill

_ENTER: Final = (
    "import ctypes, os; _net = [(one := os.open('/proc/{pid}/ns/' + name, os.O_RDONLY), "
    "ctypes.CDLL(None).setns(one, 0) and os.abort(), os.close(one)) for name in ('net', 'mnt')]"
)
_PROGRAMS: Final = ("unshare", "nsenter", "ip", "openssl")
_ROOT: Final = Path(__file__).parents[2]


def refusal() -> str | None:
    """Why no town can be made here, None where it can."""
    lacking = [name for name in _PROGRAMS if found(name) is None]
    if lacking:
        return f"not installed: {' '.join(lacking)}"
    return "only root can have supervisors enter a network namespace" if os.geteuid() else None


def proxies(home: Path) -> list[int]:
    """The processes of the proxies of a supervisor."""
    found = [(one.pid, words_of(one.pid)) for one in procfs.snapshot() if one.alive]
    ours = [(pid, words) for pid, words in found if any("exec.proxy.program" in word for word in words)]
    return [pid for pid, words in ours if str(home) in words[-1]]


@dataclass
class Town:
    """`proxy` is the process of the open proxy, `sign` the beginning of what its watch sees."""

    sign: str
    place: Path
    process: subprocess.Popen[str]
    proxy: int = 0

    @property
    def certificate(self) -> Path:
        """What its servers are to be trusted by."""
        return self.place / "certificate"

    @property
    def keys(self) -> Path:
        """A directory with the key that its server of ssh lets in, and that server's own."""
        return self.place / "ssh"

    def entering(self, patch: pytest.MonkeyPatch) -> None:
        """Have supervisors that are started from now on enter the town first."""
        adjust(patch, "loop", _ENTER.format(pid=self.process.pid))

    def connected(self, host: str, port: int) -> int:
        """A connection from within the town."""
        found: list[int] = []

        def connect() -> None:
            with open(f"/proc/{self.process.pid}/ns/net") as place:
                assert ctypes.CDLL(None).setns(place.fileno(), 0) == 0
            found.append(socket.create_connection((host, port)).detach())

        # The thread alone is in the town, and ends there.
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        return found[0]

    def inside(self, *argv: str) -> list[str]:
        """The words that run a program in the town."""
        return ["nsenter", "--net", "--mount", "--target", str(self.process.pid), "--", *argv]

    def seen(self) -> set[tuple[str, bool]]:
        """The signs that have come, each with whether it came to a listed host."""
        return {(text, listed) for text, listed in json.loads(self.said("?\n"))}

    def said(self, text: str = "") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()
        return _line(self.process.stdout)


def _line(stream: IO[str] | None) -> str:
    line = stream.readline() if stream is not None else ""
    if not line:
        raise RuntimeError("the town says nothing")
    return line


@contextlib.contextmanager
def stocked() -> Generator[Town]:
    """A town that has something for installers; where none can be made, the test is skipped."""
    unless(refusal())
    with town(UID or 65534) as made:
        fill(made.place)
        yield made


@contextlib.contextmanager
def town(uid: int) -> Generator[Town]:
    """A town whose open proxy runs as this user."""
    place = Path(tempfile.mkdtemp(prefix="shellback-town-")).resolve()
    place.chmod(0o755)
    (place / "www").mkdir()
    shutil.copytree(Path(__file__).parent, place / "code" / "tests" / "towns")
    (place / "code" / "tests" / "__init__.py").touch()
    names = f"DNS:{LISTED},DNS:*.{LISTED},DNS:tenant.example,DNS:evil.example"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={LISTED}", "-days", "2"]
    command += ["-addext", f"subjectAltName={names}", "-keyout", place / "key", "-out", place / "certificate"]
    subprocess.run(command, check=True, capture_output=True)
    place.joinpath("certificate").chmod(0o644)
    sign = f"canary-{secrets.token_hex(4)}"
    words = [
        "unshare",
        "--net",
        "--mount",
        "--propagation",
        "private",
        "--",
        sys.executable,
        "-m",
        "tests.towns.serving",
    ]
    try:
        with subprocess.Popen(
            [*words, place, str(uid), sign], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        ) as process:
            made = Town(sign, place, process)
            try:
                made.proxy = int(made.said())
                made.said()
                yield made
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)
    finally:
        shutil.rmtree(place)
