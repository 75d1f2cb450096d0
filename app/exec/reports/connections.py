"""What sandboxes connected to, from the records of the proxy that are no rows yet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.proxy.journal import HEAD_BYTES, directory_of, ended
from shellback.exec.wire import layout
from shellback.exec.wire.hosts import place

CUT: Final = "its proxy was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One connection, or one that was refused. `scope` is the conversation.

    `decision` is `allow` or `deny`, and `rule` what decided so; both are "" if nothing has allowed or denied it.
    `session` is what the program says of itself, "" if nothing: nobody checks it. `credential` is the name of what was
    put into its requests. `at` is in seconds since the epoch, `up` and `down` in bytes. `seconds` is None while it is
    open. `times`: so many connections are summed up, which were too many for a record each; 0 for one. `limit` is the
    setting that has cut it.
    """

    id: str
    at: float
    scope: str
    host: str
    port: int
    session: str = ""
    address: str = ""
    decision: str = ""
    rule: str = ""
    refused: str = ""
    up: int = 0
    down: int = 0
    credential: str = ""
    seconds: float | None = None
    times: int = 0
    limit: str = ""

    @property
    def goal(self) -> str:
        """Host and port, for people."""
        return place(self.host, self.port) if self.host else f"{self.times} more" if self.times else "-"


class Kept(NamedTuple):
    """A record at `path`, None if it is damaged."""

    path: Path
    connection: Connection | None


def kept(home: Path, scope: str | None = None) -> Iterator[Kept]:
    """The records of one conversation, or of all; blocks. A damaged one of a living proxy is left out."""
    for proxy in sorted(_children(home / layout.NETWORK)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Before the records are read: they may be read before their last change otherwise.
            over = ended(proxy)
            for folder in _children(proxy) if scope is None else [proxy / directory_of(scope)]:
                for path in _children(folder):
                    with contextlib.suppress(FileNotFoundError):
                        found = _read(path, over=over)
                        if found is not None or over:
                            yield Kept(path, found)


def connections(home: Path, scope: str | None = None) -> list[Connection]:
    """The connections among these, oldest first."""
    found = [one.connection for one in kept(home, scope) if one.connection is not None]
    return sorted(found, key=lambda one: one.at)


def open_ones(home: Path, scope: str | None = None) -> list[Connection]:
    """The connections that are open now, oldest first; blocks."""
    return [one for one in connections(home, scope) if one.seconds is None]


def leave(home: Path) -> None:
    """Remove the directories of proxies that have ended and left no record; blocks."""
    for proxy in _children(home / layout.NETWORK):
        with contextlib.suppress(OSError):
            if ended(proxy):
                for folder in _children(proxy):
                    folder.rmdir()
                proxy.rmdir()


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [one for one in folder.iterdir() if not one.name.startswith(".")]
    return []


def _read(path: Path, *, over: bool) -> Connection | None:
    data = path.read_bytes()
    try:
        up, down, times = map(int, data[:HEAD_BYTES].split())
        facts = json.loads(data[HEAD_BYTES:].rpartition(b"\n")[0].splitlines()[-1])
        if over and "seconds" not in facts:
            seconds = round(max(0.0, path.stat().st_mtime - facts["at"]), 3)
            facts |= {"seconds": seconds, "refused": facts.get("refused") or CUT}
        return Connection(**facts | {"up": up, "down": down, "times": times})
    except (ValueError, TypeError, LookupError):
        return None
