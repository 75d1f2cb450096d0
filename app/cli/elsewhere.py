"""Conversations that live on another host, of which nobody may have heard for long: what a person is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.hosts import Host


def home_of(where: Place, conversation: str) -> Host | None:
    """The other host that a conversation lives on; None if it lives here, or nowhere yet."""
    from shellback.work.hosts import hosts

    found = where.database.read_now(hosts.of_conversation, conversation)
    return None if found is None or found.host_id == where.host_id else found


def waits(conversation: str, home: Host | None) -> str | None:
    """What to say of a conversation whose host is silent; None where there is nothing to say."""
    if home is None or not home.silent:
        return None
    return visible_line(
        f"conversation {conversation} lives on host {home.name}, which {home.heard}, and waits for it. "
        f"`shellback adopt conversation {conversation}` continues it on this host"
    )


def silent_hosts(where: Place, host_ids: Iterable[str]) -> dict[str, Host]:
    """Those of these hosts that are silent, by id; never this one."""
    from shellback.work.hosts import hosts

    wanted = set(host_ids) - {where.host_id}
    found = where.database.read_now(lambda conn: [hosts.one(conn, host_id) for host_id in wanted]) if wanted else []
    return {host.host_id: host for host in found if host.silent}
