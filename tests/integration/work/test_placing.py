"""Where new conversations begin: on a host with their workspace, their labels and room, which does not drain."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, SessionState
from shellback.storage import sessions as session_rows
from shellback.storage.db import Database
from shellback.storage.tables import approvals, conversations, hosts, mailbox, turns, workers
from shellback.work.approvals import sending
from shellback.work.errors import InvalidRequest
from shellback.work.hosts import placing, roster
from shellback.work.hosts.loads import loads
from shellback.work.hosts.placing import Offer, Placing, Wanted
from shellback.work.queue import standing
from shellback.work.queue.items import Priority, WorkItem, chat_item
from shellback.work.queue.mailbox import NOWHERE, Workspace
from shellback.work.queue.queues import note_turn
from shellback.work.worker import worker as working
from shellback.work.worker.worker import WorkerConfig
from tests.databases import at_once, wait_until_locked_out
from tests.sessions import a_session

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio
ROOMY = Offer(slots=10)
GPU = Offer(slots=10, labels=("gpu", "linux-arm64"))


@dataclass
class Queues:
    """Notes on which host's queues each item was put."""

    items: list[tuple[str, WorkItem]] = field(default_factory=list[tuple[str, WorkItem]])

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        note_turn(conn, item)
        self.items.append((host_id, item))

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        pass


