"""The connection between a worker elsewhere and its host: over real TLS, by a relay that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import RunContext

from chaos.links import Link as Relay
from shellback.exec.core.errors import InvalidCommand, WorkspaceUnusable
from shellback.exec.core.identity import call_key, origin_of
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from shellback.exec.reports.blocks import TURN_CHARS, Seen, Told
from shellback.exec.shell.workspaces.ground import Described, Ground
from shellback.exec.tools.registry import tool_named
from shellback.exec.tools.tool import Result
from shellback.exec.wire import layout
from shellback.storage import members
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable, MemberRefused, StaleTurn
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import conversations, notices, turns
from shellback.storage.tables import members as member_rows
from shellback.work.elsewhere import certificates, lines, tools
from shellback.work.elsewhere import link as linking
from shellback.work.elsewhere import links as many
from shellback.work.elsewhere.host import REVOKED, Carried, Listener, _Unanswered
from shellback.work.elsewhere.lines import PROTOCOL, Fit
from shellback.work.elsewhere.link import HostLink
from shellback.work.elsewhere.links import HostLinks
from shellback.work.elsewhere.outbox import HostOutbox
from shellback.work.elsewhere.tools import HostTools
from shellback.work.errors import HostUnfit, HostUnreachable
from shellback.work.hosts import hosts
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.mailbox import Workspace
from shellback.work.queue.queues import queues_of
from shellback.work.turn import closing
from shellback.work.turn.claims import Wakes
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import HostLost
from tests.execs import places, unstarted_engine
from tests.far import join
from tests.items import HOST, Talk
from tests.machines import free_port
from tests.sessions import a_session
from tests.supervisors import cancelled

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio
PARTS: Any = frozenset({"commands", "workspace"})
FIT = Fit(version="v1", parts=PARTS, own="")


@dataclass
class Desk:
    """Stands for the tools of the host: it notes each call, which ends when it may."""

    calls: list[RunContext[TurnDeps]] = field(default_factory=list[RunContext[TurnDeps]])
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    raises: Exception | None = None
    told: list[str] = field(default_factory=list[str])
    engine: Engine | None = None
    ended: int = 0
    cancelled: int = 0

    def validated(self, _tool: str, args: dict[str, Any]) -> dict[str, Any]:
        return args

    async def carry(self, ctx: RunContext[TurnDeps], _tool: object, args: dict[str, Any]) -> Result[Any]:
        self.calls.append(ctx)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1
        if self.raises is not None:
            raise self.raises
        return Result({"echo": args}, {"session_id": "x1"})

    async def propose(self, conversation: str, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "d" * 32, {"tool": tool, "of": conversation, **args}

    async def ground(self, workspace: Workspace) -> Any:
        if workspace.name == "gone":
            raise WorkspaceUnusable("workspace gone is missing")
        nobody: Any = None
        assert self.engine is not None
        return Ground(engine=self.engine, policy=nobody, files=nobody)

    async def recorded(self, conversation: str) -> None:
        self.told.append(f"recorded {conversation}")

    async def closed(self, conversation: str) -> None:
        self.told.append(f"closed {conversation}")

    def noted(self) -> None:
        self.told.append("noted")


class Two:
    """A host and a machine elsewhere, with a relay between them."""

    def __init__(self, db: Database, root: Path, relay: Relay) -> None:
        self.db = db
        self.desk = Desk()
        self.relay = relay
        self.away = root / "away"
        workspace, self.home = places(root)
        self.desk.engine = unstarted_engine(workspace, self.home, SqlSessionStore(db))
        (root / "here").mkdir()
        self.away.mkdir()
        port = free_port()
        desk: Any = self.desk
        carried = Carried(
            tools=desk, ground_at=desk.ground, described=lambda _: "It is here.", recorded=desk.recorded,
            closed=desk.closed, noted=desk.noted, gate=True, seconds=60.0, fit=FIT,
        )  # fmt: skip
        bell = Doorbell(root / "here", HOST, db)
        self.reach = Listener(("127.0.0.1", port), root / "here", HOST, db, carried, bell, look_s=0.05)
        self.link = HostLink(db, HOST, self.away, FIT, patience_s=10.0)
        self.tools = HostTools(self.link, PARTS, enabled=True)
        self.item = Talk(db).send()
        entry, _ = db.write_now(closing.enter, self.item, True, executor_id="w", wakes=Wakes(), hosts={HOST})
        assert entry.epoch is not None
        self.epoch = entry.epoch

    async def listens(self) -> None:
        await self.reach.start()
        await until(lambda: self.db.read_now(members.listening, HOST) is not None)
        through = f"127.0.0.1:{self.relay.to_port(self.reach.address[1])}"
        change = sa.update(member_rows).where(member_rows.c.name == "").values(address=through)
        self.db.write_now(lambda conn: conn.execute(change) and None)

    def join(self, name: str = "away") -> None:
        join(self.db, self.away, name)

    def context(self, call: str = "t1", **more: Any) -> RunContext[Any]:
        deps = SimpleNamespace(conversation_id="c1", turn_id=self.item.id, epoch=self.epoch, host_id=HOST)
        calls = [ToolCallPart("execute", {}, tool_call_id=name) for name in ("t0", "t1")]
        nobody: Any = None
        whole: dict[str, Any] = {"deps": deps, "messages": [ModelResponse(calls, run_id="r1")], "tool_call_id": call}
        return RunContext(model=nobody, usage=nobody, **{**whole, **more})

    def call(self, ctx: RunContext[Any] | None = None, **args: Any) -> asyncio.Task[Result[Any]]:
        tool = tool_named("execute")
        return asyncio.create_task(self.tools.carry(ctx or self.context(), tool, args or {"command": "true"}))

    async def printed(self, number: int, text: str, **changes: Any) -> Session:
        """A session that has printed a text."""
        store = SqlSessionStore(self.db)
        session = await store.claim(a_session(number, host_id=HOST, **changes))
        await store.started(session.id, pid=1, started_at=1_000.0)
        place = self.home / layout.SESSIONS / session.id
        place.mkdir(parents=True)
        (place / layout.LOG).write_text(text)
        return session

    async def fresh(self, *sessions: Session, seen: Mapping[str, Seen] | None = None) -> Told | None:
        return await asyncio.to_thread(self.tools.fresh, self.context().deps, sessions, seen or {}, TURN_CHARS)

    async def has(self, number: int) -> None:
        """When the host has begun so many calls."""
        await until(lambda: len(self.desk.calls) >= number)

    async def lost(self) -> None:
        await until(lambda: not self.link.connected)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come")


def replace_call(ctx: RunContext[Any], call: str) -> RunContext[Any]:
    return replace(ctx, tool_call_id=call)


@pytest.fixture
async def two(
    request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Two]:
    monkeypatch.setattr(linking, "RETRY_S", 0.05)
    db = Database(sqlite_url)
    with Relay() as relay:
        made = Two(db, tmp_path, relay)
        await made.listens()
        if getattr(request, "param", True):
            made.join()
            await made.link.start()
        yield made
        await made.link.stop()
        await made.reach.stop()
    db.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence that is noticed soon."""
    monkeypatch.setattr(lines, "ALIVE_S", 0.1)
    monkeypatch.setattr(lines, "SILENCE_S", 0.5)


