"""`shellback worker`, `host`, `workers`, `hosts` and `supervisor`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import click

from shellback.cli.children import ON_THE_HOST, make_default, stop_with_stdin
from shellback.cli.options import Lasting
from shellback.cli.shared import (
    Columns,
    Commands,
    Refused,
    json_option,
    lasting_settings,
    lists,
    load_settings,
    opened,
    show,
    stamp,
    table_lines,
    utf8,
)
from shellback.exec.core.display import age, visible_line
from shellback.exec.core.errors import ExecError, SupervisorAbsent
from shellback.exec.link import launch
from shellback.exec.wire import linux
from shellback.log import configure
from shellback.orders import note_workspace
from shellback.storage.errors import ExecutorTaken, HostTaken
from shellback.storage.host import ensure_home
from shellback.wiring.choice import Choice, choose

if TYPE_CHECKING:
    from shellback.exec.backends.kinds import ChosenBackend
    from shellback.settings import Settings
    from shellback.storage.members import Member
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.hosts import Host
    from shellback.work.hosts.loads import Load
    from shellback.work.hosts.roster import Employed
    from shellback.work.worker.worker import Worker

log = logging.getLogger(__name__)

SHOWN: Final = 10
"""So many conversations are named."""


@click.command()
@click.option(
    "--for", "host", metavar="HOST", help="Run turns of another machine's host, which this one has joined; or of `all`."
)
@click.option("--while-stdin", is_flag=True, hidden=True, help="Stop when standard input ends, as after SIGTERM.")
def worker(host: str | None, while_stdin: bool) -> None:
    """Run turns for this host until SIGTERM or Ctrl-C; then let running turns end, and exit.

    Running turns get DRAIN_SECONDS to end; a second SIGTERM or Ctrl-C cuts them off at once. The next worker continues
    a turn that was cut off.

    A worker of a host that drains (`shellback hosts drain`) ends when nothing there needs it.

    The worker prints "ready" on standard error when it takes turns. One worker is enough for a host; a second one with
    the same name is refused.

    Processes of agents keep running without the worker. The next worker takes over the processes and turns that the
    last one left.

    With --for the turns run here, and their commands and files are on the machine of HOST, which has LISTEN set. This
    machine needs the database, the model's key and the agent, and no sandbox. `shellback hosts invite` on HOST and
    `shellback hosts join` here make them known to each other. With --for all it runs turns of every host that this
    machine has joined, also of those that it joins later, with the same slots for all of them.

    \b
      ENABLE_EXECUTE=true shellback worker
      LOG_FORMAT=json LOG_LEVEL=WARNING shellback worker 2>>worker.log
      ENABLE_EXECUTE=true shellback worker --for web-2
      ENABLE_EXECUTE=true shellback worker --for all
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if host is None:
        _run(turns=True, while_stdin=while_stdin)
    else:
        _run_for(host, while_stdin=while_stdin)


