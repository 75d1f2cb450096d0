"""Has a running worker of this host answer a command's question: it has loaded what this process would have to import.

Without a worker, or if the worker cannot answer, this process does. A question has the same answer in both.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, Protocol

from shellback.cli.shared import opened, until
from shellback.environment import database_of, home_of, pass_on, variables
from shellback.exec.wire.descriptors import short
from shellback.exec.wire.peers import peer_is_ours

DESK: Final = "desk"
"""The directory in the state directory with one socket per worker. `layout` would be slow to import."""
VERSION: Final = 4
"""Rises when a question or its answer changes. A worker of another version answers nothing."""
GREETING_S: Final = 1.0
PATIENCE_S: Final = 5.0
"""A worker that says nothing for this long may hang; then this process answers."""
WAITS: Final = "waits"
"""Said once a second by a worker that waits for an answer."""
QUESTIONS: Final = {
    "processes": "ps:listed",
    "queue": "queue:listed",
    "requests": "approvals:listed",
    "send": "send:deliver",
    "outcome": "send:outcome",
    "chat": "chat:begun",
}
"""The function in this package that answers each question, with a `Place` and arguments. Arguments and answer are JSON.

A function that returns a function is asked until that returns something."""


class Ask(Protocol):
    """Answers a question; with `wait_s` and `late`, one whose answer may have to be waited for."""

    def __call__(self, question: str, *, wait_s: float = 0.0, late: str = "", **given: Any) -> Any:
        """The answer; Refused with `late` if there is none in time."""
        ...


def answering(question: str) -> Callable[..., Any]:
    """The function that answers a question."""
    module, _, name = QUESTIONS[question].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"shellback.cli.{module}"), name)
    return found


@contextlib.contextmanager
def asking(*, here: bool = False) -> Generator[Ask]:
    """Questions within the block go to a worker, or are answered here: all of them with `here`, as for long answers."""
    with contextlib.ExitStack() as stack:
        desk = None if here else _reached()
        place = None
        if desk is not None:
            stack.callback(desk.close)

        def ask(question: str, *, wait_s: float = 0.0, late: str = "", **given: Any) -> Any:
            nonlocal desk, place
            deadline = time.monotonic() + wait_s
            if desk is not None:
                try:
                    return desk.ask(question, deadline, given)
                except (OSError, ValueError):
                    desk.close()  # the worker does not begin what it has not begun yet
                    desk = None
            if place is None:
                place = stack.enter_context(opened())
            found = answering(question)(place, **given)
            return until(found, deadline - time.monotonic(), late) if callable(found) else found

        yield ask


def of_a_worker(question: str, **given: Any) -> Any:
    """A worker's answer, or None: no worker answers, or it cannot."""
    if (desk := _reached()) is not None:
        with contextlib.closing(desk), contextlib.suppress(OSError, ValueError):
            return desk.ask(question, time.monotonic(), given)
    return None


class _Desk:
    """A connection to a worker of ours with the same database; OSError or ValueError if it does not answer."""

    def __init__(self, connection: socket.socket, home: Path, given: dict[str, str]) -> None:
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="ascii", newline="\n")
        version, known = self._heard(GREETING_S)
        if version != VERSION:
            raise ValueError("a worker of another version")
        wanted = {name: given[name] for name in known if name in given}
        database = database_of(given.get("DATABASE_URL", "").strip(), home)
        self._say(wanted | {"SHELLBACK_HOME": str(home), "DATABASE_URL": database})
        if self._heard(GREETING_S) is not True:
            raise ValueError("a worker with other settings")
        pass_on(given, known)

    def ask(self, question: str, deadline: float, given: dict[str, Any]) -> Any:
        self._say([question, given])
        while (found := self._heard(PATIENCE_S)) == WAITS:
            if time.monotonic() > deadline:
                raise TimeoutError
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()

    def _say(self, value: object) -> None:
        self._lines.write(json.dumps(value) + "\n")
        self._lines.flush()

    def _heard(self, wait_s: float) -> Any:
        self._connection.settimeout(wait_s)
        return json.loads(self._lines.readline())


def _reached() -> _Desk | None:
    """A worker's desk; None if none answers."""
    given = dict(variables())
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        home = home_of(given)
        directory = home / DESK
        names = os.listdir(directory)
        with short(directory) as folder:
            for name in names:
                connection = socket.socket(socket.AF_UNIX)
                try:
                    connection.settimeout(PATIENCE_S)
                    connection.connect(f"{folder}/{name}")
                    if peer_is_ours(connection):
                        return _Desk(connection, home, given)
                except (OSError, ValueError):
                    pass
                connection.close()
    return None
