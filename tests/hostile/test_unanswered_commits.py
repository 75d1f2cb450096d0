"""COMMITs that take place and are not answered: nothing is lost or doubled, and a repeat says what is true."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, Session, SessionId, SessionState
from shellback.exec.engine.ends import Ends
from shellback.exec.engine.registry import ExecRegistry
from shellback.storage.db import Database
from shellback.storage.errors import OutcomeUnknown
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import approvals as requests
from shellback.storage.tables import conversations, mailbox, sessions, turns
from shellback.work.approvals import approvals, asking, sending
from shellback.work.approvals.asking import Proposed
from shellback.work.errors import ApprovalSettled
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.turn import claims, closing, looks
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing
from tests.items import NotedEnqueuer
from tests.sessions import EXITED, a_session

pytestmark = pytest.mark.anyio

HOST = "host1"
CALL = Proposed(call_key="k", tool_call_id="t", tool_name="execute", args={}, display={}, digest="d")


NAME: Final = ".s.PGSQL.5432"
_COMMIT: Final = b"COMMIT\0"

Way = Literal["open", "cut after commit", "cut before commit"]


class Severed:
    """A way to Postgres that can be cut, on a unix socket of its own: passes bytes until it is told otherwise.

    `cut after commit` lets the next COMMIT through and ends the connection once the server has answered, before the
    client hears of it; `cut before commit` ends it instead of letting the COMMIT through. Each happens once.
    """

    def __init__(self, server: Path, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self.way: Way = "open"
        self.cuts = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server / NAME))
                self._pairs.append((client, server))
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as ready, contextlib.suppress(OSError, ValueError):
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    source = client if key.fileobj is client else server
                    data = source.recv(1 << 16)
                    if not data or not self._forward(source is client, data, server if source is client else client):
                        return

    def _forward(self, from_client: bool, data: bytes, target: socket.socket) -> bool:
        if self.way == ("cut before commit" if from_client else "cut after commit") and _COMMIT in data:
            self.way, self.cuts = "open", self.cuts + 1
            return False
        target.sendall(data)
        return True

    def cut_all(self) -> None:
        """End every connection there is now."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()


@contextlib.contextmanager
def severed(url: str) -> Generator[tuple[Severed, str]]:
    """The way, and the URL that leads over it instead of directly to the server of `url`."""
    before, _, server = url.partition("host=")
    folder = Path(tempfile.mkdtemp(prefix="sbcut", dir="/tmp"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / NAME))
        listener.listen()
        way = Severed(Path(server), listener)
        try:
            yield way, f"{before}host={folder}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            way.cut_all()
            shutil.rmtree(folder)


@dataclass
class Far:
    """A database at the other end of a way that can be cut."""

    db: Database
    way: Severed
    queue: NotedEnqueuer

    def count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(*where)
        return self.db.read_now(lambda conn: conn.execute(query).scalar_one())

    def unanswered(self) -> None:
        self.way.way = "cut after commit"

    def entered(self) -> tuple[str, int]:
        """A turn that holds conversation c1: its id and epoch."""
        sent = sending.deliver(self.db, self.queue, "c1", "hello", host_id=HOST)
        item = next(item for item in self.queue.items if item.id == sent.item_id)
        epoch = self.db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes()).epoch
        assert epoch is not None
        return item.id, epoch

    def store(self) -> SqlSessionStore:
        return SqlSessionStore(self.db, sink=CallbackSink(self.queue, HOST, lambda _: {}))


@pytest.fixture
def far(postgres_url: str) -> Generator[Far]:
    with severed(postgres_url) as (way, url):
        db = Database(url)
        try:
            yield Far(db, way, NotedEnqueuer())
        finally:
            db.close()


@pytest.mark.parametrize("way", ["cut after commit", "cut before commit"])
def test_a_message_whose_commit_is_not_answered_is_kept_once_and_told_as_kept(far: Far, way: Any) -> None:
    far.entered()
    far.way.way = way
    sent = sending.deliver(far.db, far.queue, "c1", "again", host_id=HOST)
    assert far.way.cuts == 1
    assert far.count(mailbox) == 2
    assert far.count(mailbox, mailbox.c.dedupe_key == sent.item_id) == 1
    assert far.count(turns, turns.c.id == sent.item_id) == 1


