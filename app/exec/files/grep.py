"""Runs the process that searches in files. Blocks for a bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.sight.place import Root
from shellback.exec.files.entries import bounded

HITS_MOST: Final = 1000
PATTERN_MOST: Final = 1000
BYTES_MOST: Final = 262_144
"""Bytes of matches, as the process that searches prints them."""
_GRACE_S: Final = 2.0
_TOLD: Final = ("pattern", "path", "glob", "ignore_case", "limit", "seconds", "become")
_ASKS: Final = b'{"ask"'
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_CODE: Final = f"import sys; sys.path.append({_ROOT!r}); from shellback.exec.files.grepping import main; main()"


@dataclass(frozen=True, slots=True)
class Hit:
    """A line in which the pattern was found."""

    path: str
    line: int
    text: str
    """Without its end; bytes that are not UTF-8 are replaced."""
    cut: bool
    """The line is longer than `text`, which has the place that matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Matches in the order of their paths, and counts of the files that were not searched."""

    hits: tuple[Hit, ...]
    files: int = 0
    """Files that were searched."""
    binary: int = 0
    large: int = 0
    unreadable: int = 0
    slow: tuple[str, ...] = ()
    """Files in which the pattern took too long, so that their search was given up; the first of them."""
    stopped: str = ""
    """Why there may be more; "" where this is all."""
    skipped: tuple[str, ...] = ()
    """Directories that were not searched, below where the search began; the first of them."""
    withheld: int = 0
    """Files that were not searched because they are withheld, whatever is in them."""


@dataclass
class Grep:
    """One search for lines with `pattern`; `become` is the user and group to search as, None as ourselves.

    `withheld` says of a file, as commands see it, whether it is left alone; it is asked before the file is read.

    Raises:
        InvalidCommand: The pattern or a bound is not acceptable.
    """

    root: Root
    pattern: str
    path: str
    glob: str | None
    ignore_case: bool
    limit: int
    seconds: float
    become: tuple[int, int] | None
    withheld: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        """Check pattern and bounds."""
        bounded(self.limit, HITS_MOST, self.seconds)
        if not 0 < len(self.pattern) <= PATTERN_MOST:
            raise InvalidCommand(f"a regular expression has 1 to {PATTERN_MOST} characters, not {len(self.pattern)}")
        self._stopped = False
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the search now."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()

    def run(self) -> Hits:
        """Search.

        Raises:
            InvalidCommand: The pattern is no regular expression, or is more than one can be.
            OSError: `path` is missing, or may not be read.
        """
        argv = [sys.executable, "-I", "-S", "-E", "-c", _CODE]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={}, cwd="/"
        ) as child:
            self._child = child
            try:
                if self._stopped:
                    child.kill()
                output, why = self._answer(child)
            finally:
                child.kill()
        return _hits(output, why)

    def _answer(self, child: subprocess.Popen[bytes]) -> tuple[bytes, str]:
        assert child.stdout is not None
        _tell(
            child,
            {
                "workspace": self.root.workspace,
                "inner": self.root.inner,
                "asks": self.withheld is not None,
                **{name: getattr(self, name) for name in _TOLD},
            },
        )
        ends = time.monotonic() + self.seconds + _GRACE_S
        descriptor = child.stdout.fileno()
        output, rest = bytearray(), b""
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        while len(output) <= BYTES_MOST:
            if not waiting.poll(max(0.0, ends - time.monotonic()) * 1000):
                return bytes(output), f"stopped after {self.seconds:g} s"
            part = os.read(descriptor, 65_536)
            if not part:
                return bytes(output), ""
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(_ASKS):
                    assert self.withheld is not None
                    _tell(child, [self.withheld(path) for path in json.loads(line)["ask"]])
                else:
                    output += line + b"\n"
        return bytes(output), f"stopped after {BYTES_MOST} bytes of matches; give a narrower pattern or path"


def _tell(child: subprocess.Popen[bytes], what: object) -> None:
    # At most some kilobytes, to a pipe that is empty: it takes all at once.
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(what).encode() + b"\n")


def _hits(output: bytes, why: str) -> Hits:
    hits: list[Hit] = []
    summary: dict[str, Any] = {}
    for line in output.split(b"\n")[:-1]:
        said = json.loads(line)
        if "line" in said:
            hits.append(Hit(**said))
        else:
            summary = said
    if "bad" in summary:
        raise InvalidCommand(summary["bad"])
    if "errno" in summary:
        number = summary["errno"]
        raise OSError(number, os.strerror(number))
    if not summary:
        why = why or "stopped: the search ended early"
    summary |= {name: tuple(summary.get(name, ())) for name in ("slow", "skipped")}
    told: dict[str, Any] = {**summary, "stopped": summary.get("stopped") or why}
    return Hits(hits=tuple(hits), **told)
