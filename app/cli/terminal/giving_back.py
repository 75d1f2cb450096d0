"""Restores a person's terminal if the process that changed its modes is killed.

This file runs as a separate process with the terminal as its standard output. It has no controlling terminal, so no key
and no signal to a process group ends it. It reads lines; at the end of its input it carries out the last line.
"""

from __future__ import annotations

import ast
import contextlib
import os
import select
import subprocess
import sys
import termios
from typing import Any, Final

_PATIENCE_MS: Final = 1000


class GivingBack:
    """Starts the process for the terminal `fd`, whose original modes are `before`; does nothing if that fails."""

    def __init__(self, fd: int, before: list[Any]) -> None:
        self._before, self._ours = before, termios.tcgetattr(fd)
        self._told: bytes | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", __file__],
                stdin=subprocess.PIPE, stdout=fd, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip

    def tell(self, shown: bytes) -> None:
        """If we are killed from now on, also write `shown` to the terminal."""
        if shown != self._told:
            self._told = shown
            self._write(repr((self._before, self._ours, shown)))

    def dismiss(self) -> None:
        """End the process; the terminal is restored already."""
        self._write("")
        if self._watcher is not None and self._watcher.stdin is not None:
            with contextlib.suppress(OSError):
                self._watcher.stdin.close()
            self._watcher.wait()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._watcher is not None and self._watcher.stdin is not None:
                self._watcher.stdin.write(f"{line}\n".encode())
                self._watcher.stdin.flush()


def _watch() -> None:
    last = b""
    for line in sys.stdin.buffer:
        if line.endswith(b"\n"):  # a partial line: the writer was killed
            last = line
    if not last.strip():
        return
    before, ours, shown = ast.literal_eval(last.decode())
    terminal = sys.stdout.fileno()
    # The shell may already have set its own modes.
    with contextlib.suppress(termios.error):
        if termios.tcgetattr(terminal) == ours:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    room = select.poll()
    room.register(terminal, select.POLLOUT)
    with contextlib.suppress(OSError):
        while shown and room.poll(_PATIENCE_MS):
            shown = shown[os.write(terminal, shown) :]


if __name__ == "__main__":
    _watch()
