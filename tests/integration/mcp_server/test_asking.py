"""Requests for approval that are put to the client of a call too: its answer is a decision, never more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.display import SECRETS
from shellback.mcp_server import connection as of_calls
from shellback.mcp_server.answer import Answer, Asked, Question, Reply, Task
from shellback.mcp_server.connection import Connection
from shellback.storage.tables import approvals as rows
from shellback.storage.tables import audit, conversations
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.showing import whole
from tests import bound, sandboxes
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

NAME = "tool.client"
CLIENT = "tester"
WRITES = {"path": "made", "content": "by the call"}


@pytest.fixture
def on(database_url: str) -> Generator[Stage]:
    with stage(database_url, MCP_ELICITATION="on") as made:
        yield made


@pytest.fixture
def quick() -> Generator[Stage]:
    """On SQLite alone, for what both databases do in the same way."""
    with stage(MCP_ELICITATION="on") as made:
        yield made


@asynccontextmanager
async def connected(on: Stage, name: str = NAME, **environ: str) -> AsyncGenerator[Connection]:
    async with bound.connected(on, **environ) as made:
        yield made.connected(name)


class Person:
    """Who is at the client: answers each question with `reply`, or not at all."""

    def __init__(self, reply: Reply | None = None, *, answers: bool = True) -> None:
        self.reply: Reply | None = reply
        self.answers = answers
        self.questions = list[Question]()
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, question: Question) -> Reply | None:
        self.questions.append(question)
        self.asked.set()
        try:
            if not self.answers:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return self.reply


def write(name: str = "1", **args: Any) -> Asked:
    return Asked(client=CLIENT, id=name, tool="write_file", args={**WRITES, **args})


def made(on: Stage) -> str | None:
    path = on.workspace / "made"
    return path.read_text() if path.exists() else None


def the_request(on: Stage) -> Request:
    (found,) = on.read(approvals.find)
    return found


async def waiting(on: Stage, calls: Connection, call: Asked) -> Request:
    """The request of a call that nobody has decided about yet, and that was left."""
    task = asyncio.create_task(calls.call(call))
    (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return request


async def test_a_client_that_accepts_has_approved_exactly_what_it_was_shown(on: Stage) -> None:
    person = Person("accept")
    async with connected(on) as calls:
        answer = await calls.call(write(), person)
        assert (answer.failed, made(on)) == (False, "by the call")
        again = await calls.call(write(), person)
        assert again.texts == answer.texts
    (question,), request = person.questions, the_request(on)
    assert (request.state, request.decided_by, request.surface) == ("used", "mcp:tester", "elicitation")
    assert question.key == f"{request.id}.{request.digest}"
    assert f"    digest: {request.digest}" in question.text.splitlines()
    undecided = replace(request, state="pending", decided_by=None, used_by=None)
    assert "\n".join(whole(undecided)) == question.text, "as `approvals show` had it"
    done = sa.select(audit.c.event, audit.c.done_by, audit.c.surface).order_by(audit.c.id)
    assert on.rows(done)[1] == ("approved", "mcp:tester", "elicitation")


async def test_a_client_that_declines_has_denied_the_call(quick: Stage) -> None:
    async with connected(quick) as calls:
        answer = await calls.call(write(), Person("decline"))
        assert answer.failed
        assert "Denied by mcp:tester" in answer.texts[0]
    assert (made(quick), the_request(quick).state) == (None, "denied")


@pytest.mark.parametrize(("reply", "why"), [("cancel", "it decides nothing"), (None, "it is no answer")])
async def test_without_a_decision_of_the_client_the_request_stays_for_a_person(
    quick: Stage, monkeypatch: pytest.MonkeyPatch, reply: Reply | None, why: str
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    async with connected(quick) as calls:
        answer = await calls.call(write(), Person(reply))
        request = the_request(quick)
        assert (answer.failed, answer.facts["approval"], request.state) == (True, request.id, "pending")
        assert why in answer.texts[-1]
        await asyncio.to_thread(quick.decide, request)
        assert not (await calls.call(write("2"))).failed
    assert made(quick) == "by the call"


async def test_a_client_that_never_answers_has_its_answer_in_time_and_is_asked_no_more(
    quick: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    person = Person(answers=False)
    async with connected(quick) as calls:
        answer = await calls.call(write(), person)
        assert person.left.is_set()
    assert f"shellback approvals approve {the_request(quick).id}" in answer.texts[0]
    assert the_request(quick).state == "pending"


async def test_a_client_that_is_gone_while_it_is_asked_leaves_the_request(quick: Stage) -> None:
    person = Person(answers=False)
    async with connected(quick) as calls:
        task = asyncio.create_task(calls.call(write(), person))
        await person.asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert person.left.is_set()
    assert (the_request(quick).state, made(quick)) == ("pending", None)


@pytest.mark.parametrize("decision", ["approved", "denied"])
async def test_whoever_decides_first_decides_and_the_client_is_told_who(quick: Stage, decision: Any) -> None:
    person = Person(answers=False)
    async with connected(quick) as calls:
        task = asyncio.create_task(calls.call(write(), person))
        await person.asked.wait()
        await asyncio.to_thread(quick.decide, the_request(quick), decision)
        answer = await task
        assert person.left.is_set(), "the question is withdrawn"
        assert f"was {decision} by test" in answer.texts[-1]
        assert (made(quick) is not None) == (decision == "approved")
        late = await calls.answer(CLIENT, person.questions[0].key, "accept")
    state = the_request(quick).state
    assert f"counts for nothing: approval request {the_request(quick).id} is {state} already by test" in late
    assert quick.scalars(sa.select(audit.c.event).where(audit.c.surface == "elicitation")) == ["refused"]


async def test_an_answer_counts_only_for_the_request_of_the_conversation_that_was_shown(quick: Stage) -> None:
    async with connected(quick) as calls:
        request = await waiting(quick, calls, write())
        other = calls.calls.connected("another", name="another")
        await other.opened(CLIENT)
        for key, why in (
            (f"{request.id}.{'0' * 64}", "has changed since you saw it"),
            (request.id, "has changed since you saw it"),
            (f"{request.id[:6]}.{request.digest}", "no approval request"),
            ("", "more than one|no approval request"),
            ("x" * 100_000, "no approval request"),
        ):
            told = await calls.answer(CLIENT, key, "accept")
            assert "counts for nothing" in told
            assert any(one in told for one in why.split("|")), told
        assert "no approval request" in await other.answer(CLIENT, f"{request.id}.{request.digest}", "accept")
    assert (the_request(quick).state, made(quick)) == ("pending", None)


async def test_a_client_decides_about_no_request_of_an_agent_and_none_of_a_tool_that_it_cannot_call(
    quick: Stage,
) -> None:
    async with connected(quick) as calls:
        request = await waiting(quick, calls, write())
        key = f"{request.id}.{request.digest}"
        narrow = calls.calls.connected(NAME, groups=("process",), name="narrow")
        assert "no approval request" in await narrow.answer(CLIENT, key, "accept")
        quick.change(sa.update(conversations).where(conversations.c.id == NAME).values(driver="agent"))
        assert "no approval request" in await calls.answer(CLIENT, key, "accept")
    assert (the_request(quick).state, made(quick)) == ("pending", None)


async def test_a_client_with_a_long_name_is_told_of_no_other_who_decided(quick: Stage) -> None:
    async with connected(quick) as calls:
        assert len((await calls.call(replace(write(), client="c" * 100), Person("accept"))).texts) == 1


@pytest.fixture
def sandboxed() -> Generator[Stage]:
    sandboxes.needed()
    with stage(MCP_ELICITATION="on", BACKEND="bubblewrap") as made:
        yield made


async def test_two_servers_of_one_conversation_ask_their_clients_and_the_first_answer_counts(sandboxed: Stage) -> None:
    on, slow, fast = sandboxed, Person(answers=False), Person("accept")
    call = Asked(client=CLIENT, id="1", tool="execute", args={"command": "echo nonce >>made; echo done"})
    async with connected(on) as one, connected(on) as two:
        first = asyncio.create_task(one.call(call, slow))
        await slow.asked.wait()
        answers = [await two.call(replace(call, id="2"), fast), await first]
    assert slow.left.is_set()
    assert len({answer.facts["session_id"] for answer in answers}) == 1
    assert [one.key for one in slow.questions] == [one.key for one in fast.questions]
    assert (made(on), the_request(on).decided_by) == ("nonce\n", "mcp:tester")


async def test_a_command_that_names_a_secret_is_put_to_no_client_in_a_sandbox_either(
    sandboxed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    person = Person("accept")
    (sandboxed.workspace / ".env").write_text("KEY=1")
    async with connected(sandboxed) as calls:
        for number, command in enumerate(("cp .env made", "cp .e* made", "sudo touch made")):
            args = {"command": command}
            assert (await calls.call(Asked(client=CLIENT, id=str(number), tool="execute", args=args), person)).failed
    assert person.questions == []
    assert [one.display.get(SECRETS) for one in sandboxed.requests()] == [[".env"], None, []]


async def test_a_command_that_the_operator_has_raised_to_admin_is_put_to_no_client(
    sandboxed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    policy, person = sandboxed.root / "policy.toml", Person("accept")
    policy.write_text('[tiers]\nrules = [["touch *", "admin"]]\n')
    call = Asked(client=CLIENT, id="1", tool="execute", args={"command": "touch made"})
    async with connected(sandboxed, POLICY_FILE=str(policy)) as calls:
        assert (await calls.call(call, person)).failed
    assert (person.questions, the_request(sandboxed).display["tier"]) == ([], "admin")


async def test_with_elicitation_off_no_client_is_asked_and_no_answer_counts(
    quick: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    person = Person("accept")
    async with connected(quick, MCP_ELICITATION="off") as calls:
        assert (await calls.call(write(), person)).failed
        request = the_request(quick)
        assert "MCP_ELICITATION is off" in await calls.answer(CLIENT, f"{request.id}.{request.digest}", "accept")
    assert (person.questions, the_request(quick).state) == ([], "pending")


KNOWN: dict[str, Any] = {"tier": "read_write", SECRETS: []}
PERSONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "admin": ({**KNOWN, "tier": "admin"}, None),
    "no tier": ({SECRETS: []}, None),
    "a listed secret": ({**KNOWN, SECRETS: ["/home/ann/.ssh/id_rsa"]}, None),
    "unknown secrets": ({**KNOWN, SECRETS: None}, None),
    "a row of an older version": ({"tier": "read_write"}, None),
    "input to a session of admin": ({**KNOWN, "session_tier": "admin"}, "x1"),
    "input to a session of unknown tier": (KNOWN, "x1"),
}


@pytest.mark.parametrize("case", PERSONS)
async def test_what_only_a_person_may_decide_is_not_put_to_a_client_and_not_taken_from_it(
    quick: Stage, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    display, session = PERSONS[case]
    person = Person("accept")
    async with connected(quick) as calls:
        request = await waiting(quick, calls, write())
        assert quick.change(sa.update(rows).values(display=display, session_id=session)) == 1
        monkeypatch.setattr(of_calls, "WITHIN_S", 0.3)
        assert (await calls.call(write("2"), person)).facts["approval"] == request.id
        assert person.questions == []
        for reply in ("accept", "decline"):
            told = await calls.answer(CLIENT, f"{request.id}.{request.digest}", reply)
            assert "is decided by a person, not by a client" in told
        await asyncio.to_thread(quick.decide, request)
    assert the_request(quick).decided_by == "test"
    refused = sa.select(audit.c.event, audit.c.done_by).where(audit.c.surface == "elicitation")
    assert quick.rows(refused) == [("refused", "mcp:tester")] * 2


@pytest.mark.parametrize(
    "call",
    [
        write(path=".env"),
        write(path="keys/deploy.pem"),
        # Outside a sandbox a program may read any listed secret.
        Asked(client=CLIENT, id="1", tool="execute", args={"command": "touch made"}),
        Asked(client=CLIENT, id="1", tool="evaluate_python", args={"code": "1"}),
    ],
    ids=lambda call: f"{call.tool} {call.args.get('path', '')}",
)
async def test_a_call_that_may_touch_a_secret_is_not_put_to_a_client(
    quick: Stage, monkeypatch: pytest.MonkeyPatch, call: Asked
) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.3)
    person = Person("accept")
    async with connected(quick) as calls:
        answer = await calls.call(call, person)
    assert (answer.failed, person.questions, the_request(quick).state) == (True, [], "pending")


async def test_a_task_that_waits_has_the_question_and_goes_on_with_the_answer(on: Stage) -> None:
    async with connected(on) as calls:
        task = await calls.begin(write(), 0.0)
        assert isinstance(task, Task)
        await asyncio.to_thread(on.until, "a request", on.requests)
        question = (await calls.task(CLIENT, task.id)).question
        assert question is not None
        assert question.key == f"{the_request(on).id}.{the_request(on).digest}"
        assert await calls.answer(CLIENT, question.key, "accept") == ""
        async with asyncio.timeout(30):
            found = [one async for one in calls.changes(CLIENT, [task.id])]
        assert isinstance(found[-1].answer, Answer)
        assert (found[-1].question, found[-1].answer.failed) == (None, False)
    assert (made(on), the_request(on).decided_by) == ("by the call", "mcp:tester")
