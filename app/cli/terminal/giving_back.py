"""Gives a person's terminal back where whoever has changed it is killed: a process that waits for its end.

It is this file, run by itself, with the terminal as its standard output. It belongs to no terminal, so that no key and
no signal to a group ends it, and reads lines: what to do at the end of them.
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
    """Watches over the terminal behind `fd`, which is as in `before` otherwise; without room for it nobody does."""

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
        """Have `shown` written to the terminal as well if we are killed from here on."""
        if shown != self._told:
            self._told = shown
            self._write(repr((self._before, self._ours, shown)))

    def dismiss(self) -> None:
        """End the watching; the terminal has been given back."""
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
        if line.endswith(b"\n"):  # else it was killed within it
            last = line
    if not last.strip():
        return
    before, ours, shown = ast.literal_eval(last.decode())
    terminal = sys.stdout.fileno()
    # The shell may have taken the terminal by now, and have its own ways with it.
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
