"""Notices of turns elsewhere: the host of the conversation sends them, if it sends any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shellback.work.elsewhere.lines import Message
from shellback.work.hosts import hosts
from shellback.work.notices.notices import Kind, Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutbox(Outbox):
    """Writes the notices that hosts send; `told` has what a host has told of itself, None if it is not reached."""

    told: Callable[[str], Message | None]

    def put(
        self,
        conn: sa.Connection,
        kind: Kind,
        conversation_id: str,
        key: str,
        text: str,
        approval: dict[str, Any] | None = None,
    ) -> None:
        """See `Outbox.put`."""
        host = hosts.of_conversation(conn, conversation_id)
        told = None if host is None else self.told(host.host_id)
        if host is not None and told is not None and told["notices"]:
            Outbox(host=host.name, on=True, console=told["console"]).put(
                *(conn, kind, conversation_id, key, text, approval)
            )
