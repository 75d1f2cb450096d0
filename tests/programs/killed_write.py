"""Kill a process before, in and after each call to the kernel by which a file is replaced, and look what is left.

`python -m tests.programs.killed_write DIRECTORY`; prints the calls, and fails where a file is neither old nor new.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from shellback.exec.core.sight import place as places
from shellback.exec.core.sight.place import Root
from shellback.exec.files import contents
from shellback.exec.wire import linux

OLD, NEW = b"old" * 20_000, b"new" * 30_000
WATCHED = ("open", "write", "fsync", "close", "fchmod", "fchown", "rename", "link", "unlink")


class Killing:
    """`os`, in which the process is killed at one of the calls; `calls` are those that there were."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._watched(name, found) if name in WATCHED else found

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self._moment(2 * len(self.calls) - 1)
            if name == "write":  # never all at once
                args = (args[0], args[1][: len(NEW) // 2])
            result = call(*args, **kwargs)
            self._moment(2 * len(self.calls))
            return result

        return watched

    def _moment(self, number: int) -> None:
        if number == self._at:
            signal.raise_signal(signal.SIGKILL)


def killed(root: Root, mode: contents.Mode, moment: int) -> bool:
    """Whether that moment came before the end."""
    child = os.fork()
    if child == 0:
        killing = Killing(moment)
        contents.os = places.os = linux.os = killing
        with root.place("f") as place:
            contents.replace(place, NEW, mode)
        if moment == 10**6:
            print(*killing.calls, flush=True)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main() -> None:
    workspace = Path(sys.argv[1])
    root = Root(str(workspace), str(workspace))
    for mode in ("overwrite", "create"):
        moment, alive = 0, True
        while alive:
            for left in workspace.iterdir():
                left.unlink()
            if mode == "overwrite":
                (workspace / "f").write_bytes(OLD)
            moment += 1
            alive = killed(root, mode, moment)
            there = (workspace / "f").read_bytes() if (workspace / "f").exists() else None
            allowed = {OLD, NEW} if mode == "overwrite" else {None, NEW}
            if there not in allowed:
                sys.exit(f"{mode}, moment {moment}: {len(there or b'')} bytes are left")
        (workspace / "f").unlink()
        if mode == "overwrite":
            (workspace / "f").write_bytes(OLD)
        killed(root, mode, 10**6)


if __name__ == "__main__":
    main()
