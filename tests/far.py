"""A turn elsewhere for tests: its code works in the workspace of an engine here, over a real connection."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import RunContext

from shellback.exec.core.errors import CommandDenied, ExecError
from shellback.exec.core.identity import Call, call_key, calling, origin_of
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.policy import Asked, Policy, Verdict, Withheld
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.shell.workspaces.ground import Ground
from shellback.exec.tools.toolset import plain_judge
from shellback.storage import members
from shellback.storage.db import Database
from shellback.storage.tables import turns
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import grants_of
from shellback.work.elsewhere import certificates
from shellback.work.elsewhere.host import Carried, Listener
from shellback.work.elsewhere.lines import Fit
from shellback.work.elsewhere.link import HostLink
from shellback.work.elsewhere.tools import HostTools
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.mailbox import Workspace
from shellback.work.turn import closing
from shellback.work.turn.claims import Wakes
from shellback.work.turn.deps import TurnDeps
from tests.items import HOST, Talk
from tests.machines import free_port

# pyright: reportPrivateUsage=false
PARTS: Any = frozenset({"commands"})
FIT = Fit(version="v1", parts=PARTS, own="")
TOOL = "work_on"


@dataclass
class Far:
    """One turn of `HOST` on another machine, and its tools."""

    db: Database
    listener: Listener
    link: HostLink
    tools: HostTools
    deps: TurnDeps
    recorded: list[str]
    """The conversations whose told ends the host has waited for."""

    def context(self, *, approved: bool = True, call: str = "t1", tool: str = TOOL) -> RunContext[Any]:
        """The context of a call of `tool`."""
        nobody: Any = None
        said = ModelResponse([ToolCallPart(tool, {}, tool_call_id=call)], run_id="r1", timestamp=self._at)
        return RunContext(
            deps=self.deps, model=nobody, usage=nobody, messages=[said], tool_call_id=call, tool_name=tool, run_id="r1",
            tool_call_approved=approved,
        )  # fmt: skip

    def __post_init__(self) -> None:
        self._at = ModelResponse([]).timestamp

    def approve(self, ctx: RunContext[Any], *, tool: str = TOOL) -> None:
        """Have the approval of a call on record, in the database and for the turn."""
        key, now = call_key(origin_of(ctx)), time.time()
        request = Request(
            id=f"q{key}", conversation_id="c1", turn_id=self.deps.turn_id, call_key=key, tool_call_id="t1",
            tool_name=tool, args={}, display={}, digest="d", state="approved", created_at=now, expires_at=now + 600,
        )  # fmt: skip
        its = turns.c.id == self.deps.turn_id
        begun = self.db.read_now(lambda conn: conn.execute(sa.select(turns.c.begun).where(its)).scalar_one())
        more = begun | {"decided": [*begun["decided"], asdict(request)]}
        self.db.write_now(lambda conn: conn.execute(sa.update(turns).where(its).values(begun=more)) and None)
        self.deps.approvals |= grants_of([request])

    @contextlib.contextmanager
    def calling(self, *, approved: bool = True) -> Generator[Call]:
        """Be the code of a call, which was approved or not."""
        ctx = self.context(approved=approved)
        if approved:
            self.approve(ctx)
        with calling(ctx) as call:
            yield call


@dataclass
class AsOperator:
    """A policy that lets run what the shell of an operator's own application would."""

    engine: Engine
    asking: str = ""

    async def judge(self, asked: Asked) -> Verdict:
        assert asked.spec is not None
        try:
            await ByOperator(self.engine).permit(asked.spec, asked.conversation_id)
        except CommandDenied as error:
            return Verdict(decision="deny", reason="", error=error)
        return Verdict(decision="ask", reason="")

    async def withheld(self, conversation_id: str) -> Withheld:
        return lambda _: None

    async def refused(self, asked: Asked, why: ExecError) -> None:
        pass


async def _none(_: str) -> None:
    pass


def join(db: Database, away: Path, name: str = "away") -> None:
    """Have the machine with the state directory `away` join `HOST`."""
    text, _ = db.write_now(members.invite, HOST, name)
    certificate = certificates.of_machine(away)[1]
    db.write_now(members.join, text, certificate, certificates.fingerprint_of(certificate))


@contextlib.asynccontextmanager
async def far(engine: Engine, root: Path, template: Path, policy: Policy | None = None) -> AsyncGenerator[Far]:
    """A turn elsewhere that is equipped with the workspace of `engine`; `template` is an empty database."""
    files = files_of(engine.backend)
    ground = Ground(engine=engine, policy=policy or plain_judge(engine), files=files)

    async def ground_at(_: Workspace) -> Ground:
        return ground

    recorded = list[str]()

    async def record(conversation_id: str) -> None:
        recorded.append(conversation_id)

    here, away = root / "far-host", root / "far-worker"
    here.mkdir()
    away.mkdir()
    port = free_port()
    tools: Any = None
    db = Database(f"sqlite:///{shutil.copyfile(template, root / 'far.db')}")
    carried = Carried(
        tools=tools, ground_at=ground_at, described=lambda _: "It is here.", recorded=record, closed=_none,
        noted=lambda: None, gate=True, seconds=3600.0, fit=FIT,
    )  # fmt: skip
    listener = Listener(("127.0.0.1", port), here, HOST, db, carried, Doorbell(here, HOST, db), look_s=0.05)
    link = HostLink(db, HOST, away, FIT, patience_s=10.0)
    item = Talk(db).send()
    entry, _ = db.write_now(closing.enter, item, True, executor_id="w", wakes=Wakes(), hosts={HOST})
    assert entry.epoch is not None
    deps = TurnDeps(
        conversation_id="c1", turn_id=item.id, epoch=entry.epoch, gate=True, began_at=0.0, seconds=3600.0,
        until=time.monotonic() + 3600.0, host_id=HOST,
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(db.close)
        stack.push_async_callback(files.close)
        await listener.start()
        stack.push_async_callback(listener.stop)
        join(db, away)
        await link.start()
        stack.push_async_callback(link.stop)
        made = Far(db, listener, link, HostTools(link, PARTS, enabled=True), deps, recorded)
        await made.tools.equip(deps, Workspace())
        yield made
