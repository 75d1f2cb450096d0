"""What sandboxes connected to, from the records of the proxy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shellback.exec.proxy.journal import FORMER, file_of
from shellback.exec.wire import layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One connection, or one that was refused. `scope` is the conversation.

    `decision` is `allow` or `deny`, and `rule` what decided so; both are "" if nothing has allowed or denied it.

    `session` is what the program says of itself, "" if nothing: nobody checks it. `credential` is the name of what was
    put into its requests. `at` is in seconds since the epoch, `up` and `down` in bytes. `seconds` is None while it is
    open, and for one whose proxy was killed.
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


def connections(home: Path, scope: str | None = None) -> list[Connection]:
    """The connections of one conversation, or of all, oldest first; blocks. Damaged lines are left out."""
    found: dict[str, Connection] = {}
    for line in _lines(home / layout.NETWORK, "*" if scope is None else file_of(scope)):
        with contextlib.suppress(ValueError, TypeError):
            one = Connection(**json.loads(line))
            found[one.id] = one
    return sorted(found.values(), key=lambda one: one.at)


def _lines(place: Path, name: str) -> Iterator[bytes]:
    for former in (FORMER, ""):
        for path in place.glob(f"{name}{former}"):
            with contextlib.suppress(FileNotFoundError):
                yield from path.read_bytes().splitlines()
