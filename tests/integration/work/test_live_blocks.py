"""What an agent is shown of its processes: once, appended, only what nothing else has told; and who is not shown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturn,
)
from pydantic_ai.models.function import AgentInfo

from shellback.exec.core.errors import SessionNotFound
from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.reports.blocks import MARK, TURN_CHARS, Seen, Told
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.wire import layout
from shellback.storage import sessions
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.mailbox import Letter
from shellback.work.turn import hearing, looks, stopping
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import notice
from shellback.work.turn.live import LiveBlocks, fresh_of
from shellback.work.turn.looks import Look
from tests.execs import origin, places, unstarted_engine
from tests.items import HOST, Given, Talk, turn_deps
from tests.sessions import a_session

pytestmark = pytest.mark.anyio


class Scene:
    """A conversation on a real database: sessions with logs, turns of a model that says what it is told to."""

    def __init__(self, database: Database, engine: Engine, home: Path) -> None:
        self.store = SqlSessionStore(database)
        self.engine = engine
        self.home = home
        self.db = database
        self.live = LiveBlocks(300.0, partial(fresh_of, engine.output))
        self.history: list[ModelMessage] = []
        self.letters: dict[int, list[Letter]] = {}
        self.gate = True

    async def session(self, number: int = 1, printed: str = "", **changes: Any) -> Session:
        given = {"host_id": self.engine.host_id, "command": "serve", "created_at": time.time() + number, **changes}
        session = await self.store.claim(a_session(number, **given))
        await self.store.started(session.id, pid=1, started_at=1_000.0)
        self.print(session, printed)
        return session

    def print(self, session: Session, text: str) -> None:
        place = self.home / layout.SESSIONS / session.id
        place.mkdir(parents=True, exist_ok=True)
        with (place / layout.LOG).open("a") as log:
            log.write(text)

    async def end(self, session: Session, at: float | None = None) -> None:
        await self.store.finish(
            session.id, SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=at or time.time())
        )

    async def turn(self, text: str = "go", calls: int = 0, tool: Callable[[], Any] | None = None) -> list[str]:
        """The texts about processes that this turn was shown, in order; it makes so many calls of `tool`."""
        before = len(self.history)
        made = 0

        def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            nonlocal made
            made += 1
            part = ToolCallPart("act", {}, f"c{before}-{made}") if made <= calls else TextPart("done")
            return ModelResponse(parts=[part])

        scene = self

        class Heard(Given):
            async def look(self, deps: TurnDeps, step: int, messages: Sequence[ModelMessage]) -> Look:
                letters = scene.letters.pop(step, [])
                told = await scene.db.read(lambda conn: scene.live.news(deps, messages, conn, letters))
                return Look(at=0.0, letters=letters, told=told)

        agent = Heard().agent(respond)

        @agent.tool_plain
        async def act() -> Any:
            done = tool() if tool else "did it"
            return await done if asyncio.iscoroutine(done) else done

        said = parts(self.history)
        result = await agent.run(
            text, deps=turn_deps(gate=self.gate, host_id=self.engine.host_id), message_history=self.history
        )
        kept = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
        now = parts(kept)
        assert now[: len(said)] == said, "what was said before is not what it was"
        self.history = kept
        return shown(now[len(said) :])


def parts(messages: list[ModelMessage]) -> list[object]:
    """What a model reads, in order; requests that follow one another are one to it."""
    return [getattr(part, "content", part) for message in messages for part in message.parts]


def pieces(contents: list[object]) -> list[object]:
    lists = [cast("list[object]", content) if isinstance(content, list) else [content] for content in contents]
    return [piece for found in lists for piece in found]


def shown(contents: list[object]) -> list[str]:
    return [one.content for one in pieces(contents) if isinstance(one, TextContent) and MARK in one.metadata]


@pytest.fixture
def scene(database: Database, tmp_path: Path, unrecorded: None) -> Scene:
    workspace, home = places(tmp_path)
    return Scene(database, unstarted_engine(workspace, home, SqlSessionStore(database)), home)


async def test_a_turn_is_shown_what_came_since_the_last_one_appended_and_once(scene: Scene) -> None:
    assert await scene.turn() == []
    session = await scene.session(printed="listening\n")
    (first,) = await scene.turn()
    assert '"listening"' in first
    assert await scene.turn() == []
    scene.print(session, "GET /\n")
    (second,) = await scene.turn(calls=3)
    assert '"GET /"' in second
    assert "listening" not in second
    await scene.end(session)
    (third,) = await scene.turn()
    assert "process:s1: exit code 3" in third
    assert await scene.turn() == []


async def test_what_comes_between_two_requests_of_a_turn_is_shown_with_the_next(scene: Scene) -> None:
    session = await scene.session()
    pieces = iter(["one\n", "two\n"])
    begun, one, two = await scene.turn(calls=2, tool=lambda: scene.print(session, next(pieces)))
    assert '"' not in begun.partition("; ")[2].replace('"serve" in "/w"', "")
    assert ('"one"' in one, '"two"' in one) == (True, False)
    assert ('"one"' in two, '"two"' in two) == (False, True)


async def test_what_a_result_or_the_news_of_an_end_has_told_is_not_repeated(scene: Scene) -> None:
    polled, ended, logged = [await scene.session(number, printed="hello\n") for number in (1, 2, 3)]
    assert len(await scene.turn()) == 1

    def poll() -> ToolReturn[str]:
        scene.print(polled, "more\n")
        return ToolReturn("more", metadata={"session_id": polled.id, "state": "running", "next_offset": 11})

    assert await scene.turn(calls=1, tool=poll) == []

    async def over() -> ToolReturn[str]:
        await scene.end(logged)
        row = {"session_id": logged.id, "state": "exited"}
        return ToolReturn("waited", metadata={"sessions": [row]})

    assert await scene.turn(calls=1, tool=over) == []
    scene.print(ended, "last words\n")
    await scene.end(ended)
    payload = callback_payload(await scene.store.get(ended.id) or ended, *scene.engine.streams(ended))
    scene.letters[1] = [Letter(id=1, kind="exit", payload={**payload, "command": "serve"})]
    assert await scene.turn() == []
    assert notice(wake_text(payload), "exit", payload) in pieces(parts(scene.history))
    assert await scene.turn() == []


async def test_the_text_of_a_wake_may_change_and_its_session_is_still_known(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hearing.TEXTS, "exit", "{} is over".format)
    session = await scene.session(printed="last words\n")
    await scene.end(session)
    scene.letters[1] = [Letter(id=1, kind="exit", payload={"session_id": session.id})]
    assert await scene.turn() == []
    assert "is over" in str(parts(scene.history))
    assert await scene.turn() == []


async def test_nothing_is_shown_while_the_gate_is_off_or_of_another_conversation_or_host(scene: Scene) -> None:
    await scene.session(1, printed="mine\n")
    await scene.session(2, printed="theirs\n", conversation_id="c2")
    await scene.session(3, printed="elsewhere\n", host_id="another")
    await scene.session(4, printed="in the foreground\n", background=False, delivery=Delivery.INLINE)
    scene.gate = False
    assert await scene.turn() == []
    scene.gate = True
    (text,) = await scene.turn()
    assert "process:s1" in text
    assert text.count("process:") == 1


async def test_a_process_is_shown_until_a_while_after_its_end_and_as_it_is_pinned(scene: Scene) -> None:
    now = time.time()
    late, quiet, kept = [await scene.session(number, printed="x\n") for number in (1, 2, 3)]
    await scene.store.pin(quiet.id, False)
    await scene.store.pin(kept.id, True)
    await scene.end(late, now - 301.0)
    await scene.end(kept, now - 301.0)
    (text,) = await scene.turn()
    assert [name for name in ("s1", "s2", "s3") if f"process:{name}" in text] == ["s3"]
    await scene.store.pin(quiet.id, None)
    (text,) = await scene.turn()
    assert "process:s2" in text


async def test_a_pin_is_one_call_and_of_its_own_conversation(scene: Scene) -> None:
    session = await scene.session(printed="x\n")
    mine, unpin = Sessions(scene.engine, "c1"), origin("c1")
    await mine.pin(session.id, False, unpin)
    assert await scene.turn() == []
    await mine.pin(session.id, True, origin("c1"))
    await mine.pin(session.id, False, unpin)
    assert (await mine.get(session.id)).pinned is True
    assert len(await scene.turn()) == 1
    with pytest.raises(SessionNotFound):
        await Sessions(scene.engine, "c2").pin(session.id, False, origin("c2"))


async def test_one_turn_is_shown_no_more_than_its_bound(scene: Scene) -> None:
    session = await scene.session()

    def much() -> None:
        scene.print(session, "".join(f"{number:099d}\n" for number in range(200)))

    texts = await scene.turn(calls=40, tool=much)
    assert TURN_CHARS - 4_000 < sum(map(len, texts)) <= TURN_CHARS
    await scene.end(session)
    (after,) = await scene.turn()
    assert "exit code 3" in after


async def test_three_processes_cost_few_characters_in_a_turn(scene: Scene) -> None:
    """A server that has logged two requests, a build with ten lines, a test that has ended."""
    server = await scene.session(1, printed="listening on 8000\n", command="python3 -m http.server 8000")
    build = await scene.session(2, command="make -j4 all")
    test = await scene.session(3, printed="3 passed\n", command="pytest -q tests/unit")
    await scene.turn()
    line = '127.0.0.1 - - [22/Nov/2026 13:00:00] "GET / HTTP/1.1" 200 -\n'
    scene.print(server, line * 2)
    scene.print(build, "".join(f"cc -O2 -c -o build/file{number}.o src/file{number}.c\n" for number in range(10)))
    await scene.end(test)
    (text,) = await scene.turn()
    assert len(text) < 1_200
    assert len("".join(await scene.turn())) == 0


async def test_the_look_finds_what_to_show_among_thousands_that_have_ended(scene: Scene, database: Database) -> None:
    from shellback.storage import session_rows
    from shellback.storage.tables import sessions as table

    end = SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=1.0)
    rows = [
        session_rows.to_row(replace(a_session(number), host_id="local", state=end.state, end=end))
        for number in range(10, 3_010)
    ]
    database.write_now(lambda conn: conn.execute(table.insert(), rows))
    session = await scene.session(1, printed="x\n")
    found = database.read_now(sessions.shown, "c1", scene.engine.host_id, time.time() - 300)
    assert [one.id for one in found] == [session.id]
    assert (await scene.store.get(SessionId("s10"))) is not None


async def test_an_end_waits_until_a_look_has_read_its_letters_and_its_processes(database: Database) -> None:
    """So the end is told by its letter alone: the look does not show it before it has the letter."""
    talk, ended = Talk(database), threading.Event()
    item, epoch = talk.entered()
    session = a_session(1, host_id=HOST)
    sink = CallbackSink(talk.queue, HOST, lambda one: {"session_id": one.id})
    end = SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=time.time())

    def finish() -> None:
        database.write_now(sessions.finish, session.id, end, sink)
        ended.set()

    def news(_conn: sa.Connection, _letters: Sequence[Letter]) -> None:
        ending.start()
        assert not ended.wait(0.3), "the end is recorded between the letters and the processes"

    database.write_now(sessions.claim, session)
    ending = threading.Thread(target=finish)
    found = database.write_now(looks.look, "c1", item.id, epoch, 1, news)
    ending.join()
    assert [letter.kind for letter in found.letters] == ["message"]
    assert [letter.kind for letter in talk.letters(item, epoch, 2)] == ["exit"]


async def test_a_repeated_look_returns_what_the_first_one_found(database: Database) -> None:
    talk = Talk(database)
    item, epoch = talk.entered()
    told = Told("[process]", {"s1": Seen(1, 2, over=True)})
    first = database.write_now(looks.look, "c1", item.id, epoch, 1, lambda _conn, _letters: told)
    talk.send("more")
    assert database.write_now(looks.look, "c1", item.id, epoch, 1) == first
    assert (first.told, [letter.payload["text"] for letter in first.letters]) == (told, ["hello"])
    assert talk.take(item, epoch, 2) == ["more"]
    database.write_now(stopping.stop, talk.queue, "c1", by="ann")
    stopped = database.write_now(looks.look, "c1", item.id, epoch, 3)
    assert stopped.wish is not None
    assert database.write_now(looks.look, "c1", item.id, epoch, 3) == stopped
