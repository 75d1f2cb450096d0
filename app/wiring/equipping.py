"""What runs the calls of tools: engine, policy, files and tools, for a worker or an MCP server."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shellback.exec.backends.inspection.inspector import Inspector, inspector_of
from shellback.exec.backends.kinds import ChosenBackend
from shellback.exec.core.errors import WorkspaceUnusable
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
from shellback.work.approvals.audit import refused
from shellback.work.approvals.verdicts import begun, claim
from shellback.work.hosts.generation import absence_tells
from shellback.work.queue.callbacks import CallbackSink, SqlFindings
from shellback.work.queue.queues import Enqueuer
from shellback.work.queue.watch_wakes import WatchWakes

if TYPE_CHECKING:
    from shellback.exec.backends.supervisors import Supervisors
    from shellback.wiring.wiring import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The engine of a process and what belongs to it; nothing is started. `benches` has it for each workspace."""

    engine: Engine
    port: Supervisors
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

    def payload_of(session: Session) -> dict[str, object]:
        return callback_payload(session, *(engine.streams(session) if session.host_id == where.host_id else ()))

    def elsewhere(workspace: str) -> tuple[ChosenBackend, Inspector | None]:
        """Where commands run in another workspace, as for sessions of an earlier worker before any turn."""
        there = choice.elsewhere(settings, backend, workspace)
        return there, inspector(there)

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
        return bench_of(there, policy_for(settings, database, there.backend, written), files_of(there.backend))

    def bench_of(engine: Engine, policy: Policy, files: Files) -> Bench:
        calls = ToolCalls(
            engine,
            policy,
            FileCalls(files, engine.store, touched),
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
        limit=settings.sessions_per_conversation,
    )
    port, containers = supervision.supervisors(settings, backend=backend), backend.containers
    if containers is not None:
        containers.log = SqlWorkspaceStore(database, where.host_id)
    engine = Engine(
        store,
        port,
        backend,
        home=where.home,
        host_id=where.host_id,
        absence_tells=lambda session: absence_tells(where.home, session.created_at),
        limits=Limits(
            command_chars=settings.command_chars,
            foreground_timeout_s=settings.foreground_timeout,
            log_bytes=settings.log_bytes,
            unattended_timeout_s=settings.unattended_timeout,
        ),
        watch=watch or Unwatched(),
        inspector=inspector(backend),
        elsewhere=elsewhere,
        mask=where.mask,
    )
    written = load(settings.policy)
    policy = policy_for(settings, database, backend, written)
    files = files_of(backend)
    watcher = Watcher(engine, SqlWatchStore(database, sink=WatchWakes(enqueuer, where.host_id)))
    shells = PersistentShells(engine, idle_s=settings.shell_idle_seconds)
    touched = None if containers is None else containers.touch
    first = bench_of(engine, policy, files)
    benches = Benches(settings, database, first, bench)
    tools = ExecTools(
        engine,
        policy=policy,
        watcher=watcher,
        blocks=blocks,
        sessions=settings.session_tools == "on",
        shell=settings.shell_tool == "on",
        shells=shells,
        workspace=settings.workspace_tools == "on",
        files=files,
        touched=touched,
        calls_in=benches.calls_of,
    )
    return Equipment(
        engine=engine,
        port=port,
        policy=policy,
        files=files,
        sink=sink,
        watcher=watcher,
        shells=shells,
        tools=tools,
        benches=benches,
    )
