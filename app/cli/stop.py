"""`shellback stop`: end the turn of a conversation, without losing its results or messages."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from shellback.cli.shared import Refused, asked, json_option, opened, show, until
from shellback.client.caller import me
from shellback.client.freshness import home_of, waits, worker_lives
from shellback.exec.core import limits
from shellback.exec.core.errors import SessionNotFound, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import Session
from shellback.exec.core.ports import SupervisorPort

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.turn.stopping import Stopping


@click.command()
@click.argument("conversation", metavar="CONVERSATION")
@click.option("--kill", is_flag=True, help="Also end the conversation's processes and everything they started.")
@click.option("--wait", is_flag=True, help="Return when the turn has ended, and print its outcome.")
@click.option("--timeout", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Seconds for --wait.")
@json_option
def stop(conversation: str, kill: bool, wait: bool, timeout: float) -> None:
    """End the turn of a conversation at its next step: before the next model request or command.

    A command that the turn waits for continues in the background. Calls that wait for approval are denied. If the
    turn has not begun, its message stays in the history, and the turn ends before the model is asked. Messages that
    arrived during the turn, or while approvals were pending, are kept and answered next.

    Processes keep running and wake the agent when they end. With --kill they are ended too; the agent is still told
    of each end, once, so it may answer again.

    If there is nothing to stop, the command says so; exit code 0.

    \b
      shellback stop build
      shellback stop build --kill --wait
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import wiring
    from shellback.work.turn import stopping

    began = time.time()
    with opened() as where:
        with wiring.enqueuing(where) as enqueuer:
            found = where.database.write_now(stopping.stop, enqueuer, conversation, by=me())
        killed = _kill_all(where, conversation) if kill else []
        facts: dict[str, Any] = {
            "conversation": conversation,
            "turn_id": found.turn_id,
            "state": "stopping" if found.reach else "nothing_running",
            "killed": killed,
        }
        if found.reach and wait:
            ended = until(
                lambda: where.database.read_now(stopping.settled, conversation, found.turn_id, began),
                timeout,
                f"not stopped within {timeout:g} s: a running model request is not cut off, and a turn ends only while "
                "a worker runs. The turn will still be stopped; `shellback doctor` says whether a worker runs",
            )
            # Processes that were about to start when the turn was told to end have started by now.
            killed += [one for one in (_kill_all(where, conversation) if kill else []) if one not in killed]
            facts |= {"turn_id": ended.turn_id, "state": ended.outcome or "stopped"}
        home = home_of(where, conversation)
        open_still = found.reach is not None and facts["state"] == "stopping"
        said = waits(conversation, home) if open_still else None
        alone = open_still and home is None and not worker_lives(where)
    told = [_said(found, facts["state"]), *([f"ended: {', '.join(killed)}"] if killed else [])]
    show(facts, told)
    if said:
        click.echo(f"shellback: {said}", err=True)
    if alone:
        click.echo("shellback: no worker of this host runs; the turn is stopped when one starts", err=True)


def _said(found: Stopping, state: str) -> str:
    name = found.conversation_id
    match state, found.reach:
        case "nothing_running", _:
            return f"no turn runs in {name}"
        case "stopping", "approvals":
            return f"the calls of {name} that waited for approval are denied"
        case "stopping", "queued":
            return f"the waiting message of {name} is kept; its turn ends before the model is asked"
        case "stopping", _:
            return f"the turn of {name} ends at its next step"
        case "stopped", _:
            return f"the turn of {name} is stopped"
        case _:
            return f"the turn of {name} had already ended: {state}"


def _kill_all(where: Place, conversation: str) -> list[str]:
    from shellback.storage import sessions
    from shellback.wiring import supervision

    found = where.database.read_now(sessions.find, conversation_id=conversation)
    here = [session for session in found if session.host_id == where.host_id]
    live = [session for session in here if session.live]
    killed = _kill(where, live) if live else []
    try:
        # Processes that ended sessions left running.
        left = asyncio.run(supervision.expire_conversations(where.settings, [conversation])) if here else []
    except SupervisorUnreachable as error:
        raise Refused(
            f"survivors of ended sessions cannot be found ({error}): start a worker (shellback worker), then repeat"
        ) from None
    return killed + [one for one in left if one not in killed]


def _kill(where: Place, found: list[Session]) -> list[str]:
    """The ids of the sessions that were ended, without those that had ended or never started."""

    async def ended(client: SupervisorPort) -> list[tuple[int, ...] | BaseException]:
        await client.connect()
        kills = (client.kill(session.id, grace_s=limits.KILL_GRACE_S, ended_by="person") for session in found)
        return await asyncio.gather(*kills, return_exceptions=True)

    absent = (
        "the turn will end, but no process was ended: no supervisor of this host answers ({error}). "
        "Start a worker (shellback worker), then repeat"
    )
    killed: list[str] = []
    for session, answer in zip(found, asked(where, ended, absent), strict=True):
        if isinstance(answer, BaseException):
            if not isinstance(answer, SessionNotFound | TaskCompleted):
                raise answer
        elif answer:
            left = ", ".join(map(str, answer))
            raise Refused(
                f"session {session.id}: still running after SIGKILL: {left}; they end when the kernel releases them"
            )
        else:
            killed.append(session.id)
    return killed