@click.command()
@click.option("--while-stdin", is_flag=True, hidden=True, help="Stop when standard input ends, as after SIGTERM.")
def host(while_stdin: bool) -> None:
    """Keep the workspaces and processes of this machine, for turns that workers elsewhere run, until SIGTERM or Ctrl-C.

    It is what `shellback worker` is, without the turns: it needs no model and no key. Workers on other machines reach
    it at LISTEN (`shellback worker --for`). Processes keep running without it, and the next one takes them over.

    \b
      ENABLE_EXECUTE=true LISTEN=10.0.0.7:7443 shellback host
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if not load_settings().listen:
        raise Refused("LISTEN is not set, so no worker would reach this host: set it to ADDRESS:PORT of this machine")
    _run(turns=False, while_stdin=while_stdin)


def _run(*, turns: bool, while_stdin: bool) -> None:
    from shellback.wiring import wiring

    settings = _begun()
    make_default(settings)
    chosen = choose(settings)
    try:
        with wiring.place(settings) as where, wiring.worker(where, chosen.backend, turns=turns) as built:
            note_workspace(where.home, chosen.backend.workspace)
            _announce(settings, chosen)
            if while_stdin and chosen.fallen_back:
                click.echo(f"{ON_THE_HOST}{chosen.why}", err=True)
            asyncio.run(_serve(where, built, while_stdin=while_stdin))
    except ExecutorTaken as taken:
        raise Refused(_taken(taken, settings)) from None


def _begun() -> Settings:
    from shellback.wiring import wiring

    linux.one_heap()
    settings = lasting_settings()
    configure(settings.log_level, settings.log_format)
    wiring.arm_crash_points(settings)
    return settings


def _run_for(named: str, *, while_stdin: bool) -> None:
    from shellback.storage import members
    from shellback.wiring import elsewhere, wiring
    from shellback.work.elsewhere.certificates import fingerprint_of, of_machine
    from shellback.work.errors import HostUnfit, HostUnreachable
    from shellback.work.queue.queues import EVERYWHERE

    settings = _begun()
    with wiring.place(settings) as own:
        _require_postgres(own)
        found = None if named == "all" else _host_named(own, named)
        if found is not None and found.host_id == own.host_id:
            raise Refused(f"{found.name} is the host of this state directory: leave --for out, or set SHELLBACK_HOME")
        joined = own.database.read_now(members.hosts_of, fingerprint_of(of_machine(own.home)[1]))
        if not joined if found is None else found.host_id not in joined:
            raise Refused(
                f"this machine has not joined {'any host' if found is None else f'host {found.name}'}, or was revoked:"
                " `shellback hosts invite NAME` there prints an invitation, `shellback hosts join` takes it here"
            )
        where = elsewhere.place_elsewhere(own, EVERYWHERE if found is None else found.host_id)
        if not settings.enable_execute:
            log.warning("ENABLE_EXECUTE is not set: agents have no tools that run commands")
        try:
            with elsewhere.worker_elsewhere(own, where) as built:
                asyncio.run(_serve(where, built, while_stdin=while_stdin))
        except ExecutorTaken as taken:
            raise Refused(_taken(taken, where.settings)) from None
        except (HostUnfit, HostUnreachable) as error:
            raise Refused(str(error)) from None


def _host_named(where: Place, named: str) -> Host:
    from shellback.cli.adopt import host_among
    from shellback.work.hosts import hosts as known

    _require_postgres(where)
    return host_among([one for one in where.database.read_now(known.known) if one.silent_s is not None], named)


def _announce(settings: Settings, chosen: Choice) -> None:
    backend = chosen.backend
    log.info("backend %s (%s): %s", backend.name, chosen.why, backend.description)
    if chosen.fallen_back:
        log.warning("commands run on the host, without a sandbox: %s", chosen.why)
    log.info("workspace %s, database %s", backend.workspace, settings.shown_database)
    # Beside it, because each is a trial of a sandbox, and an engine of containers may hang.
    threading.Thread(target=_try_workspaces, args=(settings, backend), name="workspaces", daemon=True).start()
    if not settings.enable_execute:
        log.warning("ENABLE_EXECUTE is not set: agents have no tools that run commands")


def _try_workspaces(settings: Settings, first: ChosenBackend) -> None:
    from shellback.wiring.views import tried

    for name, found in tried(settings, first):
        if isinstance(found, ExecError):
            log.warning("commands cannot run in workspace %s: %s", name, found)


def _taken(taken: ExecutorTaken, settings: Settings) -> str:
    if isinstance(taken, HostTaken):
        home = settings.shellback_home
        return f"{taken}. {home} or that one is a copy: set SHELLBACK_HOME to a new directory, or stop the other worker"
    host = os.uname().nodename if taken.host == "this host" else taken.host
    who = f"process {taken.pid} on {host}" if taken.pid is not None else f"a process on {host}"
    if settings.database_url.startswith("sqlite"):
        return (
            f"a worker of this state directory is already running: {who}. Stop it, because SQLite has one worker. (On "
            "Postgres several run, each worker of a host with its own WORKER_NAME)"
        )
    return (
        f"a worker with the name {taken.name!r} is already running: {who}. Stop it, or set WORKER_NAME to another name"
    )


async def _serve(where: Place, built: Worker, *, while_stdin: bool) -> None:
    from shellback.cli.desk import Desk

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told(number: signal.Signals) -> None:
        if stop.is_set():
            with contextlib.suppress(OSError):
                click.echo("stopped at once: the next worker continues the turns that were cut off", err=True)
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    if while_stdin:
        stop_with_stdin(loop, stop)
    # A worker of `chat` ends with it.
    told_by = (stop, built.fallen, *(() if while_stdin else (built.emptied,)))
    ends = [asyncio.create_task(one.wait()) for one in told_by]
    try:
        if await _started(built, ends):
            async with Desk(where):
                click.echo("ready", err=True)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            why = "this host drains, and nothing here needs it any more; " * built.emptied.is_set()
            # The commands that waited here look for themselves.
            click.echo(f"{why}draining: running turns end first", err=True)
    finally:
        for end in ends:
            end.cancel()
        if while_stdin:
            loop.remove_reader(sys.stdin.fileno())
        await built.stop()
    if built.fallen.is_set():
        raise Refused(built.why_fallen)


async def _started(built: Worker, ends: list[asyncio.Task[Literal[True]]]) -> bool:
    """Start the worker; False if it is told to stop first, because waiting for a supervisor may take long."""
    start = asyncio.create_task(built.start())
    await asyncio.wait([start, *ends], return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait([start])
    if start.cancelled():
        return False
    start.result()
    return True


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include stopped and dead workers.")
@lists()
def workers(everything: bool) -> None:
    """List workers with host, process, state, version and last heartbeat.

    alive: a heartbeat in the last 15 seconds. silent: no heartbeat for 15 seconds; it hangs, is paused or is cut off.
    dead: its process is gone; of workers on other machines this is not known. stopped: it ended in order. LOST: its
    turns that other workers took over in the last day. ELSEWHERE: on another machine than its hosts. Turns run only
    while a worker is alive: `shellback worker` starts one.

    \b
      shellback workers
      shellback workers --all --json
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.storage.executor_lock import has_ended
    from shellback.work.hosts import roster

    with opened() as where:
        found = where.database.read_now(roster.look, where.host_id, ended=partial(has_ended, where.home))
        lost = where.database.read_now(roster.lost_turns)
    shown = [one for one in found if everything or one.state in {"alive", "silent"} or one.executor_id in lost]
    columns: Columns[Employed] = {
        "NAME": lambda one: one.executor_id.removeprefix(f"{one.host_id}."),
        "STATE": "state",
        "PID": "pid",
        "HEARD OF": lambda one: age(one.quiet_s) + " ago",
        "LOST": lambda one: lost.get(one.executor_id),
        "STARTED": lambda one: stamp(one.started_at),
        "VERSION": "version",
        "ELSEWHERE": lambda one: "yes" if one.elsewhere else None,
        "HOST ID": lambda one: ", ".join(one.serves) or one.host_id,
    }
    none = (
        "no workers" if everything else "no worker runs: start one with `shellback worker` (--all includes past ones)"
    )
    facts = [{**asdict(one), "turns_taken_over": lost.get(one.executor_id, 0)} for one in shown]
    show(facts, table_lines(shown, columns) if shown else [none])


