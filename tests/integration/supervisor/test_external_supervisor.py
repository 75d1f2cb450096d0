"""A supervisor run as a service of its own: who starts it, who waits for it, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.link import launch, reaching
from shellback.exec.link.client import SupervisorClient
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import VERSION
from shellback.settings import plain_environment
from tests.supervisors import Rig, end, gone, until

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0
APP = Path(launch.__file__).parents[2]
PROGRAM = (sys.executable, "-P", "-m", "shellback", "supervisor")


class Service:
    """`shellback supervisor` as whoever watches over services runs it."""

    def __init__(self, home: Path, argv: Sequence[str] = PROGRAM) -> None:
        environ = {**plain_environment(), "SHELLBACK_HOME": str(home), "SUPERVISOR_IDLE_SECONDS": "0.1"}
        self.process = subprocess.Popen(argv, env=environ, cwd=home, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    async def line(self) -> str:
        assert self.process.stderr is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stderr.readline), PATIENCE_S)
        return line.decode().strip()

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


@contextlib.asynccontextmanager
async def service(rig: Rig, argv: Sequence[str] = PROGRAM) -> AsyncGenerator[Service]:
    """One that is ready; the client of the rig is closed at the end."""
    made = Service(rig.home, argv)
    try:
        assert await made.line() == "ready"
        yield made
    finally:
        await rig.client.close()
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGTERM)
            await made.ended()
        assert made.process.stderr is not None
        made.process.stderr.close()


@pytest.fixture
def outside(tmp_path: Path) -> Rig:
    """A client that starts no supervisor and waits a while for one."""
    return Rig(tmp_path / "home", spawn=False, wait_s=PATIENCE_S)


async def test_a_worker_that_came_first_waits_until_the_service_is_there_and_says_so(
    outside: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "_AWAY_S", 0.2)
    waiting = asyncio.create_task(outside.client.connect())
    await until(lambda: caplog.records)
    said = caplog.records[0].getMessage()
    assert "SUPERVISOR=external" in said
    assert "`shellback supervisor`" in said
    assert not (outside.home / layout.SUPERVISOR / layout.SOCKET).exists()
    async with service(outside) as running:
        hello = await waiting
        # The process that was started is the keeper: whoever watches over it watches the parent of everything.
        assert hello["keeper_pid"] == running.process.pid
    assert [record.getMessage() for record in caplog.records[1:]] == [f"the supervisor in {outside.home} answers"]


async def test_where_none_comes_a_worker_gives_up_with_cause_and_remedy(tmp_path: Path) -> None:
    lonely = SupervisorClient(tmp_path / "home", spawn=False, wait_s=0.1)
    with pytest.raises(SupervisorUnreachable, match=r"SUPERVISOR=external.*waited 0 s.*`shellback supervisor`"):
        await lonely.connect()
    await lonely.close()
    assert [path.name for path in (tmp_path / "home" / "supervisor").iterdir()] == []


async def test_a_service_that_is_told_to_end_waits_until_its_last_ends_are_recorded(outside: Rig) -> None:
    async with service(outside) as running:
        await outside.start("s1", "trap 'exit 7' TERM; echo on; while :; do sleep 0.1; done", background=True)
        await outside.until_log("s1", b"on")
        running.process.send_signal(signal.SIGTERM)
        await outside.exit("s1")
        # A worker records an end before it acknowledges it; on a busy machine that takes a while.
        await asyncio.sleep(0.4)
        assert await outside.client.ack("s1")
        assert await running.ended() == 0
    async with service(outside):
        after = outside.another()
        await after.connect()
        assert (await after.list())[1] == []
        await after.close()


def impatient(folder: Path) -> Path:
    """A copy of the program that waits two seconds where it would wait five for commands to end."""
    root = folder / "impatient"
    shutil.copytree(APP / "exec", root / "shellback" / "exec", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "shellback" / "__init__.py").touch()
    requests = root / "shellback" / "exec" / "supervisor" / "service" / "requests.py"
    text = requests.read_text()
    assert "_END_GRACE_S: Final = 5.0\n" in text
    requests.write_text(text.replace("_END_GRACE_S: Final = 5.0\n", "_END_GRACE_S: Final = 2.0\n"))
    return root


async def test_a_service_outlives_idleness_and_the_death_of_its_supervisor_and_ends_commands_when_it_is_told_to(
    outside: Rig, tmp_path: Path
) -> None:
    async with service(outside, launch.service_argv(outside.home, root=str(impatient(tmp_path)))) as running:
        first, _ = await outside.pids()
        await outside.client.close()
        # Five times the idle time that a supervisor of a worker would have had here.
        await asyncio.sleep(0.5)
        outside.client = outside.another()
        assert (await outside.pids())[0] == first
        await outside.start("s1", "trap 'exit 7' TERM; echo on; while :; do sleep 0.1; done", background=True)
        await outside.start("s2", "trap '' TERM; echo on; while :; do sleep 0.1; done", background=True)
        await outside.until_log("s1", b"on")
        await outside.until_log("s2", b"on")
        pids = [row["pid"] for row in (await outside.client.list())[0]]
        await outside.kill_supervisor()
        assert "supervisor ended with -9" in await running.line()
        assert sorted(await outside.live()) == ["s1", "s2"]
        running.process.send_signal(signal.SIGTERM)
        told = {name: await outside.exit(name) for name in ("s1", "s2")}
        assert await running.ended() == 0
        assert all([await gone(pid) for pid in pids])
    assert (told["s1"]["exit_code"], told["s1"]["ended_by"]) == (7, "shutdown")
    assert (told["s2"]["signal"], told["s2"]["ended_by"]) == (signal.SIGKILL, "shutdown")
    # Nobody has acknowledged them, so whoever comes after the next start is told again.
    async with service(outside):
        after = outside.another()
        await after.connect()
        assert {record["session_id"] for record in (await after.list())[1]} == {"s1", "s2"}
        await after.close()


async def test_a_service_told_to_retire_serves_on_until_no_command_runs(outside: Rig) -> None:
    async with service(outside) as running:
        await outside.start("long", "read -r line; exit 3", background=True, keep_stdin_open=True)
        running.process.send_signal(signal.SIGHUP)
        # Told already, and still it starts what a worker asks for.
        assert (await outside.run("more", "exit 5"))["exit_code"] == 5
        assert running.process.poll() is None
        await outside.client.write("long", b"go\n")
        assert (await outside.exit("long"))["exit_code"] == 3
        assert await running.ended() == 0


async def test_a_service_that_a_client_has_asked_to_stop_still_ends_commands_when_it_is_told_to(outside: Rig) -> None:
    async with service(outside) as running:
        await outside.start("s1", "echo on; exec sleep 600", background=True, shows=b"on")
        await outside.client.stop()
        running.process.send_signal(signal.SIGTERM)
        assert (await outside.exit("s1"))["ended_by"] == "shutdown"
        assert await running.ended() == 0


@pytest.mark.parametrize(("number", "order"), [(signal.SIGHUP, "retire"), (signal.SIGINT, "end")])
async def test_a_service_obeys_signals_that_its_starter_ignored(
    outside: Rig, number: signal.Signals, order: str
) -> None:
    ignoring = ["/bin/sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *PROGRAM]
    async with service(outside, ignoring) as running:
        assert (await outside.run("s1", "kill -HUP $$; exit 5"))["signal"] == signal.SIGHUP
        running.process.send_signal(number)
        await outside.client.close()
        assert await running.ended() == 0
    assert f"told to {order}" in (outside.home / layout.SUPERVISOR / layout.DIARY).read_text()


async def test_a_second_service_is_refused_and_harms_nothing(outside: Rig) -> None:
    async with service(outside):
        second = Service(outside.home)
        assert await second.ended() == 2
        assert "a supervisor serves" in await second.line()
        assert second.process.stderr is not None
        second.process.stderr.close()
        assert (await outside.run("s1", "exit 4"))["exit_code"] == 4


async def test_commands_of_a_service_whose_main_process_was_killed_are_heard_to_their_end(outside: Rig) -> None:
    async with service(outside):
        await outside.start("s1", "read -r line; exit 6", background=True, keep_stdin_open=True)
        supervisor, keeper = await outside.pids()
        await end(keeper)
        await outside.client.write("s1", b"go\n")
        assert (await outside.exit("s1"))["exit_code"] == 6
        await outside.client.close()
        assert await gone(supervisor)


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
async def test_a_supervisor_of_another_version_is_refused_with_what_to_do(
    outside: Rig, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async with service(outside):
        monkeypatch.setattr(reaching, "VERSION", version)
        with pytest.raises(
            SupervisorUnreachable, match=rf"speaks version {VERSION}; .*Let its commands end.*restart the supervisor"
        ):
            await outside.client.connect()


@pytest.mark.parametrize(("folder", "mode"), [("home", 0o770), ("home/supervisor", 0o750)])
async def test_a_state_directory_that_others_can_enter_is_refused_with_the_remedy(
    tmp_path: Path, folder: str, mode: int
) -> None:
    (tmp_path / "home" / "supervisor").mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    (tmp_path / folder).chmod(mode)
    client = SupervisorClient(tmp_path / "home")
    with pytest.raises(SupervisorUnreachable, match=f"chmod 700 {tmp_path / folder}"):
        await client.connect()
    await client.close()