async def test_workers_elsewhere_and_of_the_host_hear_of_items_that_none_takes(two: Two) -> None:
    elsewhere, own = list[str](), list[str]()
    two.link.rung = elsewhere.append
    ours, rings = (Doorbell(two.reach.home, HOST, two.db) for _ in range(2))

    def full(queue: str) -> bool:
        own.append(queue)
        return False

    await ours.listen("own", {queue: partial(full, queue) for queue in queues_of(HOST)})
    try:
        for number in range(1, 21):  # each time another one is asked first
            for queue in queues_of(HOST):
                rings.ring(HOST, queue)
                await until(lambda: own.count(queue) == elsewhere.count(queue) == number)  # noqa: B023 - it is over
    finally:
        await ours.close()


async def test_a_worker_elsewhere_looks_for_items_when_it_reaches_its_host_again(two: Two) -> None:
    heard = list[str]()
    two.link.rung = heard.append
    two.relay.break_("cut")
    await two.lost()
    two.relay.heal()
    await until(lambda: sorted(heard) == sorted(queues_of(HOST)))


async def test_a_process_that_waits_for_the_address_takes_no_ring_from_the_one_that_has_it(two: Two) -> None:
    heard = list[str]()
    two.link.rung = heard.append
    second = replace(two.reach, doorbell=Doorbell(two.reach.home, HOST, two.db))
    await second.start()
    try:
        for number in range(1, 11):
            Doorbell(two.reach.home, HOST, two.db).ring(HOST, queues_of(HOST)[0])
            await until(lambda: len(heard) >= number)  # noqa: B023 - it is over
    finally:
        await second.stop()
    Doorbell(two.reach.home, HOST, two.db).ring(HOST, queues_of(HOST)[0])
    await until(lambda: len(heard) >= 11)


