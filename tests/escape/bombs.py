"""Attempts to use more than there is: processes, room in file systems. Each stops by itself; they run inside."""

from __future__ import annotations

import os
import signal
import time

from tests.escape.probe import Group, Place


def _fill(path: str, size: int, piece: int = 1 << 20) -> object:
    block = b"x" * (1 << 16)
    paths: list[str] = []
    try:
        for written in range(0, size, len(block)):
            if written % piece == 0:
                paths.append(f"{path}-{written}")
            with open(paths[-1], "ab", buffering=0) as file:
                if file.write(block) < len(block):
                    raise OSError("no room")
    finally:
        for one in paths:
            if os.path.exists(one):
                os.unlink(one)


class Bombs(Group, called="Fork and disk bombs", way="bounded"):
    def fork_bomb(self, place: Place) -> object:
        """Fork until it is refused: more processes than the bound."""
        made: list[int] = []
        try:
            for _ in range(place.processes * 2):
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                made.append(pid)
        finally:
            for pid in made:
                os.kill(pid, signal.SIGKILL)
            for pid in made:
                os.waitpid(pid, 0)

    def fill_scratch(self, place: Place) -> object:
        """Fill /tmp beyond its bound."""
        return _fill(f"{place.scratch}/bomb", place.scratch_bytes * 2)

    def fill_home(self, place: Place) -> object:
        """Fill the home directory beyond its bound."""
        return _fill(os.path.expanduser("~/bomb"), place.scratch_bytes * 2)

    def fill_shared_memory(self, place: Place) -> object:
        """Fill /dev/shm beyond its bound."""
        return _fill(f"/dev/shm/bomb-{place.nonce}", 80 << 20)

    def fill_run(self, place: Place) -> object:
        """Fill /run, or the runtime directory of the user, beyond its bound."""
        folder = os.path.dirname(place.socket_in_run)
        return _fill(f"{folder if os.path.exists(folder) else '/run'}/bomb", 24 << 20)

    def large_file(self, place: Place) -> object:
        """Write one file of the workspace beyond the bound of files."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return _fill(f"{place.workspace}/bomb", place.file_bytes * 2, place.file_bytes * 2)
