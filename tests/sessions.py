"""Sessions for tests of stores, and a sink that remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shellback.exec.core.model import Delivery, Evidence, PodmanWorkspace, Session, SessionEnd, SessionId, SessionState

EXITED = SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=200.0, duration_s=1.5, bytes_total=2**40)
LOST = SessionEnd(state=SessionState.LOST, evidence=Evidence.SUPERVISOR_KILLED, ended_at=201.0)


@dataclass
class RecordingSink:
    told: list[Session] = field(default_factory=list[Session])
    refuses: bool = False

    def ended(self, tx: object, session: Session) -> None:
        if self.refuses:
            raise OSError("refused")
        self.told.append(session)


def a_workspace(name: str = "shellback-a", **changes: Any) -> PodmanWorkspace:
    """The row of a container of workspace `main`."""
    row = PodmanWorkspace(
        name=name,
        container_id="c0ffee",
        image="python:3.12-bookworm",
        workdir="/workspace",
        overlay_path="/somewhere/here",
        env=("LANG", "TERM"),
        created_at=1_000_000_000.0,
        last_used_at=1_000_000_000.0,
        scope="main",
        host_id="host1",
    )
    return replace(row, **changes)


def a_session(number: int = 1, **changes: Any) -> Session:
    session = Session(
        id=SessionId(f"s{number}"),
        conversation_id="c1",
        tool_call_id="call_1",
        turn_id="turn-1",
        epoch=0,
        host_id="h",
        boot_id="b",
        uid=65534,
        backend="host",
        profile="work",
        command="printf 'ü\n\"'",
        cwd="/w",
        workspace="/w",
        pty=False,
        background=True,
        separate_stderr=False,
        stdin_open=False,
        lifetime="conversation",
        delivery=Delivery.CALLBACK,
        state=SessionState.CLAIMED,
        log_path="/l/s1.log",
        created_at=100.0 + number,
    )
    return replace(session, **changes)
