"""Proxy, supervisor and worker are killed while connections wait for a person and flow: the account of them is whole.

What waited was asked once, each connection is one row with its bytes, and no command dies of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from shellback.cli.children import WorkerChild
from shellback.exec.core.model import SessionState
from shellback.exec.reports.connections import CUT
from shellback.work.approvals import audit
from tests.commands import facts, told
from tests.pieces import CURL, PIECE, Server, pieces, records
from tests.sandboxes import needed, program_needed
from tests.stage import Stage, stage
from tests.supervisors import kill
from tests.towns.town import proxies


@pytest.fixture
def server() -> Generator[Server]:
    with pieces() as found:
        yield found


class World:
    """A conversation with a command whose connection flows, and one whose connection waits for a person."""

    def __init__(self, place: Stage, server: Server) -> None:
        self.place = place
        self.server = server
        server.listed(place.home)
        self.worker: WorkerChild = place.hire()

    def begin(self) -> None:
        place = self.place
        for name, host in {"c1": "127.0.0.1", "other": "localhost"}.items():
            place.send(f"$ {CURL} http://{host}:{self.server.port}/ 2> {name} | tail -c 6 &", name)
        for name in ("c1", "other"):
            place.decide(place.pending(name))
        assert self.server.flowing.acquire(timeout=60)
        place.until("the other connection asks", lambda: [one for one in place.requests() if not one.of_call])

    def finish(self) -> None:
        """Decide, let all connections end, and wait for the ends of the commands and for all rows."""
        place = self.place
        (asked,) = [one for one in place.requests() if not one.of_call]
        place.decide(asked, "approved")
        assert self.server.flowing.acquire(timeout=60)
        self.server.go.set()
        place.until("both commands have ended", lambda: len(self.ended()) == 2)
        place.until("all records are rows", lambda: not self.left())

    def ended(self) -> list[Any]:
        return [one for one in self.place.sessions() if one.state is SessionState.EXITED]

    def left(self) -> list[Any]:
        return records(self.place.home)

    def rows(self) -> list[audit.Entry]:
        found = self.place.read(audit.find)
        return [one for one in found if one.event in {"connected", "not_connected"}]


@pytest.fixture
def world(server: Server) -> Generator[World]:
    needed()
    program_needed("curl")
    with stage(NETWORK="ask", BACKEND="bubblewrap", ASK_SECONDS="600") as place:
        yield World(place, server)


def kill_proxy(world: World) -> None:
    for pid in proxies(world.place.home):
        kill(pid)


def kill_supervisor(world: World) -> None:
    world.place.kill_supervisor()


def kill_worker(world: World) -> None:
    world.worker.kill()
    world.worker = world.place.hire()


KILLS: dict[str, tuple[Callable[[World], None], ...]] = {
    "proxy": (kill_proxy,),
    "supervisor": (kill_supervisor,),
    "worker": (kill_worker,),
    "all": (kill_supervisor, kill_proxy, kill_worker),
}


def test_an_open_connection_is_shown_beside_the_process_that_has_it(world: World) -> None:
    place = world.place
    world.begin()
    session = next(one for one in place.sessions() if one.conversation_id == "c1")
    goal = f"127.0.0.1:{world.server.port}"
    shown = told(place, "ps").stdout
    assert re.search(rf"{session.id} +c1 +{goal} +\d+s +\d+ +\d{{4}}$", shown, re.MULTILINE)
    assert goal not in told(place, "ps", "-c", "other").stdout.partition("CONNECTED")[2]
    (one,) = facts(told(place, "ps", "--json"))["connections"]
    assert (one["session"], one["host"], one["port"], one["seconds"]) == (
        session.id, "127.0.0.1", world.server.port, None,
    )  # fmt: skip
    assert one["down"] > PIECE
    assert "open for " in told(place, "network", "-c", "c1").stdout
    world.finish()
    assert facts(told(place, "ps", "--json"))["connections"] == []


def test_a_worker_that_is_killed_between_a_row_and_its_record_leaves_one_row(world: World) -> None:
    place = world.place
    world.begin()
    place.arm("network.noted")
    (asked,) = [one for one in place.requests() if not one.of_call]
    place.decide(asked, "denied")
    place.until("the worker dies", lambda: place.fired("network.noted"))
    assert [one.event for one in world.rows()] == ["not_connected"]
    place.hire()
    world.server.go.set()
    place.until("the rows", lambda: len(world.rows()) > 1 and not world.left())
    keys = [one.call_key for one in world.rows()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("victims", KILLS)
def test_what_waits_is_asked_once_and_each_connection_is_one_whole_row(world: World, victims: str) -> None:
    place = world.place
    world.begin()
    for act in KILLS[victims]:
        act(world)
    if cut := victims in {"proxy", "all"}:
        assert world.server.flowing.acquire(timeout=60), "the repeat flows"
    world.finish()
    assert [Path(one.log_path).read_text() for one in world.ended()] == ["whole\n"] * 2
    made = [one for one in world.rows() if one.event == "connected"]
    assert Counter(one.conversation_id for one in made) == {"c1": 1 + cut, "other": 1}
    assert [one.reason for one in made if one.reason] == [CUT] * cut
    for one in made:
        noted = one.facts or {}
        assert noted["received"] > PIECE
        assert noted["sent"] > 0
        assert noted["decision"] == "allow"
    assert len({one.call_key for one in world.rows()}) == len(world.rows())
    asked = [one.event for one in place.read(audit.find) if one.tool == "connect" and one.event == "asked"]
    assert asked == ["asked"]
