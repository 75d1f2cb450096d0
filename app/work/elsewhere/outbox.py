"""Notices of turns elsewhere: the host of the conversation sends them, if it sends any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from shellback.work.elsewhere.lines import Message
from shellback.work.hosts import hosts
from shellback.work.notices.notices import SILENT, Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutbox(Outbox):
    """Writes the notices that hosts send; `told` has what a host has told of itself, None if it is not reached."""

    told: Callable[[str], Message | None]

    def _of(self, _conn: sa.Connection, _conversation_id: str) -> Outbox:
        host = hosts.of_conversation(_conn, _conversation_id)
        told = None if host is None else self.told(host.host_id)
        if host is None or told is None:
            return SILENT
        return Outbox(host=host.name, on=told["notices"], console=told["console"])
