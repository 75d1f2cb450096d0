"""`shellback kill`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from shellback.cli import unknown
from shellback.cli.options import session_ids
from shellback.cli.shared import Refused, json_option, opened, show, the_one, wants_json
from shellback.cli.terminal.screen import confirmed
from shellback.client import processes
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import Session
from shellback.work.errors import WorkError

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place


def find_session(where: Place, given: str) -> Session:
    """The session of this host whose id is `given`, or begins with it.

    Raises:
        Refused: Several ids begin so.
        UnknownSession: None does.
        SessionElsewhere: The session belongs to another host.
    """
    from shellback.storage import sessions

    name = the_one(where.database.read_now(sessions.ids, given, limit=100), given, "sessions")
    return processes.the_session(where, name or given)


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
            except (WorkError, SupervisorUnreachable, Refused) as refused:
                wrong.append(refused.format_message() if isinstance(refused, Refused) else str(refused))
        if any(one.settles for one in done):
            processes.settled(where)
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
    ended = processes.end(where, session)
    if not ended.lost:
        return _Ended(session.id, ended.survivors, gone)
    said = "recorded as lost: this state directory does not know it, and no process of it runs. Its agent is told"
    return _Ended(session.id, [], said, settles=True)
