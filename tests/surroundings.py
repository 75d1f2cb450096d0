"""Namespaces in which a supervisor lives alone: file systems that fill up, process numbers that come again."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from shellback.exec.link import launch
from tests.databases import unavailable
from tests.supervisors import Rig, gone, until

UNSHARE: Final = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-Urm")
_MOUNTED: Final = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'


class SmallRig(Rig):
    """A rig whose supervisor sees a small file system where we see an empty directory."""

    def __init__(self, keeper: int, home: Path, mount: Path) -> None:
        self.keeper = keeper
        self.mount = Path(f"/proc/{keeper}/root{mount}")
        self._inside = mount
        super().__init__(Path(f"/proc/{keeper}/root{home}"), spawn=False, wait_s=10.0)

    def fill(self) -> None:
        """Take all the room there is."""
        filler = os.open(self.mount / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        os.write(filler, b"x" * size)
                except OSError:
                    continue
        finally:
            os.close(filler)

    def take_inodes(self) -> None:
        """Make files until there can be no more."""
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.mount / f"inode{number}").touch()

    def make_room(self) -> None:
        (self.mount / "filler").unlink()

    def remount(self, how: str) -> None:
        """Mount it anew as `ro` or `rw`."""
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        within = ["nsenter", "-t", str(self.keeper), "-m", *user]
        subprocess.run([*within, "mount", "-o", f"remount,{how}", self._inside], check=True, capture_output=True)


@asynccontextmanager
async def small_rig(tmp_path: Path, *, size: str = "2m", below: str = "") -> AsyncGenerator[SmallRig]:
    """A supervisor whose home, or what is `below` it, is a file system of `size` that only its processes see."""
    require_namespaces()
    home = tmp_path / "home"
    mount = home / below
    mount.mkdir(parents=True, mode=0o700)
    argv = [*UNSHARE, "sh", "-c", _MOUNTED, "sh", f"size={size},mode=700", str(mount), *launch.service_argv(home)]
    with tempfile.TemporaryFile() as said:
        keeper = subprocess.Popen(argv, stderr=said, env={"PATH": os.defpath})  # noqa: ASYNC220 - returns at once
        try:
            await until(lambda: b"ready" in os.pread(said.fileno(), 1000, 0) or keeper.poll() is not None)
            assert keeper.poll() is None, os.pread(said.fileno(), 1000, 0)
            rig = SmallRig(keeper.pid, home, mount)
            try:
                await rig.client.connect()
                yield rig
            finally:
                await rig.client.close()
        finally:
            keeper.terminate()
            if not await gone(keeper.pid):
                keeper.kill()
            keeper.wait()


def require_namespaces() -> None:
    """Skip where nobody may mount anything for itself alone."""
    with tempfile.TemporaryDirectory() as empty:
        tried = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", empty], capture_output=True, check=False)
    if tried.returncode:
        unavailable(f"no namespace of its own for a supervisor: {tried.stderr.decode(errors='replace').strip()}")
