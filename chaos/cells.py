"""The matrix: who is killed, where, and what may come of it.

The twenty-four moments at which a loop like this can be cut, and the points that stand for them:

 1 before the approval is committed    approval.recorded (the request; inside the transaction that asks)
 2 after it                            turn.entered, turn.begun (of the turn that the decision resumes, too)
 3 the claim, before its commit        claim.before
 4 the claim committed, before a fork  claim.committed, start.sent, supervisor.request, .marked, .held, keeper.held
 5 forked, nothing on record           supervisor.forked
 6 on record, before exec              one with 5: the spawn returns when exec has happened
 7 exec done, the pid not reported     supervisor.recorded_pid
 8 before the step's checkpoint        start.answered, started.recorded
 9 after it                            tool.returned, turn.closing, turn.closed
10 while output is written             supervisor.output
11 the child dead, not reaped          supervisor.exit_seen
12 reaped, before the record           keeper.reaped; the supervisor reaps last, so it has no such moment
13 the record written, not synced      supervisor.record_written
14 synced, before the rename           one with 13: what is renamed is synced after, before it is reaped or told again
15 renamed, the directory not synced   supervisor.record_renamed, .rung
16 before the callback's transaction   exit.received, exit.finishing
17 inside it                           chaos.syscalls and the model test; here as 16, since it leaves nothing
18 committed, its answer lost          exit.committed
19 acknowledged, before it is noted    exit.acked, supervisor.reaped
20 the callback enqueued, unclaimed    exit.committed, exit.acked
21 the agent's turn about it           wake.entered
22 clean-up of the directory           retention.*: tests/integration/work/test_retention.py, between every two steps
23 a kill under way                    kill.sent, supervisor.killing
24 the sweep under way                 sweep.scanning, while the process runs

Connections of a command have cells of their own: proxy, supervisor, worker and several of them are killed while one
waits for a person and one flows (connections.open), and a worker between a row and its record (network.noted).
The worker is on another machine than its host in cells of their own, which have its points and those of the host.
A directory of a conversation is made and removed (directory.*) in tests/integration/backends/test_directories.py.
Beside them a watch on the process: placed, its line found, the hit told (watch.placed, .found, .told); and a
command in the foreground, whose end is told to its call before it is recorded (exit.told). The server of an MCP client
passes the same points from the claim to the end, and those of a task (task.*): made, its answer sent, the end before
its row, and cancelled while the process runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal

from tests.supervisors import crash_points

Victim = Literal[
    "worker", "server", "supervisor", "keeper", "proxy", "database", "pgbouncer", "link", "machine", "container",
    "podman", "host", "line",
]  # fmt: skip
Backend = Literal["host", "bubblewrap", "podman"]
Moment = Literal["hired", "approved", "running"]

KEPT_BY_TESTS: Final = (
    "directory.",
    "retention.",
    "file.",
    "network.",
    "shell.",
    "supervisor.asked",
    "supervisor.answered",
    "supervisor.handed",
)
CONNECTED: Final = "connections.open"
"""Nobody's point: we see that one connection waits for a person and one flows, and kill then."""
OF_CONNECTIONS: Final = (CONNECTED, "network.noted")
"""Only a command that connects reaches these."""
OF_WATCHES: Final = ("watch.placed", "watch.found", "watch.told")
"""Only a process that somebody watches reaches these."""
OF_CALLS: Final = ("exit.told",)
"""Only a command that its call waits for reaches it."""
TASK_ANSWERED: Final = "client.told"
"""Nobody's point: the client has the answer that its call is a task, and kills then."""
TASK_CANCELLED: Final = "task.cancelled"
OF_TASKS: Final = ("task.made", TASK_ANSWERED, "task.finishing", TASK_CANCELLED)
"""Only a call that becomes a task reaches these."""
OF_SANDBOXES: Final = ("supervisor.sandboxed", "supervisor.stands")
"""Only a start in a sandbox reaches these."""
OF_CONTAINERS: Final = ("start.placed",)
"""Only a start in a container reaches it."""
_OF_SOME: Final = {*OF_SANDBOXES, *OF_CONTAINERS, *OF_WATCHES, *OF_CALLS, *OF_TASKS}
POINTS: Final = tuple(
    point for point in crash_points() if point not in _OF_SOME and not point.startswith(KEPT_BY_TESTS)
)
_OF_OTHERS: Final = ("supervisor.", "keeper.")
WORKER_POINTS: Final = tuple(point for point in POINTS if not point.startswith(_OF_OTHERS))
SUPERVISOR_POINTS: Final = tuple(point for point in POINTS if point.startswith("supervisor."))
KEEPER_POINTS: Final = tuple(point for point in POINTS if point.startswith("keeper."))

