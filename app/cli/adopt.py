"""`shellback adopt`: assign conversations of another host, or unknown processes, to this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli import unknown
from shellback.cli.conversations import find_conversation
from shellback.cli.options import conversation_names
from shellback.cli.shared import Commands, Refused, asked, json_option, opened, show, utf8
from shellback.cli.terminal.screen import confirmed
from shellback.client.caller import me
from shellback.client.processes import callbacks, settled
from shellback.exec.core.display import age, visible_line
from shellback.exec.core.model import WORK, SessionId
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.wire import layout
from shellback.wiring.choice import choose

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.hosts import Host
    from shellback.work.hosts.unknown import Home, Unknown


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("-c", "--conversation", required=True, metavar="NAME", help="Conversation that gets the processes.")
@json_option
def process(ids: tuple[str, ...], conversation: str) -> None:
    """Give processes that the database does not know (`shellback ps --unknown`) to a conversation of this host.

    The agent sees each as its own session, and is told of its end once: now, if the process has ended already. A
    conversation that does not exist is created. The beginning of an ID is enough.

    \b
      shellback adopt process xtmc --conversation build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.approvals.sending import require_name
    from shellback.work.hosts.unknown import adopt as taken_over

    name = utf8(conversation, "--conversation")
    require_name(name)
    adopted: list[dict[str, Any]] = []
    with opened() as where:
        found = unknown.listed(where)
        wanted = [_chosen(where, found, given) for given in ids]
        with callbacks(where) as sink:
            workspace = _workspace_of(where, name)
            home = _home(where, workspace)
            for one in dict.fromkeys(wanted):
                session = where.database.write_now(taken_over, one, name, home, sink, by=me())
                _link(where, one, workspace)
                adopted.append({"session_id": one.id, "conversation": name, "state": session.state.value})
        asked(where, lambda client: _acknowledge(client, wanted))
        settled(where)
    told = {row["session_id"]: "will be told" if row["state"] == "running" else "is told now" for row in adopted}
    show(adopted, (f"{one} belongs to {name}: its end {when}" for one, when in told.items()))


def _chosen(where: Place, found: Sequence[Unknown], given: str) -> Unknown:
    from shellback.storage import sessions

    try:
        return unknown.chosen(found, given)
    except Refused:
        known = where.database.read_now(sessions.ids, given, limit=2) if given else []
        session = where.database.read_now(sessions.get, SessionId(known[0])) if len(known) == 1 else None
        if session is None:
            raise
        owner = visible_line(session.conversation_id)
        raise Refused(f"{session.id} already belongs to conversation {owner}: nothing was changed") from None


def _workspace_of(where: Place, conversation: str) -> Path:
    """The directory in which a conversation works, or will if it does not exist."""
    from shellback.wiring.spaces import path_of
    from shellback.work.queue.mailbox import Workspace, workspace_of

    return path_of(where.settings, where.database.read_now(workspace_of, conversation) or Workspace())


def _home(where: Place, workspace: Path) -> Home:
    from shellback.exec.log.links import LogLinks
    from shellback.wiring.views import Views
    from shellback.work.hosts.unknown import Home

    backend = choose(Views(where.settings).at(workspace), workspace).backend
    logs = where.home / layout.SESSIONS
    return Home(
        host_id=where.host_id,
        uid=backend.uid,
        backend=backend.name,
        profile=WORK,
        workspace=str(backend.workspace),
        log_path=LogLinks(backend.workspace, logs).path,
        sessions=logs,
    )


def _link(where: Place, one: Unknown, workspace: Path) -> None:
    from shellback.exec.log.links import LogLinks

    logs = where.home / layout.SESSIONS
    links = LogLinks(workspace, logs)
    links.add(one.id, separate_stderr=(logs / one.id / layout.ERR).exists())
    links.close()


async def _acknowledge(client: SupervisorPort, wanted: list[Unknown]) -> None:
    for one in wanted:
        if one.end is not None:
            await client.ack(one.id)


SHOWN: Final = 10

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
force_option = click.option(
    "--force", is_flag=True, help="Adopt even if the other host may be alive; its running turns are cut off."
)


@click.group(cls=Commands)
def adopt() -> None:
    """Take over conversations of another host, or processes that the database does not know.

    \b
      shellback adopt conversation build      continue a conversation here
      shellback adopt host web-2              continue all conversations of a host that is gone
      shellback adopt process xtmc -c build   give an unknown process (ps --unknown) to a conversation
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


adopt.add_command(process)


@adopt.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=conversation_names)
@yes_option
@force_option
@json_option
def conversation(names: tuple[str, ...], yes: bool, force: bool) -> None:
    """Continue conversations of another host on this one.

    Their processes there end as lost (host_unreachable), and the agent is told. An interrupted turn is retried here.
    Pending approvals stay pending. Files are not moved: commands use the workspaces of this host, where a
    named one needs the same name and path.

    \b
      shellback adopt conversation build
      shellback adopt conversation --yes build deploy
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.queue.mailbox import NOWHERE

    with opened() as where:
        found: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            standing = find_conversation(where, name)
            if standing.host_id == where.host_id:
                raise Refused(f"conversation {visible_line(name)} already lives on this host: nothing was changed")
            if standing.host_id == NOWHERE:
                why = f"conversation {name} has no host to be adopted from ({standing.placed})"
                raise Refused(f"{visible_line(why)}: have a host offer what it needs, or send under another name")
            found.setdefault(standing.host_id, []).append(name)
        theirs = {_gone(where, host_id, force=force): found[host_id] for host_id in found}
        _confirm(where, theirs, yes=yes)
        moved = [one for gone in theirs for one in _move(where, gone, theirs[gone], force=force)]
    _report(moved)