@click.group(cls=Commands, invoke_without_command=True)
@lists()
@click.pass_context
def hosts(ctx: click.Context) -> None:
    """List the hosts of this database with what each carries, in the order of their names.

    alive: a worker on its machine was heard of in the last 30 seconds. draining: so, and it takes no new conversations.
    silent: none since; its conversations wait. given_up: other hosts have settled what it left. WAITING and RUNNING are
    work items without and with a turn; FREE are slots without one. LABELS are those that `send --needs` asks for
    (HOST_LABELS).

    \b
      shellback hosts
      shellback hosts --json | jq '.[] | select(.waiting > 0)'
      shellback hosts drain web-2
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.hosts.loads import loads
    from shellback.work.queue.standing import unplaced

    if ctx.invoked_subcommand is not None:
        ctx.meta["fields"] = ()
        return
    with opened() as where:
        found = where.database.read_now(loads, where.host_id)
        homeless = [one.conversation for one in where.database.read_now(unplaced)]
    columns: Columns[Load] = {
        "NAME": "name",
        "STATE": "state",
        "WORKERS": "workers",
        "RUNNING": "running",
        "WAITING": "waiting",
        "FREE": "free_slots",
        "PROCESSES": "processes",
        "CONVERSATIONS": "conversations",
        "LABELS": lambda one: ", ".join(one.labels) or None,
        "HEARD OF": lambda one: "never" if one.silent_s is None else age(one.silent_s) + " ago",
        "HOST ID": "host_id",
    }
    none = "no hosts: a host has a row when its first worker starts (`shellback worker`)"
    lines = table_lines(found, columns) if found else [none]
    if homeless:
        more = f" and {len(homeless) - SHOWN} or more" if len(homeless) > SHOWN else ""
        named = f"{', '.join(homeless[:SHOWN])}{more}"
        lines = [*lines, f"waiting for a host: {named}; `shellback queue` says why"]
    show([asdict(one) for one in found], lines)


@hosts.command()
@click.argument("host")
@click.option("--undo", is_flag=True, help="Take new conversations again.")
@json_option
def drain(host: str, undo: bool) -> None:
    """Have HOST take no new conversations. HOST is a name, an id, or the start of an id.

    Its conversations and processes go on. When it has no item, turn, process or unread news, and no call that waits for
    a person, its workers end; one of many hosts stays. New conversations begin on other hosts, or wait for one that
    fits. Where something starts ended workers again, such as systemd or compose, stop that too: a worker of an empty
    host that drains ends at once.

    \b
      shellback hosts drain web-2
      shellback hosts drain web-2 --undo
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.work.hosts import placing

    with opened() as where:
        if where.database.dialect == "sqlite":
            raise Refused("on SQLite there is one host, which no other could relieve: stop its worker instead")
        found = _host_named(where, host)
        where.database.write_now(placing.drain, found.host_id, begin=not undo)
    facts = {"host_id": found.host_id, "name": found.name, "draining": not undo}
    does = (
        "takes new conversations again"
        if undo
        else "drains: it takes no new conversations, and its workers end when it is empty"
    )
    show(facts, [visible_line(f"host {found.name} ({found.host_id}) {does}")])


