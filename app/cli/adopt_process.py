"""`shellback adopt process`: a process that the database does not know becomes a conversation's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shellback.cli.shared import Refused, json_option, me, opened, print_json, utf8
from shellback.exec.core.display import visible_line
from shellback.exec.core.model import WORK, SessionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shellback.exec.core.ports import SupervisorPort
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.unknown import Home, Unknown


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("-c", "--conversation", required=True, metavar="NAME", help="Whose it is from now on.")
@json_option
def process(ids: tuple[str, ...], conversation: str, as_json: bool) -> None:
    """Give processes that the database does not know (`shellback ps --unknown`) to a conversation of this host.

    Its agent sees each as one of its own and is told of the end, once; of one that has ended already, now. A
    conversation that does not exist is made. ID may be the beginning of one.

    \b
      shellback adopt process xtmc --conversation build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.cli import unknown
    from shellback.work.approvals.sending import require_name
    from shellback.work.hosts.unknown import adopt

    name = utf8(conversation, "--conversation")
    require_name(name)
    adopted: list[dict[str, Any]] = []
    with opened() as where:
        found = unknown.listed(where)
        wanted = [_chosen(where, found, given) for given in ids]
        with unknown.callbacks(where) as sink:
            home = _home(where)
            for one in dict.fromkeys(wanted):
                session = where.database.write_now(adopt, one, name, home, sink, by=me())
                _link(where, one)
                adopted.append({"session_id": one.id, "conversation": name, "state": session.state.value})
        unknown.asked(where, lambda client: _acknowledge(client, wanted))
        unknown.settled(where)
    if as_json:
        print_json(adopted)
        return
    for row in adopted:
        told = "its end will be told" if row["state"] == "running" else "its end is told now"
        click.echo(f"{row['session_id']} belongs to {name}: {told}")


def _chosen(where: Place, found: Sequence[Unknown], given: str) -> Unknown:
    from shellback.cli import unknown
    from shellback.storage import sessions

    try:
        return unknown.chosen(found, given)
    except Refused:
        known = where.database.read_now(sessions.ids, given, limit=2) if given else []
        session = where.database.read_now(sessions.get, SessionId(known[0])) if len(known) == 1 else None
        if session is None:
            raise
        owner = visible_line(session.conversation_id)
        raise Refused(f"{session.id} belongs to conversation {owner} already: nothing was changed") from None


def _home(where: Place) -> Home:
    from shellback.exec.log.links import LogLinks
    from shellback.exec.wire import layout
    from shellback.wiring.choice import choose
    from shellback.work.hosts.unknown import Home

    backend = choose(where.settings).backend
    sessions = where.home / layout.SESSIONS
    return Home(
        host_id=where.host_id,
        uid=backend.uid,
        backend=backend.name,
        profile=WORK,
        workspace=str(backend.workspace),
        log_path=LogLinks(backend.workspace, sessions).path,
        sessions=sessions,
    )


def _link(where: Place, one: Unknown) -> None:
    from shellback.exec.log.links import LogLinks
    from shellback.exec.wire import layout

    sessions = where.home / layout.SESSIONS
    links = LogLinks(where.settings.workspace_root, sessions)
    links.add(one.id, separate_stderr=(sessions / one.id / layout.ERR).exists())
    links.close()


async def _acknowledge(client: SupervisorPort, wanted: list[Unknown]) -> None:
    for one in wanted:
        if one.end is not None:
            await client.ack(one.id)