@adopt.command()
@click.argument("host", metavar="HOST")
@yes_option
@force_option
@json_option
def host(host: str, yes: bool, force: bool) -> None:
    """Continue all conversations of HOST on this one. HOST is a name, or the beginning of an id.

    If this machine has lost its state directory, its conversations belong to the old host id. Give that id as HOST.

    \b
      shellback adopt host web-2
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.hosts import adopting

    with opened() as where:
        gone = _gone(where, _find_host(where, host).host_id, force=force)
        theirs = where.database.read_now(adopting.living_there, gone.host_id, limit=None)
        if not theirs:
            raise Refused(f"host {visible_line(gone.name)} ({gone.host_id}) has no conversations: nothing to adopt")
        _confirm(where, {gone: theirs}, yes=yes)
        moved = _move(where, gone, theirs, force=force)
    _report(moved)


def _find_host(where: Place, given: str) -> Host:
    from shellback.work.hosts import hosts

    known = [one for one in where.database.read_now(hosts.known) if one.host_id != where.host_id]
    if where.host_id == given or (given and where.host_id.startswith(given) and not _matching(known, given)):
        raise Refused(f"{given} is this host: its conversations already live here")
    return host_among(known, given, "other host")


def host_among(known: Sequence[Host], given: str, kind: str = "host") -> Host:
    """The host that is `given` by its name, its id or the start of its id.

    Raises:
        Refused: None or several match; the message lists them.
    """
    found = _matching(known, given)
    if len(found) == 1:
        return found[0]
    listed = [f"{one.host_id} ({visible_line(one.name)}, {one.heard})" for one in (found or known)[:SHOWN]]
    what = f"{len(found)} hosts match {given!r}: give the full id" if found else f"no {kind} matches {given!r}"
    raise Refused(f"{visible_line(what)}. {kind.capitalize()}s: {', '.join(listed) or 'none'}")


def _matching(known: Sequence[Host], given: str) -> Sequence[Host]:
    exact = [one for one in known if one.host_id == given]
    return exact or [one for one in known if given and (one.name == given or one.host_id.startswith(given))]


def _gone(where: Place, host_id: str, *, force: bool) -> Host:
    """The host, if its lease has ended or `force` is set; Refused if the host holds its lease."""
    from shellback.work.hosts import hosts

    lease_s = where.settings.host_lease_seconds
    found = where.database.read_now(hosts.one, host_id)
    if found.holds(lease_s) and not force:
        left = lease_s - (found.silent_s or 0.0)
        raise Refused(
            f"host {visible_line(found.name)} ({found.host_id}) {found.heard}; its lease ends in "
            f"{age(left)}: stop its worker and wait, or give --force to cut off its running turns"
        )
    return found


def _explained(where: Place, host: Host, names: Sequence[str]) -> list[str]:
    from shellback.work.hosts import adopting

    live = where.database.read_now(adopting.live_there, host.host_id, names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    places = where.database.read_now(_places, names, where.settings.workspace_root)
    others = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return [
        f"{len(names)} conversation(s) of host {host.name} ({host.host_id}), which {host.heard}:",
        f"  {', '.join(names[:SHOWN])}{more}",
        f"  {live} process(es) there are recorded as lost (host_unreachable); those that still run are not ended",
        f"  from now on commands run on this host, in {', '.join(places[:SHOWN])}{others}; files are not moved",
    ]


def _places(conn: Any, names: Sequence[str], first: Path) -> list[str]:
    """Where these conversations will work: each workspace once."""
    from shellback.work.queue.mailbox import Workspace, workspace_of

    bound = {workspace_of(conn, name) or Workspace() for name in names}
    return sorted(f"workspace {one}" if one.path else str(first) for one in bound)


def _confirm(where: Place, theirs: Mapping[Host, Sequence[str]], *, yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise Refused("nothing was changed: without a terminal, confirm with --yes")
    for line in (line for host, names in theirs.items() for line in _explained(where, host, names)):
        click.echo(visible_line(line), err=True)
    if not yes and not confirmed("Continue here?"):
        raise Refused("nothing was changed")


def _move(where: Place, host: Host, names: Sequence[str], *, force: bool) -> list[dict[str, Any]]:
    from shellback.wiring import wiring

    facts: list[dict[str, Any]] = []
    with wiring.neighbours(where) as neighbours:
        for name in names:
            moved = neighbours.adopt(host.host_id, name, force=force)
            if moved is not None:
                lost = {"from_host": host.host_id, "lost_sessions": moved.lost}
                facts.append({"conversation": name, **lost})
    return facts


def _report(moved: Sequence[dict[str, Any]]) -> None:
    lost = sum(one["lost_sessions"] for one in moved)
    said = [f"{len(moved)} conversation(s) live here now; {lost} process(es) recorded as lost"] if moved else []
    show(moved, said)
    if not moved:
        raise Refused("nothing was changed: another host has adopted them, or their host is alive again")
