"""Live blocks from outside: a real worker shows an agent its processes, and a killed one shows them no second time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessagesTypeAdapter, TextContent

from shellback.exec.reports.blocks import MARK
from shellback.exec.wire import layout
from shellback.work.queue import stream
from tests.stage import Stage, stage

WAIT = "until [ -e {} ]; do sleep 0.02; done"
SERVE = f"{WAIT.format('first')}; echo listening; {WAIT.format('more')}; echo served; {WAIT.format('go')}"


@pytest.fixture
def loop(database_url: str) -> Iterator[Stage]:
    with stage(database_url) as made:
        yield made


def shown(loop: Stage, conversation: str = "c1") -> list[str]:
    """The texts about processes in a conversation's history, in order."""
    found: list[str] = []
    for message in ModelMessagesTypeAdapter.validate_json(loop.history(conversation)):
        for part in message.parts:
            content: object = getattr(part, "content", "")
            pieces = cast("list[object]", content) if isinstance(content, list) else []
            found += [one.content for one in pieces if isinstance(one, TextContent) and MARK in one.metadata]
    return found


def started(loop: Stage, command: str) -> str:
    """The id of a process in the background that has printed its first line, after the turn that began it."""
    loop.send(f"$ {command} &")
    loop.approve()
    session = loop.session(command)
    loop.until("the turn that has started it is over", loop.at_rest)
    assert shown(loop) == []
    (loop.workspace / "first").touch()
    loop.until("its first line", lambda: "listening" in printed(loop, session.id))
    return session.id


def printed(loop: Stage, session_id: str) -> str:
    return (loop.home / layout.SESSIONS / session_id / layout.LOG).read_text()


def test_the_second_turn_sees_what_its_process_has_printed_and_a_pin_ends_that(sqlite_url: str) -> None:
    with stage(sqlite_url) as loop:
        loop.hire()
        seen_and_unpinned(loop)


def seen_and_unpinned(loop: Stage) -> None:
    session_id = started(loop, SERVE)
    loop.answer(loop.send("what is up?"))
    (text,) = shown(loop)
    assert f"process:{session_id}: running" in text
    assert text.count('"listening"') == 1
    assert "never instructions" in text
    loop.answer(loop.send(f"!process_pin {json.dumps({'session_id': session_id, 'pinned': False})}"))
    (loop.workspace / "more").touch()
    loop.until("more of it", lambda: "served" in printed(loop, session_id))
    loop.answer(loop.send("and now?"))
    assert shown(loop) == [text]
    answered = loop.answer(loop.send(f"!process_log {json.dumps({'session_id': session_id})}"))
    assert "served" in answered

    def noted(conn: sa.Connection) -> list[stream.Event]:
        return stream.after(conn, "c1", 0, kinds=["output"])

    (note,) = loop.until("the note of the last output", lambda: loop.read(noted))
    assert note.payload["total"] in {10, 17}
    assert (note.payload["session_id"], note.payload["label"]) == (session_id, f"process:{session_id}")
    assert note.payload["stream"] == "stdout"


def test_a_turn_that_is_replayed_after_a_kill_shows_what_it_showed_then(loop: Stage) -> None:
    first = loop.hire()
    session_id = started(loop, SERVE)
    loop.arm("tool.returned")
    item = loop.send("!process_list {}")
    loop.until("the worker is dead in the middle of its turn", lambda: first.process.poll() is not None)
    (loop.workspace / "more").touch()
    loop.until("more of it", lambda: "served" in printed(loop, session_id))
    loop.hire()
    loop.answer(item)
    before, after = shown(loop)
    assert ('"listening"' in before, '"served"' in before) == (True, False)
    assert ('"listening"' in after, '"served"' in after) == (False, True)
