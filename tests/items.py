"""An enqueuer for tests, and a conversation that is driven call by call, without DBOS."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import FunctionDef, FunctionModel

from shellback.exec.core.model import SessionId
from shellback.storage.db import Database
from shellback.storage.tables import conversations, mailbox, turns
from shellback.work.approvals import sending
from shellback.work.approvals.asking import Proposed
from shellback.work.queue.items import ItemType, WorkItem
from shellback.work.queue.mailbox import Letter, lock
from shellback.work.queue.queues import note_turn
from shellback.work.turn import claims, hearing, looks
from shellback.work.turn.claims import Entry, Wakes
from shellback.work.turn.closing import Begun, Closing, Shows, close, enter, shows_nothing
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Hearing
from shellback.work.turn.looks import Look
from shellback.work.turn.stopping import Wish

HOST = "host1"
PROPOSED = Proposed(
    call_key="k1", tool_call_id="t1", tool_name="execute", args={"command": "x"}, display={"command": "x"}, digest="d1"
)


class NotedEnqueuer:
    """Notes the items instead of giving them to DBOS, and writes the row in `turns` in the same transaction."""

    def __init__(self) -> None:
        self.items: list[WorkItem] = []

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        note_turn(conn, item)
        self.items.append(item)

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        pass


@dataclass
class Talk:
    """Conversation `c1` and its turns."""

    db: Database
    queue: NotedEnqueuer = field(default_factory=NotedEnqueuer)

    def say(self, text: str, **more: Any) -> str:
        """The id of the item that the message may have."""
        return self.db.write_now(sending.send, self.queue, "c1", text, host_id=HOST, **more).item_id

    def send(self, text: str = "hello", **more: Any) -> WorkItem:
        item_id = self.say(text, **more)
        return next(item for item in self.queue.items if item.id == item_id)

    def enter(self, item: WorkItem, **wakes: int) -> Entry:
        return self.db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes(**wakes))

    def begin(self, item: WorkItem, gate: bool = True, shows: Shows = shows_nothing) -> Begun:
        """What an execution of the turn of `item` begins with."""
        begun = self.db.write_now(enter, item, gate, shows, executor_id="w1", wakes=Wakes())[1]
        assert begun is not None
        return begun

    def epoch(self, item: WorkItem, **wakes: int) -> int:
        epoch = self.enter(item, **wakes).epoch
        assert epoch is not None
        return epoch

    def entered(self, text: str = "hello", **more: Any) -> tuple[WorkItem, int]:
        """The item of a message, and the epoch of the turn that has begun for it."""
        item = self.send(text, **more)
        return item, self.epoch(item)

    def last(self, kind: ItemType) -> WorkItem:
        """The item that was put last; it has to be one of this kind."""
        assert self.queue.items[-1].type is kind
        return self.queue.items[-1]

    def letters(self, item: WorkItem, epoch: int, step: int = 0) -> list[Letter]:
        return self.db.write_now(looks.look, "c1", item.id, epoch, step).letters

    def take(self, item: WorkItem, epoch: int, step: int = 0) -> list[str]:
        return [letter.payload.get("text", letter.kind) for letter in self.letters(item, epoch, step)]

    def begun(self, item: WorkItem, *texts: str, **wakes: int) -> int:
        """The epoch of a turn that has taken its first news: these, where any are named."""
        epoch = self.epoch(item, **wakes)
        taken = self.take(item, epoch)
        assert not texts or taken == list(texts)
        return epoch

    def taken(self, item: WorkItem) -> list[int]:
        query = sa.select(mailbox.c.id).where(mailbox.c.taken_by == item.id)
        return self.db.read_now(lambda conn: list(conn.execute(query).scalars()))

    def close(self, item: WorkItem, epoch: int, outcome: str = "answered", **more: Any) -> str:
        closing = Closing(conversation_id="c1", turn_id=item.id, epoch=epoch, outcome=outcome, **more)
        return self.db.write_now(close, self.queue, closing, None, [], None).outcome

    def finish(self, item: WorkItem, epoch: int, outcome: str = "answered", **more: Any) -> str:
        """Close a turn that has heard all that it took."""
        return self.close(item, epoch, outcome, **{"answer": "done", "heard": frozenset(self.taken(item)), **more})

    def die(self, reason: str = "it died") -> str:
        return self.db.write_now(self._die, reason)

    def _die(self, conn: sa.Connection, reason: str) -> str:
        row = lock(conn, "c1")
        assert row is not None
        return claims.fail(conn, self.queue, row, reason=reason)

    def conversation(self) -> Any:
        return self.db.read_now(lambda conn: conn.execute(sa.select(conversations)).one())


def a_worker(name: str, host_id: str, at: float, version: str = "v1", **more: Any) -> dict[str, Any]:
    """The row of a worker that was last heard of then."""
    row = {"executor_id": name, "host_id": host_id, "pid": 1, "boot_id": "b", "version": version}
    return {**row, "started_at": at, "heartbeat_at": at, **more}


@pytest.fixture
def talk(database: Database) -> Talk:
    return Talk(database)


class Given(Hearing):
    """Hears at each look what the test gives it, wishes what it wishes, and looks into no database."""

    def __init__(
        self,
        letters: Callable[[int], list[Letter]] = lambda _: [],
        *,
        wish: Callable[[int], Wish | None] = lambda _: None,
        ended: bool = False,
        recorded: Callable[[str], Awaitable[None]] = hearing.nothing_waits,
    ) -> None:
        super().__init__(cast("Any", None), None, recorded)
        self._letters, self._wish, self._ended = letters, wish, ended

    def agent(self, respond: FunctionDef) -> Agent[TurnDeps]:
        """One whose model responds so."""
        return Agent(FunctionModel(respond), deps_type=TurnDeps, capabilities=[self])

    async def look(self, deps: TurnDeps, step: int, messages: Sequence[ModelMessage]) -> Look:
        return Look(at=0.0, letters=self._letters(step), wish=self._wish(step))

    async def wished(self, deps: TurnDeps) -> Wish | None:
        return self._wish(deps.looks + 1)

    async def ended(self, session_id: SessionId) -> bool:
        return self._ended


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn hears is heard outside of DBOS."""

    async def at_once(_name: str, fn: Callable[[], Awaitable[Any]]) -> Any:
        return await fn()

    monkeypatch.setattr(hearing, "recorded", at_once)


def turn_deps(*, gate: bool = True, seconds: float = 1e12, host_id: str = HOST) -> TurnDeps:
    return TurnDeps(
        conversation_id="c1",
        turn_id="t1",
        epoch=1,
        gate=gate,
        began_at=0.0,
        seconds=seconds,
        until=time.monotonic() + seconds,
        host_id=host_id,
    )


def unrung(_host_id: str, _queue: str) -> None:
    """A doorbell that nobody hears."""


def committed(conn: sa.Connection) -> list[str]:
    """Ids of the items whose transaction committed."""
    return list(conn.execute(sa.select(turns.c.id).order_by(turns.c.created_at)).scalars())