@hosts.command()
@click.argument("name")
@click.option(
    "--expires", "lasts_s", type=Lasting(), default="1h", show_default=True, metavar="DURATION",
    help="How long it can be used: 10m, 1h.",
)  # fmt: skip
@json_option
def invite(name: str, lasts_s: float) -> None:
    """Invite another machine, called NAME here, to run turns of this host. Prints the invitation, once.

    It can be used once, by `shellback hosts join` there, with the same database. From then on this host trusts that
    machine's certificate, until `shellback hosts revoke`. LISTEN says where this host is reached.

    \b
      shellback hosts invite builder-1 | ssh builder-1 shellback hosts join
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.storage import members

    name = utf8(name, "the name")
    if re.fullmatch(r"[\w.-]{1,60}", name) is None:
        raise Refused("a name has up to 60 letters, digits, dots, dashes and underscores")
    with opened() as where:
        _require_postgres(where)
        if not where.settings.listen:
            click.echo("LISTEN is not set here: set it where the worker or host of this machine is started", err=True)
        text, made = where.database.write_now(members.invite, where.host_id, name, lasts_s=lasts_s)
    show({"invitation": text, **asdict(made)}, [text])


@hosts.command()
@json_option
def join() -> None:
    """Take an invitation from standard input: this machine may run turns of the host that printed it.

    `shellback worker --for HOST` runs them, `--for all` those of all hosts that it has joined.

    \b
      shellback hosts join < invitation
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.storage import members
    from shellback.work.elsewhere.certificates import fingerprint_of, of_machine
    from shellback.work.hosts import hosts as known

    text = sys.stdin.buffer.readline(1000).decode("utf-8", "replace")
    with opened() as where:
        _require_postgres(where)
        certificate = of_machine(where.home)[1]
        made = where.database.write_now(members.join, text, certificate, fingerprint_of(certificate))
        of = where.database.read_now(known.one, made.host_id)
    then = f"`shellback worker --for {of.host_id[:12]}` runs its turns, and `--for all` those of all such hosts"
    show(asdict(made), [visible_line(f"joined host {of.name} ({of.host_id}) as {made.name}: {then}")])


@hosts.command()
@click.argument("name")
@json_option
def revoke(name: str) -> None:
    """Trust the machine NAME no more: its connection to this host is closed within seconds, its next call refused.

    Turns that it runs continue on other workers. Its access to the database is another matter: change its password.
    """
    from shellback.storage import members

    with opened() as where:
        _require_postgres(where)
        ended = where.database.write_now(members.revoke, where.host_id, utf8(name, "the name"))
    show(asdict(ended), [visible_line(f"{ended.name} revoked")])


@hosts.command("members")
@lists()
def members_() -> None:
    """List the machines that may run turns of this host, and those that are invited."""
    from shellback.storage import members

    with opened() as where:
        found = where.database.read_now(members.of_host, where.host_id)
    columns: Columns[Member] = {
        "NAME": "name",
        "STATE": "state",
        "INVITED": lambda one: stamp(one.created_at),
        "JOINED": lambda one: None if one.joined_at is None else stamp(one.joined_at),
        "CERTIFICATE": lambda one: one.fingerprint and one.fingerprint[:16],
    }
    none = "no machine has joined this host: `shellback hosts invite NAME` invites one"
    show([asdict(one) for one in found], table_lines(found, columns) if found else [none])


def _require_postgres(where: Place) -> None:
    if where.database.dialect == "sqlite":
        raise Refused("on SQLite there is one host, and its worker runs all turns: use Postgres (DATABASE_URL)")


@click.command()
@click.option("--check", is_flag=True, help="Only test whether a supervisor answers: exit code 0 if so, else 2.")
def supervisor(check: bool) -> None:
    """Run the supervisor in the foreground, for workers with SUPERVISOR=external.

    Commands are children of this process and survive the workers. It does not exit when idle. SIGTERM or Ctrl-C ends
    the commands, stores their exit records for the next worker, and exits. After SIGHUP it exits as soon as no command
    runs, so that the service manager starts the version that is installed then.

    It needs SHELLBACK_HOME, but no database and no key.

    \b
      shellback supervisor &
      SUPERVISOR=external ENABLE_EXECUTE=true shellback worker
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import supervision

    settings = load_settings()
    if check:
        try:
            hello = asyncio.run(supervision.hello(settings))
        except SupervisorAbsent as error:
            raise Refused(f"{error}: start it with `shellback supervisor`") from None
        click.echo(f"the supervisor answers: pid {hello['pid']} (in its namespace), live sessions: {hello['live']}")
        return
    crash = settings.shellback_crash_points
    launch.become_service(ensure_home(settings.shellback_home), str(crash) if crash else None)