def a_claim(turn_id: str, epoch: int) -> Session:
    return a_session(turn_id=turn_id, epoch=epoch, host_id=HOST)


async def test_a_claim_whose_commit_is_not_answered_is_found_by_the_repeat_of_its_call(far: Far) -> None:
    claim = a_claim(*far.entered())
    store = far.store()
    far.unanswered()
    with pytest.raises(OutcomeUnknown):
        await store.claim(claim)
    again = await store.claim(claim)
    assert (again.id, again.state) == (claim.id, SessionState.CLAIMED)
    assert far.count(sessions) == 1


async def test_an_end_whose_commit_is_not_answered_is_told_once_and_then_acknowledged(far: Far) -> None:
    claim = a_claim(*far.entered())
    store = far.store()
    await store.claim(claim)
    await store.started(claim.id, pid=5, started_at=1.0)
    await store.hand_over(claim.id)
    acknowledged: list[SessionId] = []

    async def acknowledge(session_id: SessionId) -> None:
        acknowledged.append(session_id)

    ends = Ends(store, ExecRegistry(store), acknowledge)
    far.unanswered()
    ends.received(claim.id, EXITED)
    async with asyncio.timeout(30):
        await ends.settled()
    assert far.way.cuts == 1
    assert acknowledged == [claim.id]
    ended = await store.get(claim.id)
    assert ended is not None
    assert (ended.end, ended.delivery) == (EXITED, Delivery.CALLBACK)
    assert far.count(mailbox, mailbox.c.kind == "exit") == 1
    assert far.count(turns, turns.c.id == f"EXEC_CALLBACK:{claim.id}") == 1


def test_a_closing_whose_commit_is_not_answered_returns_its_outcome_to_the_repeat(far: Far) -> None:
    turn_id, epoch = far.entered()
    far.db.write_now(looks.look, "c1", turn_id, epoch, 0)

    query = sa.select(mailbox.c.id).where(mailbox.c.taken_by == turn_id)
    heard = far.db.read_now(lambda conn: frozenset(conn.execute(query).scalars()))

    def close() -> str:
        how = Closing(
            conversation_id="c1", turn_id=turn_id, epoch=epoch, outcome="answered", answer="done", heard=heard
        )
        return far.db.write_now(closing.close, far.queue, how, None, [], None).outcome

    far.unanswered()
    with pytest.raises(OutcomeUnknown):
        close()
    before = [item.id for item in far.queue.items]
    assert close() == "answered"
    assert [item.id for item in far.queue.items] == before
    assert far.count(turns, turns.c.outcome == "answered", turns.c.answer == "done") == 1
    assert far.count(mailbox, mailbox.c.state == "heard") == 1
    assert far.count(conversations, conversations.c.state == "free", conversations.c.epoch == epoch) == 1


def test_a_decision_whose_commit_is_not_answered_stands_and_says_so_to_whoever_repeats_it(far: Far) -> None:
    turn_id, epoch = far.entered()

    def ask(conn: sa.Connection) -> str:
        asking.ask(conn, "c1", turn_id, epoch, [CALL], ttl_s=1000)
        conn.execute(sa.update(conversations).values(state="blocked", blocked_reason="approval", claimed_by=None))
        return conn.execute(sa.select(requests.c.id)).scalar_one()

    request = far.db.write_now(ask)
    far.unanswered()
    with pytest.raises(OutcomeUnknown, match="not known whether it took place"):
        far.db.write_now(approvals.decide, far.queue, request, "approved", by="me", surface="test")
    with pytest.raises(ApprovalSettled, match="is approved already"):
        far.db.write_now(approvals.decide, far.queue, request, "approved", by="me", surface="test")
    assert far.count(turns, turns.c.item_type == "APPROVAL") == 1


def test_connections_that_are_cut_between_transactions_cost_nobody_anything(far: Far) -> None:
    for number in range(3):
        sending.deliver(far.db, far.queue, f"c{number}", "hello", host_id=HOST)
        far.way.cut_all()
    assert far.count(mailbox) == 3
