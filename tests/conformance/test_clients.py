"""One suite for the client of a state directory and for the client of a server: the same answers, the same errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from shellback.client.client import Client
from shellback.client.facts import Approval, Event, Session
from shellback.work.errors import (
    ApprovalRefused,
    ApprovalSettled,
    InvalidRequest,
    NoInput,
    SessionOver,
    UnknownApproval,
    UnknownConversation,
    UnknownSession,
)
from tests.databases import TEMPLATE
from tests.serving import served, token
from tests.stage import Stage, working

NAMES = (f"c{number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[Stage]:
    url = None
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        url = server.url(server.create(TEMPLATE))
    with working(url) as made:
        yield made


@pytest.fixture(scope="module", params=["directory", "server"])
def way(place: Stage, request: pytest.FixtureRequest) -> Iterator[Callable[[], Client]]:
    if request.param == "directory":
        yield lambda: Client(place.settings)
        return
    with served(place) as server:
        secret = token(place, "all", "--api", "--all-conversations")
        yield lambda: Client(server.base, token=secret)


@pytest.fixture
def client(way: Callable[[], Client]) -> Iterator[Client]:
    with way() as made:
        yield made


@pytest.fixture
def name() -> str:
    return next(NAMES)


def upto(client: Client, name: str, kind: str, after: Any = None) -> list[Event]:
    """The events up to the first one of a kind."""
    found: list[Event] = []
    for event in client.stream(name, after=after):
        found.append(event)
        if event.kind == kind:
            break
    return found


def said(events: list[Event]) -> str:
    return "".join(event.payload["text"] for event in events if event.kind == "text")


def asked(client: Client, name: str, line: str) -> tuple[Event, Approval]:
    """The event and the request of the call that a message makes."""
    event = upto(client, name, "approval", client.send(name, line).event)[-1]
    (request,) = client.approvals(name)
    assert request.id == event.payload["id"]
    return event, request


def typing(client: Client) -> Callable[[str], Any]:
    return lambda session: client.write(session, "x")


def started(client: Client, name: str, args: str) -> Session:
    event, request = asked(client, name, f"!execute {args}")
    client.approve(request)
    upto(client, name, "answer", event)
    return client.sessions(name)[-1]


def test_a_message_with_a_key_is_stored_once_and_its_answer_is_streamed(client: Client, name: str) -> None:
    first = client.send(name, "hello there", key="k1")
    again = client.send(name, "hello there", key="k1")
    assert first.item == again.item
    assert (first.conversation, first.pending_approvals, first.blocked, first.no_worker) == (name, 0, None, False)
    events = upto(client, name, "answer", first.event)
    assert [event.kind for event in events].count("message") == 1
    assert "hello there" in said(events)
    assert len({event.id for event in events}) == len(events)
    # A program that was killed repeats it, and is told what it has missed.
    late = client.send(name, "hello there", key="k1")
    assert upto(client, name, "answer", late.event)[-len(events) :] == events
    with pytest.raises(InvalidRequest, match="was used for another one"):
        client.send(name, "something else", key="k1")
    # In another conversation it is another key.
    other = next(NAMES)
    assert client.send(other, "something else", key="k1").item != first.item


def test_a_stream_goes_on_after_each_event_without_loss_or_repeat(client: Client, name: str) -> None:
    upto(client, name, "answer", client.send(name, "one").event)
    upto(client, name, "answer", client.send(name, "two").event)
    whole = [*client.stream(name, follow=False)]
    assert len(whole) >= 4
    for number, event in enumerate(whole):
        assert [*client.stream(name, after=event, follow=False)] == whole[number + 1 :]
    assert [one.kind for one in client.stream(name, kinds=["answer"], follow=False)] == ["answer", "answer"]
    with pytest.raises(InvalidRequest, match="not the id of an event"):
        next(client.stream(name, after="yesterday"))
    with pytest.raises(InvalidRequest, match="has no event"):
        next(client.stream(name, after="99999999"))


def test_what_is_approved_runs_once_and_the_decision_is_recorded(client: Client, name: str, place: Stage) -> None:
    event, request = asked(client, name, f"$ echo {name} >> {name}.txt; exit 4")
    assert event.shown is not None
    assert f"echo {name}" in event.shown
    assert f"echo {name}" in request.shown
    with pytest.raises(ApprovalRefused, match="has changed since"):
        client.approve(request.id, digest="0" * 64)
    with pytest.raises(ApprovalRefused, match="has changed since"):
        client.approve(replace(request, digest="0" * 64))  # what a person was shown is not what waits
    decision = client.approve(request)
    assert (decision.id, decision.state, decision.conversation) == (request.id, "approved", name)
    events = upto(client, name, "answer", event)
    assert [one.payload["decision"] for one in events if one.kind == "decision"] == ["approved"]
    assert "exit code 4" in said(events)
    assert (place.workspace / f"{name}.txt").read_text() == f"{name}\n"
    settled = client.approval(request.id)
    assert (settled.state, settled.surface) == ("used", "client")
    assert settled.decided_by
    for decide in (client.approve, client.deny):
        with pytest.raises(ApprovalSettled, match="is used already"):
            decide(request.id)
    assert client.approvals(name) == []
    assert [one.id for one in client.approvals(name, everything=True)] == [request.id]


def test_a_denial_reaches_the_agent_with_its_reason(client: Client, name: str) -> None:
    event, request = asked(client, name, "$ echo not run")
    assert client.deny(request, "not on a Friday").state == "denied"
    assert "not on a Friday" in said(upto(client, name, "answer", event))
    assert client.sessions(name, everything=True) == []


def test_a_process_is_read_typed_into_and_ended(client: Client, name: str) -> None:
    session = started(client, name, '{"command": "cat", "background": true, "keep_stdin_open": true}')
    assert (session.conversation_id, session.command, session.end, session.live) == (name, "cat", None, True)
    assert client.session(session.id) == session
    place = upto(client, name, "answer")[-1]
    assert client.write(session.id, "häl").bytes == 4
    assert client.write(session.id, b"lo\n").bytes == 3
    upto(client, name, "output", place)
    log = client.logs(session.id)
    assert (log.text, log.start, log.next_offset, log.bytes_total) == ("hällo\n", 0, 7, 7)
    assert client.logs(session.id, offset=2).text.endswith("llo\n")
    assert client.logs(session.id, offset=log.next_offset).text == ""
    assert client.logs(session.id, lines=0).text == ""
    typed = [one for one in client.stream(name, after=place, follow=False) if one.kind == "typed"]
    assert {one.payload["by"] for one in typed} == {client.approvals(name, everything=True)[0].decided_by}
    killed = client.kill(session.id)
    assert (killed.session_id, killed.survivors, killed.lost) == (session.id, [], False)
    (end,) = (one for one in upto(client, name, "exit", place) if one.kind == "exit")
    assert end.payload["session_id"] == session.id
    assert client.sessions(name) == []
    (over,) = client.sessions(name, everything=True)
    assert over.end is not None
    assert over.end.ended_by == "person"
    with pytest.raises(SessionOver, match="Nothing was signalled"):
        client.kill(session.id)
    with pytest.raises(SessionOver, match="Nothing was typed"):
        client.write(session.id, "more\n")


def test_the_end_of_input_is_typed_too_and_a_process_without_input_takes_none(client: Client, name: str) -> None:
    session = started(client, name, '{"command": "wc -c; sleep 100", "background": true, "keep_stdin_open": true}')
    client.write(session.id, "four", eof=True)
    upto(client, name, "output")
    assert client.logs(session.id).text == "4\n"
    client.kill(session.id)
    deaf = started(client, name, '{"command": "sleep 99", "background": true}')
    with pytest.raises(NoInput, match="takes no input"):
        client.write(deaf.id, "x")
    client.kill(deaf.id)


def test_what_does_not_exist_is_named(client: Client, name: str) -> None:
    calls: list[Callable[[str], Any]] = [client.approvals, client.sessions, lambda one: next(client.stream(one))]
    for call in calls:
        for wrong in (name, "", "a/b", "ü", "a\x00b", "x" * 300):
            with pytest.raises((UnknownConversation, InvalidRequest)):
                call(wrong)
    for wrong in ("a0123456789a", "", "a/b", "%2e", "a\x00b", "x" * 300):
        for decide in (client.approval, client.approve, client.deny):
            with pytest.raises((UnknownApproval, InvalidRequest)):
                decide(wrong)
        reached: list[Callable[[str], Any]] = [client.session, client.logs, client.kill]
        for reach in (*reached, typing(client)):
            with pytest.raises((UnknownSession, InvalidRequest)):
                reach(wrong)


def test_a_beginning_of_an_id_is_none(client: Client, name: str) -> None:
    event, request = asked(client, name, "$ echo x")
    with pytest.raises(UnknownApproval):
        client.approve(request.id[:6])
    client.deny(request)
    upto(client, name, "answer", event)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("send", ("c", 3), {}),
    ("send", ("c", ""), {}),
    ("send", ("c", "a\x00b"), {}),
    ("send", ("no name", "text"), {}),
    ("send", ("c", "text"), {"priority": "soon"}),
    ("send", ("c", "text"), {"key": ""}),
    ("send", ("c", "text"), {"interrupt": "yes"}),
    ("approvals", (7,), {}),
    ("approve", ("x",), {"scope": "always"}),
    ("deny", ("x", 5), {}),
    ("logs", ("x",), {"lines": -1}),
    ("logs", ("x",), {"offset": "first"}),
    ("deny", ("x", "a\x00b"), {}),
    ("write", ("x", "y" * 70_000), {}),
    ("write", ("x", b"\xff"), {}),
]


def test_an_argument_of_a_wrong_type_or_size_is_named(client: Client) -> None:
    for method, args, options in WRONG:
        with pytest.raises(InvalidRequest):
            getattr(client, method)(*args, **options)


def test_a_client_that_is_closed_says_so(way: Callable[[], Client], name: str) -> None:
    client = way()
    client.send(name, "hello")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        client.sessions()
