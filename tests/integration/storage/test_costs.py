"""The costs of a day are those of the turns that ended on it."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from shellback.storage import tables
from shellback.storage.db import Database
from shellback.work.queue import costs

pytestmark = pytest.mark.anyio


async def test_a_turn_that_ends_just_before_midnight_is_of_that_day(database: Database) -> None:
    midnight = time.time() // 86_400 * 86_400
    row = {
        "id": "t", "conversation_id": "c", "item_type": "PROMPT", "priority": 1, "outcome": "answered",
        "created_at": midnight - 9, "started_at": midnight - 9, "ended_at": midnight - 0.3,
    }  # fmt: skip
    await database.write(lambda conn: conn.execute(sa.insert(tables.turns).values(row)))
    (found,) = await database.read(lambda conn: costs.look(conn, each=False))
    assert found.day == midnight - 86_400