async def test_a_call_has_its_origin_result_and_standing_on_the_host(two: Two) -> None:
    two.desk.may_end.set()
    ctx = two.context()
    result = await two.call(ctx, command="echo é \udc80")
    assert result == Result({"echo": {"command": "echo é \udc80"}}, {"session_id": "x1"})
    (there,) = two.desk.calls
    assert call_key(origin_of(there)) == call_key(origin_of(ctx))
    assert (there.deps.conversation_id, there.deps.epoch, there.deps.gate) == ("c1", two.epoch, True)
    assert two.desk.told == ["recorded c1"], "its ends are recorded before it is answered"
    assert await two.tools.propose("c1", "execute", {"command": "true"}) == (
        "d" * 32,
        {"tool": "execute", "of": "c1", "command": "true"},
    )
    deps: Any = SimpleNamespace(ground=None, host_id=HOST)
    await two.tools.equip(deps, Workspace())
    assert isinstance(deps.ground, Described)
    await two.tools.equip(deps, Workspace("gone", "/gone"))
    assert deps.ground == "workspace gone is missing"
    await two.tools.closed("c1")
    assert two.desk.told[-1] == "closed c1"


async def test_what_processes_print_is_shown_to_the_turn_that_holds_their_conversation(two: Two) -> None:
    one, other = await two.printed(1, "listening\n"), await two.printed(2, "a secret\n", conversation_id="c2")
    told = await two.fresh(one, other)
    assert told is not None
    assert "listening" in told.text
    assert "a secret" not in told.text
    assert told.seen == {one.id: Seen(len("listening\n"))}
    assert await two.fresh(one, seen=told.seen) is None
    with two.home.joinpath(layout.SESSIONS, one.id, layout.LOG).open("a") as log:
        log.write("served\n")
    again = await two.fresh(one, seen=told.seen)
    assert again is not None
    assert "served" in again.text
    assert "listening" not in again.text
    two.reach.carried = replace(two.reach.carried, gate=False)
    assert await two.fresh(one) is None
    two.epoch -= 1
    with pytest.raises(StaleTurn):
        await two.fresh(one)


async def test_a_look_does_not_wait_for_a_host_that_does_not_answer(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "FRESH_S", 0.1)
    one = await two.printed(1, "listening\n")
    two.relay.break_("mute")
    assert await two.fresh(one) is None
    assert not two.link._waiting, "nothing is asked again"
    monkeypatch.setattr(tools, "FRESH_S", 600.0)
    async with asyncio.timeout(30):
        assert await two.fresh(one) is None, "nor is it waited for again before it has answered"
    two.relay.heal()
    two.relay.break_("cut")
    await two.lost()
    assert await two.fresh(one) is None
    two.relay.heal()
    await until(lambda: two.link.connected)
    assert await two.fresh(one) is not None, "the next look is told"
    await two.link.stop()
    assert await two.fresh(one) is None


