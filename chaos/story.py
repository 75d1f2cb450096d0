"""One kill and what came of it: a message, its approval, a process in the background, its wake, the answer."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from app.exec.model import SessionState
from chaos.cells import Cell
from tests.stage import Stage, stage

CODE = 7
COMMAND = f"echo nonce >> nonce.txt; sleep 0.7; echo over; exit {CODE}"


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


def live_through(cell: Cell, database_url: str | None) -> Count:
    """Run the story once, kill as the cell says, and count."""
    with stage(database_url) as made:
        made.hire()
        made.arm(cell.point, "\n".join(_orders(cell, made)))
        try:
            _run(made)
        except AssertionError as error:
            return Count(lost=1, note=str(error).splitlines()[0])
        return _counted(made, cell)


def _orders(cell: Cell, made: Stage) -> list[str]:
    """Who reaches the point does the killing, itself last."""
    supervisor, keeper = made.supervisor_pids()
    pids = {"worker": made.workers[-1].process.pid, "supervisor": supervisor, "keeper": keeper}
    here = "supervisor" if cell.point.startswith("supervisor.") else "worker"
    others = [f"kill {pids[victim]}" for victim in cell.victims if victim != here]
    return [*others, *(["kill self"] if here in cell.victims else [])]


def _run(made: Stage) -> None:
    made.send(f"$ {COMMAND} &")
    approved = False

    def step() -> bool:
        nonlocal approved
        if made.workers[-1].process.poll() is not None:
            made.hire()
        if not approved and (pending := made.requests()):
            made.decide(pending[0])
            approved = True
        return bool(_telling(made)) and made.at_rest()

    made.until("the wake is answered", step)


def _telling(made: Stage) -> list[str]:
    """Answers that say how a process ended."""
    return [answer for answer in made.answers() if re.search(r"\bSession \w+: ", answer)]


def _counted(made: Stage, cell: Cell) -> Count:
    nonces = made.workspace / "nonce.txt"
    starts = len(nonces.read_text().split()) if nonces.exists() else 0
    sessions, callbacks, answers = made.sessions(), made.callbacks(), _telling(made)
    end = sessions[0].end if sessions else None
    if end is None:
        return Count(lost=1, note="no end is recorded")
    true = (end.state, end.exit_code) == (SessionState.EXITED, CODE) and f"exit code {CODE}" in answers[0]
    lost = end.state is SessionState.LOST
    # Who held the other end of its output is gone, so what it prints then kills it: that is what the kernel says.
    broken_pipe = end.state is SessionState.SIGNALED and end.signal == signal.SIGPIPE
    excused = cell.may_be_lost and (lost or broken_pipe)
    return Count(
        lost=int(not callbacks or (lost and not excused)),
        doubled=int(len(callbacks) > 1 or len(answers) > 1 or len(sessions) > 1),
        double_starts=int(starts > 1),
        wrong_status=int(not (true or lost or excused) or (true and starts != 1)),
        unreached=int(not made.fired(cell.point)),
        note="" if true else f"{end.state.value} {(end.evidence and end.evidence.value) or end.signal}",
    )
