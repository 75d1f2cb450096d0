"""All uses of private names of DBOS; any release may change them.

tests/architecture/test_private_names.py says what each is used for, and what to do when it is gone. DBOS is imported
late, because commands that only read the table would wait for it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import sqlalchemy as sa

from shellback.storage import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Mapping, Sequence
    from threading import Event

    from dbos import DBOS, Queue

    from shellback.work.queue.bells import Bell


LONGEST_S: Final = 5.0


def items(conn: sa.Connection) -> sa.TableClause:
    """DBOS's table of items, with the columns that are read; its client would import all of DBOS, which is slow."""
    schema = None if conn.dialect.name == "sqlite" else "dbos"
    names = ("workflow_uuid", "status", "queue_name")
    return sa.table("workflow_status", *(sa.column(name, sa.Text) for name in names), schema=schema)


_OPEN: Final = ("ENQUEUED", "PENDING")


def open_items(conn: sa.Connection, queues: Sequence[str]) -> set[tuple[str, str]]:
    """The queues that have items, each with `ENQUEUED` or `PENDING`."""
    table = items(conn)
    either = [rows.literal(status) for status in _OPEN]
    looks = [
        sa.select(
            sa.literal(queue).label("queue"),
            sa.literal(status).label("status"),
            sa.exists()
            # A partial index of DBOS is for both states.
            .where(table.c.queue_name == queue, table.c.status == rows.literal(status), table.c.status.in_(either))
            .label("there"),
        )
        for queue in queues
        for status in _OPEN
    ]
    return {(row.queue, row.status) for row in conn.execute(sa.union_all(*looks)) if row.there}


def count_turns(dbos: DBOS, bells: Mapping[str, Bell]) -> None:
    """Have `bells[queue]` count the turns of its queue; before the launch of `dbos`.

    The turns of all queues that share slots count for the bound of each.
    """
    from dbos._core import ActiveWorkflowById, ActiveWorkflowEntry

    class Counted(ActiveWorkflowById):
        def add(
            self, key: str, queue_name: str | None = None, queue_partition_key: str | None = None
        ) -> ActiveWorkflowEntry:
            if queue_name is not None and queue_name in bells:
                bells[queue_name].began()
            return super().add(key, queue_name, queue_partition_key)

        def count_for_queue(self, queue_name: str) -> int:
            bell = bells.get(queue_name)
            return super().count_for_queue(queue_name) if bell is None else bell.slots.running

        def _remove(self, key: str, bucket: tuple[str, str | None] | None) -> None:
            super()._remove(key, bucket)
            if bucket is not None and bucket[0] in bells:
                bells[bucket[0]].ended()

    vars(dbos)["_active_workflows_set"] = Counted()


@contextlib.contextmanager
def without_polls() -> Generator[None]:
    """Launch DBOS without the threads that poll for queues, delayed items, deadlines and schedules; we use none."""
    from dbos import DBOS
    from dbos._queue import queue_thread
    from dbos._scheduler import dynamic_scheduler_loop
    from dbos._workflow_commands import background_jobs_thread

    polls = {poll.__name__: poll for poll in (background_jobs_thread, dynamic_scheduler_loop, queue_thread)}
    names = vars(sys.modules[DBOS.__module__])
    names.update(dict.fromkeys(polls, _nothing))
    try:
        yield
    finally:
        names.update(polls)


def _nothing(*_: object) -> None:
    pass


def without_lookups(dbos: DBOS, first: Container[str]) -> None:
    """Look up no recorded step of the workflows in `first`; after the launch of `dbos`.

    A lookup is a transaction before each step. Recording is unchanged: it refuses an execution that was overtaken.
    """
    database = vars(type(dbos))["_sys_db"].fget(dbos)
    look: Callable[..., object] = database.check_operation_execution

    def looked_up(workflow_id: str, *which: object, **more: object) -> object:
        return None if workflow_id in first else look(workflow_id, *which, **more)

    vars(database)["check_operation_execution"] = looked_up


def with_own_versions(dbos: DBOS, newest: Callable[[], bool]) -> None:
    """Give this process items without a version while it is of the `newest` one; after the launch of `dbos`.

    By itself DBOS gives them to the version that started last in the whole database, of whichever host.
    """
    database = vars(type(dbos))["_sys_db"].fget(dbos)

    def is_newest(*_: object) -> bool:
        return newest()

    vars(database)["_is_latest_version"] = is_newest


def with_own_slots(dbos: DBOS, bells: Mapping[str, Bell]) -> None:
    """Bound the turns of each queue by the slots of its bell in `bells`; after the launch of `dbos`.

    The bound in the queue's row is that of the worker which registered it last, maybe on another machine.
    """
    database = vars(type(dbos))["_sys_db"].fget(dbos)
    get: Callable[[str], Queue | None] = database.get_queue

    def got(name: str) -> Queue | None:
        queue, bell = get(name), bells.get(name)
        if queue is not None and bell is not None:
            vars(queue)["_worker_concurrency"] = bell.slots.number
        return queue

    vars(database)["get_queue"] = got


def with_short_waits() -> None:
    """Have DBOS repeat what the database refused after at most `LONGEST_S`, in this process.

    By itself it waits ever longer, so that turns would go on up to 90 s after the end of an outage.
    """
    from dbos._sys_db import db_retry

    vars(sys.modules[db_retry.__module__])["time"] = SimpleNamespace(**{**vars(time), "sleep": _wait_shortly})


def _wait_shortly(seconds: float) -> None:
    # Those that wait longest do not all come back in the same moment.
    time.sleep(min(seconds, LONGEST_S * random.uniform(0.6, 1.0)))  # noqa: S311 - jitter


def take_items(bell: Bell, dbos: DBOS, queue: Queue) -> None:
    """Start the items of `queue`: at each ring of `bell`, and at each poll; blocks until the bell is stopped."""
    from dbos._queue import queue_worker_thread

    queue_worker_thread(cast("Event", bell), dbos, queue)