async def test_turns_that_wait_for_a_host_which_is_gone_are_handed_on_and_it_serves_again_when_it_is_back(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "LATER_S", 0.05)
    told: list[str] = []
    two.link.hands_on, two.link.patience_s = True, 0.2
    two.link.reached, two.link.gone = lambda: told.append("reached"), lambda _why: told.append("gone")
    call = two.call()
    await two.has(1)
    two.relay.break_("cut")
    async with asyncio.timeout(60):
        with pytest.raises(HostLost, match="has not answered for"):
            await call
        with pytest.raises(HostLost):
            await two.call()
    two.relay.heal()
    await until(lambda: told == ["gone", "reached"])
    two.desk.may_end.set()
    assert (await two.call()).value == {"echo": {"command": "true"}}


async def test_links_lead_to_the_hosts_that_this_machine_has_joined_and_end_with_their_trust(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "LOOK_S", 0.05)
    told: list[str] = []

    async def reached(link: HostLink) -> None:
        told.append(f"reached {link.host_id}")

    async def given_up(host_id: str) -> None:
        told.append(f"given up {host_id}")

    links = HostLinks(two.db, two.away, FIT, reached, given_up)
    await links.start()
    await until(lambda: f"reached {HOST}" in told)
    assert HOST in links
    assert "other" not in links
    assert (await links.of("c1")).host_id == HOST
    with pytest.raises(HostLost, match="no connection to host other"):
        links.at("other")
    with pytest.raises(HostLost):
        await links.of("nobody's")
    two.desk.may_end.set()
    carried = HostTools(links, PARTS, enabled=True)
    assert (await carried.carry(two.context(), tool_named("execute"), {"command": "true"})).value
    two.db.write_now(members.revoke, HOST, "away")
    await until(lambda: told[-1] == f"given up {HOST}")
    assert set(told[:-1]) == {f"reached {HOST}"}
    with pytest.raises(HostLost):
        links.at(HOST)
    assert HOST in links  # its items may still be on the way here
    await links.stop()


def test_notices_of_a_turn_elsewhere_have_the_name_and_console_of_the_host_if_it_sends_any(sqlite: Database) -> None:
    Talk(sqlite).send()
    sqlite.write_now(hosts.heard_of, HOST)
    told: list[Any] = [None, {"notices": False, "console": ""}, {"notices": True, "console": "http://there"}]
    for number, of_itself in enumerate(told):
        outbox = HostOutbox(told={HOST: of_itself}.get)
        sqlite.write_now(outbox.put, "alarm", "c1", str(number), "it hangs")
    (found,) = sqlite.read_now(lambda conn: conn.execute(sa.select(notices.c.payload)).scalars().all())
    assert (found["host"], found["link"]) == (platform.node(), "http://there/conversations/c1")


async def test_readers_at_the_host_hear_of_events_at_once_and_of_many_together(two: Two) -> None:
    writers = [asyncio.to_thread(two.link.noted) for _ in range(50)]
    await asyncio.gather(*writers)
    await until(lambda: "noted" in two.desk.told)
    two.relay.break_("cut")
    await two.lost()
    before = two.desk.told.count("noted")
    assert before < 50
    two.link.noted()
    two.relay.heal()
    await until(lambda: two.desk.told.count("noted") > before)
    await two.link.stop()
    two.link.noted()  # nobody is told any more


@pytest.mark.parametrize(
    ("raised", "seen", "text"),
    [
        (ToolFailed("no such file"), ToolFailed, "no such file"),
        (ApprovalRequired(metadata={"digest": "d"}), ApprovalRequired, ""),
        (InvalidCommand("bad"), ToolFailed, "bad"),
        (StaleTurn("c1", "t", 1), StaleTurn, "a newer execution continues it"),
        (KeyError("x"), RuntimeError, "the host could not do it: KeyError"),
    ],
)
async def test_what_a_call_raises_on_the_host_is_raised_in_the_turn(
    two: Two, raised: Exception, seen: type[Exception], text: str
) -> None:
    two.desk.raises = raised
    two.desk.may_end.set()
    with pytest.raises(seen) as found:
        await two.call()
    assert text in str(found.value)
    if isinstance(found.value, ApprovalRequired):
        assert found.value.metadata == {"digest": "d"}


