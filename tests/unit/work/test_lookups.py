"""Recorded steps are looked up for every execution but the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from shellback.work.queue.dbos_private import without_lookups


class Launched:
    """What DBOS has of its database once it is launched."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.database = SimpleNamespace(check_operation_execution=self._look)

    def _look(self, *which: object, **more: object) -> str:
        self.asked.append((*which, more))
        return "recorded"

    @property
    def _sys_db(self) -> object:
        return self.database


def test_a_step_is_looked_up_unless_nothing_can_be_recorded_of_it() -> None:
    launched, first = Launched(), {"one"}
    without_lookups(cast("Any", launched), first)
    look = launched.database.check_operation_execution
    assert look("one", 3, "model") is None
    assert look("two", 3, "model", owner_key="k") == "recorded"
    first.clear()
    assert look("one", 3, "model") == "recorded"
    assert launched.asked == [("two", 3, "model", {"owner_key": "k"}), ("one", 3, "model", {})]
