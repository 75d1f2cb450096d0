"""The observers of turns and sessions: telemetry if it is configured and installed, else none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shellback.exec.core import ports
from shellback.exec.core.ports import SessionWatch
from shellback.settings import Settings
from shellback.work.turn.watching import TurnWatch

if TYPE_CHECKING:
    from pydantic_ai.capabilities import AbstractCapability

    from shellback.storage.db import Database

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watches:
    """The observers of turns and sessions, their capabilities for the agent, and whether DBOS makes spans."""

    turns: TurnWatch = field(default_factory=TurnWatch)
    sessions: SessionWatch = field(default_factory=ports.Unwatched)
    capabilities: Sequence[AbstractCapability[Any]] = ()
    secrets: Callable[[int], None] = lambda _: None
    traced: bool = False


def watches(
    settings: Settings, database: Database, *, executor_id: str, host_id: str, stack: contextlib.ExitStack
) -> Watches:
    """The observers that settings ask for, closed with `stack`; none, with a log line, if packages are missing."""
    endpoint = settings.telemetry_endpoint
    if not endpoint:
        return Watches()
    if lacking := missing():
        log.warning("no telemetry: %s", lacking)
        return Watches()
    from shellback.telemetry.telemetry import Telemetry, WatchedSessions, WatchedTurns

    slots, content = settings.turn_slots + settings.wake_slots, settings.telemetry_content
    telemetry = Telemetry(endpoint, database, executor_id=executor_id, host_id=host_id, slots=slots, content=content)
    stack.callback(telemetry.close)
    return Watches(
        WatchedTurns(telemetry, database),
        WatchedSessions(telemetry),
        [telemetry.capability()],
        telemetry.counts.secrets.add,
        traced=True,
    )


def missing() -> str:
    """The packages that telemetry lacks, with the remedy; "" if it lacks none."""
    try:
        there = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        there = None
    return "" if there else "its packages are not installed: pip install 'shellback[otel]'"
