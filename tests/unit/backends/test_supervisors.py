"""Several supervisors behind one: each session has one place, and what cannot be reached is not taken for gone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellback.exec.backends import homes
from shellback.exec.backends.container import Container
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.errors import BackendUnavailable, LimitReached, TaskCompleted
from shellback.exec.link import launch
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import kept_logs, remove_session
from shellback.exec.log.placements import Placements
from shellback.exec.supervisor.records.records import ABANDONED, Records
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import ExitRecord, StartRequest
from tests.supervisors import BOOT, UID, end, until

pytestmark = pytest.mark.anyio


async def _nothing() -> None: ...


class Town:
    """A state directory with homes in it whose supervisors run here: a container is not needed to be routed to."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.told: list[ExitRecord] = []
        self.reconnected = 0
        self.revived: list[str] = []
        self.broken = False
        self.routers: list[Supervisors] = []
        self.router = self.another()

    def home(self, name: str) -> Path:
        home = self.state / "containers" / name
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(launch.folder(home))
        return home

    def another(self, *, revive: bool = True, watch: bool = True, **more: Any) -> Supervisors:
        """A router as a worker has one; without `revive` as the command line does."""
        host = SupervisorClient(self.state, spawn=revive, idle_s=1.0)
        more = {"host_needed": False, **more}
        containers: Any = SimpleNamespace(revive=self.revive, close=_nothing) if revive else None
        made = Supervisors(host, self.state, containers=containers, **more)
        if watch:
            made.on_exit, made.on_reconnect = self.told.append, self._reconnected
        self.routers.append(made)
        return made

    def _reconnected(self) -> None:
        self.reconnected += 1

    async def revive(self, home: Path) -> None:
        self.revived.append(home.name)
        if self.broken:
            raise BackendUnavailable("no podman; install it")
        await asyncio.to_thread(self._listen, home)

    def _listen(self, home: Path) -> None:
        fd = launch.folder(home)
        try:
            launch.ensure(home, fd, None, 60.0)
        finally:
            os.close(fd)

    async def start(self, name: str, home: Path | None, script: str = "exit 3", **more: Any) -> Any:
        fields: dict[str, Any] = {
            "session_id": name, "argv": ("/bin/sh", "-c", script), "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/",
            "boot_id": BOOT, "uid": UID, **more,
        }  # fmt: skip
        return await self.router.start(StartRequest(**fields), home=home)

    async def ended(self, name: str) -> ExitRecord:
        await until(lambda: any(record["session_id"] == name for record in self.told))
        return next(record for record in self.told if record["session_id"] == name)

    async def fell(self, home: Path) -> None:
        """Kill all that runs for a home at once, as the end of a container does."""
        client = SupervisorClient(home, spawn=False)
        info, running = await client.connect(), (await client.list())[0]
        await client.close()
        os.kill(info["keeper_pid"], signal.SIGSTOP)
        for pid in (info["pid"], *(row["pid"] for row in running), info["keeper_pid"]):
            await end(pid)

    async def close(self) -> None:
        for router in self.routers:
            await router.close()
        for home in (self.state, *Placements(self.state).homes()):
            if homes.kept(home):
                client = SupervisorClient(home, spawn=False)
                for row in (await client.list())[0]:
                    await client.kill(row["session_id"], grace_s=0.0, ended_by="shutdown")
                await client.stop()
                await client.close()


@pytest.fixture
async def made(tmp_path: Path) -> AsyncGenerator[Town]:
    made = Town(tmp_path / "state")
    made.state.mkdir(mode=0o700)
    try:
        await made.router.connect()
        yield made
    finally:
        await made.close()


async def test_a_session_is_found_by_one_path_wherever_it_runs(made: Town) -> None:
    one = made.home("one")
    hello = await made.router.connect()
    assert hello["boot_id"] == BOOT
    assert not homes.kept(made.state), "nobody needs the host's supervisor yet"
    assert (await made.start("a", one, "echo in; exit 3"))["outcome"] == "started"
    assert (await made.start("b", None, "echo out; exit 4"))["outcome"] == "started"
    ends = {name: (await made.ended(name))["exit_code"] for name in ("a", "b")}
    assert ends == {"a": 3, "b": 4}
    sessions = made.state / layout.SESSIONS
    assert os.readlink(sessions / "a") == "../containers/one/sessions/a"
    assert [(sessions / name / layout.LOG).read_text() for name in ("a", "b")] == ["in\n", "out\n"]
    assert {record["session_id"] for record in (await made.router.list())[1]} == {"a", "b"}
    assert await made.router.ack("a")
    assert await made.router.ack("b")
    assert (one / "sessions/a" / layout.ACKED).exists()
    assert (await made.router.list())[1] == []


