"""The matrix: who is killed, where, and what may come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from app.exec.supervisor import crashpoints

Victim = Literal["worker", "supervisor", "keeper"]

_OF_OTHERS: Final = ("supervisor.", "keeper.", "sweep.", "retention.")
WORKER_POINTS: Final = tuple(point for point in crashpoints.POINTS if not point.startswith(_OF_OTHERS))
SUPERVISOR_POINTS: Final = tuple(point for point in crashpoints.POINTS if point.startswith("supervisor."))
POINTS: Final = (*WORKER_POINTS, *SUPERVISOR_POINTS)

NEVER_STARTED: Final = frozenset({"supervisor.marked", "supervisor.held"})
"""Between the mark and the fork: a supervisor that is killed there leaves a session that has not run."""
_MARKED, _DURABLE = map(SUPERVISOR_POINTS.index, ("supervisor.marked", "supervisor.record_renamed"))
UNWITNESSED: Final = frozenset(
    {"start.answered", "started.recorded", "tool.returned", *SUPERVISOR_POINTS[_MARKED:_DURABLE]}
)
"""Started, or about to be, and no record yet: without supervisor and keeper nobody may have the kernel's status."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point at which one or more processes are killed, with `kill -9`."""

    victims: tuple[Victim, ...]
    point: str

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{'+'.join(self.victims)} at {self.point}"

    @property
    def may_be_lost(self) -> bool:
        """Whether `lost` is the truth here; anywhere else it is a failure."""
        if "supervisor" not in self.victims:
            return False
        # A turn that closes does so while its process runs or after; which, no point tells.
        both = "keeper" in self.victims
        return self.point in NEVER_STARTED or (both and self.point in {*UNWITNESSED, "turn.closing", "turn.closed"})


VICTIMS: Final[tuple[tuple[Victim, ...], ...]] = (
    ("worker",),
    ("supervisor",),
    ("keeper",),
    ("worker", "supervisor"),
    ("worker", "supervisor", "keeper"),
)


def cells() -> list[Cell]:
    """All of them."""
    return [Cell(victims, point) for victims in VICTIMS for point in POINTS]


def quick_cells() -> list[Cell]:
    """Each point once with whoever reaches it, and every second one with worker and supervisor together."""
    own = [Cell(("worker",), point) for point in WORKER_POINTS]
    own += [Cell(("supervisor",), point) for point in SUPERVISOR_POINTS]
    return own + [Cell(("worker", "supervisor"), point) for point in POINTS[::2]]
