"""`shellback containers`: list, show and remove the containers of conversations."""

from __future__ import annotations

import asyncio
import difflib
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.options import container_names
from shellback.cli.shared import (
    Columns,
    Commands,
    Refused,
    json_option,
    lists,
    opened,
    show,
    stamp,
    table_lines,
    the_one,
)
from shellback.cli.terminal.screen import confirmed
from shellback.client.freshness import Freshness
from shellback.client.processes import how
from shellback.exec.backends.kinds import CONTAINED
from shellback.exec.core.display import age, visible_line
from shellback.exec.core.model import PodmanWorkspace, Session

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

SHOWN: Final = 50

all_option = click.option("--all", "everything", is_flag=True, help="Include removed containers.")


@click.group(cls=Commands, invoke_without_command=True)
@all_option
@lists()
@click.pass_context
def containers(ctx: click.Context, everything: bool) -> None:
    """List the containers of conversations, show what changed in one, or remove some.

    With BACKEND=podman or docker each conversation has one container per profile, created at its first command. A
    container that is unused for PODMAN_IDLE_SECONDS is stopped; the next command starts it again.

    \b
      shellback containers
      shellback containers show shellback-3f9a
      shellback containers rm build          all containers of conversation build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, everything=everything)


@containers.command("list")
@all_option
@lists()
def list_(everything: bool) -> None:
    """List containers, the oldest first, with conversation, profile, state, last use and image.

    The real last use may be up to a minute later than shown.
    """
    from shellback.storage import workspaces as rows

    with opened() as where:
        found = where.database.read_now(rows.find, live=None if everything else True)
        here = where.host_id
        fresh = Freshness(where, (one.host_id for one in found))
    now = time.time()
    columns: Columns[PodmanWorkspace] = {
        "CONTAINER": "name",
        "CONVERSATION": "scope",
        "PROFILE": "profile",
        "STATE": "state",
        "USED": lambda one: f"{age(now - one.last_used_at)} ago",
        "IMAGE": "image",
    }
    if any(one.host_id != here for one in found):
        columns["HOST"] = lambda one: None if one.host_id == here else one.host_id
    kind = where.settings.backend if where.settings.backend in CONTAINED else next(iter(CONTAINED))
    none = [f"no containers: with BACKEND={kind} a conversation has one from its first command on"]
    lines = [*table_lines(found, columns), *fresh.lines()] if found else none
    show([{**asdict(one), **fresh.fact(one.host_id)} for one in found], lines)


@containers.command("show")
@click.argument("name", shell_complete=container_names)
@click.option(
    "--last",
    "-n",
    type=click.IntRange(1, 10_000),
    default=SHOWN,
    show_default=True,
    help="How many changes of files, and how many evaluations.",
)
@json_option
def show_(name: str, last: int) -> None:
    """Show a container and what tools did in its workspace: files written, edited and removed, Python evaluated.

    NAME is a container, the beginning of its name, or a conversation. Only the names of its environment variables are
    stored. Changes by commands are not listed: `shellback ps --all` lists the commands, `shellback logs` their output.
    """
    with opened() as where:
        found = _found(where, name)
        fresh = Freshness(where, (one.host_id for one in found))
        facts = [_facts(where, one, last) | fresh.fact(one.host_id) for one in found]
    blocks = ["\n".join(map(visible_line, _lines(one))) for one in facts]
    show(facts[0] if len(facts) == 1 else facts, ["\n\n".join(blocks), *fresh.lines()])


@containers.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=container_names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Remove a container even if processes run in it; its agent is told.")
@click.option("--overlay", is_flag=True, help="Also delete the files of the workspace, if below SHELLBACK_CACHE.")
@json_option
def rm(names: tuple[str, ...], yes: bool, force: bool, overlay: bool) -> None:
    """Stop and remove containers. Files in their workspaces stay; the next command gets a new container.

    NAME is a container, the beginning of its name, or a conversation for all its containers. A container in which
    processes run is kept, unless --force is given. A container that no longer exists is only marked as removed.

    \b
      shellback containers rm shellback-3f9a
      shellback containers rm build --force --yes
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        wanted = list({one.name: one for name in names for one in _found(where, name, ours=True)}.values())
        for one in wanted:
            _may_go(where, one, force=force, overlay=overlay)
        which = f"{', '.join(one.name for one in wanted)}{' with all files' if overlay else ', and keep the files'}"
        if not yes and not confirmed(visible_line(f"Remove {which}?")):
            raise Refused("nothing was removed")
        done = asyncio.run(_removed(where, wanted, overlay=overlay))
    lines: list[str] = []
    for one in done:
        files = "its files too" if one["overlay_removed"] else f"its files stay: {one['overlay_path']}"
        lines.append(visible_line(f"{one['name']} {'removed' if one['was_there'] else 'was gone already'}; {files}"))
    show(done, lines)


