"""One background call of an engine on SQLite, the same call in every run, until its end is told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import sqlalchemy as sa

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.model import CallOrigin, Session
from shellback.exec.core.ports import ExitSink
from shellback.exec.engine.engine import Engine
from shellback.exec.link.client import SupervisorClient
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.policy import grant_by_operator
from shellback.exec.wire import crashpoints
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore


class TableSink(ExitSink):
    """Tells each end as a row of the store's own transaction: what a kill rolls back was never told."""

    def ended(self, tx: object, session: Session) -> None:
        assert isinstance(tx, sa.Connection)
        code = session.end and session.end.exit_code
        tx.execute(sa.text("INSERT INTO told (session, code) VALUES (:id, :code)"), {"id": session.id, "code": code})


async def main(home: Path, workspace: Path, url: str) -> None:
    database = Database(url)
    store = SqlSessionStore(database, sink=TableSink())
    engine = Engine(store, SupervisorClient(home, idle_s=1.0), HostBackend(workspace), home=home)
    async with engine:
        spec = command_spec(
            command="echo x >> nonce; exit 7", background=True, workspace=engine.workspace, limits=engine.limits
        )
        origin = CallOrigin(
            conversation_id="talk",
            response_run_id=str(home),
            response_timestamp="2026-01-02T03:04:05.000000+00:00",
            call_index=0,
            tool_call_id="call_1",
        )
        session = await engine.launch(spec, origin, grant_by_operator(proposal_for(spec, engine.backend), "test"))
        await engine.wait(session.id, up_to=50)
        await engine._ends.settled()  # pyright: ignore[reportPrivateUsage]
    database.close()


if __name__ == "__main__":
    crashpoints.arm_from(str(Path(sys.argv[1]) / "crash"))
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
