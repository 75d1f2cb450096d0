"""Requests for connections as rows: one for equal questions, a yes for exactly what it was given, no call held up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.policy.rules.matching import Rules
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.reports.callback_text import connect_text
from shellback.storage import rules as saved
from shellback.storage import sessions as storage
from shellback.storage.db import Database
from shellback.storage.tables import approvals as rows
from shellback.storage.tables import conversations
from shellback.work.approvals import approvals, asking, audit, connecting
from shellback.work.approvals.approvals import CLIENT, Request
from shellback.work.approvals.connecting import Answer, Question, Terms
from shellback.work.errors import ApprovalRefused
from shellback.work.notices.notices import SILENT
from shellback.work.queue import mailbox
from shellback.work.queue.items import Priority
from tests.databases import at_once
from tests.items import PROPOSED, NotedEnqueuer
from tests.sessions import a_session

TTL_S = 3600.0


@dataclass
class Gate:
    """Conversations `a` and `b`, and what their connections are answered."""

    db: Database
    queue: NotedEnqueuer = field(default_factory=NotedEnqueuer)
    written: tuple[Rule, ...] = ()

    def ask(
        self, host: str = "x.example", scope: str = "a", waited_s: float = 0.0, port: int = 443, session: str = ""
    ) -> Answer:
        question = Question(scope=scope, host=host, port=port, waited_s=waited_s, session=session)
        terms = Terms(rules=Rules(self.written), ttl_s=TTL_S, limit=3, outbox=SILENT)
        return self.db.write_now(connecting.judged, question, terms)

    def decide(self, request_id: str, decision: Any = "approved", **how: Any) -> Request:
        how = {"by": "ann", "surface": "test", **how}
        return approvals.settle(self.db, self.queue, request_id, decision, **how)

    def late(self) -> dict[str, float]:
        return self.db.read_now(connecting.late, "h")

    def rule(self, effect: Any, connect: str, **more: Any) -> Rule:
        rule = Rule(effect=effect, match=Match(connect=connect, conversation_id=more.pop("scope", None)), **more)
        return self.db.write_now(saved.add, [rule])[0]

    def age(self, seconds: float) -> None:
        """Let this time pass for all requests."""
        at = ("created_at", "expires_at", "decided_at")
        self.db.write_now(lambda conn: conn.execute(sa.update(rows).values({n: rows.c[n] - seconds for n in at})))

    def events(self) -> list[str]:
        return [one.event for one in self.db.read_now(audit.find)]


@pytest.fixture
def gate(database: Database) -> Gate:
    made = [{"id": name, "host_id": "h", "created_at": time.time()} for name in "ab"]
    database.write_now(lambda conn: conn.execute(sa.insert(conversations), made))
    return Gate(database)


def test_equal_questions_share_one_request_also_at_the_same_moment(gate: Gate) -> None:
    answers = at_once(*[gate.ask] * 8)
    (request,) = gate.db.read_now(approvals.find)
    assert {one.waits for one in answers} == {request.id}
    assert request.display == {"connect": "x.example:443"}
    assert len({gate.ask(port=22).waits, gate.ask(scope="b").waits, request.id}) == 3
    assert gate.events() == ["asked"] * 3


def test_a_request_shows_the_command_that_says_it_asks_if_it_is_one_of_the_conversation(gate: Gate) -> None:
    session = a_session(1, conversation_id="a", command="curl x.example")
    gate.db.write_now(lambda conn: storage.claim(conn, session))
    gate.ask(session="s1")
    gate.ask(session="s1", scope="b")
    gate.ask(session="s2", host="y.example")
    assert [one.display for one in gate.db.read_now(approvals.find)] == [
        {"connect": "x.example:443", "session": "s1", "asking": "curl x.example"},
        {"connect": "x.example:443"},
        {"connect": "y.example:443"},
    ]


def test_a_yes_is_for_all_that_waited_or_else_for_the_next_one(gate: Gate) -> None:
    first = gate.ask().waits
    gate.decide(first)
    assert [gate.ask(waited_s=5).allowed, gate.ask(waited_s=5).allowed] == [f"request {first}"] * 2
    second = gate.ask().waits
    assert second not in {"", first}
    gate.decide(second)
    assert gate.ask().allowed == f"request {second}"
    assert gate.ask().waits
    assert gate.events() == ["asked", "approved", "used", "asked", "approved", "used", "asked"]


def test_a_yes_that_nobody_used_in_time_is_none(gate: Gate) -> None:
    gate.decide(gate.ask().waits)
    gate.age(TTL_S + 1)
    assert gate.ask().waits


def test_a_yes_for_the_conversation_holds_there_alone(gate: Gate) -> None:
    request = gate.decide(gate.ask().waits, scope="session")
    gate.age(TTL_S + 1)
    assert [gate.ask().allowed, gate.ask().allowed] == [f"request {request.id}"] * 2
    assert gate.ask(scope="b").waits
    assert gate.ask("y.example").waits
    assert gate.ask(port=80).waits


def test_a_no_holds_for_a_while_and_says_why(gate: Gate) -> None:
    request = gate.decide(gate.ask().waits, "denied", note="never")
    answer = gate.ask()
    assert (answer.refused, answer.by) == ("x.example:443 was denied by ann: never", f"request {request.id}")
    gate.age(TTL_S + 1)
    assert gate.ask().waits


def test_an_agent_is_woken_once_for_a_decision_that_no_connection_had_soon(gate: Gate) -> None:
    session = a_session(1, conversation_id="a", command="curl x.example")
    gate.db.write_now(lambda conn: storage.claim(conn, session))
    late = gate.decide(gate.ask(session="s1").waits, note="for now")
    refused = gate.decide(gate.ask("y.example").waits, "denied", note="never")
    kept = gate.decide(gate.ask("z.example").waits, scope="session")
    assert {one: 0 < due_s <= connecting.SOON_S for one, due_s in gate.late().items()} == dict.fromkeys(
        (late.id, refused.id, kept.id), True
    )
    gate.age(connecting.SOON_S)
    assert gate.late() == dict.fromkeys((late.id, refused.id, kept.id), 0.0)
    for request in (late, late, refused, kept):
        gate.db.write_now(connecting.tell, gate.queue, request.id)
    assert gate.late() == {}
    assert [(item.id, item.priority) for item in gate.queue.items] == [
        (f"CONNECT:{one.id}", Priority.HIGH) for one in (late, refused, kept)
    ]
    assert [connect_text(item.payload).splitlines()[1:] for item in gate.queue.items] == [
        [
            'x.example:443 is allowed, by "ann". The reason: "for now".',
            'Session s1 had asked: "curl x.example".',
            "Repeat what failed if its result is still wanted.",
        ],
        ['y.example:443 is denied, by "ann". The reason: "never".'],
        [
            'z.example:443 is allowed for this conversation, by "ann".',
            "Repeat what failed if its result is still wanted.",
        ],
    ]
    # The yes is there for the repeat.
    assert gate.ask().allowed == f"request {late.id}"
    assert gate.ask().waits


def test_no_agent_is_woken_for_a_decision_that_a_connection_had(gate: Gate) -> None:
    decided = [gate.decide(gate.ask().waits), gate.decide(gate.ask("y.example").waits, "denied")]
    assert gate.ask(waited_s=5).allowed
    assert gate.ask("y.example", waited_s=5).refused
    gate.age(connecting.SOON_S)
    assert gate.late() == {}
    for request in decided:
        gate.db.write_now(connecting.tell, gate.queue, request.id)
    assert gate.queue.items == []


def test_so_many_hosts_are_open_and_others_are_refused_without_a_row(gate: Gate) -> None:
    for name in "pqr":
        assert gate.ask(f"{name}.example").waits
    assert "3 other hosts wait for a person already" in gate.ask("s.example").refused
    assert gate.ask("p.example").waits
    assert gate.ask("s.example", "b").waits
    assert len(gate.db.read_now(approvals.find)) == 4


def test_nobody_is_asked_outside_of_a_conversation(gate: Gate) -> None:
    assert "outside a conversation" in gate.ask(scope="elsewhere").refused
    assert gate.db.read_now(approvals.find) == []


def test_a_question_holds_up_no_call_and_no_message(gate: Gate) -> None:
    question = gate.ask().waits
    assert gate.db.read_now(mailbox.undecided, "a") == 0
    gate.db.write_now(asking.ask, "a", "CHAT:1", 1, [PROPOSED], ttl_s=60.0, limit=1)
    (call,) = gate.db.read_now(approvals.find, state="pending", of_calls=True)
    assert gate.db.read_now(mailbox.undecided, "a") == 1
    gate.decide(call.id)
    assert [item.type.value for item in gate.queue.items] == ["APPROVAL"]
    assert gate.db.write_now(approvals.supersede, gate.queue, "a", by="ann", surface="test") == 0
    gate.decide(question)
    assert len(gate.queue.items) == 1


def test_a_connection_cannot_be_changed_nor_decided_by_a_client(gate: Gate) -> None:
    request_id = gate.ask().waits
    with pytest.raises(ApprovalRefused, match="is about a connection"):
        gate.decide(request_id, "changed", args={})
    with pytest.raises(ApprovalRefused, match="is decided by a person"):
        gate.decide(request_id, surface=CLIENT)


def test_a_rule_that_denies_is_above_a_yes_and_one_that_asks_above_one_that_allows(gate: Gate) -> None:
    gate.written = (Rule(effect="allow", match=Match(connect="*.example"), source="file:1"),)
    assert gate.ask().allowed == "policy file:1"
    asks = gate.rule("ask", "x.example")
    request = gate.decide(gate.ask().waits, scope="session")
    assert gate.ask().allowed == f"request {request.id}"
    gate.rule("deny", "x.example:443")
    assert "x.example:443 is denied: rule saved" in gate.ask().refused
    assert gate.ask("y.example").allowed
    assert asks.id not in gate.ask("x.example", port=80).refused


def test_a_saved_rule_counts_its_uses_holds_in_its_conversation_and_until_it_ends(gate: Gate) -> None:
    rule = gate.rule("allow", "x.example", scope="a")
    assert gate.ask().allowed == f"rule {rule.id}"
    assert gate.ask(scope="b").waits
    (found,) = gate.db.read_now(saved.find)
    assert found.rule.uses == 1
    assert found.rule.described() == "allow connections to x.example, conversation a"
    gate.db.write_now(saved.revoke, rule.id, by="ann")
    assert gate.ask().waits
    gate.rule("allow", "z.example", expires_at=time.time() - 1)
    assert gate.ask("z.example").waits
