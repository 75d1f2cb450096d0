"""Where a run is disturbed: one system call of one thread, killed at its entry or answered with an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from chaos.syscalls.tracer import Call

Process = Literal["supervisor", "keeper"]
Story = Literal["session", "terminal", "recovery"]

PROCESSES: Final[tuple[Process, ...]] = ("supervisor", "keeper")
STORIES: Final[tuple[Story, ...]] = ("session", "terminal", "recovery")
THREADS: Final = ("main", "serve", "sync", "look")
"""Those of the supervisor, in the order in which they begin; the keeper has the first."""
ALL: Final = "all"
"""Instead of a thread: whichever calls it that often first."""

ERRORS: Final = ("ENOSPC", "EIO", "EMFILE", "EAGAIN", "EINTR")
FAILING: Final = frozenset(
    (
        *("write", "pwrite64", "writev", "splice", "sendto", "sendmsg", "fsync", "fdatasync", "ftruncate"),
        *("rename", "renameat", "open", "openat", "mkdir", "mkdirat"),
        *("fork", "vfork", "clone", "clone3", "pipe", "pipe2", "socket", "accept", "accept4", "pidfd_open"),
    )
)
"""Calls that are answered with each of `ERRORS`."""
_CANNOT_BE_HIT: Final = frozenset({"restart_syscall", "exit_group", "exit"})
"""The first is how an interrupted call goes on when we attach."""
_FORKS: Final = frozenset({"vfork", "fork", "clone", "clone3"})


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The `nth` call of that name in one thread during a story; `error` None is a kill."""

    story: Story
    process: Process
    thread: str
    call: str
    nth: int
    error: str | None = None

    @property
    def name(self) -> str:
        """As the table has it."""
        what = self.error or "kill"
        return f"{what} at {self.process}/{self.thread} {self.call} {self.nth} ({self.story})"

    @property
    def inject(self) -> str:
        """What strace is told."""
        how = f"error={self.error}" if self.error else "signal=KILL"
        return f"{self.call}:{how}:when={self.nth}"


def points(story: Story, process: Process, thread: str, traces: Iterable[list[Call]]) -> list[Point]:
    """A kill at every call that any of the traces of one thread has, and every error where errors are tried."""
    most: Counter[str] = Counter()
    for trace in traces:
        # With several threads, the count of the one that calls most: it gets to each number first or second.
        counted = Counter((call.thread, call.name) for call in trace if call.name not in _CANNOT_BE_HIT)
        here: Counter[str] = Counter()
        for (_, name), times in counted.items():
            here[name] = max(here[name], times)
        most |= here
    kills = [Point(story, process, thread, name, nth) for name in most for nth in range(1, most[name] + 1)]
    errors = [
        Point(story, process, thread, kill.call, kill.nth, error)
        for kill in kills
        if kill.call in FAILING
        for error in ERRORS
    ]
    return kills + errors


def marked(call: Call) -> bool:
    """Whether this call claimed a session's `started` file for a start."""
    return call.name == "openat" and call.done and "O_EXCL" in call.text and '/started"' in call.text


def forked(call: Call) -> bool:
    """Whether this call made the command's process."""
    return call.name in _FORKS and call.done


def between_mark_and_fork(trace: list[Call]) -> bool:
    """Whether whoever was traced died after the claim of a session and before there was a process."""
    names = [index for index, call in enumerate(trace) if marked(call)]
    return bool(names) and not any(forked(call) for call in trace[names[-1] :])
