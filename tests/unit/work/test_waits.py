"""Waits of DBOS for a database that is away."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from dbos._sys_db import db_retry
from sqlalchemy.exc import DBAPIError

from shellback.work.queue import dbos_private


def test_dbos_asks_a_database_that_was_away_again_within_seconds_however_long_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept, failures = list[float](), [DBAPIError("", {}, Exception(), connection_invalidated=True)] * 9
    monkeypatch.setattr(sys.modules[db_retry.__module__], "time", time)  # and afterwards, too
    dbos_private.with_short_waits()
    monkeypatch.setattr(dbos_private, "time", SimpleNamespace(sleep=slept.append))

    @db_retry()
    def recorded() -> str:
        if failures:
            raise failures.pop()
        return "recorded"

    assert recorded() == "recorded"
    assert len(slept) == 9
    assert max(slept) <= dbos_private.LONGEST_S
    assert len(set(slept[-4:])) == 4, "many that wait do not come back in the same moment"