class Town:
    """Hosts that offer something, in a real database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.queues = Queues()

    def host(self, name: str, offer: Offer = ROOMY, worker: str = "w", version: str = "now") -> WorkerConfig:
        config = WorkerConfig(
            executor_id=f"{name}.{worker}",
            host_id=name,
            version=version,
            boot_id="b/1",
            system_database_url="",
            offer=lambda: offer,
        )
        self.db.write_now(working._register, config)
        self.db.write_now(lambda conn: conn.execute(sa.update(hosts).where(hosts.c.host_id == name).values(name=name)))
        return config

    def send(self, name: str = "c1", *needs: str, here: str = "client", **how: Any) -> None:
        wanted = Wanted(here=here, needs=needs, workspace=how["workspace"].name if how.get("workspace") else "default")
        self.db.write_now(sending.send, self.queues, name, "hello", host_id=here, place=wanted, **how)

    def home(self, name: str = "c1") -> str:
        return self.row(name).host_id

    def row(self, name: str = "c1") -> Any:
        return self.db.read_now(
            lambda conn: conn.execute(sa.select(conversations).where(conversations.c.id == name)).one()
        )

    def busy(self, host: str, number: int) -> None:
        for n in range(number):
            self.db.write_now(sending.send, self.queues, f"{host}{n}", "hello", host_id=host)
        self.queues.items.clear()

    def claimed(self, host: str) -> None:
        row = {"id": "held", "host_id": host, "state": "claimed", "created_at": 1.0, "claimed_at": 1.0}
        self.db.write_now(lambda conn: conn.execute(conversations.insert(), row))

    def drain(self, host: str, *, begin: bool = True) -> None:
        self.db.write_now(placing.drain, host, begin=begin)

    async def sweep(self) -> None:
        await Placing(self.db, self.queues).once()


@pytest.fixture
def town(database: Database) -> Town:
    return Town(database)


def test_a_new_conversation_begins_on_the_host_with_its_labels_and_says_why(town: Town) -> None:
    town.host("a")
    town.host("b", GPU)
    town.send("c1", "gpu", "linux-arm64")
    assert town.home() == "b"
    assert town.row().placed == "b: label gpu, linux-arm64, 10 of 10 slots free; 1 of 2 host(s) fit"
    assert [host for host, _ in town.queues.items] == ["b"]


def test_it_begins_here_where_here_fits_else_where_most_slots_are_free_for_the_load(town: Town) -> None:
    for name, load in (("a", 0.1), ("b", 0.0), ("c", 0.2), ("d", 4.0)):
        town.host(name, replace(ROOMY, load=load))
    town.busy("b", 8)
    town.send("c1", here="b")
    town.send("c2")
    town.busy("a", 3)
    town.send("c3")
    assert [town.home(name) for name in ("c1", "c2", "c3")] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("offer", "busy", "why"),
    [
        (replace(GPU, slots=2), 2, "has no free slot of 2"),
        (replace(GPU, memory=0.04), 0, "has less than 5% of its memory left"),
        (ROOMY, 0, "lacks the label gpu"),
    ],
)
async def test_without_room_or_the_label_it_waits_says_so_and_is_placed_once_a_host_has_it(
    town: Town, offer: Offer, busy: int, why: str
) -> None:
    town.host("a", offer)
    if busy:
        town.busy("a", busy)
    town.send("c1", "gpu")
    town.send("c1", "gpu")
    await town.sweep()
    assert (town.home(), town.row().placed) == (NOWHERE, f"no host fits: a {why}")
    assert town.queues.items == [], "nothing of it is on a queue"
    (waits,) = town.db.read_now(standing.unplaced)
    assert (waits.conversation, waits.why, waits.unread) == ("c1", town.row().placed, 2)
    assert [one.host_id for one in town.db.read_now(loads, "a")] == ["a"]

    town.host("b", GPU)
    await town.sweep()
    await town.sweep()
    assert town.home() == "b"
    assert [(host, item.conversation_id) for host, item in town.queues.items] == [("b", "c1")]
    assert town.db.read_now(standing.unplaced) == []
    stands = town.db.read_now(standing.one, "c1")
    assert stands is not None
    assert (stands.unread, stands.placed) == (2, "b: label gpu, 10 of 10 slots free; 1 of 2 host(s) fit")


async def test_no_more_are_placed_than_there_are_free_slots_and_those_that_fit_nowhere_hold_up_no_other(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "PAGE", 2)
    for number in range(5):
        town.send(f"tpu{number}", "tpu")
    for number in range(4):
        town.send(f"gpu{number}", "gpu")
    town.host("a", replace(GPU, slots=3))
    await town.sweep()
    assert [town.home(f"gpu{number}") for number in range(4)] == ["a", "a", "a", NOWHERE]
    assert town.row("gpu3").placed == "no host fits: a has no free slot of 3"
    assert {town.row(f"tpu{number}").placed for number in range(5)} == {"no host fits: a lacks the label tpu"}


def test_however_many_place_a_conversation_it_has_one_host_and_one_item(town: Town, database_url: str) -> None:
    other = Database(database_url)
    town.send("c1", "gpu")
    town.host("a", GPU)
    placed = at_once(
        *[lambda db=db: db.write_now(placing.place, town.queues, "c1") for db in (town.db, other, town.db, other)]
    )
    other.close()
    assert placed.count(True) == 1
    assert placed.count(False) == 3
    assert [host for host, _ in town.queues.items] == ["a"]


def test_a_host_that_drains_takes_nothing_new_until_that_is_undone(town: Town) -> None:
    town.host("a")
    town.send("c1", here="a")
    town.drain("a")
    town.send("c2", here="a")
    assert (town.home("c1"), town.home("c2")) == ("a", NOWHERE)
    assert town.row("c2").placed == "no host fits: a drains"
    town.drain("a", begin=False)
    town.send("c3", here="a")
    assert town.home("c3") == "a"


def test_the_workspace_is_that_of_the_host_with_its_path_there(town: Town) -> None:
    town.host("a")
    town.host("b", replace(ROOMY, workspaces={"web": "/srv/web", "own": "/srv/own"}, each=("own",)))
    town.send("c1", workspace=Workspace("web"))
    town.send("c1", workspace=Workspace("web"))
    town.send("c2", workspace=Workspace("own"))
    town.send("c3", workspace=Workspace("nobody's"))
    found = [(row.host_id, row.workspace, row.workspace_path) for row in map(town.row, ("c1", "c2", "c3"))]
    assert found == [("b", "web", "/srv/web"), ("b", "own", "/srv/own/c2"), (NOWHERE, "nobody's", "")]
    assert town.row("c3").placed == "no host fits: a has no workspace nobody's; b has no workspace nobody's"
    with pytest.raises(InvalidRequest, match="works in workspace web"):
        town.send("c1", workspace=Workspace("own"))


def test_a_conversation_stays_on_its_host_and_takes_no_labels_later(town: Town) -> None:
    town.host("a")
    town.send("c1")
    town.host("b", GPU)
    town.send("c1")
    assert town.home() == "a"
    with pytest.raises(InvalidRequest, match="began without the label gpu, and stays on its host"):
        town.send("c1", "gpu")


def test_silent_and_stopped_workers_offer_nothing_and_those_of_a_host_add_their_slots(town: Town) -> None:
    config = town.host("a")
    town.host("a", GPU, worker="v")
    (room,) = town.db.read_now(placing.rooms)
    assert (room.offer.slots, room.offer.labels) == (20, ["gpu", "linux-arm64"]), "the last one has the newest settings"
    town.db.write_now(working._unregister, config)
    (room,) = town.db.read_now(placing.rooms)
    assert room.offer.slots == 10
    silent = {"heartbeat_at": workers.c.heartbeat_at - 16.0}
    town.db.write_now(lambda conn: conn.execute(sa.update(workers).values(silent)))
    assert town.db.read_now(placing.rooms) == []
    town.send("c1")
    assert town.row().placed == "no host fits: no host has a worker"


def test_a_worker_of_another_version_may_offer_more_or_nothing(town: Town) -> None:
    town.host("a")
    for offer in ({"slots": 3, "moons": 2}, None):
        statement = sa.update(workers).values(offer=offer)
        town.db.write_now(sa.Connection.execute, statement)
        (room,) = town.db.read_now(placing.rooms)
        assert room.offer.slots == (3 if offer else 0)


def test_a_host_has_the_slots_of_its_newest_version(town: Town) -> None:
    for host, worker, version in ("a", "w", "before"), ("b", "w", "before"), ("b", "w2", "after"), ("b", "w3", "after"):
        town.host(host, worker=worker, version=version)
    found = town.db.read_now(placing.rooms)
    assert {room.host_id: room.offer.slots for room in found} == {"a": 10, "b": 20}


def test_a_host_has_the_slots_of_its_workers_elsewhere_and_labels_of_its_own_machine_while_that_lives(
    town: Town,
) -> None:
    config = town.host("a", GPU, version=roster.NO_TURNS)
    away = {"boot_id": "far/1", "elsewhere": True, "version": "now", "offer": lambda: Offer(slots=3, labels=("no",))}
    for number in range(2):
        town.db.write_now(working._register, replace(config, executor_id=f"a.away{number}", **away))
    (room,) = town.db.read_now(placing.rooms)
    assert (room.offer.slots, room.offer.labels) == (6, ["gpu", "linux-arm64"])
    silent = sa.update(workers).where(workers.c.executor_id == config.executor_id).values(heartbeat_at=1.0)
    town.db.write_now(lambda conn: conn.execute(silent) and None)
    assert town.db.read_now(placing.rooms) == [], "its machine is gone"


def test_a_drain_waits_for_what_is_being_placed_and_what_comes_later_is_not_placed_there(postgres: Database) -> None:
    town = Town(postgres)
    town.host("a")
    drains = threading.Thread(target=town.drain, args=("a",))

    def placing_and_drain(conn: sa.Connection) -> str:
        home = Wanted(here="client")(conn)
        drains.start()
        wait_until_locked_out(postgres, drains)
        assert drains.is_alive(), "it waits"
        return home.host_id

    assert postgres.write_now(placing_and_drain) == "a"
    drains.join()
    town.send("c1")
    assert town.home() == NOWHERE


def test_an_item_of_a_former_version_on_no_hosts_queue_holds_up_nothing(town: Town) -> None:
    town.send("c1", "gpu")
    town.db.write_now(note_turn, chat_item("c1", priority=Priority.NORMAL, waiting=True))
    town.host("a", GPU)
    assert town.db.write_now(placing.place, town.queues, "c1")
    assert town.db.read_now(placing.rooms)[0].busy == 1, "that of the follow-up alone"


def test_a_machine_is_a_host_before_any_other_is_known_and_afterwards_with_a_worker_of_its_own(town: Town) -> None:
    def may(host: str) -> bool:
        return town.db.read_now(placing.is_host, host)

    assert may("client")
    town.host("a")
    assert (may("client"), may("a")) == (False, True)
    town.drain("a")
    assert not may("a")


@pytest.mark.parametrize(
    "what", ["nothing", "a claimed conversation", "an item", "a process", "an end", "news", "a call that waits"]
)
def test_the_worker_of_a_host_that_drains_ends_when_nothing_there_needs_it(town: Town, what: str) -> None:
    config = town.host("a")
    town.send("idle", here="a")
    town.db.write_now(lambda conn: conn.execute(sa.update(turns).values(outcome="answered", ended_at=2.0)))
    town.db.write_now(lambda conn: conn.execute(sa.update(mailbox).values(state="heard", heard_at=2.0)))
    running = a_session(conversation_id="idle", host_id="a", state=SessionState.RUNNING)
    match what:
        case "a claimed conversation":
            town.claimed("a")
        case "an item":
            town.send("c1", here="a")
        case "a process":
            town.db.write_now(session_rows.claim, running)
        case "an end":
            town.db.write_now(session_rows.claim, replace(running, delivery=Delivery.INLINE, state=SessionState.EXITED))
        case "news":
            town.db.write_now(lambda conn: conn.execute(sa.update(mailbox).values(state="unread")))
        case "a call that waits":
            town.db.write_now(_asked, "idle")
        case _:
            pass
    assert town.db.write_now(working._heartbeat, config) == (True, False, {}), "it does not drain"
    town.drain("a")
    assert town.db.write_now(working._heartbeat, config) == (True, what == "nothing", {})


def _asked(conn: sa.Connection, name: str) -> None:
    row = {"id": "r1", "conversation_id": name, "turn_id": "t", "call_key": "k", "tool_call_id": "x", "tool_name": "e"}
    much: dict[str, Any] = {
        "args": {},
        "display": {},
        "digest": "d",
        "state": "pending",
        "created_at": 1.0,
        "expires_at": 2.0,
    }
    conn.execute(approvals.insert().values(row | much))
