"""A host and a worker elsewhere, which runs its turns; what is between them is a link that can break."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from chaos.cells import Cell
from chaos.links import Link
from chaos.outages import broken
from chaos.story import Count, live_through
from chaos.strike import BOOT_ID
from shellback.storage import members
from shellback.storage.tables import members as member_rows
from shellback.work.elsewhere import certificates
from tests.machines import free_port
from tests.nursery import ForkedWorker
from tests.stage import Stage

LISTENS_S: Final = 60.0


def live_apart(made: Stage, cell: Cell) -> Count:
    """Run the story once with the worker on another machine than the host, kill or cut as the cell says, and count."""
    with Link() as link:
        crew = Crew(made, link)
        return live_through(made, cell, partial(broken, link), hire=crew.hire)


class Crew:
    """Hires who is not there: the host, and its worker elsewhere, which reaches it by `link`."""

    def __init__(self, made: Stage, link: Link) -> None:
        self._port = free_port()
        self._made = made
        self._link = link
        self._away = made.root / "away"
        self._address = ""

    def hire(self) -> None:
        """Begin both, or those that have ended; returns when they are ready.

        A worker that is not the first is not waited for: of two that are killed, one may be seen to end before the
        other, and a worker is ready only when its host is.
        """
        if self._gone("host"):
            self._begin("host", "host", LISTEN=f"127.0.0.1:{self._port}")
            self._by_way_of_the_link()
        if self._gone("worker"):
            first = not self._away.exists()
            if first:
                self._join()
            away = {"SHELLBACK_HOME": str(self._away), "WORKSPACE_ROOT": str(self._made.root / "nowhere")}
            self._begin("worker", "worker", "--for", self._made.where.host_id, wait=first, **away)

    def _gone(self, who: str) -> bool:
        found = self._made.crew.get(who)
        return found is None or found.process.poll() is not None

    def _begin(self, who: str, *words: str, wait: bool = True, **environ: str) -> None:
        boot_id = self._made.root / BOOT_ID
        machine = boot_id if who == "host" and boot_id.exists() else None
        begun = ForkedWorker(self._made.where, {**self._made.environ, **environ}, machine, arguments=words)
        self._made.crew[who] = begun
        self._made.workers.append(begun)
        if wait:
            begun.wait_ready()

    def _by_way_of_the_link(self) -> None:
        self._address = self._address or f"127.0.0.1:{self._link.to_port(self._port)}"
        assert led(self._made, f"127.0.0.1:{self._port}", self._address), "the host does not listen"

    def _join(self) -> None:
        self._away.mkdir(mode=0o700)
        joined(self._made, self._away)


def led(made: Stage, direct: str, address: str) -> bool:
    """Whether who connects to a host comes by this `address`; the host says itself, in a while, where it listens."""
    deadline = time.monotonic() + LISTENS_S
    while (found := made.read(members.listening, made.where.host_id)) is None or found.address != direct:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    made.write(_lead, made.where.host_id, address)
    return True


def joined(made: Stage, away: Path) -> None:
    """Have the machine with this state directory trusted by a host."""
    certificate = certificates.of_machine(away)[1]
    text, _ = made.write(members.invite, made.where.host_id, "away")
    made.write(members.join, text, certificate, certificates.fingerprint_of(certificate))


def _lead(conn: sa.Connection, host_id: str, address: str) -> None:
    its = member_rows.c
    conn.execute(sa.update(member_rows).where(its.host_id == host_id, its.name == "").values(address=address))