async def test_a_call_is_carried_out_once_though_its_connection_is_cut_twice(two: Two) -> None:
    ctx = two.context()
    call = two.call(ctx)
    await two.has(1)
    for _ in range(2):
        two.relay.break_("cut")
        await two.lost()
        two.relay.heal()
    two.desk.may_end.set()
    assert (await call).value == {"echo": {"command": "true"}}
    assert (await two.call(ctx)).value == {"echo": {"command": "true"}}, "also if it comes again later"
    assert len(two.desk.calls) == 1
    assert (await two.call(replace_call(ctx, "t0"))).value
    assert len(two.desk.calls) == 2, "another call is another one"


@pytest.mark.parametrize("fault", ["mute", "silent"])
@pytest.mark.usefixtures("quick")
async def test_a_half_open_connection_is_noticed_and_the_call_goes_on_by_another(two: Two, fault: Any) -> None:
    call = two.call()
    await two.has(1)
    two.relay.break_(fault)
    await two.lost()
    two.relay.heal()
    two.desk.may_end.set()
    assert (await call).value
    assert len(two.desk.calls) == 1


async def test_a_slow_connection_is_slow_only(two: Two) -> None:
    two.relay.break_("slow")
    two.desk.may_end.set()
    assert (await two.call(command="x" * 200_000)).value == {"echo": {"command": "x" * 200_000}}


async def test_a_worker_whose_host_does_not_come_back_ends_and_its_calls_are_answered_by_nobody(two: Two) -> None:
    gone = asyncio.Event()
    two.link.patience_s, two.link.gone = 0.2, lambda _: gone.set()
    call = two.call()
    await two.has(1)
    two.relay.break_("cut")
    await asyncio.wait_for(gone.wait(), 30)
    assert not call.done(), "a result of it would be recorded: another worker has to have it"
    await cancelled(call)


@pytest.mark.parametrize("how", ["epoch", "turn", "host", "freed"])
async def test_a_worker_that_was_overtaken_has_nothing_done(two: Two, how: str) -> None:
    ctx = two.context()
    two.desk.may_end.set()
    if how == "epoch":
        ctx.deps.epoch -= 1
    elif how == "turn":
        ctx.deps.turn_id = "CHAT:other"
    else:
        values = {"host_id": "another"} if how == "host" else {"state": "free", "claimed_by": None}
        two.db.write_now(lambda conn: conn.execute(sa.update(conversations).values(values)) and None)
    with pytest.raises(StaleTurn):
        await two.call(ctx)
    assert two.desk.calls == []


async def test_approvals_are_what_the_database_says_not_what_the_worker_does(two: Two) -> None:
    two.desk.may_end.set()
    await two.call(two.context(tool_call_approved=True))
    assert two.desk.calls[0].deps.approvals == {}
    request: dict[str, Any] = {
        "id": "q1", "conversation_id": "c1", "turn_id": "t", "call_key": "k1", "tool_call_id": "t1", "digest": "d1",
        "tool_name": "execute", "args": {}, "display": {}, "state": "approved", "created_at": 1.0, "expires_at": 2.0,
    }  # fmt: skip
    begun: dict[str, Any] = {"gate": True, "look": True, "at": 5.0, "decided": [request]}
    two.db.write_now(lambda conn: conn.execute(sa.update(turns).values(begun=begun)) and None)
    await two.call(two.context("t0"))
    deps = two.desk.calls[1].deps
    assert (deps.began_at, deps.approvals["k1"].digest) == (5.0, "d1")  # type: ignore[index] - a key


async def test_the_connection_of_a_revoked_machine_is_closed_and_none_is_made(two: Two) -> None:
    gone = asyncio.Event()
    two.link.patience_s, two.link.gone = 0.5, lambda _: gone.set()
    two.db.write_now(members.revoke, HOST, "away")
    await two.lost()
    call = two.call()
    await asyncio.wait_for(gone.wait(), 30)
    assert two.desk.calls == []
    await cancelled(call)