KERNEL_TELLS: Final = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)
"""Whether a descriptor of a process has its status after somebody else has reaped it."""

CODE: Final = 7
TRUE: Final = f"exited {CODE}"
KILLED: Final = "signaled 15"
BROKEN_PIPE: Final = "signaled 13"
NEVER_STARTED: Final = "lost never_started"
UNKNOWN: Final = "lost supervisor_killed"
REBOOTED: Final = "lost machine_rebooted"
RESTARTED: Final = "lost container_restarted"
MAKING: Final = "podman.run"
"""Nobody's point: we see podman make a container, and kill it there."""

_AFTER_MARK: Final = ("supervisor.marked", "supervisor.held", *OF_SANDBOXES)
"""The session's mark is on disk and no command exists: whoever comes later cannot start it any more."""
_CLAIMED: Final = ("claim.committed", "start.sent", "supervisor.request")
_ALIVE: Final = (
    "supervisor.forked", "supervisor.recorded_pid", "start.answered", "started.recorded", "tool.returned",
    "turn.closing", "turn.closed", "sweep.scanning", "supervisor.output",
)  # fmt: skip
"""The process runs: who loses supervisor, keeper and its end loses its status, if nobody asks the kernel in time."""
_UNRECORDED: Final = ("supervisor.exit_seen", "supervisor.record_written", "keeper.reaped")
"""It has ended and no record is in place."""
_ENDS_OF_TURNS: Final = ("tool.returned", "turn.closing", "turn.closed")
"""Meant are those of the turn that starts the process, not of the one that asks for approval."""
_KILLING: Final = ("kill.sent", "supervisor.killing")
_OF_TURNS: Final = ("approval", "tool", "turn", "wake")
"""How the points begin that a worker elsewhere reaches; its host reaches the others."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point at which something is killed, with `kill -9`, while commands run in a backend.

    `elsewhere`: the worker is on another machine than its host, and a line leads from one to the other.
    """

    victims: tuple[Victim, ...]
    point: str
    backend: Backend = "host"
    elsewhere: bool = False

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{'+'.join(self.victims)} at {self.place}"

    @property
    def place(self) -> str:
        """The point, and the backend where it is not the host."""
        if self.elsewhere:
            return f"{self.point} with a worker elsewhere"
        return self.point if self.backend == "host" else f"{self.point} in {self.backend}"

    @property
    def here(self) -> Victim:
        """Whose process reaches the point."""
        first = self.point.partition(".")[0]
        if first in {"supervisor", "keeper"}:
            return "supervisor" if first == "supervisor" else "keeper"
        if self.elsewhere and first not in _OF_TURNS:
            return "host"
        return "server" if "server" in self.victims else "worker"

    @property
    def is_kill(self) -> bool:
        """Whether the agent ends the process, instead of waiting for its end."""
        return self.point in _KILLING

    @property
    def is_watched(self) -> bool:
        """Whether the agent watches the process for a line, which it prints before it ends."""
        return self.point in OF_WATCHES

    @property
    def is_foreground(self) -> bool:
        """Whether a call waits for the command."""
        return self.point in OF_CALLS

    @property
    def is_connected(self) -> bool:
        """Whether the command has connections by the proxy."""
        return self.point in OF_CONNECTIONS

    @property
    def is_task(self) -> bool:
        """Whether the call of an MCP client becomes a task."""
        return self.point in OF_TASKS

    @property
    def armed(self) -> Moment:
        """From when on the point is looked for: it would be reached before, for nothing."""
        if self.is_kill or self.point in {"sweep.scanning", "keeper.reaped"}:
            return "running"
        return "approved" if self.point in _ENDS_OF_TURNS else "hired"

    @property
    def seconds(self) -> float:
        """How long the command runs: a moment, or surely beyond the point."""
        if self.is_kill:
            return 120.0
        if self.is_watched:
            return 4.0
        if self.victims == ("machine",) and self.here != "supervisor" and self.point in {"keeper.held", *_ALIVE}:
            # Only who reaches the point stops there; the supervisor goes on until the machine is gone.
            return 60.0
        if self._ends_container:
            # We kill by way of podman, which takes its time where other work goes on.
            return 60.0
        if self.point in {"keeper.reaped", TASK_CANCELLED}:
            # It is armed or brought about by us, before the end.
            return 10.0
        return 3.0 if self.point in {*_ENDS_OF_TURNS, "sweep.scanning"} else 0.7

    @property
    def allowed(self) -> frozenset[str]:
        """Every end that is the truth here; with `TRUE` or `KILLED` the command has run exactly once."""
        truth = KILLED if self.is_kill else TRUE
        if self.backend == "podman" or self.victims == ("machine",):
            return self._in_a_container(truth) if self.backend == "podman" else self._of_a_machine(truth)
        if "supervisor" not in self.victims:
            told = self.point != "keeper.reaped" or "keeper" not in self.victims or KERNEL_TELLS
            return frozenset({truth} if told else {truth, UNKNOWN})
        both = {"supervisor", "keeper"} <= set(self.victims)
        if self.point in _AFTER_MARK:
            return frozenset({UNKNOWN if both else NEVER_STARTED})
        if self.point == "keeper.held" and not both:
            # The supervisor goes on while it is held: it is killed before its fork, or after.
            return frozenset({truth, NEVER_STARTED})
        if both and self.point in {"keeper.held", *_ALIVE, *_UNRECORDED, *_KILLING}:
            # Nobody holds the other end of its output any more, so what it prints then kills it.
            return frozenset({truth, UNKNOWN, BROKEN_PIPE})
        return frozenset({truth})

    def _in_a_container(self, truth: str) -> frozenset[str]:
        if self.victims == ("podman",):
            # Nothing was started, and the call is told so; or another try made it.
            return frozenset({truth, NEVER_STARTED})
        return frozenset({RESTARTED if self._ends_container else truth})

    @property
    def _ends_container(self) -> bool:
        """Whether all that a container has is killed: it ends with its first process, which is the keeper."""
        return self.backend == "podman" and self.victims in {("container",), ("keeper",)}

    def _of_a_machine(self, truth: str) -> frozenset[str]:
        if self.point in _CLAIMED:
            return frozenset({NEVER_STARTED})
        if self.point in {*_AFTER_MARK, "keeper.held", *_ALIVE, *_UNRECORDED, *_KILLING}:
            return frozenset({REBOOTED})
        return frozenset({truth})


