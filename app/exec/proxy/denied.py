"""Hosts that rules deny, also where the list allows them: files that workers and MCP servers of this host keep.

They are looked at for each connection, so a new rule holds for the next one, also of a command that runs.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final, NamedTuple

from shellback.exec.proxy.reach import Refused
from shellback.exec.wire import layout
from shellback.exec.wire.hosts import Entry, entry, place

MOST: Final = 64
"""Files: one of the saved rules, and one of each policy file."""
_UNREADABLE: Final = (
    "the rules that deny hosts cannot be read (denied/{}: {}): remove it, or start the worker that writes it"
)
_MANY: Final = "the rules that deny hosts are in more than {} files: remove those from denied/ that no worker writes"


class _Denial(NamedTuple):
    """A rule; `scope` is its conversation, None for all, and `until` its end, None for never."""

    entry: Entry
    scope: str | None
    until: float | None
    by: str
    why: str

    def about(self, scope: str, host: str, port: int, now: float) -> bool:
        in_force = self.scope in {None, scope} and (self.until is None or self.until > now)
        return in_force and self.entry.matches(host, port)


class Denied:
    """The rules of all files of a state directory; none without it, or as long as nobody has written any."""

    def __init__(self, home: str | None) -> None:
        self._place = None if home is None else os.path.join(home, layout.DENIED)
        self._seen: list[tuple[str, int, int, int]] = []
        self._rules: tuple[_Denial, ...] = ()

    def check(self, scope: str, host: str, port: int) -> None:
        """Raise Refused if a rule denies this host, as `canonical` writes it, and port to a conversation.

        Also if the rules cannot be read.
        """
        now = time.time()
        for one in self._current():
            if one.about(scope, host, port, now):
                raise Refused(f"{place(host, port)} is denied: {one.why}", by=one.by)

    def _current(self) -> tuple[_Denial, ...]:
        if self._place is None:
            return ()
        try:
            names = sorted(name for name in os.listdir(self._place) if not name.startswith("."))
        except FileNotFoundError:
            return self._rules  # what was read last holds
        if len(names) > MOST:
            raise Refused(_MANY.format(MOST))
        name = ""
        try:
            seen: list[tuple[str, int, int, int]] = []
            for name in names:
                found = os.stat(os.path.join(self._place, name))
                seen.append((name, found.st_ino, found.st_size, found.st_mtime_ns))
            if seen != self._seen:
                rules: list[_Denial] = []
                for name in names:
                    with open(os.path.join(self._place, name), "rb") as file:
                        rules += map(_denial, json.load(file)["rules"])
                self._rules, self._seen = tuple(rules), seen
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Refused(_UNREADABLE.format(name, type(error).__name__)) from None
        return self._rules


def _denial(given: dict[str, Any]) -> _Denial:
    return _Denial(entry(given["connect"]), given["scope"], given["until"], given["by"], given["why"])