async def test_a_call_of_a_machine_that_is_revoked_meanwhile_goes_on_and_only_the_next_worker_is_told_its_result(
    two: Two, tmp_path: Path
) -> None:
    gone = asyncio.Event()
    two.link.patience_s, two.link.gone = 0.5, lambda _: gone.set()
    ctx = two.context()
    revoked = two.call(ctx)
    await two.has(1)
    two.db.write_now(members.revoke, HOST, "away")
    await two.lost()
    await until(lambda: [one.waiting for one in two.reach._calls.values()] == [0])
    assert two.desk.ended == 0, "it goes on"
    two.away = tmp_path / "next"
    two.away.mkdir()
    two.join("next")
    link = HostLink(two.db, HOST, two.away, FIT, patience_s=10.0)
    await link.start()
    two.tools = HostTools(link, PARTS, enabled=True)
    two.epoch += 1
    change = sa.update(conversations).values(epoch=two.epoch)
    two.db.write_now(lambda conn: conn.execute(change) and None)
    its = two.call(replace(ctx, deps=two.context().deps))
    await until(lambda: [one.waiting for one in two.reach._calls.values()] == [1])
    await asyncio.wait_for(gone.wait(), 30)
    two.desk.may_end.set()
    assert (await its).value == {"echo": {"command": "true"}}
    assert not revoked.done(), "it gets no answer"
    assert (len(two.desk.calls), two.desk.ended, two.desk.cancelled) == (1, 1, 0)
    await cancelled(revoked)
    await link.stop()


async def test_a_call_of_a_revoked_machine_is_refused_before_its_connection_is_closed(two: Two) -> None:
    two.desk.may_end.set()
    asked = {
        "conversation": "c1",
        "turn": two.item.id,
        "epoch": two.epoch,
        **lines.call_of(two.context(), "execute", {}),
    }
    with pytest.raises(_Unanswered):
        await two.reach._call(asked, "0" * 64)
    assert two.desk.calls == []


@pytest.mark.parametrize("what", ["hello", "propose", "ground", "noted", "closed"])
async def test_a_revoked_machine_gets_no_answer_before_its_connection_is_closed(two: Two, what: str) -> None:
    with pytest.raises(_Unanswered, match=REVOKED):
        await two.reach._done({"do": what}, "0" * 64)


@pytest.mark.parametrize("two", [False], indirect=True)
async def test_a_machine_that_was_not_invited_gets_no_answer(two: Two) -> None:
    two.link.patience_s = 0.5
    with pytest.raises(HostUnreachable, match="does not trust the other's certificate"):
        await two.link.start()


@pytest.mark.parametrize("two", [False], indirect=True)
async def test_a_machine_is_trusted_as_soon_as_it_has_joined(two: Two) -> None:
    start = asyncio.create_task(two.link.start())
    await asyncio.sleep(0.1)
    assert not start.done()
    two.join()
    await start


@pytest.mark.parametrize("two", [False], indirect=True)
async def test_a_host_that_another_one_says_it_is_is_not_believed(two: Two, tmp_path: Path) -> None:
    two.join()
    (tmp_path / "false").mkdir()
    false = certificates.of_machine(tmp_path / "false")[1]
    change = sa.update(member_rows).where(member_rows.c.name == "").values(certificate=false)
    two.db.write_now(lambda conn: conn.execute(change) and None)
    two.link.patience_s = 0.5
    with pytest.raises(HostUnreachable, match=r"does not trust the other's certificate.*CERTIFICATE_VERIFY"):
        await two.link.start()


@pytest.mark.parametrize("two", [False], indirect=True)
@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (
            {"version": "v2"},
            rf"host host\d? is of version v1 \(protocol {PROTOCOL}\), this worker of v2 \({PROTOCOL}\):"
            " install the same",
        ),
        ({"parts": PARTS | {"shell"}}, r"has other tools than this worker \(shell\): give both the same SESSION_TOOLS"),
        ({"own": "x"}, "has other agents, models or bounds of turns in named workspaces"),
    ],
)
async def test_a_pair_that_does_not_fit_is_refused_by_name(two: Two, fit: dict[str, Any], says: str) -> None:
    two.join()
    link = HostLink(two.db, HOST, two.away, replace(FIT, **fit), patience_s=10.0)
    with pytest.raises(HostUnfit, match=says):
        await link.start()
    await link.stop()


