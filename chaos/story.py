"""One kill and what came of it: a message, its approval, a process in the background, its wake, the answer.

A command in the foreground has no wake: its call tells its end.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError

from chaos.cells import AWAY, CODE, KILLED, LINE, TRUE, Cell
from chaos.outages import Outage
from chaos.strike import Cut, Hold, InContainer, Kill, PowerCut, Strike
from shellback.exec.core.model import SessionState
from shellback.storage import watches
from shellback.storage.errors import DatabaseUnreachable
from shellback.work.errors import ApprovalSettled
from tests.stage import Stage

PATIENCE_S = 180.0
"""What is only late, on a machine that does ten of these at a time, is not lost."""
HIT = '1 line matches "^over$"'
COMMAND = "echo nonce >> nonce.txt; sleep {seconds}; echo over; exit {code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What went wrong in one run, counted outside the product; all zero is as promised. `unreached`: nobody died."""

    lost: int = 0
    doubled: int = 0
    double_starts: int = 0
    wrong_status: int = 0
    unreached: int = 0
    note: str = ""

    @property
    def clean(self) -> bool:
        """Nothing went wrong."""
        return not (self.lost or self.doubled or self.double_starts or self.wrong_status or self.unreached)


def live_through(
    made: Stage,
    cell: Cell,
    outage: Outage | None = None,
    *,
    executed: bool = False,
    hire: Callable[[], object] | None = None,
) -> Count:
    """Run the story once on this stage, kill as the cell says, and count.

    `outage` is what takes Postgres or the host away, in a cell that says so. `executed`: the first worker is started
    from scratch. `hire` begins whoever of the crew is not there; by default that is a worker.
    """
    made.patience_s = PATIENCE_S
    story = _Story(made, cell, _strike(made, cell, outage), executed=executed, hire=hire)
    try:
        story.run()
    except AssertionError as error:
        return Count(lost=1, note=str(error).splitlines()[0])
    return story.counted()


def _strike(made: Stage, cell: Cell, outage: Outage | None) -> Strike:
    if cell.backend == "podman":
        return InContainer(made, cell)
    if cell.victims == ("machine",):
        return PowerCut(made, cell)
    if cell.victims in (*AWAY, LINE):
        return Cut(made, cell, outage) if outage is not None else Hold(made, cell)
    return Kill(made, cell)


class _Story:
    def __init__(
        self, made: Stage, cell: Cell, strike: Strike, *, executed: bool, hire: Callable[[], object] | None
    ) -> None:
        self._made = made
        self._cell = cell
        self._strike = strike
        self._executed = executed
        self._hire = hire or self._hire_a_worker
        self._called = False
        # While its database is away a person's command says so, and is given again.
        self._bearable: tuple[type[Exception], ...] = (ApprovalSettled,)
        if cell.victims in AWAY:
            self._bearable = (ApprovalSettled, DatabaseUnreachable, DBAPIError)

    def run(self) -> None:
        if isinstance(self._strike, PowerCut):
            self._strike.boot()
        self._hire()
        self._strike.begin()
        command = COMMAND.format(seconds=self._cell.seconds, code=CODE)
        self._made.send(f"$ {command}" if self._cell.is_foreground else f"$ {command} &")
        self._made.until("the end is told", self._step)

    def _hire_a_worker(self) -> None:
        boot_id = self._strike.boot_id if isinstance(self._strike, PowerCut) else None
        first = not self._made.workers
        self._made.hire(executed=self._executed and first and boot_id is None, boot_id=boot_id)

    def _step(self) -> bool:
        if any(one.process.poll() is not None for one in self._made.crew.values()):
            self._hire()
        with contextlib.suppress(*self._bearable):
            sessions = self._made.sessions()
            running = next((one for one in sessions if one.state is SessionState.RUNNING), None)
            if running is not None:
                self._strike.look("running")
            if running is not None and not self._called:
                self._call(running.id)
            for pending in self._made.requests():
                # Before the decision: the turn that it resumes may be there at once.
                self._strike.look("approved")
                self._made.decide(pending)
            self._strike.look("hired")
            # A watch that is on may still have a hit to tell, seconds after an outage.
            return bool(self._telling()) and not self._made.read(watches.find) and self._made.at_rest()
        return False

    def _call(self, session_id: str) -> None:
        """What the agent does with the process that runs."""
        if self._cell.is_kill:
            self._made.send(f"!process_kill {json.dumps({'session_id': session_id})}")
        if self._cell.is_watched:
            self._made.send(f"!process_watch {json.dumps({'session_id': session_id, 'pattern': '^over$'})}")
        self._called = True

    def _telling(self) -> list[str]:
        """Answers that say how a process ended."""
        says = rf"\n  exit code {CODE}\n" if self._cell.is_foreground else r"\bSession \w+: "
        return [answer for answer in self._made.answers() if re.search(says, answer)]

    def counted(self) -> Count:
        made, cell = self._made, self._cell
        hits = [answer.count(HIT) for answer in made.answers() if HIT in answer] if cell.is_watched else [1]
        woken = len(made.callbacks()) + cell.is_foreground
        return verdict(made, cell, self._telling(), woken=woken, hits=hits)


def verdict(made: Stage, cell: Cell, telling: Sequence[str], *, woken: int, hits: Sequence[int] = (1,)) -> Count:
    """What went wrong; the answers `telling` say how the process ended, and `woken` counts what told it: one thing."""
    nonces = made.workspace / "nonce.txt"
    starts = len(nonces.read_text().split()) if nonces.exists() else 0
    sessions = made.sessions()
    end = sessions[0].end if sessions else None
    if end is None:
        return Count(lost=1, note="no end is recorded")
    number = end.exit_code if end.exit_code is not None else end.signal
    how = f"{end.state.value} {end.evidence.value if end.evidence else number}"
    lost = end.state is SessionState.LOST
    told = f"exit code {CODE}" in telling[0] if how == TRUE else f"exit code {CODE}" not in telling[0]
    once = starts == 1 if how in {TRUE, KILLED} else starts <= 1
    if end.evidence is not None and end.evidence.value == "never_started":
        once = starts == 0
    allowed = how in cell.allowed
    return Count(
        lost=int(not woken or not hits or (lost and not allowed)),
        doubled=int(woken > 1 or len(telling) > 1 or len(sessions) > 1 or sum(hits) > 1),
        double_starts=int(starts > 1),
        wrong_status=int(not (told and once) or not (allowed or lost)),
        unreached=int(not made.fired(cell.point)),
        note="" if how == TRUE else how,
    )


def facts_of(made: Stage) -> dict[str, Any]:
    """What there is to study after a run that went wrong."""
    return {
        "sessions": [{**asdict(session), "key": session.id} for session in made.sessions()],
        "callbacks": made.callbacks(),
        "answers": made.answers(),
        "points left": sorted(path.name for path in made.points.iterdir()),
    }