def _found(where: Place, name: str, *, ours: bool = False) -> list[PodmanWorkspace]:
    """The containers that a name, its beginning or a conversation names; removed ones only if no other matches.

    Raises:
        Refused: No or several containers match or, with `ours`, they are on another host or removed already.
    """
    from shellback.storage import workspaces as rows

    known = where.database.read_now(rows.find)
    here = [one for one in known if one.state != "removed"] or known
    for group in (here, known):
        exact = {one.name for one in group if name in {one.name, one.scope}}
        names = exact or {the_one((one.name for one in group), name, "containers")}
        if begun := [one for one in group if one.name in names]:
            break
    else:
        alike = difflib.get_close_matches(name, [text for one in here for text in (one.name, one.scope)], 3)
        hint = f"did you mean {', '.join(alike)}? " if alike else ""
        raise Refused(f"no container {visible_line(name)!r}: {hint}`shellback containers --all` lists them")
    if not ours:
        return begun
    mine = [one for one in begun if one.host_id == where.host_id]
    if not mine:
        raise Refused(f"{begun[0].name} is on host {begun[0].host_id}: remove it there, or with its SHELLBACK_HOME")
    if all(one.state == "removed" for one in mine):
        raise Refused(f"{mine[0].name} was removed already, {stamp(mine[0].removed_at or 0.0)}")
    return [one for one in mine if one.state != "removed"]


def _may_go(where: Place, one: PodmanWorkspace, *, force: bool, overlay: bool) -> None:
    if overlay and Path(one.overlay_path).parent not in {where.settings.shellback_cache / name for name in CONTAINED}:
        raise Refused(
            f"--overlay deletes only files below SHELLBACK_CACHE, but those of {one.name} are in "
            f"{visible_line(one.overlay_path)}: omit --overlay"
        )
    running = [] if force else _running(where, one)
    if running:
        raise Refused(
            f"in {one.name} {len(running)} {'process runs' if len(running) == 1 else 'processes run'}"
            f" ({', '.join(session.id for session in running[:5])}): end them with `shellback kill ID`, wait, or give"
            " --force"
        )


def _running(where: Place, one: PodmanWorkspace) -> list[Session]:
    from shellback.storage import sessions

    found = where.database.read_now(sessions.find, conversation_id=one.scope, live=True)
    of = (one.profile, one.host_id)
    return [session for session in found if session.backend in CONTAINED and (session.profile, session.host_id) == of]


async def _removed(where: Place, wanted: list[PodmanWorkspace], *, overlay: bool) -> list[dict[str, Any]]:
    from shellback.wiring import wiring

    done: list[dict[str, Any]] = []
    for one in wanted:
        containers = wiring.containers(where, one.name)
        there = await containers.remove(one.name)
        if overlay:
            await asyncio.to_thread(containers.engine.remove_tree, Path(one.overlay_path))
        facts = {"name": one.name, "scope": one.scope, "was_there": there, "overlay_path": one.overlay_path}
        done.append({**facts, "overlay_removed": overlay})
    return done


def _facts(where: Place, one: PodmanWorkspace, last: int) -> dict[str, Any]:
    from shellback.exec.tools.short_commands import PYTHON
    from shellback.storage import workspaces as rows

    evaluated = where.database.read_now(rows.evaluations, one.scope, PYTHON, limit=last)
    running = _running(where, one) if one.state == "running" else []
    return {
        **asdict(one),
        "running": [session.id for session in running],
        "files": where.database.read_now(rows.changes, one.scope, limit=last),
        "evaluations": [
            {
                "at": session.created_at,
                "session_id": session.id,
                "state": session.state.value,
                "exit_code": session.end and session.end.exit_code,
                "end": "runs" if session.end is None else how(session.end),
            }
            for session in evaluated
        ],
    }


def _lines(one: dict[str, Any]) -> list[str]:
    gone = f", {stamp(one['removed_at'])}" if one["removed_at"] is not None else ""
    lines = [
        f"{one['name']}: {one['state']}{gone}, profile {one['profile']}, of conversation {one['scope']}",
        f"  container  {one['container_id']}",
        f"  image      {one['image']}",
        f"  files      {one['overlay_path']}, in there {one['workdir']}",
        f"  env        {', '.join(one['env']) or 'none of its own'}",
        f"  made       {stamp(one['created_at'])}, last used {stamp(one['last_used_at'])}",
        f"  running    {', '.join(one['running']) or 'nothing'}",
    ]
    for file in one["files"]:
        size = "" if file["bytes"] is None else f", {file['bytes']:,} bytes"
        lines.append(f"  {stamp(file['at'])}  {file['did']} {file['path'] or 'a file'}{size}")
    return [
        *lines,
        *(f"  {stamp(ran['at'])}  python, session {ran['session_id']}: {ran['end']}" for ran in one["evaluations"]),
    ]
