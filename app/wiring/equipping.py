"""What runs the calls of tools: engine, policy, files and tools, for a worker or an MCP server."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shellback.exec.backends.inspection.inspector import Inspector, inspector_of
from shellback.exec.backends.kinds import ChosenBackend
from shellback.exec.core.errors import ExecError, WorkspaceUnusable
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import Session
from shellback.exec.core.ports import SessionWatch, Unwatched
from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.persistent import PersistentShells
from shellback.exec.policy.policy import Policy
from shellback.exec.policy.rules.file import load
from shellback.exec.reports.callback_text import callback_payload
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.tools.bench import Bench
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.shell_calls import ShellCalls
from shellback.exec.tools.tool_calls import ToolCalls
from shellback.exec.tools.toolset import ExecTools
from shellback.exec.watching.watcher import Watcher
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.watches import SqlWatchStore
from shellback.storage.workspaces import SqlWorkspaceStore
from shellback.wiring import choice, supervision
from shellback.wiring.policing import policy_for
from shellback.wiring.spaces import Benches
from shellback.wiring.views import Views, tool_switches
from shellback.work.approvals.audit import refused
from shellback.work.approvals.verdicts import begun, claim
from shellback.work.hosts.generation import absence_tells
from shellback.work.queue.callbacks import CallbackSink, SqlFindings
from shellback.work.queue.queues import Enqueuer
from shellback.work.queue.watch_wakes import WatchWakes

if TYPE_CHECKING:
    from shellback.exec.backends.containers import Containers
    from shellback.exec.backends.supervisors import Supervisors
    from shellback.settings import Settings
    from shellback.wiring.wiring import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The engine of a process and what belongs to it; nothing is started. `benches` has it for each workspace.

    `containers` are those of this process, if commands of any workspace run in some.
    """

    engine: Engine
    views: Views
    port: Supervisors
    containers: Containers | None
    policy: Policy
    files: Files
    sink: CallbackSink
    watcher: Watcher
    shells: PersistentShells
    tools: ExecTools
    benches: Benches


def equipped(
    where: Place, backend: ChosenBackend, enqueuer: Enqueuer, watch: SessionWatch | None = None, *, blocks: bool
) -> Equipment:
    """The equipment for the commands of `backend`; with `blocks` also the tool that pins a block.

    Raises:
        PolicyUnusable: The operator's file of rules cannot be followed.
    """
    settings, database = where.settings, where.database
    views = Views(settings)
    here = views.at(backend.workspace)

    def payload_of(session: Session) -> dict[str, object]:
        return callback_payload(session, *(engine.streams(session) if session.host_id == where.host_id else ()))

    def elsewhere(workspace: str) -> tuple[ChosenBackend, Inspector | None, Limits]:
        """Where commands run in another workspace, as for sessions of an earlier worker before any turn."""
        seen = views.at(workspace)
        like = likes[seen.workspace]
        if isinstance(like, ExecError):
            raise like
        there = choice.elsewhere(seen, like, workspace, containers)
        return there, inspector(there), limits_of(seen)

    def inspector(there: ChosenBackend) -> Inspector | None:
        """What inspects a workspace: its memory is of this path alone, whichever process works there first."""
        kept = where.home / "inspection" / hashlib.sha256(os.fsencode(there.workspace)).hexdigest()[:32]
        return inspector_of(there, kept, SqlFindings(database, where.host_id))

    def bench(workspace: str) -> Bench:
        there = engine.at(workspace)
        assert isinstance(there.backend, ChosenBackend)
        if str(there.workspace) != workspace:
            raise WorkspaceUnusable(f"{workspace} leads to {there.workspace} now; put the directory back")
        choice.tried(settings, there.backend)
        return bench_of(there, there.backend)

    def bench_of(engine: Engine, backend: ChosenBackend) -> Bench:
        policy = policy_for(views.at(engine.workspace), database, backend, written)
        files = files_of(backend)
        calls = ToolCalls(
            engine,
            policy,
            FileCalls(files, engine.store, backend.containers and backend.containers.touch),
            ShellCalls(engine, shells.at(engine)),
            watcher,
        )
        return Bench(engine=engine, policy=policy, files=files, calls=calls)

    sink = CallbackSink(enqueuer, where.host_id, payload_of)
    store = SqlSessionStore(
        database,
        sink=sink,
        # The grant of a call is used in the transaction that lets it act.
        within=claim,
        within_call=begun,
        refused=refused,
    )
    likes = _likes(settings, views, backend)
    backends = [backend, *(one for one in likes.values() if isinstance(one, ChosenBackend) and one is not backend)]
    port = supervision.supervisors(settings, backends)
    containers = next((one.containers for one in backends if one.containers is not None), None)
    if containers is not None:
        containers.log = SqlWorkspaceStore(database, where.host_id)
    engine = Engine(
        store,
        port,
        backend,
        home=where.home,
        host_id=where.host_id,
        absence_tells=lambda session: absence_tells(where.home, session.created_at),
        limits=limits_of(here),
        watch=watch or Unwatched(),
        inspector=inspector(backend),
        elsewhere=elsewhere,
        mask=where.mask,
    )
    written = load(settings.policy)
    watcher = Watcher(engine, SqlWatchStore(database, sink=WatchWakes(enqueuer, where.host_id)))
    shells = PersistentShells(engine, idle_s=settings.shell_idle_seconds)
    first = bench_of(engine, backend)
    benches = Benches(settings, views, database, first, bench)
    tools = ExecTools(
        engine,
        policy=first.policy,
        watcher=watcher,
        blocks=blocks,
        shells=shells,
        files=first.files,
        touched=backend.containers and backend.containers.touch,
        calls_in=benches.calls_of,
        **tool_switches(settings),
    )
    return Equipment(
        engine=engine,
        views=views,
        port=port,
        containers=containers,
        policy=first.policy,
        files=first.files,
        sink=sink,
        watcher=watcher,
        shells=shells,
        tools=tools,
        benches=benches,
    )


def _likes(settings: Settings, views: Views, first: ChosenBackend) -> dict[str, ChosenBackend | ExecError]:
    """What each workspace with settings of its own asks for, not tried, or why it cannot be had; "" are the others."""

    def like(seen: Settings, path: Path | None = None) -> ChosenBackend | ExecError:
        try:
            return choice.made(seen, first.name if seen.backend == choice.AUTO else seen.backend, path)
        except ExecError as error:
            return error

    here = views.at(first.workspace).workspace
    own = {seen.workspace: like(seen, path) for path, seen in views.own()}
    return {"": like(settings) if here else first, **own, here: first}


def limits_of(settings: Settings) -> Limits:
    """The limits of commands by these settings."""
    return Limits(
        command_chars=settings.command_chars,
        foreground_timeout_s=settings.foreground_timeout,
        log_bytes=settings.log_bytes,
        sessions=settings.sessions_per_conversation,
        unattended_timeout_s=settings.unattended_timeout,
    )
