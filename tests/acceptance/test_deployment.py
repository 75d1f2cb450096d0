"""What the files for containers and systemd promise, and the loop as they set it up: worker and supervisor apart."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml

from shellback.checks import Check, all_checks, live_checks
from shellback.client.freshness import worker_lives
from shellback.exec.link import launch
from shellback.settings import Settings, plain_environment
from shellback.storage.host import process_space
from shellback.storage.tables import conversations, mailbox, workers
from shellback.wiring import supervision
from shellback.work.hosts import roster
from tests.commands import assert_refused, facts, shellback
from tests.databases import unavailable
from tests.execs import end_of
from tests.stage import Stage, stage
from tests.supervisors import kill, run_to_end

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy"
SLOW = "20"
# A first process of a PID namespace, as `init: true` gives a container one: it passes SIGTERM on.
INIT = ("/bin/sh", "-c", 'trap "kill -TERM \\$!" TERM; "$@" & wait $!; wait $!', "init")
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


# --- the files ---------------------------------------------------------------------------------------------


def knows_the_compose_specification(argv: list[str]) -> bool:
    """Whether this is Compose 2 or newer: 1.29, which Debian 12 has, reads an older file format only."""
    if shutil.which(argv[0]) is None:
        return False
    done = run_to_end(*argv, "version", "--short")
    major = done.stdout.strip().removeprefix("v").partition(".")[0]
    return done.returncode == 0 and major.isdigit() and int(major) >= 2


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_the_image_is_built_from_the_locks_with_hashes_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*)", lines)
    assert installs
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    bases = re.findall(r"^FROM (\S+)", lines, re.MULTILINE)
    assert set(bases) == {"python:${PYTHON}"}
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+$", lines, re.MULTILINE)
    last = lines[lines.rindex("\nFROM ") :]
    assert re.findall(r"^USER (\S+)", last, re.MULTILINE) == ["shellback"]
    # `.env` of the current directory is read, and libraries read files of HOME; the volumes are the agent's to write.
    assert "--home-dir /nonexistent " in last
    assert re.findall(r"^WORKDIR (\S+)", last, re.MULTILINE) == ["/"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert not any(line.startswith("!.env") or line == "!.git" for line in ignored)


def test_worker_and_supervisor_are_services_of_their_own_that_share_two_places() -> None:
    services = compose()["services"]
    worker, supervisor = services["worker"], services["supervisor"]
    assert worker["command"] == ["worker"]
    assert supervisor["command"] == ["supervisor"]
    assert worker["volumes"] == supervisor["volumes"]
    assert worker["environment"]["SUPERVISOR"] == "external"
    for one in (worker, supervisor, services["migrate"]):
        assert one["init"] is True
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in one
        assert "pid" not in one
        assert one["mem_limit"]
    # One tag is built once, and nothing of its name comes from a registry.
    assert [name for name, one in services.items() if "build" in one] == ["migrate"]
    for one in (worker, supervisor):
        assert one["pull_policy"] == "never"
        assert one["image"] == services["migrate"]["image"]
        assert one["restart"] == "unless-stopped"
        assert one["pids_limit"]
    assert {name: on["condition"] for name, on in worker["depends_on"].items()} == {
        "postgres": "service_healthy",
        "migrate": "service_completed_successfully",
        "supervisor": "service_healthy",
    }
    assert services["migrate"]["restart"] == "no"
    assert worker["healthcheck"]["test"] == ["CMD", "shellback", "doctor", "--live"]
    assert seconds(worker["stop_grace_period"]) > int(worker["environment"]["DRAIN_SECONDS"]) + 10
    assert seconds(supervisor["stop_grace_period"]) > 12


def test_postgres_is_asked_where_the_server_that_sets_up_a_new_cluster_does_not_answer() -> None:
    _, words = compose()["services"]["postgres"]["healthcheck"]["test"]
    assert "--host 127.0.0.1" in words


def test_the_logs_of_every_service_have_a_cap() -> None:
    for service in compose()["services"].values():
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}


def test_the_services_that_run_commands_have_no_secret_and_no_way_to_the_database() -> None:
    services = compose()["services"]
    supervisor = services["supervisor"]
    assert not {"env_file", "environment"} & supervisor.keys()
    assert not set(supervisor["networks"]) & set(services["postgres"]["networks"])
    ports = [str(port) for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name:
                assert value.startswith("${POSTGRES_PASSWORD:?")
    assert compose()["networks"]["commands"]["internal"] is True
    # Its own check as well, where there is one.
    for argv in (["docker", "compose"], ["docker-compose"]):
        if knows_the_compose_specification(argv):
            environ = {**plain_environment(), "POSTGRES_PASSWORD": "x"}
            subprocess.run([*argv, "--file", ROOT / "docker-compose.yml", "config", "--quiet"], env=environ, check=True)
    # What the worker is given is what settings accept.
    given = {name: re.sub(r"\$\{.*?\}", "x", str(text)) for name, text in services["worker"]["environment"].items()}
    assert Settings.load(given).supervisor == "external"


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def test_stopping_the_worker_s_unit_touches_no_command_and_leaves_it_time_to_drain() -> None:
    worker, supervisor = unit("shellback-worker.service"), unit("shellback-supervisor.service")
    service = worker["Service"]
    environ = dict(pair.split("=", 1) for pair in service["Environment"])
    assert Settings.load(environ).supervisor == "external"
    assert int(service["TimeoutStopSec"][0]) > int(environ["DRAIN_SECONDS"]) + 10
    assert service["KillMode"] == ["mixed"]
    assert service["Restart"] == ["on-failure"]
    assert service["ExecStartPre"] == ["/opt/shellback/bin/shellback migrate"]
    assert "shellback-supervisor.service" in worker["Unit"]["After"][0]
    assert "shellback-supervisor.service" in worker["Unit"]["Wants"][0]
    assert not {"Requires", "BindsTo", "PartOf"} & worker["Unit"].keys()
    # One command out of memory, or the main process killed, is no reason to end the other commands.
    assert supervisor["Service"]["OOMPolicy"] == ["continue"]
    assert supervisor["Service"]["KillMode"] == ["process"]
    assert supervisor["Service"]["Restart"] == ["always"]
    assert "EnvironmentFile" not in supervisor["Service"]
    for one in (worker, supervisor):
        assert one["Service"]["User"] == ["shellback"]
        assert one["Service"]["StateDirectory"] == ["shellback shellback-workspace"]
        assert "ProcSubset" not in one["Service"]
        assert one["Unit"]["StartLimitIntervalSec"] == ["0"]
        # The supervisor makes sandboxes of commands below these, and the worker the one that it tries.
        assert not {"ProtectKernelTunables", "RestrictNamespaces"} & one["Service"].keys()
    assert "AF_NETLINK" in service["RestrictAddressFamilies"][0].split()


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        unavailable("no systemd-analyze")
    for path in UNITS.glob("*.service"):
        # It looks for the program, which is installed elsewhere here.
        text = path.read_text().replace("/opt/shellback/bin/shellback", "/bin/true")
        (tmp_path / path.name).write_text(text)
    done = run_to_end("systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service"))
    mine = [line for line in done.stderr.splitlines() if "shellback" in line]
    assert (done.returncode, mine) == (0, [])


# --- whether it lives --------------------------------------------------------------------------------------


def state_of(settings: Settings, name: str, checks: Callable[[Settings], Sequence[Check]] = live_checks) -> Check:
    return next(check for check in checks(settings) if check.name == name)


def test_asked_whether_it_lives_it_makes_no_database_and_says_what_is_missing(tmp_path: Path) -> None:
    settings = Settings.load({"SHELLBACK_HOME": str(tmp_path / "home"), "SUPERVISOR": "external"})
    assert "shellback migrate" in state_of(settings, "database").text
    assert [path.name for path in (tmp_path / "home").iterdir() if ".db" in path.name] == []
    for checks in (live_checks, all_checks):
        found = state_of(settings, "supervisor", checks)
        assert (found.state, "`shellback supervisor`" in found.remedy) == ("fail", True)
    own = Settings.load({"SHELLBACK_HOME": str(tmp_path / "home")})
    assert (state_of(own, "supervisor").state, state_of(own, "supervisor", all_checks).state) == ("fail", "ok")
    (tmp_path / "home" / "supervisor").chmod(0o755)
    assert f"chmod 700 {tmp_path / 'home' / 'supervisor'}" in state_of(own, "supervisor").text


def test_news_that_nobody_looks_for_is_told_and_a_backlog_is_not(sqlite_url: str) -> None:
    with stage(sqlite_url, SUPERVISOR="external") as loop:
        loop.send("hello?")
        assert state_of(loop.settings, "queues").state == "ok"
        loop.change(sa.update(mailbox).values(created_at=time.time() - 100))
        assert state_of(loop.settings, "queues").state == "fail"
        # What another host hears is no sign of life of this one.
        loop.write(another_host_heard)
        assert state_of(loop.settings, "queues").state == "fail"
        loop.change(sa.update(conversations).values(host_id=loop.where.host_id))
        assert state_of(loop.settings, "queues").state == "ok"

        # A worker that waits for its supervisor goes at once when it is told to.
        waiting = loop.hire(executed=True, ready=False)
        loop.until("the worker has begun to start", lambda: state_of(loop.settings, "worker").state == "ok")
        waiting.process.terminate()
        assert waiting.process.wait(60) == 0
        assert "does not run" in state_of(loop.settings, "worker").text


def another_host_heard(conn: sa.Connection) -> None:
    row = dict(conn.execute(sa.select(conversations)).mappings().one())
    conn.execute(sa.insert(conversations).values({**row, "id": "elsewhere", "host_id": "0" * 32}))
    letter = dict(conn.execute(sa.select(mailbox)).mappings().one())
    more = {"conversation_id": "elsewhere", "state": "heard", "heard_at": time.time()}
    conn.execute(sa.insert(mailbox).values({**letter, "id": letter["id"] + 1, "dedupe_key": "elsewhere", **more}))


# --- the loop as they set it up ----------------------------------------------------------------------------


@contextmanager
def supervisor_of(loop: Stage, *before: str) -> Generator[subprocess.Popen[bytes]]:
    """The supervisor as a service, in whatever surroundings the words before it make; told to end at the end."""
    argv = [*before, *launch.service_argv(loop.home)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=plain_environment()) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == b"ready\n"
        try:
            yield running
        finally:
            tell(running, apart=bool(before))
            assert running.wait(60) == 0


def tell(running: subprocess.Popen[bytes], *, apart: bool) -> None:
    """SIGTERM, as a container engine sends it to the first process of the container."""
    if running.poll() is not None:
        return
    pid = running.pid
    if apart:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    kill(pid, signal.SIGTERM)


def test_workers_come_and_go_beside_a_supervisor_and_neither_a_turn_nor_a_command_is_lost(sqlite_url: str) -> None:
    with stage(sqlite_url, SUPERVISOR="external") as loop:
        assert_refused(shellback(loop, "supervisor", "--check"), "no supervisor runs", "`shellback supervisor`")
        first = loop.hire(executed=True, ready=False, OFFLINE_SECONDS=SLOW, DRAIN_SECONDS="1")
        with supervisor_of(loop):
            # It came before the supervisor, and waited.
            first.wait_ready()
            assert shellback(loop, "supervisor", "--check").returncode == 0
            live = facts(shellback(loop, "doctor", "--live", "--json"))
            assert {check["name"]: check["state"] for check in live["checks"]} == {
                "worker": "ok", "queues": "ok", "supervisor": "ok",
            }  # fmt: skip

            item = loop.send("a long thought")
            loop.until("the turn runs", lambda: (loop.turn(item) or {})["executions"] == 1)
            began = time.monotonic()
            first.stop()
            assert first.process.returncode == 0
            assert time.monotonic() - began < float(SLOW) - 2
            assert (loop.turn(item) or {})["outcome"] is None
            # It said that it goes, so nobody waits for its heart to miss.
            assert [check.name for check in live_checks(loop.settings) if check.state == "fail"] == ["worker"]

            second = loop.hire(OFFLINE_SECONDS=SLOW)
            loop.until("the turn runs again", lambda: (loop.turn(item) or {})["executions"] == 2)
            second.process.terminate()
            log = loop.home / "worker.log"
            loop.until("it drains", lambda: log.read_text().count("draining") == 2)
            second.process.terminate()
            assert second.process.wait(60) == 128 + signal.SIGTERM
            assert [one.state for one in loop.read(roster.look, loop.where.host_id)] == ["dead"]

            loop.hire()
            assert "a long thought" in loop.answer(item)
            assert (loop.ended(item)["outcome"], loop.ended(item)["executions"]) == ("answered", 3)
            command = loop.started("$ sleep 600 &", "sleep 600", rest=True)
        # The service was told to end; the command with it, and its callback says how.
        loop.until("the end of the command is told", loop.callbacks)
        loop.until("everything is at rest", loop.at_rest)
        ended = end_of(loop.sessions()[0])
        assert (ended.signal, ended.ended_by) == (signal.SIGTERM, "shutdown")
        assert loop.callbacks() == [f"EXEC_CALLBACK:{command.id}"]


def test_worker_and_supervisor_in_pid_namespaces_of_their_own_share_nothing_but_the_state_directory(
    sqlite_url: str,
) -> None:
    if shutil.which("unshare") is None or run_to_end(*APART, "true").returncode:
        unavailable("PID namespaces cannot be made here (needs root and unshare)")
    with stage(sqlite_url, SUPERVISOR="external") as loop, supervisor_of(loop, *APART, *INIT):
        first = loop.hire(executed=True, before=APART)
        assert worker_lives(loop.where)
        # A number of its own namespace, which is somebody else's in ours.
        assert asyncio.run(supervision.hello(loop.settings))["pid"] < 100
        loop.started("$ echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.1; done; exit 9 &", "exit 9")
        first.kill()
        second = loop.hire(executed=True, before=APART)
        (loop.workspace / "go").touch()
        loop.until("the end is told", lambda: "exit code 9" in "\n".join(loop.answers()))
        command = loop.started("$ sleep 600 &", "sleep 600")
        killed = facts(shellback(loop, "kill", command.id, "--json"))
        assert killed
        loop.until("it is gone", lambda: not loop.sessions(live=True))
        assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
        assert not [session for session in loop.sessions() if session.end and session.end.evidence]
        assert facts(shellback(loop, "doctor", "--live", "--json"))["ok"]

        # A number from another namespace says nothing here; one of ours that is gone does.
        loop.change(sa.update(workers).values(pid=2**22 - 1))
        assert worker_lives(loop.where)
        loop.change(sa.update(workers).values(boot_id=process_space()))
        assert not worker_lives(loop.where)
        second.kill()