async def test_what_was_placed_in_one_home_is_never_started_in_another(tmp_path: Path, made: Town) -> None:
    one, two = made.home("one"), made.home("two")
    flag = tmp_path / "ran"
    Placements(made.state).place("a", one)
    for elsewhere in (two, None):
        answer = await made.start("a", elsewhere, f"echo x >> {flag}", uid=None)
        assert answer["error"] == "placed"
    await made.start("b", None)
    await made.ended("b")
    answer = await made.start("b", one, f"echo x >> {flag}", uid=None)
    assert (answer["outcome"], answer["status"]["record"]["exit_code"]) == ("already", 3)
    assert not (one / "sessions/b").exists()
    assert not flag.exists()
    assert not homes.kept(two)
    with pytest.raises(ValueError, match="is not in"):
        await made.start("c", tmp_path / "elsewhere")


async def test_the_supervisor_of_the_host_leaves_the_sessions_of_others_alone(made: Town) -> None:
    one = made.home("one")
    await made.start("a", one, "sleep 30", background=True)
    await made.start("b", None)
    assert (await made.ended("b"))["exit_code"] == 3
    assert [row["session_id"] for row in (await made.router.list())[0]] == ["a"]
    assert {record["session_id"] for record in made.told} == {"b"}
    assert Records(str(made.state)).sessions() == ["b"]


async def test_a_worker_that_starts_is_told_what_ended_while_it_was_away(made: Town) -> None:
    one = made.home("one")
    await made.start("a", one, "read -r _ || exit 5", background=True, stdin=None, keep_stdin_open=True)
    await made.router.close()
    made.router = made.another()
    await made.router.connect()
    await made.router.write("a", b"", eof=True)
    assert (await made.ended("a"))["exit_code"] == 5
    assert made.revived == ["one"], "it ran all the time"


async def test_a_supervisor_that_is_killed_is_started_again_by_its_keeper_and_nothing_is_revived(made: Town) -> None:
    one = made.home("one")
    await made.start("a", one, "read -r _; exit 9", background=True, keep_stdin_open=True)
    client = SupervisorClient(one, spawn=False)
    await end((await client.connect())["pid"])
    await client.close()
    await made.router.write("a", b"\n")
    assert (await made.ended("a"))["exit_code"] == 9
    assert made.revived == ["one"]
    assert made.reconnected == 1


async def test_a_container_that_owes_an_end_is_brought_up_and_one_that_does_not_is_left_alone(made: Town) -> None:
    owing, idle = made.home("owing"), made.home("idle")
    await made.start("a", owing, "sleep 30", background=True)
    await made.start("b", idle)
    await made.ended("b")
    await made.router.ack("b")
    made.revived.clear()
    await made.fell(idle)
    await made.fell(owing)
    record = await made.ended("a")
    assert record["exit_code"] is None
    assert made.revived == ["owing"]
    assert (await made.router.status("b"))["record"]["exit_code"] == 3
    with pytest.raises(TaskCompleted, match="does not run any more"):
        await made.router.kill("b", grace_s=0.0, ended_by="agent")
    assert not await made.router.ack("b")
    assert made.revived == ["owing"]


