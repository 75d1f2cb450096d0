"""The calls of one worker on one persistent shell, over an engine on SQLite, the same in every run.

`python -m tests.programs.shell_call HOME WORKSPACE URL BACKEND`; prints what the calls return.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from shellback.exec.core.errors import ExecError, TaskCompleted
from shellback.exec.core.model import CallOrigin
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.exec.persistent import PersistentShells, shell_command
from shellback.exec.policy.commands import proposal_for
from shellback.exec.policy.policy import grant_by_operator
from shellback.exec.wire import crashpoints
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore
from tests.execs import backend_of

COMMANDS = (
    "X=5; export Y=6; mkdir -p sub; cd sub{0}",
    'sleep 0.2; echo x >> ../ran; echo "done $X $Y"; (exit 3)',
    "echo $? $X $Y ${PWD##*/}",
)


async def main(home: Path, workspace: Path, url: str, kind: str) -> None:
    database = Database(url)
    store = SqlSessionStore(database)
    client = SupervisorClient(home, idle_s=1.0, crash_dir=str(home / "crash"))
    async with Engine(store, client, backend_of(kind, workspace), home=home) as engine:
        shells = PersistentShells(engine)
        spec = shell_command(workspace=engine.workspace, limits=engine.limits)
        grant = grant_by_operator(proposal_for(spec, engine.backend), "test")
        started = await shells.start(grant, call(home, 0))
        # With other options than before, the worker gives the shell the command, and not the supervisor.
        changed = "; set -u" if any((home / "crash").glob("shell.*")) else ""
        for number, command in enumerate((COMMANDS[0].format(changed), *COMMANDS[1:]), 1):
            if number == 2:
                for armed in (home / "crash").glob("worker.*"):
                    # A point of the supervisor, which is to kill this process there.
                    armed.write_text(f"kill {os.getpid()}")
                    armed.rename(armed.with_name(armed.name.removeprefix("worker.")))
                crashpoints.arm_from(str(home / "crash"))
            try:
                done = await shells.exec(started.session.id, command, call(home, number))
            except ExecError as error:
                print(json.dumps([type(error).__name__, str(error)]), flush=True)
                continue
            print(json.dumps([done.output, done.exit_code, Path(done.cwd).name]), flush=True)
        with contextlib.suppress(TaskCompleted):
            await engine.supervised.port.signal(started.session.id, signal.SIGHUP)
        await engine.wait(started.session.id, up_to=50)
        await shells.expiry.stop()
        await engine._ends.settled()  # pyright: ignore[reportPrivateUsage]
    database.close()


def call(home: Path, number: int) -> CallOrigin:
    return CallOrigin(
        conversation_id="talk",
        response_run_id=str(home),
        response_timestamp="2026-01-02T03:04:05.000000+00:00",
        call_index=number,
        tool_call_id=f"call_{number}",
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
