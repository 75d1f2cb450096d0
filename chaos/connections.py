"""The same kills around connections: one flows and one waits for a person, and each is a row, once.

The command ends with its code only if it has got all of both answers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Final

from chaos.cells import CODE, CONNECTED, Cell
from chaos.story import PATIENCE_S, Count, verdict
from shellback.exec.core.model import SessionState
from shellback.work.approvals import audit
from tests.pieces import CURL, Server, pieces, records
from tests.stage import Stage
from tests.supervisors import kill
from tests.towns.town import proxies

ENVIRON: Final = {"NETWORK": "ask", "ASK_SECONDS": "600"}
_COMMAND: Final = (
    "echo nonce >> nonce.txt; {curl} http://127.0.0.1:{port}/ > flows & {curl} http://localhost:{port}/ > waits & wait;"
    " [ $(tail -qc 6 flows waits | grep -c whole) = 2 ] && exit {code}"
)
_FLOWS, _WAITS = "127.0.0.1", "localhost"


def live_connected(made: Stage, cell: Cell) -> Count:
    """Run a command with two connections once on this stage, kill as the cell says, and count."""
    made.patience_s = PATIENCE_S
    with pieces() as server:
        server.listed(made.home)
        story = _Story(made, cell, server)
        try:
            story.run()
        except AssertionError as error:
            return Count(lost=1, note=str(error).splitlines()[0])
        return story.counted()


class _Story:
    def __init__(self, made: Stage, cell: Cell, server: Server) -> None:
        self._made = made
        self._cell = cell
        self._server = server
        self._flows = False
        # Another point is reached by a process, once connections have ended.
        self._struck = cell.point != CONNECTED

    def run(self) -> None:
        self._made.hire()
        self._made.arm(self._cell.point)
        command = _COMMAND.format(curl=CURL, port=self._server.port, code=CODE)
        self._made.send(f"$ {command} &")
        self._made.until("the end is told and all connections are rows", self._step)

    def _step(self) -> bool:
        if self._made.workers[-1].process.poll() is not None:
            self._made.hire()
        self._flows = self._flows or self._server.flowing.acquire(blocking=False)
        for request in self._made.requests():
            if request.of_call:
                self._made.decide(request)
            elif self._flows:
                if not self._struck:
                    self._strike()
                self._made.decide(request)
                self._server.go.set()
        return bool(self._telling()) and self._made.at_rest() and not records(self._made.home)

    def _strike(self) -> None:
        """Kill, in the order of the cell, what a connection goes through."""
        self._struck = True
        running = [one for one in self._made.sessions() if one.state is SessionState.RUNNING]
        assert running, "the command runs"
        supervisor, _ = self._made.supervisor_pids()
        pids = {
            "supervisor": [supervisor],
            "proxy": proxies(self._made.home),
            "worker": [self._made.workers[-1].process.pid],
        }
        for pid in [pid for victim in self._cell.victims for pid in pids[victim]]:
            kill(pid)
        (self._made.points / CONNECTED).unlink()

    def _telling(self) -> list[str]:
        return [answer for answer in self._made.answers() if re.search(r"\bSession \w+: ", answer)]

    def counted(self) -> Count:
        count = verdict(self._made, self._cell, self._telling(), woken=len(self._made.callbacks()))
        rows = [one for one in self._made.read(audit.find) if one.tool == "connect"]
        asked = [one.event for one in rows].count("asked")
        made = Counter((one.facts or {})["host"] for one in rows if one.event == "connected")
        # Whose proxy is killed begins anew.
        due = {_FLOWS: 1 + ("proxy" in self._cell.victims), _WAITS: 1}
        wrong = ", ".join(f"{host} {made[host]} rows" for host in due if made[host] != due[host])
        keys = [one.call_key for one in rows if one.event == "connected"]
        return replace(
            count,
            lost=count.lost or int(not asked or any(made[host] < due[host] for host in due)),
            doubled=count.doubled
            or int(asked > 1 or len({*keys}) < len(keys) or any(made[host] > due[host] for host in due)),
            note=count.note or wrong,
        )
