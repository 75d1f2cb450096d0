"""The process that searches in files: a pattern that never ends blocks this process only, for a bounded time.

It is started for each search, so it imports little, and only the standard library. It becomes the user of commands
before it reads anything. It reads one line of JSON and prints one for each hit and one summary. If told to, it asks
which files it may search, some at a time, before it reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from shellback.exec.core.errors import ExecError
from shellback.exec.core.sight.place import Root, held, opened
from shellback.exec.files import scan
from shellback.exec.files.scan import Pattern, Scan, State, alternatives
from shellback.exec.wire.descriptors import closing

FILE_MOST: Final = 16 * 1024 * 1024
FILE_S: Final = 1.0
SHOWN: Final = 500
"""Characters of a line; what matched is among them."""
_BEFORE: Final = 100
_MEMORY: Final = 1 << 30
_ASKED: Final = 64
"""So many files are asked about at once."""
_SNIFFED: Final = 8192


class _TooSlow(Exception):
    """Raised by the alarm."""


def main() -> None:
    """Answer the request on stdin; what it asks is answered there too."""
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    _held(request["seconds"])
    workspace = None
    if request["become"] is not None:
        if request["inner"] != request["workspace"]:
            with contextlib.suppress(OSError):
                workspace = held(request["workspace"])
        uid, gid = request["become"]
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    try:
        summary = _Search(request, workspace).run()
    except re.error as error:
        summary = {"bad": f"{request['pattern']!r} is no regular expression: {error}"}
    except (RecursionError, MemoryError, OverflowError):
        summary = {"bad": f"{request['pattern']!r} is too much for a regular expression; give a simpler one"}
    except _TooSlow:
        summary = {"bad": f"{request['pattern']!r} takes too long; give a simpler one"}
    except ExecError as error:
        summary = {"bad": str(error)}
    except OSError as error:
        summary = {"errno": error.errno}
    say(summary)
    sys.stdout.flush()


def say(what: dict[str, Any]) -> None:
    """One line for whoever asked."""
    sys.stdout.write(json.dumps(what) + "\n")


class _Search:
    def __init__(self, request: dict[str, Any], workspace: int | None) -> None:
        self._began = time.monotonic()
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, FILE_S / 4, FILE_S / 4)
        flags = re.IGNORECASE if request["ignore_case"] else 0
        self._pattern = re.compile(request["pattern"], flags)
        self._root = Root(
            request["workspace"], request["inner"], None if workspace is None else lambda: os.dup(workspace)
        )
        self._path: str = request["path"]
        self._left = self._limit = int(request["limit"])
        self._names = Pattern(_anywhere(request["glob"])) if request["glob"] else None
        self._scan = Scan(request["seconds"])
        self._asks: bool = request["asks"]
        self._held: list[tuple[str, int]] = []
        self._files = self._binary = self._large = self._unreadable = self._withheld = 0
        self._slow: list[str] = []
        self._began = 0.0

    def run(self) -> dict[str, Any]:
        with self._root.place(self._path) as place:
            base = self._root.shown(place.names)
            if stat.S_ISDIR(place.there.st_mode):
                with closing(scan.opened(place.name, place.directory)) as directory:
                    self._tree(directory, base.rstrip("/") + "/")
            else:
                self._take(place.name, place.directory, base)
        self._search()
        return {
            "files": self._files,
            "binary": self._binary,
            "large": self._large,
            "slow": self._slow,
            "unreadable": self._unreadable,
            "withheld": self._withheld,
            "stopped": self._scan.stopped,
            "skipped": self._scan.skipped,
        }

    def _tree(self, directory: int, base: str) -> None:
        into, start = (_all, frozenset[State]()) if self._names is None else (self._names.step, self._names.start)
        for path, found, at in self._scan.entries(directory, start, into):
            if found.is_file(follow_symlinks=False):
                self._take(found.name, at, base + path)
                if self._scan.over():
                    return

    def _take(self, name: str, directory: int, path: str) -> None:
        try:
            self._held.append((path, opened(name, directory)))
        except OSError:
            self._unreadable += 1
        if len(self._held) >= (_ASKED if self._asks else 1):
            self._search()

    def _search(self) -> None:
        """Search the held files that are not withheld; withheld files are never read."""
        held, self._held = self._held, []
        refused: list[bool] = [False] * len(held)
        if self._asks and held:
            say({"ask": [path for path, _ in held]})
            sys.stdout.flush()
            refused = json.loads(sys.stdin.readline())
        for (path, descriptor), no in zip(held, refused, strict=True):
            with closing(descriptor):
                self._withheld += no
                if not no and not self._scan.over():
                    self._one(descriptor, path)

    def _one(self, descriptor: int, path: str) -> None:
        try:
            self._began = time.monotonic()
            for number, text, cut in self._hits(self._read(descriptor)):
                say({"path": path, "line": number, "text": text, "cut": cut})
                self._left -= 1
                if self._left == 0:
                    self._scan.stopped = f"stopped after {self._limit} matches; give a narrower pattern or path"
                    return
        except _TooSlow:
            if len(self._slow) < scan.SKIPPED_SHOWN:
                self._slow.append(path)
        except (OSError, MemoryError):
            self._unreadable += 1
        finally:
            self._began = 0.0

    def _tick(self, _number: int, _frame: object) -> None:
        if self._began and time.monotonic() - self._began > FILE_S:
            raise _TooSlow

    def _read(self, descriptor: int) -> bytes:
        status = os.fstat(descriptor)
        if status.st_size > FILE_MOST:
            self._large += 1
            return b""
        data = os.read(descriptor, status.st_size + 1)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
        if b"\0" in data[:_SNIFFED]:
            self._binary += 1
            return b""
        self._files += 1
        return data

    def _hits(self, data: bytes) -> Iterator[tuple[int, str, bool]]:
        search = self._pattern.search
        lines = data.decode(errors="replace").split("\n")
        if b"\r" in data:
            lines = [line.removesuffix("\r") for line in lines]
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, 1):
            if (match := search(line)) is not None:
                begin = max(0, match.start() - _BEFORE) if len(line) > SHOWN else 0
                text = line[begin : begin + SHOWN]
                yield number, text, len(text) < len(line)


def _all(states: frozenset[State], _: str) -> tuple[bool, frozenset[State]]:
    return True, states


def _anywhere(glob: str) -> list[str]:
    """A pattern without a `/` is one of names in any directory."""
    return [one if "/" in one.strip("/") else f"**/{one}" for one in alternatives(glob)]


def _held(seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 5, int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    main()
