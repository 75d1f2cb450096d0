"""Stopping a turn and telling a person, from outside: a real worker, the real command line, a real web server."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.commands import Terminal, assert_refused, facts, shellback, told
from tests.otlp import answering
from tests.stage import Stage, working

KEY = "s3cret"


class Hook:
    """A webhook that is slow and fails at first for one conversation, and takes what it is told of any other."""

    SLOW = "told"

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.seen, self.go_on = threading.Event(), threading.Event()

    def taken(self, notice: dict[str, Any]) -> bool:
        if notice["conversation"] != self.SLOW:
            return True
        self.told.append(notice)
        self.seen.set()
        self.go_on.wait(60)
        return len(self.told) > 1

    @contextmanager
    def served(self) -> Generator[str]:
        with answering(lambda _, body: 204 if self.taken(json.loads(body)) else 503) as url:
            try:
                yield f"{url}/{KEY}"
            finally:
                self.go_on.set()


@pytest.fixture(scope="module")
def hook() -> Hook:
    return Hook()


@pytest.fixture(scope="module")
def loop(hook: Hook) -> Iterator[Stage]:
    with hook.served() as url, working(NOTIFY_WEBHOOK=url) as made:
        yield made


def long(seconds: int) -> str:
    """A message that runs a command of so many seconds; the number tells it from those of other conversations."""
    return f"!execute {json.dumps({'command': f'echo up; sleep {seconds}', 'timeout': 600})}"


def stop(loop: Stage, conversation: str, *args: str) -> dict[str, Any]:
    return facts(told(loop, "stop", conversation, "--json", *args))


def stopped(loop: Stage, conversation: str) -> list[str]:
    return [answer for answer in loop.answers(conversation=conversation) if answer.startswith("Stopped by")]


def living(loop: Stage, conversation: str) -> list[str]:
    return [session.id for session in loop.sessions(live=True) if session.conversation_id == conversation]


def test_a_turn_that_waits_for_its_command_ends_soon_and_the_command_lives_until_it_is_killed(loop: Stage) -> None:
    session = loop.started(f"{long(300)}\n$ echo second >> second.txt", "sleep 300", "c1")
    loop.send("what came behind it", "c1")
    found = facts(shellback(loop, "stop", "c1", "--wait", "--json"))
    assert (found["state"], found["killed"]) == ("stopped", [])
    assert loop.ended(found["turn_id"])["outcome"] == "stopped"
    assert living(loop, "c1") == [session.id]
    assert session.id in stopped(loop, "c1")[0]
    loop.until("what came behind it is answered", lambda: "what came behind it" in "\n".join(loop.answers()))
    assert not (loop.workspace / "second.txt").exists()

    found = stop(loop, "c1", "--kill")
    assert (found["state"], found["killed"]) == ("nothing_running", [session.id])
    assert loop.ended(f"EXEC_CALLBACK:{session.id}")["outcome"] == "answered"
    assert loop.callbacks() == [f"EXEC_CALLBACK:{session.id}"]

    item = loop.send("$ touch asked.txt", "c1")
    loop.pending("c1")
    found = stop(loop, "c1", "--wait")
    assert found["state"] == "stopped"
    assert found["turn_id"] != item
    assert loop.requests() == []
    loop.until("nothing is left to do", loop.at_rest)
    assert not (loop.workspace / "asked.txt").exists()
    assert len(stopped(loop, "c1")) == 2
    item = loop.send("and on it goes", "c1")
    assert loop.ended(item)["outcome"] == "answered"
    assert stop(loop, "c1")["state"] == "nothing_running"


def test_there_is_nothing_to_stop_in_a_conversation_that_is_not_there(loop: Stage) -> None:
    assert_refused(shellback(loop, "stop", "c9"), "no conversation 'c9'", "shellback conversations list")


def test_ctrl_c_in_chat_stops_the_turn_and_a_second_one_leaves(loop: Stage) -> None:
    with Terminal(loop, "chat", "-c", "talk") as chat:
        chat.until("> ")
        chat.says(f"{long(301)}\n", "[y] once")
        chat.type("y\n")
        session = loop.session("sleep 301")
        chat.says("\x03", "stopping at the next step", "Stopped by", session.id)
        chat.says("still here\n", "You said: still here")
        loop.until("no turn is left that a key could stop", lambda: loop.no_turn("talk"))
        chat.says("\x03", "Ctrl-C again leaves")
        chat.says("still there\n", "You said: still there")
        loop.until("no turn is left that a key could stop", lambda: loop.no_turn("talk"))
        chat.says("\x03", "Ctrl-C again leaves")
        chat.leaves("\x03", 130)
    assert "Traceback" not in chat.shown


def test_an_approval_is_told_to_a_webhook_that_fails_first_and_nobody_waits_for_it(loop: Stage, hook: Hook) -> None:
    loop.send("$ echo told https://bob:hunter2x@host.example/", Hook.SLOW)
    request = loop.pending(Hook.SLOW)
    assert hook.seen.wait(60)
    loop.approve(Hook.SLOW)
    loop.until(
        "the turn goes on while the webhook is slow",
        lambda: "told" in "\n".join(loop.answers(conversation=Hook.SLOW)),
    )
    hook.go_on.set()
    loop.until("it is tried again", lambda: len(hook.told) >= 2)
    assert hook.told[0] == hook.told[1]
    assert hook.told[0]["kind"] == "approval"
    assert hook.told[0]["approval"]["id"] == request.id
    assert hook.told[0]["approval"]["display"]["command"] == "echo told https://bob:***@host.example/"
    assert "hunter2x" not in json.dumps(hook.told)
    # The webhook has it before the worker has its answer.
    doctor = loop.until("it is on record as sent", lambda: _of_the_doctor(loop, "a webhook; last sent"))
    assert KEY not in doctor + (loop.home / "worker.log").read_text()


def _of_the_doctor(loop: Stage, words: str) -> str | None:
    said = told(loop, "doctor", "--json").stdout
    return said if words in said else None


def test_a_worker_killed_between_the_wish_and_the_closing_stops_the_turn_once(loop: Stage) -> None:
    item = loop.send(f"{long(302)}\n$ echo second >> second.txt", "c2")
    loop.approve("c2")
    session = loop.session("sleep 302")
    loop.arm("turn.closing")
    assert stop(loop, "c2")["state"] == "stopping"
    loop.workers[-1].process.wait(60)
    assert loop.fired("turn.closing")
    loop.hire()
    loop.until("it is stopped", lambda: stopped(loop, "c2"))
    loop.until("the wish is settled", lambda: stop(loop, "c2")["state"] == "nothing_running")
    assert len(stopped(loop, "c2")) == 1
    assert len(loop.answers(conversation="c2")) == 1
    assert not (loop.workspace / "second.txt").exists()
    assert living(loop, "c2") == [session.id]
    assert loop.turn(item) is not None