VICTIMS: Final[tuple[tuple[Victim, ...], ...]] = (
    ("worker",),
    ("supervisor",),
    ("keeper",),
    ("worker", "supervisor"),
    ("worker", "supervisor", "keeper"),
    ("database",),
    ("machine",),
)
ON_THE_WAY: Final[tuple[tuple[Victim, ...], ...]] = (("pgbouncer",), ("link",))
"""What may be between a worker and Postgres."""
LINE: Final[tuple[Victim, ...]] = ("line",)
"""Between a worker elsewhere and its host."""
AWAY: Final = (("database",), *ON_THE_WAY)
"""Whose end takes the database away."""


_SANDBOXED: Final = (
    "request", "marked", "held", "sandboxed", "stands", "forked", "recorded_pid", "exit_seen", "record_written",
    "reaped", "killing",
)  # fmt: skip


def cells(database: str) -> list[Cell]:
    """All of them."""
    return [Cell(victims, point) for victims in _victims(database) for point in POINTS]


def _victims(database: str) -> tuple[tuple[Victim, ...], ...]:
    return VICTIMS if database == "sqlite" else (*VICTIMS, *ON_THE_WAY)


def sandboxed_cells() -> list[Cell]:
    """A part of the matrix in sandboxes: what is killed there holds or starts them."""
    everybody: tuple[Victim, ...] = ("worker", "supervisor", "keeper")
    return [
        *(Cell(("supervisor",), f"supervisor.{point}", "bubblewrap") for point in _SANDBOXED),
        *(Cell(everybody, f"supervisor.{point}", "bubblewrap") for point in _SANDBOXED[1::2]),
        Cell(("worker",), "start.sent", "bubblewrap"),
        Cell(("keeper",), "keeper.held", "bubblewrap"),
        Cell(("keeper",), "keeper.reaped", "bubblewrap"),
        Cell(("worker", "supervisor"), "started.recorded", "bubblewrap"),
    ]


