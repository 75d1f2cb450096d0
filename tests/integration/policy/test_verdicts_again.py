"""A call that is executed again after a crash: what policy says by then never starts another thing, or a second one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from shellback.exec.core.base import Plan
from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import CommandSpec, Evidence, Session, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.judge import CLASSIFIER, TRUSTED
from shellback.exec.policy.policy import Verdict
from shellback.exec.shell.permit import permit
from shellback.exec.tools.toolset import ExecTools
from tests.desks import Deps, context_of
from tests.execs import end_of, spec
from tests.policies import Says
from tests.supervisors import until

pytestmark = pytest.mark.anyio

ASK = Verdict(decision="ask", reason="it writes")
DENY = Verdict(decision="deny", reason="a rule says so")
BY_CLASS = Verdict(decision="allow", reason="it reads", by=CLASSIFIER, profile="read_only")
BY_RULE = Verdict(decision="allow", reason="rule r1", by="rule r1", rule_ids=("r1",))
AT_RISK = Verdict(decision="allow", reason="it reads", by=TRUSTED)
COMMAND = "pwd"


class Crash(BaseException):
    """The worker dies."""


@dataclass
class Call:
    """One call of a model, executed as often as is wanted."""

    engine: Engine
    policy: Says
    command: str = COMMAND

    async def __call__(self, verdict: Verdict, *, approved: bool = False, **args: Any) -> str:
        self.policy.verdict = verdict
        ctx = context_of(Deps(), "execute", 0, approved=approved)
        given = {"command": self.command, **args}
        tools = ExecTools(self.engine, policy=self.policy)
        execute = tools._tools.tools["execute"]  # pyright: ignore[reportPrivateUsage]
        valid = execute.function_schema.validator.validate_python(given)
        return str((await execute.function(ctx, **valid)).return_value)

    async def session(self) -> Session:
        (session,) = await self.engine.store.list()
        return session


@pytest.fixture
def call(engine: Engine) -> Call:
    return Call(engine, Says(ASK))


@pytest.fixture(params=["before", "after"])
def crash(request: pytest.FixtureRequest) -> str:
    """Whether the worker dies before the start or after it."""
    return request.param


async def claimed(call: Call, verdict: Verdict, crash: str) -> None:
    """Execute it, and die with the claim as all that is recorded."""
    start = call.engine.supervised.start

    async def dying(session: Session, spec: CommandSpec, plan: Plan) -> Any:
        if crash == "after":
            await start(session, spec, plan)
        raise Crash

    call.engine.supervised.start = dying
    with pytest.raises(Crash):
        await call(verdict)
    call.engine.supervised.start = start


@pytest.mark.usefixtures("sandbox")
async def test_what_was_claimed_by_its_class_never_runs_in_the_profile_of_a_rule(call: Call, crash: str) -> None:
    call.command = "touch ran 2>/dev/null || echo held"
    await claimed(call, BY_CLASS, crash)
    if crash == "before":
        with pytest.raises(ToolFailed, match="nothing was started"):
            await call(BY_RULE)
        assert len(call.policy.told) == 1
    else:
        assert "held" in await call(BY_RULE)
        assert not call.policy.told
    session = await call.session()
    assert (session.profile, session.granted_by) == ("read_only", CLASSIFIER)
    assert not (call.engine.workspace / "ran").exists()
    assert (end_of(session).evidence is Evidence.NEVER_STARTED) == (crash == "before")


@pytest.mark.parametrize(("by_now", "said"), [(ASK, "nothing was started"), (BY_RULE, "changed meanwhile")])
async def test_a_claim_of_before_whose_script_changed_runs_nothing_else_and_asks_nobody(
    call: Call, crash: str, by_now: Verdict, said: str
) -> None:
    call.command = "sh s.sh"
    script, ran = call.engine.workspace / "s.sh", call.engine.workspace / "n"
    script.write_text("echo first >> n")
    await claimed(call, BY_RULE, crash)
    if crash == "after":
        await until(ran.exists)
    script.write_text("echo second >> n")
    if crash == "before":
        with pytest.raises(ToolFailed, match=said):
            await call(by_now)
    else:
        await call(by_now)
    assert not (await call.session()).live
    assert (ran.read_text() if ran.exists() else "") == ("first\n" if crash == "after" else "")


async def test_a_refusal_is_told_only_of_what_did_not_run(call: Call, crash: str) -> None:
    await claimed(call, AT_RISK, crash)
    if crash == "before":
        with pytest.raises(ToolFailed, match="a rule says so"):
            await call(DENY)
        assert call.policy.told == ["refused by policy: a rule says so"]
    else:
        assert "exit code 0" in await call(DENY)
        assert not call.policy.told
    assert (await call.session()).state in {SessionState.LOST, SessionState.EXITED}


async def test_what_changed_after_the_claim_is_a_refusal_that_is_told(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call.command = "sh s.sh"
    script = call.engine.workspace / "s.sh"
    script.write_text("echo first >> n")
    plan = call.engine.backend.plan

    async def swapping(*given: Any) -> Any:
        script.write_text("echo second >> n")
        return await plan(*given)

    monkeypatch.setattr(call.engine.backend, "plan", swapping)
    with pytest.raises(ToolFailed, match=r"changed since it was approved: s\.sh"):
        await call(BY_RULE)
    assert len(call.policy.told) == 1
    assert "s.sh" in call.policy.told[0]


async def test_a_call_that_policy_asks_about_still_asks(call: Call) -> None:
    with pytest.raises(ApprovalRequired):
        await call(ASK)
    assert not call.policy.told
    assert not await call.engine.store.list()


async def test_a_command_that_the_code_of_a_tool_may_not_run_is_a_refusal_that_is_told(call: Call) -> None:
    for verdict in (DENY, ASK):
        call.policy.verdict = verdict
        with pytest.raises(ExecError):
            await permit(call.engine, call.policy, spec(call.engine, "touch made"), "talk")
    assert len(call.policy.told) == 2