async def test_what_is_no_message_ends_its_connection_and_no_other(two: Two) -> None:
    two.desk.may_end.set()
    own, _ = certificates.of_machine(two.away)
    where = two.db.read_now(members.listening, HOST)
    assert where is not None
    for sent in (b"no json\n", b"[1]\n", b'{"id": 1}\n', b"\x16\x03\x01 cut off"):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", two.reach.address[1], ssl=certificates.towards_host(own, where.certificate)
        )
        writer.write(sent)
        writer.write_eof() if writer.can_write_eof() else writer.close()
        with contextlib.suppress(OSError):
            await asyncio.wait_for(reader.read(), 30)
        writer.close()
    plain, away = await asyncio.open_connection("127.0.0.1", two.reach.address[1])
    away.write(b"GET / HTTP/1.1\r\n\r\n")
    with contextlib.suppress(OSError):
        await asyncio.wait_for(plain.read(), 30)
    away.close()
    assert (await two.call()).value
    with pytest.raises(RuntimeError, match="is nothing that this host does"):
        await two.link.ask("dance")
    with pytest.raises(ValueError, match="longer than"):
        await two.link.ask("call", x="x" * lines.LINE)


async def test_the_next_process_of_a_host_listens_when_the_first_has_ended(two: Two) -> None:
    two.desk.may_end.set()
    second = replace(two.reach)
    await second.start()
    change = sa.update(member_rows).where(member_rows.c.name == "")
    through = f"127.0.0.1:{two.relay.to_port(two.reach.address[1])}"
    two.db.write_now(lambda conn: conn.execute(change.values(address=through)) and None)
    await two.reach.stop()
    await two.lost()
    assert (await two.call()).value
    async with asyncio.timeout(30):
        await second.stop()


@pytest.mark.parametrize("whose", ["host", "turn"])
async def test_a_call_is_refused_while_the_gate_of_host_or_turn_is_closed(two: Two, whose: str) -> None:
    two.desk.may_end.set()
    if whose == "host":
        two.reach.carried = replace(two.reach.carried, gate=False)
    else:
        begun: dict[str, Any] = {"gate": False, "look": True, "at": 5.0, "decided": []}
        two.db.write_now(lambda conn: conn.execute(sa.update(turns).values(begun=begun)) and None)
    with pytest.raises(ToolFailed, match="switched off on the host"):
        await two.call()
    assert two.desk.calls == []


async def test_a_call_that_the_database_refuses_for_now_is_asked_again(two: Two) -> None:
    two.desk.raises = DatabaseUnreachable("away")
    two.desk.may_end.set()
    call = two.call()
    await two.has(2)
    two.desk.raises = None
    assert (await call).value


async def test_a_call_for_which_nobody_waits_is_given_up(two: Two) -> None:
    two.reach.orphan_s = 0.05
    call = two.call()
    await two.has(1)
    await cancelled(call)
    await two.link.stop()
    await until(lambda: two.desk.ended == 1)
    assert two.desk.cancelled == 1


async def test_calls_with_one_id_and_other_arguments_are_two(two: Two) -> None:
    two.desk.may_end.set()
    ctx = two.context()
    found = [(await two.call(ctx, command=command)).value for command in ("one", "two", "one")]
    assert found == [{"echo": {"command": command}} for command in ("one", "two", "one")]
    assert len(two.desk.calls) == 2


async def test_a_newer_execution_joins_a_call_and_begins_it_again_if_the_older_one_was_too_late(two: Two) -> None:
    ctx = two.context()
    first = two.call(ctx)
    await two.has(1)
    two.epoch += 1
    change = sa.update(conversations).values(epoch=two.epoch)
    two.db.write_now(lambda conn: conn.execute(change) and None)
    newer = two.call(replace(ctx, deps=two.context().deps))
    await until(lambda: [one.waiting for one in two.reach._calls.values()] == [2])
    two.desk.raises = StaleTurn("c1", two.item.id, two.epoch - 1)
    two.desk.may_end.set()
    with pytest.raises(StaleTurn):
        await first
    await two.has(2)
    with pytest.raises(StaleTurn):  # the desk says so of every call
        await newer
    assert [one.deps.epoch for one in two.desk.calls] == [two.epoch - 1, two.epoch]


