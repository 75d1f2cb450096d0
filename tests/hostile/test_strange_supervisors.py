"""A worker whose supervisor talks nonsense or is stopped: an error that names it, and never a second start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand, SupervisorUnreachable
from shellback.exec.engine.engine import Engine
from shellback.exec.link import launch, reaching
from shellback.exec.link.client import SupervisorClient
from shellback.exec.link.supervised import end_of
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import MAX_ANSWER, VERSION, ExitRecord, encode
from tests.execs import launch as background
from tests.supervisors import BOOT, SOON, Rig, state_of, stop, until

pytestmark = pytest.mark.anyio

HELLO: dict[str, Any] = {
    "ok": True, "version": VERSION, "pid": 1, "boot_id": BOOT, "instance": "x", "keeper": True, "keeper_pid": 1,
    "live": 0, "unacknowledged": 0, "descriptors": 99, "stopping": False,
}  # fmt: skip
RECORD: ExitRecord = {
    "version": VERSION, "session_id": "a", "boot_id": BOOT, "pid": 5, "starttime": 5, "state": "exited", "exit_code": 3,
    "signal": None, "errno": None, "evidence": None, "ended_by": "itself", "started_at": 1.0, "ended_at": 2.0,
    "duration_s": 1.0, "bytes_total": 0, "bytes_dropped": 0, "err_bytes_total": 0, "err_bytes_dropped": 0,
    "survivors": [], "known": 0, "init": None,
}  # fmt: skip


frame: Callable[[Any], bytes] = encode


@contextlib.asynccontextmanager
async def a_client(home: Path, **options: Any) -> AsyncGenerator[SupervisorClient]:
    client = SupervisorClient(home, **options)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def impostor(home: Path, said: Callable[[dict[str, Any]], bytes]) -> AsyncGenerator[list[int]]:
    """Something that listens where the supervisor does: it says hello as one, then what `said` answers a request.

    Yields the numbers of requests that each of its connections has had.
    """
    os.close(launch.folder(home))
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = len(connections)
        connections.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                request = json.loads(await reader.readexactly(length))
                connections[mine] += 1
                hello = request["op"] == "hello"
                writer.write(frame({**HELLO, "id": request["id"]}) if hello else said(request))
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, home / layout.SUPERVISOR / layout.SOCKET)
    try:
        yield connections
    finally:
        server.close()


NONSENSE: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "not JSON": lambda _: struct.pack(">I", 3) + b"{{{",
    "too long": lambda _: struct.pack(">I", MAX_ANSWER),
    "a list": lambda _: frame([1]),
    "no number": lambda _: frame({"ok": True}),
    "a number that is a list": lambda _: frame({"id": [1], "ok": True}),
    "an answer that is neither yes nor no": lambda request: frame({"id": request["id"]}),
    "a refusal without a reason": lambda request: frame({"id": request["id"], "ok": False}),
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_a_supervisor_that_talks_nonsense_is_named_and_not_asked_again_at_once(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    home, told = tmp_path / "home", list[ExitRecord]()
    async with impostor(home, NONSENSE[what]) as connections, a_client(home, on_exit=told.append) as client:
        with pytest.raises(SupervisorUnreachable, match=f"listens in {home} says what this program"):
            await client.status("a")
        assert connections == [2]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_ends_that_name_nobody_are_logged_and_the_others_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strange: list[Any] = [None, 5, [], {}, {"session_id": 7}, {"session_id": "../x"}]
    events = b"".join(frame({"event": "exit", "record": record}) for record in strange)
    events += frame({"event": "party"}) + frame({"event": "exit", "record": RECORD})
    told: list[ExitRecord] = []

    def said(request: dict[str, Any]) -> bytes:
        return events + frame({"id": request["id"], "ok": True, "sessions": [], "ended": [*strange, RECORD]})

    home = tmp_path / "home"
    async with impostor(home, said) as connections, a_client(home, on_exit=told.append) as client:
        assert (await client.list())[1] == [RECORD]
        assert told == [RECORD]
        assert len(connections) == 1
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2 * len(strange)


@pytest.mark.parametrize(
    "changed",
    [
        {"exit_code": "abc"},
        {"survivors": 5},
        {"version": VERSION + 1},
        {"state": "lost"},
        {"signal": 9},
        {"exit_code": True},
    ],
)
def test_the_worker_believes_no_part_of_a_record_that_is_not_whole(
    changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert end_of(RECORD).exit_code == 3
    end = end_of({**RECORD, **changed})
    assert (end.state, end.evidence, end.exit_code, end.signal) == ("lost", "record_unreadable", None, None)
    assert "an exit record cannot be read" in caplog.text


async def test_a_request_that_is_too_long_is_refused_at_once(sup: Rig) -> None:
    before = await sup.pids()
    answer = await sup.start("a", "/bin/echo", "x" * (3 << 20))
    assert answer["error"] == "bad_request"
    await sup.start("b", "read line; exit 3", keep_stdin_open=True)
    with pytest.raises(InvalidCommand, match="the limit is"):
        await sup.client.write("b", b"x" * (3 << 20), key="1")
    await sup.client.write("b", b"\n")
    assert (await sup.exit("b"))["exit_code"] == 3
    assert await sup.pids() == before


@contextlib.contextmanager
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(reaching, "NO_ANSWER_S", 0.3)
        patch.setattr(reaching, "_HELLO_S", 0.3)
        patch.setattr(reaching, "CONNECT_S", 0.5)
        yield


async def test_a_stopped_supervisor_is_named_and_goes_on_where_it_was(
    tmp_path: Path, sup: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, _ = await sup.pids()
    await sup.start("a", "read line; echo $line; exit 7", keep_stdin_open=True)
    await stop(pid)
    try:
        with _impatient(monkeypatch):
            with pytest.raises(SupervisorUnreachable, match=rf"{sup.home} does not answer.*process {pid}"):
                await sup.client.list()
            with pytest.raises(SupervisorUnreachable, match="does not answer"):
                await sup.start("b", f"echo x >> {tmp_path}/b; exit 8")
            # Whoever comes anew starts no second one, and whoever only looks does not say that there is none.
            for spawn in (True, False):
                async with a_client(sup.home, spawn=spawn) as newcomer:
                    with pytest.raises(SupervisorUnreachable, match="stopped, or hangs") as raised:
                        await newcomer.connect()
                assert type(raised.value) is SupervisorUnreachable
    finally:
        os.kill(pid, signal.SIGCONT)
    await sup.client.write("a", b"on\n", key="1")
    assert (await sup.exit("a"))["exit_code"] == 7
    assert sup.log("a") == b"on\n"
    assert (await sup.exit("b"))["state"] == "exited"
    assert (await sup.start("b", "exit 9"))["outcome"] == "already"
    assert (await sup.pids())[0] == pid


async def test_a_start_that_a_stopped_supervisor_has_yet_to_read_happens_once_or_is_given_up(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await background(engine, "exec sleep 60")
    async with a_client(tmp_path / "home", spawn=False) as client:
        pid = (await client.info())["pid"]
    await stop(pid)
    try:
        with _impatient(monkeypatch), pytest.raises(SupervisorUnreachable, match="does not answer"):
            await background(engine, "echo x >> once; sleep 0.1; exit 6")
    finally:
        os.kill(pid, signal.SIGCONT)
    await engine.reconcile()
    (session,) = [one for one in await engine.store.list() if "once" in one.command]
    ended = await engine.wait(session.id, up_to=SOON)
    assert ended.end is not None
    if ended.end.exit_code is None:
        assert ended.end.evidence == "never_started"
        assert not (engine.workspace / "once").exists()
    else:
        assert ended.end.exit_code == 6
        assert (engine.workspace / "once").read_text() == "x\n"
    assert ended.delivery == "callback"


async def test_output_and_end_of_a_command_that_filled_its_pipe_while_the_supervisor_was_stopped(sup: Rig) -> None:
    pid, _ = await sup.pids()
    pids: list[int] = []
    for name, size, code in (("full", 65_536, 7), ("over", 300_000, 8)):
        script = f"trap 'kill $!; head -c {size} /dev/zero; exit {code}' USR1; echo ready >&2; sleep 60 & wait"
        pids.append((await sup.start(name, script, separate_stderr=True))["pid"])
        await until(lambda: b"ready" in sup.log(name, layout.ERR))  # noqa: B023 - waited for at once
    await stop(pid)
    try:
        for one in pids:
            os.kill(one, signal.SIGUSR1)
        await until(lambda: state_of(pids[0]) == "Z")
    finally:
        os.kill(pid, signal.SIGCONT)
    for name, size, code in (("full", 65_536, 7), ("over", 300_000, 8)):
        record = await sup.exit(name)
        assert (record["exit_code"], record["bytes_total"], record["bytes_dropped"]) == (code, size, 0)
        assert sup.log(name) == b"\0" * size