async def test_a_home_that_cannot_be_reached_hides_no_other_and_proves_nothing(
    made: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = made.home("one"), made.home("two")
    await made.start("a", one, "sleep 30", background=True)
    await made.start("b", two, "sleep 30", background=True)
    Placements(made.state).place("c", two)
    made.broken = True
    caplog.clear()
    await made.fell(two)
    assert [row["session_id"] for row in (await made.router.list())[0]] == ["a"]
    assert "what it runs is not known now" in caplog.text
    # A claim that was never begun can be given up without the container, and then never begins.
    assert (await made.router.status("c"))["state"] == "unknown"
    assert (await made.router.abandon("c"))["state"] == "abandoned"
    assert (two / "sessions/c" / layout.STARTED).read_bytes() == ABANDONED
    # What was begun has ended with the first process of its container.
    status = await made.router.status("b")
    assert (status["state"], status["record"]["evidence"]) == ("lost", "container_restarted")
    assert (await made.router.abandon("b"))["state"] == "lost"


async def test_a_home_that_was_removed_is_lost_and_never_takes_a_number(made: Town) -> None:
    one = made.home("one")
    Placements(made.state).place("claimed", one)
    await made.start("ran", one)
    await made.ended("ran")
    await made.fell(one)
    shutil.rmtree(one)
    for name in ("claimed", "ran"):
        for status in (await made.router.status(name), await made.router.abandon(name)):
            assert (status["state"], status["record"]["evidence"]) == ("lost", "record_unreadable")
            assert status["record"]["exit_code"] is None
        with pytest.raises(TaskCompleted):
            await made.router.kill(name, grace_s=0.0, ended_by="agent")
        assert not await made.router.ack(name)
    assert (await made.router.list())[0] == []
    answer = await made.start("ran", one)
    assert answer["outcome"] == "already", "made anew or not, it is not started a second time"
    again = made.home("one")
    await made.revive(again)
    assert (await made.router.status("claimed"))["record"]["evidence"] == "record_unreadable"


async def test_the_command_line_reaches_what_runs_and_brings_nothing_up(made: Town) -> None:
    one, two = made.home("one"), made.home("two")
    await made.start("a", one, "sleep 30", background=True)
    await made.start("b", two, "sleep 30", background=True)
    await made.router.close()
    await made.fell(two)
    made.revived.clear()
    cli = made.another(revive=False, watch=False, host_needed=True)
    assert (await cli.connect())["boot_id"] == BOOT
    assert [row["session_id"] for row in (await cli.list())[0]] == ["a"]
    with pytest.raises(TaskCompleted):
        await cli.kill("b", grace_s=0.0, ended_by="person")
    assert await cli.kill("a", grace_s=0.0, ended_by="person") == ()
    assert made.revived == []
    assert not homes.kept(made.state)


async def test_a_worker_of_another_backend_tells_what_ended_with_its_container(made: Town) -> None:
    one = made.home("one")
    await made.start("ran", one, "sleep 30", background=True)
    await made.router.close()
    await made.fell(one)
    made.revived.clear()
    other = made.another(revive=False, host_needed=True)
    status = await other.status("ran")
    assert (status["state"], status["record"]["evidence"]) == ("lost", "container_restarted")
    assert not await other.ack("ran")
    assert made.revived == []


async def test_a_bound_that_is_used_up_hides_nothing_of_those_who_are_spoken_to(made: Town) -> None:
    one, two = made.home("one"), made.home("two")
    await made.start("b", two, "sleep 30", background=True)
    bounded = made.another(clients=1)
    assert [row["session_id"] for row in (await bounded.list())[0]] == ["b"]
    await made.start("a", one, "sleep 30", background=True)  # by another worker, in a home that sorts first
    assert [row["session_id"] for row in (await bounded.list())[0]] == ["b"]


async def test_room_is_made_once_for_many_who_need_it_at_the_same_time(made: Town) -> None:
    made.router = made.another(clients=1)
    one, two = made.home("one"), made.home("two")
    await made.start("a", one)
    await made.ended("a")
    await made.router.ack("a")
    answers = await asyncio.gather(*(made.start(f"b{n}", two) for n in range(4)))
    assert {answer["outcome"] for answer in answers} == {"started"}
    assert list(made.router._clients) == [two]  # pyright: ignore[reportPrivateUsage]


async def test_a_start_that_meets_an_end_of_its_container_happens_in_the_next_one(made: Town) -> None:
    one = made.home("one")
    await made.start("a", one, "sleep 30", background=True)
    somebody = SupervisorClient(one, spawn=False)
    await somebody.stop()
    await somebody.close()
    start = asyncio.create_task(made.start("b", one))
    await until((made.state / "sessions/b").is_symlink)
    await made.router.kill("a", grace_s=0.0, ended_by="agent")
    assert (await start)["outcome"] == "started"
    assert (await made.ended("b"))["exit_code"] == 3


async def test_clients_are_bounded_and_those_of_removed_homes_are_let_go(made: Town) -> None:
    made.router = made.another(clients=2)
    homes = [made.home(name) for name in ("one", "two", "three")]
    await made.start("a", homes[0], "sleep 600", background=True)
    await made.start("b", homes[1])
    await made.ended("b")
    with pytest.raises(LimitReached, match="2 containers"):
        await made.start("c", homes[2])
    await made.router.ack("b")
    assert (await made.start("c", homes[2]))["outcome"] == "started"
    await made.ended("c")
    await made.fell(homes[2])
    shutil.rmtree(homes[2])
    assert [row["session_id"] for row in (await made.router.list())[0]] == ["a"]
    assert homes[2] not in made.router._clients  # pyright: ignore[reportPrivateUsage]


async def test_a_session_in_a_container_is_cleaned_up_with_its_link(tmp_path: Path) -> None:
    state = tmp_path / "state"
    home = state / "containers/one"
    (home / layout.SESSIONS).mkdir(parents=True)
    Placements(state).place("a", home)
    (home / "sessions/a" / layout.LOG).write_text("x" * 5000)
    (home / "sessions/a" / layout.EXIT).write_text("{}")
    links = LogLinks(tmp_path, state / layout.SESSIONS)
    assert [(one.session_id, one.log_bytes > 0) for one in kept_logs(links.sessions)] == [("a", True)]
    assert not remove_session(links, "a"), "its end is not acknowledged"
    (home / "sessions/a" / layout.EXIT).rename(home / "sessions/a" / layout.ACKED)
    assert remove_session(links, "a")
    assert os.listdir(links.sessions) == os.listdir(home / layout.SESSIONS) == []
    Placements(state).place("b", home)
    shutil.rmtree(home)
    assert kept_logs(links.sessions) == []
    assert links.forgotten("b")
    assert remove_session(links, "b"), "a link to nothing is no error"
    assert os.listdir(links.sessions) == []
    precious = tmp_path / "precious"
    precious.mkdir()
    (links.sessions / "c").symlink_to(precious)
    assert not remove_session(links, "c")
    assert precious.is_dir(), "only what we have placed is followed"


def test_a_link_that_a_loss_of_power_took_is_made_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    home = state / "containers/one"
    (home / "sessions/a").mkdir(parents=True)
    found = Placements(state)
    assert not found.owes(home)
    (home / "sessions/a" / layout.STARTED).write_text("boot\n")
    assert found.owes(home)
    assert found.home_of("a") == home
    (home / "sessions/a" / layout.ACKED).write_text("{}")
    assert not found.owes(home)
    (home / "sessions/a" / layout.ACKED).unlink()
    (home / "sessions/a" / layout.STARTED).write_bytes(ABANDONED)
    assert not found.owes(home)


@pytest.mark.parametrize("target", ["/etc", "../containers/../sessions/a", "../containers/one/sessions/b", "a", "b"])
def test_a_link_that_we_have_not_made_places_nothing(tmp_path: Path, target: str) -> None:
    (tmp_path / layout.SESSIONS).mkdir()
    (tmp_path / layout.SESSIONS / "a").symlink_to(target)
    assert Placements(tmp_path).home_of("a") is None


def test_the_records_of_a_home_tell_without_a_supervisor(tmp_path: Path) -> None:
    home = tmp_path / "containers/one"
    placed = Placements(tmp_path)
    (home / layout.SESSIONS).mkdir(parents=True)
    for name in ("placed", "begun", "damaged", "ended"):
        assert placed.place(name, home) == home
    for name in ("begun", "damaged", "ended"):
        (home / "sessions" / name / layout.STARTED).write_text("boot\n")
    (home / "sessions/damaged" / layout.EXIT).write_text("{")
    record = homes.lost("ended", "container_restarted")["record"]
    (home / "sessions/ended" / layout.ACKED).write_text(
        json.dumps({**record, "state": "exited", "exit_code": 4, "evidence": None})
    )
    assert homes.status(home, "placed") == {"state": "unknown"}
    assert homes.status(home, "begun") is None
    damaged, ended = homes.status(home, "damaged"), homes.status(home, "ended")
    assert damaged is not None
    assert damaged["record"]["evidence"] == "record_unreadable"
    assert ended is not None
    assert ended["record"]["exit_code"] == 4
    (home / "sessions/begun" / layout.STARTED).write_text("another 1 2\n")
    assert homes.ended(home, "begun")["record"]["evidence"] == "machine_rebooted"
    (home / "sessions/begun" / layout.STARTED).write_text(f"{BOOT} 1 2\n")
    assert homes.ended(home, "begun")["record"]["evidence"] == "container_restarted"
    (home / "sessions/begun" / layout.STARTED).write_text("")
    assert homes.ended(home, "begun")["record"]["evidence"] == "record_unreadable"
    assert homes.ended(home, "placed") == {"state": "unknown"}
    assert not homes.abandon(home, "begun")
    assert homes.abandon(home, "placed")
    assert homes.abandon(home, "placed")
    assert homes.status(home, "placed") == {"state": "abandoned"}
    assert placed.place("placed", tmp_path / "containers/two") == home


async def test_a_start_that_is_repeated_where_the_list_is_not_served_any_more_is_answered_as_begun(made: Town) -> None:
    facts: dict[str, Any] = {"scope": "talk", "profile": "work", "image": "x", "image_id": "", "writable": True}
    want = Container(workspace=str(made.state), place="1:1", hosts=("listed.example",), **facts)
    home = made.home(want.name(made.state / "containers"))
    await made.revive(home)
    assert (await made.start("begun", home))["outcome"] == "started"
    homes.describe(home, want)
    assert (await made.start("begun", home))["outcome"] == "already"
    refused = await made.start("new", home)
    assert (refused["ok"], refused["error"]) == (False, "not_served")
    assert "is not in its container" in refused["message"]
