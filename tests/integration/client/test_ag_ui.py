"""Runs of AG-UI over turns that the test itself drives: what is told, once, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.client import ag_ui, routes
from shellback.client.caller import Caller
from shellback.client.local import Local
from shellback.mcp_server import requests as of_clients
from shellback.storage.tables import approvals as approval_rows
from shellback.storage.tables import mailbox as mail
from shellback.work.approvals import approvals
from shellback.work.errors import (
    ApprovalRefused,
    ApprovalSettled,
    InvalidRequest,
    ServerRefused,
    UnknownApproval,
    UnknownConversation,
)
from shellback.work.notices.notices import Outbox
from shellback.work.queue import stream
from shellback.work.queue.items import ItemType, Priority, WorkItem, chat_item
from tests.items import PROPOSED, Talk
from tests.stage import Stage, staged

pytestmark = pytest.mark.anyio
place = staged(scope="function")
TOKEN = Caller(by="token:web", conversations=("c1", "tools"), token=True)
SAID = {"id": "m1", "role": "user", "content": "go"}
CALL = {"tool": "execute", "args": {"command": "x"}, "tool_call_id": "t1"}
RESULT = {"tool": "execute", "text": "done", "outcome": "success", "tool_call_id": "t1"}
APPROVED = {"status": "resolved", "payload": {"approved": True}}
DENIED = {"status": "resolved", "payload": {"approved": False, "reason": "not now"}}
CANCELLED = {"status": "cancelled"}


@pytest.fixture
async def local(place: Stage) -> AsyncGenerator[Local]:
    made = Local(lambda: contextlib.nullcontext(place.where))
    yield made
    await made.close()


class Turns(Talk):
    """Turns of what was sent by clients."""

    def begun_of(self, kind: str) -> tuple[WorkItem, int]:
        """The item of the newest message, or of the last decision, and the epoch of its turn."""
        row = self.conversation()
        item = chat_item("c1", priority=Priority.NORMAL, waiting=True)
        if kind == "APPROVAL":
            item = replace(item, id=f"APPROVAL:c1:{row.epoch}", type=ItemType.APPROVAL)
        else:
            newest = sa.select(mail.c.dedupe_key).order_by(mail.c.id.desc()).limit(1)
            item = replace(item, id=self.db.read_now(lambda conn: conn.execute(newest).scalar_one()))
        epoch = self.epoch(item)
        self.take(item, epoch)
        return item, epoch

    def tell(self, item: WorkItem, epoch: int, kind: str, what: Any) -> None:
        payload = {"text": what} if kind == "text" else what
        self.db.write_now(stream.note, "c1", item.id, epoch, kind, payload)

    def asks(self, *proposed: Any) -> None:
        """The turn of the newest message tells of a call, and waits for approval of it, or of these."""
        item, epoch = self.begun_of("CHAT")
        self.tell(item, epoch, "text", "I ask. ")
        self.tell(item, epoch, "tool_call", CALL)
        self.close(item, epoch, "pending_approval", proposed=proposed or (PROPOSED,), heard=frozenset(self.taken(item)))

    def goes_on(self) -> None:
        """The turn after the decision tells of its call again, and answers."""
        item, epoch = self.begun_of("APPROVAL")
        for kind, what in (("tool_call", CALL), ("tool_result", RESULT), ("text", "It is done.")):
            self.tell(item, epoch, kind, what)
        self.finish(item, epoch, answer="It is done.")


@pytest.fixture
def turns(place: Stage) -> Turns:
    return Turns(place.where.database)


def asked(run: str = "r1", *messages: Any, thread: str = "c1", **more: Any) -> bytes:
    return json.dumps({"threadId": thread, "runId": run, "messages": messages or [SAID], **more}).encode()


async def read(lines: AsyncGenerator[str]) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        found = [json.loads(line.removeprefix("data: ")) async for line in lines]
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in found]


async def told(local: Local, *given: Any, **more: Any) -> list[dict[str, Any]]:
    return await read(await ag_ui.begin(local, TOKEN, asked(*given, **more)))


def short(events: list[dict[str, Any]]) -> list[Any]:
    """What is said in the events, with the messages that say it."""
    found: list[Any] = []
    for event in events:
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT":
                found.append((event["messageId"], event["delta"]))
            case "TOOL_CALL_ARGS":
                found.append((event["toolCallId"], json.loads(event["delta"])))
            case "TOOL_CALL_RESULT":
                found.append((event["messageId"], event["toolCallId"], event["content"]))
            case "RUN_FINISHED":
                found.append(event["outcome"]["type"])
            case "RUN_ERROR":
                found.append((event["code"], event["message"]))
            case "CUSTOM":
                found.append((event["name"], event["value"]))
            case _:
                pass
    return found


def interrupts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert events[-1]["outcome"]["type"] == "interrupt"
    return events[-1]["outcome"]["interrupts"]


async def waiting(local: Local, turns: Turns, *proposed: Any) -> list[dict[str, Any]]:
    """The interrupts with which the first run ends."""
    lines = await ag_ui.begin(local, TOKEN, asked())
    turns.asks(*proposed)
    return interrupts(await read(lines))


async def test_what_a_turn_tells_is_told_as_it_comes_and_a_turn_before_it_is_not(local: Local, turns: Turns) -> None:
    turns.say("before")
    before, first = turns.begun_of("CHAT")
    lines = await ag_ui.begin(local, TOKEN, asked())
    told_first = [json.loads((await anext(lines))[6:])["type"]]
    turns.tell(before, first, "text", "of another run")
    turns.close(before, first, answer="of another run", heard=frozenset(turns.taken(before)))
    item, epoch = turns.begun_of("CHAT")
    for kind, what in (("text", "I look"), ("text", "."), ("tool_call", CALL), ("tool_result", RESULT)):
        turns.tell(item, epoch, kind, what)
    turns.tell(item, epoch, "text", "Done.")
    turns.finish(item, epoch)
    turns.say("after")
    after, last = turns.begun_of("CHAT")
    turns.tell(after, last, "text", "of a later run")
    events = await read(lines)
    assert told_first == ["RUN_STARTED"]
    assert short(events) == [
        ("r1.2", "I look"), ("r1.2", "."), ("t1", CALL["args"]), ("r1.3", "t1", "done"), ("r1.5", "Done."), "success",
    ]  # fmt: skip


async def test_text_that_a_crash_made_void_is_named(local: Local, turns: Turns) -> None:
    lines = await ag_ui.begin(local, TOKEN, asked())
    item, epoch = turns.begun_of("CHAT")
    for kind, what in (("text", "I look."), ("tool_call", CALL), ("tool_result", RESULT), ("text", "It was")):
        turns.tell(item, epoch, kind, what)
    again = turns.epoch(item)
    for kind, what in (("text", "I look."), ("tool_call", CALL), ("tool_result", RESULT), ("text", "Done.")):
        turns.tell(item, again, kind, what)
    turns.finish(item, again)
    assert short(await read(lines)) == [
        ("r1.2", "I look."), ("t1", CALL["args"]), ("r1.3", "t1", "done"), ("r1.5", "It was"),
        ("text_replaced", {"message_id": "r1.5"}), ("r1.6", "Done."), "success",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "more", "end"),
    [
        ("answered", {"answer": '{"all": 1}'}, [("r1.2", '{"all": 1}'), "success"]),
        ("failed", {"answer": "It failed."}, [("failed", "It failed.")]),
        ("failed", {"answer": "Too long.", "error": "OutOfTime: 1"}, [("out_of_budget", "Too long.")]),
        ("stopped", {"answer": "Stopped by ann."}, [("r1.2", "Stopped by ann."), "cancelled"]),
    ],
)
async def test_a_run_ends_as_its_turn_does(
    local: Local, turns: Turns, outcome: str, more: dict[str, Any], end: list[Any]
) -> None:
    lines = await ag_ui.begin(local, TOKEN, asked(protocolVersion="1.0"))
    item, epoch = turns.begun_of("CHAT")
    turns.finish(item, epoch, outcome, **more)
    events = await read(lines)
    assert short(events) == end
    assert events[-1]["type"] in {"RUN_FINISHED", "RUN_ERROR"}


async def test_a_run_whose_turns_die_ends_when_its_conversation_is_set_aside(local: Local, turns: Turns) -> None:
    lines = await ag_ui.begin(local, TOKEN, asked())
    turns.begun_of("CHAT")
    while turns.die() == "retried":
        item = turns.last(ItemType.RETRY)
        turns.take(item, turns.epoch(item))
    assert [code for code, _ in short(await read(lines))] == ["set_aside"]


async def test_a_repeat_of_a_run_sends_nothing_and_tells_what_the_client_has_not(local: Local, turns: Turns) -> None:
    gone = await ag_ui.begin(local, TOKEN, asked())
    assert "RUN_STARTED" in await anext(gone)
    await gone.aclose()
    item, epoch = turns.begun_of("CHAT")
    for kind, what in (("text", "I look"), ("text", "."), ("tool_call", CALL), ("tool_result", RESULT)):
        turns.tell(item, epoch, kind, what)
    turns.tell(item, epoch, "text", "Done.")
    turns.finish(item, epoch)
    whole = await told(local)
    assert short(whole)[-2:] == [("r1.5", "Done."), "success"]
    assert await told(local) == whole
    kept = _kept(whole)
    assert short(await told(local, "r1", SAID, *kept)) == ["success"]
    half = {"id": "r1.2", "role": "assistant", "content": "I lo"}
    rest = short(await told(local, "r1", SAID, half))
    assert rest == [("r1.2", "ok"), *short(whole)[1:]]
    stored = sa.select(sa.func.count()).select_from(mail)
    assert turns.db.read_now(lambda conn: conn.execute(stored).scalar()) == 1


def _kept(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that a client makes of events."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        match event["type"]:
            case "TEXT_MESSAGE_START":
                found[event["messageId"]] = {"id": event["messageId"], "role": "assistant", "content": ""}
            case "TEXT_MESSAGE_CONTENT":
                found[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_ARGS":
                call = {"id": event["toolCallId"], "function": {"name": "execute", "arguments": event["delta"]}}
                [*found.values()][-1]["toolCalls"] = [call]
            case "TOOL_CALL_RESULT":
                found[event["messageId"]] = {
                    "id": event["messageId"], "role": "tool", "toolCallId": event["toolCallId"], "content": "done"
                }  # fmt: skip
            case _:
                pass
    return [*found.values()]


async def test_an_approval_is_an_interrupt_that_shows_what_runs_and_its_answer_goes_on(
    local: Local, turns: Turns
) -> None:
    (interrupt,) = await waiting(local, turns)
    (request,) = turns.db.read_now(approvals.find)
    assert interrupt["message"] == request.shown
    assert interrupt["toolCallId"] == "t1"
    assert interrupt["expiresAt"]
    assert interrupt["metadata"] == {"approval": request.id, "tool": "execute", "digest": "d1"}
    assert [*interrupt["responseSchema"]["properties"]] == ["approved", "reason"]
    known = {
        "id": "r1.2",
        "role": "assistant",
        "toolCalls": [{"id": "t1", "function": {"name": "x", "arguments": "{}"}}],
    }
    answer = [{"interruptId": interrupt["id"], **APPROVED}]
    lines = await ag_ui.begin(local, TOKEN, asked("r2", SAID, known, resume=answer))
    decided = turns.db.read_now(approvals.get, request.id)
    assert (decided.state, decided.decided_by, decided.surface) == ("approved", "token:web", "client")
    turns.goes_on()
    whole = await read(lines)
    assert short(whole) == [("r2.1", "t1", "done"), ("r2.3", "It is done."), "success"]
    # The same answer again is no second one.
    assert await told(local, "r2", SAID, known, resume=answer) == whole
    # And the run that was interrupted has the rest by now.
    assert short(await told(local))[-3:] == [("r1.3", "t1", "done"), ("r1.5", "It is done."), "success"]


@pytest.mark.parametrize(("answer", "note"), [(DENIED, "not now"), (CANCELLED, "Cancelled by user.")])
async def test_a_denial_has_the_reason_of_the_person(
    local: Local, turns: Turns, answer: dict[str, Any], note: str
) -> None:
    (interrupt,) = await waiting(local, turns)
    lines = await ag_ui.begin(local, TOKEN, asked("r2", resume=[{"interruptId": interrupt["id"], **answer}]))
    (request,) = turns.db.read_now(approvals.find)
    assert (request.state, request.note) == ("denied", note)
    turns.goes_on()
    assert short(await read(lines))[-1] == "success"


async def test_of_two_interrupts_one_that_is_not_answered_ends_the_next_run_too(local: Local, turns: Turns) -> None:
    other = replace(PROPOSED, call_key="k2", tool_call_id="t2", digest="d2")
    first, second = await waiting(local, turns, PROPOSED, other)
    left = interrupts(await told(local, "r2", resume=[{"interruptId": first["id"], **APPROVED}]))
    assert left == [second]
    message = {"id": "m2", "role": "user", "content": "and?"}
    assert interrupts(await told(local, "r3", SAID, message)) == [second], "a message waits behind it"


async def test_a_turn_that_goes_on_and_asks_again_ends_the_run_with_the_new_interrupt(
    local: Local, turns: Turns
) -> None:
    (first,) = await waiting(local, turns)
    lines = await ag_ui.begin(local, TOKEN, asked("r2", resume=[{"interruptId": first["id"], **APPROVED}]))
    item, epoch = turns.begun_of("APPROVAL")
    for kind, what in (("tool_call", CALL), ("tool_result", RESULT), ("tool_call", {**CALL, "tool_call_id": "t2"})):
        turns.tell(item, epoch, kind, what)
    turns.close(
        item, epoch, "pending_approval", proposed=[replace(PROPOSED, call_key="k2", tool_call_id="t2", digest="d2")]
    )
    events = await read(lines)
    assert short(events)[:3] == [("t1", CALL["args"]), ("r2.2", "t1", "done"), ("t2", CALL["args"])]
    assert [one["toolCallId"] for one in interrupts(events)] == ["t2"]
    assert interrupts(await told(local)) == interrupts(events), "and so does the run before"


async def test_a_silent_run_sends_comments_and_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PING_S", 0.01)
    left = asyncio.Event()

    async def silent() -> AsyncGenerator[str]:
        try:
            yield "data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            left.set()

    kept = routes.kept(silent())
    assert [await anext(kept), await anext(kept), await anext(kept)] == ["data: 1\n\n", *2 * [": nothing new\n\n"]]
    await kept.aclose()
    assert left.is_set()


async def test_a_decision_made_elsewhere_stands_and_an_answer_that_agrees_goes_on(
    place: Stage, local: Local, turns: Turns
) -> None:
    (interrupt,) = await waiting(local, turns)
    (request,) = turns.db.read_now(approvals.find)
    place.decide(request)
    for answer in (DENIED, CANCELLED):
        with pytest.raises(ApprovalSettled, match=r"approved already, by test; nothing was done"):
            await told(local, "r2", resume=[{"interruptId": interrupt["id"], **answer}])
    turns.goes_on()
    events = await told(local, "r2", resume=[{"interruptId": interrupt["id"], **APPROVED}])
    assert short(events)[-2:] == [("r2.4", "It is done."), "success"]
    assert turns.db.read_now(approvals.get, request.id).decided_by == "test"


async def test_an_answer_about_another_call_than_the_one_that_waits_now_is_refused(local: Local, turns: Turns) -> None:
    (interrupt,) = await waiting(local, turns)
    change = sa.update(approval_rows).values(digest="d2")
    turns.db.write_now(lambda conn: conn.execute(change))
    with pytest.raises(ApprovalRefused, match="has changed since it was shown"):
        await told(local, "r2", resume=[{"interruptId": interrupt["id"], **APPROVED}])
    assert turns.db.read_now(approvals.find)[0].state == "pending"


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "no JSON": (b"{", InvalidRequest, "no RunAgentInput"),
    "deep": (b"[" * 100_000, InvalidRequest, "nothing was done|RunAgentInput"),
    "another type": (b"[]", InvalidRequest, "no RunAgentInput"),
    "no message": (json.dumps({"threadId": "c1", "runId": "r1", "messages": []}).encode(), InvalidRequest, "neither"),
    "no user": (asked("r1", {"id": "m1", "role": "system", "content": "be"}), InvalidRequest, "neither ends"),
    "an old user": (asked("r1", SAID, {"id": "a1", "role": "assistant", "content": "hi"}), InvalidRequest, "neither"),
    "an empty text": (asked("r1", {**SAID, "content": " "}), InvalidRequest, "empty"),
    "a long text": (asked("r1", {**SAID, "content": "x" * 100_001}), InvalidRequest, "at most 100000"),
    "an image": (
        asked("r1", {**SAID, "content": [{"type": "image", "source": {"type": "url", "value": "https://x.test/y"}}]}),
        InvalidRequest,
        "not text",
    ),
    "a long run id": (asked("r" * 101), InvalidRequest, "key"),
    "an empty run id": (asked(""), InvalidRequest, "key"),
    "a foreign conversation": (asked(thread="c2"), UnknownConversation, "this token is for c1, tools"),
    "a NUL": (asked(thread="c\x00"), InvalidRequest, "conversation"),
    "the conversation of an MCP client": (asked(thread="tools"), InvalidRequest, "belongs to an MCP client"),
    "an unknown interrupt": (
        asked(resume=[{"interruptId": "int-a1:d1", **APPROVED}]), UnknownApproval, "no approval request 'a1'",
    ),
    "a foreign interrupt": (asked(resume=[{"interruptId": "a1", **APPROVED}]), InvalidRequest, "prefix"),
    "an answer that is none": (
        asked(resume=[{"interruptId": "int-a1:d1", "status": "resolved", "payload": {"approved": "yes"}}]),
        InvalidRequest, "responseSchema",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_a_run_that_cannot_be_begun_does_nothing_and_says_why(place: Stage, local: Local, case: str) -> None:
    place.write(of_clients.opened, "tools", place.where.host_id)
    body, kind, why = BAD[case]
    with pytest.raises(kind, match=why):
        await ag_ui.begin(local, TOKEN, body)
    assert place.rows(sa.select(mail.c.id)) == []


async def test_a_run_id_is_of_one_message(local: Local) -> None:
    await ag_ui.begin(local, TOKEN, asked("r1"))
    with pytest.raises(InvalidRequest, match="used for another one"):
        await ag_ui.begin(local, TOKEN, asked("r1", {**SAID, "content": "another"}))


async def test_an_interrupt_is_answered_in_its_own_thread_without_a_change_and_never_for_an_mcp_client(
    place: Stage, local: Local, turns: Turns
) -> None:
    (interrupt,) = await waiting(local, turns)
    answer = {"interruptId": interrupt["id"], **APPROVED}
    with pytest.raises(UnknownApproval, match="not of this thread"):
        await told(local, "r2", thread="tools", resume=[answer])
    changed = {**answer, "payload": {"approved": True, "editedArgs": {"command": "y"}}}
    with pytest.raises(InvalidRequest, match="cannot be changed"):
        await told(local, "r2", resume=[changed])
    place.write(of_clients.opened, "tools", place.where.host_id)
    call = replace(PROPOSED, call_key="k9")
    request = place.write(of_clients.asked, "tools", "mcp:1", call, ttl_s=600, outbox=Outbox(on=False), limit=20)
    with pytest.raises(ServerRefused, match="belongs to an MCP client"):
        await told(local, "r2", thread="tools", resume=[{**answer, "interruptId": f"int-{request.id}:d1"}])
    assert {one.state for one in turns.db.read_now(approvals.find)} == {"pending"}
