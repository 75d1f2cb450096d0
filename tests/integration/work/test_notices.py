"""Notices: written once with what they tell, sent with patience, never in the way of anything else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.settings import Settings, SettingsError, plain_environment
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable
from shellback.storage.tables import notices as rows
from shellback.work.approvals import approvals
from shellback.work.approvals.showing import card
from shellback.work.notices import notices, notifier
from shellback.work.notices.notices import Outbox
from shellback.work.notices.notifier import Command, Notifier, NotSent, Target, Webhook
from shellback.work.worker.worker import WorkerConfig
from tests.items import PROPOSED, Talk
from tests.otlp import answering

pytestmark = pytest.mark.anyio
PATIENCE_S = 30.0
BOX = Outbox(host="here", on=True)


class Receiver:
    """A web server on loopback that answers with these statuses in turn, the last for good."""

    def __init__(self, *statuses: int, hold: threading.Event | None = None) -> None:
        self.got: list[dict[str, Any]] = []
        self._left, self._hold = list(statuses), hold
        self._served = contextlib.ExitStack()
        self.url = f"{self._served.enter_context(answering(self._answer))}/hook/s3cret"
        self.close = self._served.close

    def _answer(self, _asked: object, body: bytes) -> int:
        self.got.append(json.loads(body))
        if self._hold is not None:
            self._hold.wait(PATIENCE_S)
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


Receive = Callable[..., Receiver]


@pytest.fixture
def receive() -> Iterator[Receive]:
    with contextlib.ExitStack() as made:

        def make(*statuses: int, **more: Any) -> Receiver:
            return made.enter_context(contextlib.closing(Receiver(*statuses, **more)))

        yield make


@contextlib.asynccontextmanager
async def notifying(db: Database, target: Target, **more: Any) -> AsyncGenerator[Notifier]:
    more.setdefault("delays_s", (0.05, 0.05, 0.05))
    made = Notifier(db, target, **more)
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def put(db: Database, key: str = "k1", text: str = "look here") -> None:
    db.write_now(BOX.put, "alarm", "c1", key, text)


def found(db: Database) -> list[Any]:
    return db.read_now(lambda conn: list(conn.execute(sa.select(rows).order_by(rows.c.id))))


async def until(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)
    return seen


def states(db: Database) -> list[tuple[str, int]]:
    return [(row.state, row.attempts) for row in found(db)]


async def test_what_fails_twice_is_sent_the_third_time_and_once(database: Database, receive: Receive) -> None:
    receiver = receive(503, 500, 200)
    put(database)
    async with notifying(database, Webhook(receiver.url)):
        await until("it is sent", lambda: states(database) == [("sent", 3)])
    assert len(receiver.got) == 3
    told = receiver.got[-1]
    assert set(told) == {"kind", "conversation", "text", "approval", "link", "at", "host"}
    assert (told["kind"], told["conversation"], told["text"], told["host"]) == ("alarm", "c1", "look here", "here")
    assert found(database)[0].error is None


async def test_a_target_that_is_down_for_good_is_given_up_and_no_secret_is_written(
    sqlite: Database, receive: Receive, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receive(200)
    receiver.close()
    put(sqlite)
    with caplog.at_level(logging.DEBUG, logger="shellback"):
        async with notifying(sqlite, Webhook(receiver.url)):
            await until("it is given up", lambda: states(sqlite) == [("given_up", 4)])
            await until("the log says so", lambda: "given up" in caplog.text)
    error = found(sqlite)[0].error
    assert "ConnectError" in error
    assert "s3cret" not in caplog.text + error
    state = sqlite.read_now(notices.told)
    assert (state.given_up, state.error) == (1, error)


async def test_redirects_are_not_followed(sqlite_url: str, receive: Receive) -> None:
    receiver = receive(302)
    with pytest.raises(NotSent, match="status 302, and redirects are not followed"):
        await Webhook(receiver.url).send({"kind": "alarm"})
    assert len(receiver.got) == 1


async def test_a_slow_target_holds_up_nothing_and_is_cut_off(sqlite: Database, receive: Receive) -> None:
    hold = threading.Event()
    receiver = receive(200, hold=hold)
    for number in range(6):
        put(sqlite, f"k{number}")
    try:
        async with notifying(sqlite, Webhook(receiver.url), timeout_s=PATIENCE_S):
            await until("four are on their way", lambda: len(receiver.got) == 4)
            began = time.monotonic()
            await asyncio.gather(*(sqlite.write(BOX.put, "alarm", "c1", f"more{n}", "x") for n in range(20)))
            assert time.monotonic() - began < PATIENCE_S / 2
            assert len(receiver.got) == 4, "no more than four at once"
        async with notifying(sqlite, Webhook(receiver.url), timeout_s=0.3, delays_s=()):
            await until("cut off", lambda: ("given_up", 1) in states(sqlite))
        assert any("within 0.3 s" in (row.error or "") for row in found(sqlite))
    finally:
        hold.set()


async def test_two_notifiers_send_each_notice_once(database: Database, receive: Receive) -> None:
    receiver = receive(200)
    for number in range(12):
        put(database, f"k{number}", f"n{number}")
    async with notifying(database, Webhook(receiver.url)), notifying(database, Webhook(receiver.url)):
        await until("all are sent", lambda: states(database) == [("sent", 1)] * 12)
    assert sorted(told["text"] for told in receiver.got) == sorted(f"n{number}" for number in range(12))


async def test_what_a_dead_worker_had_taken_is_sent_after_its_lease(database: Database, receive: Receive) -> None:
    put(database)
    assert len(database.write_now(notices.take, limit=4, lease_s=60.0)) == 1
    assert database.write_now(notices.take, limit=4, lease_s=60.0) == []
    a_minute_ago = {"due_at": rows.c.due_at - 60.0}
    database.write_now(lambda conn: conn.execute(sa.update(rows).values(a_minute_ago)) and None)
    receiver = receive(200)
    async with notifying(database, Webhook(receiver.url)):
        await until("it is sent", lambda: states(database) == [("sent", 2)])
    assert len(receiver.got) == 1


async def test_a_command_gets_the_notice_on_its_input_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    out = tmp_path / "out"
    script = f"import sys,os,json; json.dump([sys.stdin.read(), dict(os.environ)], open({str(out)!r}, 'w'))"
    await Command([sys.executable, "-c", script], plain_environment()).send({"kind": "alarm", "text": "ü"})
    told, environ = json.loads(out.read_text())
    assert json.loads(told) == {"kind": "alarm", "text": "ü"}
    assert "s3cret" not in environ.values()
    with pytest.raises(NotSent, match="ended with 3"):
        await Command(["/bin/sh", "-c", "exit 3"], plain_environment()).send({})
    with pytest.raises(NotSent, match="cannot be started"):
        await Command([str(tmp_path / "none")], plain_environment()).send({})


async def test_a_command_that_hangs_is_killed_with_what_it_started(sqlite: Database, tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    put(sqlite)
    hangs = Command(["/bin/sh", "-c", f"exec 9>{fifo}; echo up >&9; sleep 300 & sleep 300"], plain_environment())
    async with notifying(sqlite, hangs, timeout_s=4.0, delays_s=()):
        await until("it is given up", lambda: states(sqlite) == [("given_up", 1)])
    # The pipe ends only when everybody who holds it is gone.
    assert await asyncio.wait_for(asyncio.to_thread(_all_of, reader), PATIENCE_S) == b"up\n"


def _all_of(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


async def test_an_approval_is_told_once_however_often_its_turn_is_closed(talk: Talk) -> None:
    item, epoch = talk.entered()
    for _ in range(2):
        talk.close(item, epoch, "pending_approval", proposed=(PROPOSED,), outbox=BOX)
    (row,) = found(talk.db)
    assert row.payload["approval"]["tool"] == "execute"
    assert row.payload["approval"]["display"] == PROPOSED.display
    assert row.payload["approval"]["id"] in row.payload["text"]
    put(talk.db, "k2")
    put(talk.db, "k2")
    assert [row.kind for row in found(talk.db)] == ["approval", "alarm"]


async def test_a_notice_of_a_call_begins_as_its_card_does_and_is_bounded(talk: Talk) -> None:
    item, epoch = talk.entered()
    long = PROPOSED.display | {"command": "echo one\n" + "word " * 5_000, "tier": "admin", "reason": "the reason"}
    other = replace(PROPOSED, display=long, digest="d2", call_key="k2", tool_call_id="t2")
    talk.close(item, epoch, "pending_approval", proposed=(PROPOSED, other), outbox=BOX)
    short, cut = (row.payload for row in found(talk.db))
    request = talk.db.read_now(approvals.get, short["approval"]["id"])
    assert short["text"].split("\n")[0] == card(request)[0] == f"? {PROPOSED.display['command']}"
    assert set(short["text"].split("\n")) <= set(card(request))
    text = cut["text"]
    assert len(text) < notices.TEXT_CHARS
    assert text.startswith("? echo one\n      word word")
    rest = r"word\n    tier: admin, because the reason\n    cut: 2\d,\d{3} more characters\n    request: "
    assert re.search(rest, text), text
    assert cut["approval"]["shown"].count("word") == 5_000


async def test_secrets_are_hidden_in_all_of_a_notice_when_it_is_sent(sqlite: Database, receive: Receive) -> None:
    receiver = receive(200)
    call = {"id": "a1", "shown": "say s3cret", "display": {"command": "say s3cret", "parts": [{"text": "s3cret"}, 1]}}
    sqlite.write_now(BOX.put, "approval", "c1", "k1", "? say s3cret", call)

    def hide(text: str) -> str:
        return text.replace("s3cret", "[secret S]")

    sqlite.write_now(BOX.put, "alarm", "c1", "k2", "x" * (notices.TEXT_CHARS - 3) + "s3cret")
    async with notifying(sqlite, Webhook(receiver.url), hide=hide):
        await until("both are sent", lambda: states(sqlite) == [("sent", 1)] * 2)
    told, cut = sorted(receiver.got, key=lambda one: len(one["text"]))
    assert "s3cret" not in str(told)
    assert told["text"] == "? say [secret S]"
    # Half of a secret would not be found.
    assert cut["text"] == "x" * (notices.TEXT_CHARS - 3) + "[se…"
    assert told["approval"]["display"]["parts"] == [{"text": "[secret S]"}, 1]


async def test_a_command_of_a_worker_that_was_killed_ends_soon(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    program = (
        "import asyncio, shellback.work.notices.notifier as n\n"
        "n.ORPHAN_S = 1.0\n"
        f"argv = ['/bin/sh', '-c', 'exec 9>{fifo}; echo up >&9; sleep 300 & sleep 300']\n"
        "asyncio.run(n.Command(argv, {'PATH': '/usr/bin:/bin'}).send({}))\n"
    )
    worker = subprocess.Popen(  # noqa: ASYNC220 - returns at once
        [sys.executable, "-c", program]
    )
    try:
        reader = await asyncio.wait_for(asyncio.to_thread(fifo.open, "rb", 0), PATIENCE_S)
        assert await asyncio.to_thread(reader.read, 3) == b"up\n"
    finally:
        worker.kill()
        worker.wait()
    with reader:
        # The pipe ends only when everybody who holds it is gone.
        assert await asyncio.wait_for(asyncio.to_thread(reader.read), PATIENCE_S) == b""


async def test_a_database_that_is_away_for_a_while_keeps_no_notice_from_being_sent(
    sqlite: Database, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, refused = receive(200), 0
    put(sqlite)
    write = sqlite.write

    async def away(fn: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal refused
        if refused < 3 and fn in {notices.take, notices.sent}:
            refused += 1
            raise DatabaseUnreachable("it is away")
        return await write(fn, *args, **kwargs)

    monkeypatch.setattr(sqlite, "write", away)
    monkeypatch.setattr(notifier, "IDLE_S", 0.05)
    async with notifying(sqlite, Webhook(receiver.url)):
        await until("it is sent", lambda: states(sqlite) == [("sent", 1)])
    assert (refused, len(receiver.got)) == (3, 1)


async def test_what_is_being_sent_is_cut_off_at_the_end_also_after_another_one_failed(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    slow = asyncio.Event()

    class Halting:
        async def send(self, payload: dict[str, Any]) -> None:
            if payload["text"] == "quick":
                await slow.wait()
                return
            slow.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(payload["text"])

    write = sqlite.write

    async def away(fn: Any, *args: Any, **kwargs: Any) -> Any:
        if fn is notices.sent:
            raise DatabaseUnreachable("it is away")
        return await write(fn, *args, **kwargs)

    monkeypatch.setattr(sqlite, "write", away)
    put(sqlite, "k1", "quick")
    put(sqlite, "k2", "slow")
    async with notifying(sqlite, Halting(), timeout_s=PATIENCE_S):
        await asyncio.wait_for(slow.wait(), PATIENCE_S)
        await until("the other has failed", lambda: states(sqlite) == [("waiting", 1)] * 2)
        await asyncio.sleep(0.1)
    assert ended == ["slow"]


async def test_the_words_of_a_notice_drive_no_terminal_and_any_text_can_be_sent(
    sqlite: Database, receive: Receive
) -> None:
    receiver = receive(200)
    call = {"id": "a1", "tool": "execute", "display": {"command": "echo \x1b]0;hi\x07 \ud800"}}
    sqlite.write_now(BOX.put, "approval", "c1", "k1", "execute waits: echo \x1b]0;hi\x07\u202e\ud800", call)
    async with notifying(sqlite, Webhook(receiver.url)):
        await until("it is sent", lambda: states(sqlite) == [("sent", 1)])
    (told,) = receiver.got
    assert told["text"] == r"execute waits: echo \x1b]0;hi\x07\u{202E}\u{D800}"
    assert ascii(told["approval"]["display"]["command"]) == ascii("echo \x1b]0;hi\x07 \ud800")


@pytest.mark.parametrize(
    "wrong",
    [
        {"NOTIFY_WEBHOOK": "ftp://example.com/s3cret"},
        {"NOTIFY_WEBHOOK": "http:///s3cret"},
        {"NOTIFY_WEBHOOK": "s3cret"},
        {"NOTIFY_WEBHOOK": "https://example.com/s3cret", "NOTIFY_COMMAND": "mail"},
        {"NOTIFY_WEBHOOK": "https://example.com:port/s3cret"},
        {"NOTIFY_COMMAND": "mail 'unfinished"},
    ],
)
async def test_a_wrong_target_is_refused_at_the_start_without_showing_its_key(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.load(wrong)
    assert "NOTIFY_" in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_neither_a_sender_of_notices_nor_the_configuration_of_a_worker_shows_secrets(database: Database) -> None:
    sender = Notifier(database, Webhook("https://hooks.example/T0/secret"))
    worker = WorkerConfig(executor_id="e", host_id="h", boot_id="b", system_database_url="postgresql://u:secret@h/x")
    assert "secret" not in f"{sender} {sender.ring} {worker}"