def connected_cells() -> list[Cell]:
    """A part of it around connections by the proxy."""
    through: tuple[tuple[Victim, ...], ...] = (
        ("proxy",),
        ("supervisor",),
        ("worker",),
        ("supervisor", "proxy", "worker"),
        ("supervisor", "proxy"),
        ("worker", "supervisor"),
    )
    return [
        *(Cell(victims, CONNECTED, "bubblewrap") for victims in through),
        Cell(("worker",), "network.noted", "bubblewrap"),
    ]


def contained_cells() -> list[Cell]:
    """A part of it in containers: there the keeper is the first process, and podman makes what is not there."""
    return [
        Cell(("container",), "started.recorded", "podman"),
        Cell(("keeper",), "start.answered", "podman"),
        Cell(("podman",), MAKING, "podman"),
        Cell(("supervisor",), "supervisor.forked", "podman"),
        Cell(("supervisor",), "supervisor.record_renamed", "podman"),
        Cell(("worker",), "start.sent", "podman"),
        Cell(("worker",), "start.placed", "podman"),
        Cell(("worker",), "start.answered", "podman"),
        Cell(("worker",), "exit.committed", "podman"),
    ]


def watched_cells() -> list[Cell]:
    """A part of it around a watch: what the worker tells is what can be lost, or told twice."""
    return [
        *(Cell(("worker",), point) for point in OF_WATCHES),
        *(Cell(("worker", "supervisor"), point) for point in OF_WATCHES),
        *(Cell(("database",), point) for point in OF_WATCHES),
    ]


_APART: Final[tuple[tuple[Victim, ...], ...]] = (
    ("worker",),
    ("host",),
    LINE,
    ("worker", "host"),
    ("host", "supervisor"),
    ("machine",),
)


def elsewhere_cells() -> list[Cell]:
    """The matrix once more on Postgres, where the worker is on another machine."""
    return [Cell(victims, point, elsewhere=True) for victims in _APART for point in POINTS]


_OF_CLIENTS: Final = (
    "approval.recorded", "claim.before", "claim.committed", "start.sent", "start.answered", "started.recorded",
    "exit.received", "exit.finishing", "exit.committed", "exit.acked", *OF_CALLS,
)  # fmt: skip
_BESIDE_CLIENTS: Final = ("request", "forked", "recorded_pid", "exit_seen", "record_renamed", "rung", "reaped")


def client_cells() -> list[Cell]:
    """A part of it around an MCP client, whose server is killed as a worker is."""
    both: tuple[Victim, ...] = ("server", "supervisor")
    return [
        *(Cell(("server",), point) for point in _OF_CLIENTS),
        *(Cell(both, point) for point in _OF_CLIENTS),
        *(Cell(both, f"supervisor.{point}") for point in _BESIDE_CLIENTS),
        *(Cell(("server",), point) for point in OF_TASKS),
        *(Cell(both, point) for point in OF_TASKS),
    ]


def foreground_cells() -> list[Cell]:
    """A part of it in the foreground: what is told by its result must not be told by a wake, too."""
    return [Cell(victims, point) for point in OF_CALLS for victims in VICTIMS]


_ALSO: Final = (
    Cell(("worker", "supervisor"), "claim.committed"),
    Cell(("worker", "supervisor"), "exit.received"),
    Cell(("database",), "turn.closing"),
    Cell(("machine",), "claim.committed"),
    Cell(("machine",), "supervisor.record_renamed"),
)
"""Where most goes on at once."""


def quick_cells(database: str) -> list[Cell]:
    """Each point once with whoever reaches it; of every other row a part on SQLite, and a few on Postgres."""
    own = [Cell((Cell((), point).here,), point) for point in POINTS]
    rest = [
        Cell(victims, point)
        for number, victims in enumerate(_victims(database)[1:])
        for point in POINTS[number % 3 :: 3 if database == "sqlite" else 7]
    ]
    return list(dict.fromkeys([*own, *rest, *(_ALSO if database == "sqlite" else ())]))
