"""`shellback kill`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from shellback.cli import unknown
from shellback.cli.options import session_ids
from shellback.cli.shared import Refused, asked, json_option, opened, show, the_one, wants_json
from shellback.cli.terminal.screen import confirmed
from shellback.cli.unknown import how
from shellback.exec.core import limits
from shellback.exec.core.errors import SessionNotFound, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import Session, SessionId
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.supervised import end_of

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place


def ending(session: Session) -> str:
    """The end of a session in a few words, "not yet" while it lives."""
    return "not yet" if session.end is None else how(session.end)


def find_session(where: Place, given: str) -> Session:
    """The session of this host whose id is `given`, or begins with it.

    Raises:
        Refused: No or several ids match, or the session belongs to another host.
    """
    from shellback.storage import sessions

    name = the_one(where.database.read_now(sessions.ids, given, limit=100), given, "sessions")
    session = where.database.read_now(sessions.get, SessionId(name or ""))
    if session is None:
        raise Refused(f"no session {given!r}: `shellback ps --all` lists them")
    if session.host_id != where.host_id:
        raise Refused(
            f"session {session.id} belongs to host {session.host_id}: run the command there, or with its SHELLBACK_HOME"
        )
    return session


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, shell_complete=session_ids)
@click.option("--unknown", "strangers", is_flag=True, help="End every process that `shellback ps --unknown` lists.")
@click.option("--yes", is_flag=True, help="With --unknown: do not ask for confirmation.")
@json_option
def kill(ids: tuple[str, ...], strangers: bool, yes: bool) -> None:
    """End processes and everything they started: SIGTERM, and after two seconds SIGKILL. The agent is told.

    The beginning of an ID is enough. If a session has ended already, nothing is signalled: the command prints how it
    ended; exit code 2. A process that the database does not know is ended too, and no conversation is told.

    \b
      shellback kill xtmc
      shellback kill --unknown     every process that the database does not know
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if bool(ids) == strangers:
        raise click.UsageError("give either IDs of processes, or --unknown")
    with opened() as where:
        wanted = _all_unknown(where, yes=yes) if strangers else list(ids)
        done: list[_Ended] = []
        wrong: list[str] = []
        for given in wanted:
            try:
                done.append(_end(where, given))
            except Refused as refused:
                wrong.append(refused.format_message())
        if any(one.settles for one in done):
            unknown.settled(where)
    facts = [{"session_id": one.session_id, "survivors": one.survivors} for one in done]
    if facts or not wrong:
        said = (f"{one.session_id} {one.said}" for one in done if not one.survivors)
        show(facts[0] if len(ids) == 1 else facts, said)
    left = [str(pid) for one in done for pid in one.survivors]
    if left:
        wrong.append(f"still running after SIGKILL: {', '.join(left)}; they end when the kernel releases them")
    if wrong:
        raise Refused("; ".join(wrong))


def _all_unknown(where: Place, *, yes: bool) -> list[str]:
    found = unknown.listed(where)
    if not (yes if found else wants_json()):
        click.echo("\n".join(unknown.lines(found)), err=True)
    if found and not yes and not confirmed(f"End {len(found)} process(es), without telling any conversation?"):
        raise click.Abort
    return [one.id for one in found]


class _Ended(NamedTuple):
    session_id: str
    survivors: list[int]
    said: str
    settles: bool = False
    """Whether a restored backup had left the process to a person."""


def _end(where: Place, given: str) -> _Ended:
    from shellback.storage import sessions

    gone = "ended, with everything it started"
    if not where.database.read_now(sessions.ids, given, limit=1):
        one = unknown.find(where, given)
        said = f"{gone}; the database does not know it, so no conversation is told"
        return _Ended(one.id, unknown.end(where, one), said, settles=True)
    session = find_session(where, given)
    # A session recorded as lost may still be running: its supervisor knows.
    if not session.live and session.state.value != "lost":
        raise Refused(f"session {session.id} has ended already: {ending(session)}. Nothing was signalled")
    survivors = asked(where, lambda client: _kill(client, session, lambda: unknown.give_up(where, session)))
    if survivors is not None:
        return _Ended(session.id, survivors, gone)
    said = "recorded as lost: this state directory does not know it, and no process of it runs. Its agent is told"
    return _Ended(session.id, [], said, settles=True)


async def _kill(client: SupervisorPort, session: Session, give_up: Callable[[], bool]) -> list[int] | None:
    """End the session and return its survivors; None if the supervisor does not know it and `give_up` settled it."""
    try:
        await client.connect()
        record = (await client.status(session.id)).get("record")
        if record is not None:
            raise Refused(
                f"session {session.id} has ended already: {how(end_of(record))}. Nothing was signalled; "
                "the next worker tells the agent"
            )
        left = await client.kill(session.id, grace_s=limits.KILL_GRACE_S, ended_by="person")
    except (SessionNotFound, SupervisorUnreachable) as error:
        if session.end is not None:
            said = f"session {session.id} has ended already: {ending(session)}. No process of it runs here"
            raise Refused(said) from None
        if isinstance(error, SessionNotFound) and await asyncio.to_thread(give_up):
            return None
        raise Refused(
            f"no supervisor on this host runs session {session.id}, so nothing was signalled ({error}): start a worker "
            "(shellback worker), which finds out how it ended"
        ) from None
    except TaskCompleted:
        raise Refused(f"session {session.id} has just ended. Nothing was signalled") from None
    return list(left)
