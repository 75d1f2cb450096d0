"""Who watches turns and processes: telemetry where it is asked for and can be had, nobody elsewhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
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
    """What is told of turns and of sessions, what the agent is given for it, and whether DBOS makes spans."""

    turns: TurnWatch = field(default_factory=TurnWatch)
    sessions: SessionWatch = field(default_factory=ports.Unwatched)
    capabilities: Sequence[AbstractCapability[Any]] = ()
    traced: bool = False


def watches(
    settings: Settings, database: Database, *, executor_id: str, host_id: str, stack: contextlib.ExitStack
) -> Watches:
    """The watches that settings ask for; closed with `stack`. What is missing is logged, and nobody watches."""
    endpoint = settings.telemetry_endpoint
    if not endpoint:
        return Watches()
    if lacking := missing():
        log.warning("no telemetry: %s", lacking)
        return Watches()
    from shellback.telemetry.telemetry import Telemetry, WatchedSessions, WatchedTurns

    telemetry = Telemetry(
        endpoint, database, executor_id=executor_id, host_id=host_id, content=settings.telemetry_content
    )
    stack.callback(telemetry.close)
    return Watches(WatchedTurns(telemetry, database), WatchedSessions(telemetry), [telemetry.capability()], traced=True)


def missing() -> str:
    """What has to be installed before telemetry can be sent; empty when nothing has."""
    try:
        there = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        there = None
    return "" if there else "its packages are not installed; pip install 'shellback[otel]'"