def test_an_invitation_is_used_once_by_one_machine_until_it_expires(database_url: str) -> None:
    db = Database(database_url)
    text, member = db.write_now(members.invite, HOST, "m")
    assert (member.state, member.expires_at and member.expires_at - member.created_at) == ("invited", 3600.0)
    newer, _ = db.write_now(members.invite, HOST, "m")
    with pytest.raises(MemberRefused, match="was used or replaced"):
        db.write_now(members.join, text, "pem", "f1")
    assert db.write_now(members.join, f" {newer}\n", "pem", "f1").state == "joined"
    with pytest.raises(MemberRefused, match="was used"):
        db.write_now(members.join, newer, "pem", "f2")
    with pytest.raises(MemberRefused, match="a machine has joined as 'm'"):
        db.write_now(members.invite, HOST, "m")
    late, _ = db.write_now(members.invite, HOST, "late", lasts_s=-1.0)
    with pytest.raises(MemberRefused, match="has expired"):
        db.write_now(members.join, late, "pem", "f3")
    twice, _ = db.write_now(members.invite, HOST, "twice")
    with pytest.raises(MemberRefused, match="has joined that host already"):
        db.write_now(members.join, twice, "pem", "f1")
    gone, _ = db.write_now(members.invite, HOST, "gone")
    db.write_now(members.revoke, HOST, "gone")
    with pytest.raises(MemberRefused, match="was revoked"):
        db.write_now(members.join, gone, "pem", "f4")
    assert db.read_now(members.trusted, HOST) == {"f1": "pem"}
    assert db.write_now(members.revoke, HOST, "m").state == "revoked"
    assert db.read_now(members.trusted, HOST) == {}
    for unknown in ("", "nobody"):
        with pytest.raises(MemberRefused, match="no machine of this host"):
            db.write_now(members.revoke, HOST, unknown)
    db.close()


def test_an_invitation_for_another_database_is_refused_with_the_reason_and_is_not_used(
    database_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    db, other = Database(database_url), Database(f"sqlite:///{shutil.copyfile(sqlite_template, tmp_path / 'other.db')}")
    text, _ = db.write_now(members.invite, HOST, "m")
    why = r"is not of this database \(DATABASE_URL\); `shellback hosts invite NAME` on the host prints another one"
    with pytest.raises(MemberRefused, match=why):
        other.write_now(members.join, text, "pem", "f1")
    assert other.read_now(members.hosts_of, "f1") == set()
    assert db.write_now(members.join, text, "pem", "f1").state == "joined"
    other.close()
    db.close()


async def test_a_long_message_may_come_slowly_and_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = list[float]()
    within = asyncio.timeout

    def counted(seconds: float) -> asyncio.Timeout:
        timeouts.append(seconds)
        return within(seconds)

    monkeypatch.setattr(lines.asyncio, "timeout", counted)
    whole = lines.packed({"id": 1}) + b"\n" + lines.packed({"id": 2, "é": "x" * 100}) + lines.packed({"id": 3})
    for size in (1, 2, 7, 1000):
        reader, told = asyncio.StreamReader(), list[Any]()
        timeouts.clear()
        took = asyncio.create_task(_all(reader, told))
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        for number, piece in enumerate(pieces, 1):
            await until(lambda: len(timeouts) >= number)  # noqa: B023 - it is over
            reader.feed_data(piece)
        await until(lambda: len(told) == 3)  # noqa: B023 - it is over
        reader.feed_data(b'{"id": 4')
        reader.feed_eof()
        await took
        assert [one["id"] for one in told] == [1, 2, 3]
        assert len(timeouts) > len(pieces), "each piece has a time of its own"


async def _all(reader: asyncio.StreamReader, told: list[Any]) -> None:
    async for one in lines.lines(reader):
        told += [one]


async def test_a_message_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE", 100)
    reader = asyncio.StreamReader()
    reader.feed_data(b"x" * 101)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        await anext(aiter(lines.lines(reader)))
