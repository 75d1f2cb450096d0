"""Threads on real connections that take turns statement by statement, in an order that a seed decides."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from shellback.storage.db import Database

LOCKED = sa.text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
LIMIT_S = 60.0
_here = threading.local()


class Actor(threading.Thread):
    """Does its work on its own connection; before each statement and each commit it waits for its turn."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._go = threading.Semaphore(0)
        self.arrived = threading.Event()
        self.pid = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        _here.actor = self
        try:
            self.wait_for_turn()
            self._work()
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for it
            self.error = error
        finally:
            self.arrived.set()

    def wait_for_turn(self) -> None:
        self.arrived.set()
        self._go.acquire()

    def go(self) -> None:
        self.arrived.clear()
        self._go.release()


def watch(db: Database) -> None:
    """Make whoever uses this database wait before each statement, if it is an actor."""
    engine = db._writer  # pyright: ignore[reportPrivateUsage]

    def before(conn: sa.Connection, *_: Any) -> None:
        actor: Actor | None = getattr(_here, "actor", None)
        if actor is not None:
            raw: Any = conn.connection.dbapi_connection
            actor.pid = raw.info.backend_pid
            actor.wait_for_turn()

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "commit", before)


def play(db: Database, actors: list[Actor], seed: int) -> list[str]:
    """Run the actors to their ends, one statement at a time; returns who went when.

    Who waits for a lock is left waiting, and another goes on.
    """
    rng = random.Random(seed)
    order: list[str] = []
    for actor in actors:
        actor.start()
        actor.arrived.wait(LIMIT_S)
    until = time.monotonic() + LIMIT_S
    current: Actor | None = None
    while living := [actor for actor in actors if actor.is_alive()]:
        assert time.monotonic() < until, f"seed {seed} comes to no end: {order[-50:]}"
        ready = [actor for actor in living if actor.arrived.is_set()]
        if not ready:
            time.sleep(0.001)
            continue
        if current not in ready or rng.random() < 0.25:
            current = rng.choice(ready)
        order.append(current.name)
        current.go()
        while not current.arrived.wait(0.003):
            if current.pid in db.read_now(lambda conn: set(conn.execute(LOCKED).scalars())):
                break
        if not current.is_alive() or (current.arrived.is_set() and current.error):
            current.join(LIMIT_S)
    for actor in actors:
        if actor.error is not None:
            raise AssertionError(f"{actor.name} failed with seed {seed}") from actor.error
    return order
