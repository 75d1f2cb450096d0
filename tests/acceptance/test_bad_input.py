"""What an operator can get wrong: each is answered with cause and remedy, exit code 2 and no trace; nothing is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.exec.core.runner import EXEC_UID
from shellback.storage.host import ensure_home
from shellback.storage.tables import conversations, mailbox
from shellback.work.approvals import approvals
from tests.commands import PROGRAM, Terminal, assert_refused, begun, environment, facts, shellback
from tests.databases import unavailable
from tests.stage import Stage, stage, staged
from tests.supervisors import UNSHARE, require_namespaces, run_to_end

PROJECT = Path(__file__).parents[2]


place = staged()
loop = staged(worker=True, APPROVAL_TTL="5", SWEEP_SECONDS="0.2")


def test_an_unknown_command_or_option_is_answered_with_the_way_to_help(place: Stage) -> None:
    assert_refused(shellback(place, "sned"), "No such command 'sned'", "shellback --help")
    assert_refused(shellback(place, "ps", "--everything"), "No such option", "shellback ps --help")
    assert_refused(shellback(place, "send", "-c", "x", "--priority", "urgent", "hi"), "'critical', 'high', 'normal'")


def test_every_wrong_setting_is_named_with_its_value_and_what_is_allowed(place: Stage) -> None:
    wrong = shellback(place, "ps", TURN_SLOTS="999", ENABLE_EXECUTE="perhaps", BACKEND="containers")
    assert_refused(
        wrong,
        "TURN_SLOTS='999' is not allowed; allowed: a whole number from 1 to 256",
        "ENABLE_EXECUTE='perhaps' is not allowed; allowed: true or false",
        "BACKEND='containers' is not allowed; allowed: auto, host, bubblewrap, podman or docker",
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://root:hush@db/x", "sqlite:///FILE or postgresql://"),
        ("postgresql://u:hush@127.0.0.1:1/x", "check that the server runs, and that host, user and password"),
        ("sqlite:////proc/none/x.db", "check the path and its owner"),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(place: Stage, url: str, said: str) -> None:
    result = shellback(place, "ps", DATABASE_URL=url)
    assert_refused(result, said)
    assert "hush" not in result.stderr


def test_a_file_that_is_no_database_is_left_as_it_is(place: Stage) -> None:
    file = place.root / "letter.db"
    file.write_text("Dear reader, " * 1000)
    assert_refused(shellback(place, "ps", DATABASE_URL=f"sqlite:///{file}"), "not a SQLite database")
    assert file.read_text() == "Dear reader, " * 1000


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("from_the_future", "a newer version of Shellback"),
        ("0009", "finish what is under way with that version, then name a new"),
    ],
)
@pytest.mark.parametrize("command", [["ps"], ["migrate"], ["worker"], ["chat"]])
def test_a_database_of_another_version_is_refused_with_what_to_do(
    place: Stage, sqlite_url: str, command: list[str], revision: str, said: str
) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    conn.close()
    assert_refused(shellback(place, *command, DATABASE_URL=sqlite_url), said)


@pytest.mark.parametrize("command", ["ps", "migrate", "worker", "chat", "supervisor"])
def test_a_state_directory_of_another_version_is_refused_with_what_to_do(
    place: Stage, tmp_path: Path, command: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.copy(place.home / "host_id", home)
    assert_refused(
        shellback(place, command, SHELLBACK_HOME=str(home)), str(home), "set SHELLBACK_HOME to a new directory"
    )
    assert os.listdir(home) == ["host_id"]


@pytest.mark.parametrize("command", ["migrate", "ps", "worker"])
def test_tables_that_cannot_be_made_are_refused_with_what_stops_it(place: Stage, command: str) -> None:
    database = place.root / "somebody-s.db"
    with contextlib.closing(sqlite3.connect(database)) as conn:
        conn.execute("create table if not exists conversations (theirs)")
    refused = shellback(place, command, DATABASE_URL=f"sqlite:///{database}")
    assert refused.returncode == 2
    assert "table conversations already exists. Name an empty database" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_a_postgres_that_nobody_migrated_names_the_command_that_does(place: Stage, empty_postgres_url: str) -> None:
    assert_refused(shellback(place, "ps", DATABASE_URL=empty_postgres_url), "shellback migrate")
    assert_refused(shellback(place, "migrate", "--check", DATABASE_URL=empty_postgres_url), "shellback migrate")
    assert shellback(place, "migrate", DATABASE_URL=empty_postgres_url).returncode == 0
    assert facts(shellback(place, "ps", "--json", DATABASE_URL=empty_postgres_url))["sessions"] == []


@pytest.fixture(scope="module", autouse=True)
def locked_out(place: Stage, sqlite_template: Path) -> Iterator[subprocess.Popen[str]]:
    """A `send` to a database that somebody holds. It waits half a minute, so it begins with the module."""
    path = place.root / "locked.db"
    shutil.copyfile(sqlite_template, path)
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    process = begun(place, "send", "-c", "locked", "hi", DATABASE_URL=f"sqlite:///{path}")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        conn.close()


def test_a_database_that_stays_locked_is_named(locked_out: subprocess.Popen[str]) -> None:
    out, err = locked_out.communicate(timeout=90)
    done = subprocess.CompletedProcess([], locked_out.returncode, out, err)
    assert_refused(done, "locked.db is locked by another process", "then repeat")


def test_a_state_directory_that_cannot_be_trusted_or_used_is_refused(place: Stage) -> None:
    shared = place.root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert_refused(shellback(place, "ps", SHELLBACK_HOME=str(shared)), f"chmod 700 {shared}")
    assert_refused(shellback(place, "ps", SHELLBACK_HOME="/proc/none"), "set SHELLBACK_HOME")
    assert_refused(shellback(place, "ps", SHELLBACK_HOME="/etc/passwd"), "is not a directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of somebody else's")
def test_a_state_directory_of_somebody_else_is_refused(place: Stage) -> None:
    theirs = place.root / "theirs"
    theirs.mkdir()
    os.chown(theirs, EXEC_UID, EXEC_UID)
    assert_refused(shellback(place, "ps", SHELLBACK_HOME=str(theirs)), f"belongs to uid {EXEC_UID}")


@pytest.mark.parametrize("command", [["worker"], ["chat"]])
def test_a_named_workspace_that_is_missing_is_not_made(place: Stage, command: list[str]) -> None:
    missing = place.root / "nowhere"
    assert_refused(shellback(place, *command, WORKSPACE_ROOT=str(missing)), str(missing), "WORKSPACE_ROOT")
    assert not missing.exists()


def test_a_workspace_that_commands_cannot_write_is_refused_with_the_uid(place: Stage) -> None:
    closed = place.root / "closed"
    closed.mkdir(mode=0o555)
    uid = EXEC_UID if os.geteuid() == 0 else os.geteuid()
    assert_refused(shellback(place, "worker", WORKSPACE_ROOT=str(closed)), str(closed), f"user id {uid}")
    doctor = shellback(place, "doctor", "--json", WORKSPACE_ROOT=str(closed))
    assert {one["name"]: one["state"] for one in facts(doctor, 2)["checks"]}["backend"] == "fail"


def test_the_default_workspace_is_made_and_said_so(place: Stage) -> None:
    here = place.root / "here"
    here.mkdir()
    done = shellback(place, "chat", cwd=here, WORKSPACE_ROOT=None, SUPERVISOR_IDLE_SECONDS="0.1")
    assert done.returncode == 0, done.stderr
    assert f"created the workspace {here / 'workspace'}" in done.stderr
    assert (here / "workspace").stat().st_uid == (EXEC_UID if os.geteuid() == 0 else os.geteuid())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY, which is not set"),
        ("no-such-model", "allowed is 'offline' or PROVIDER:NAME"),
    ],
)
def test_a_model_that_cannot_be_used_stops_worker_and_chat(place: Stage, model: str, said: str) -> None:
    assert_refused(shellback(place, "worker" if ":" in model else "chat", MODEL=model), said)
    checks = facts(shellback(place, "doctor", "--json", MODEL=model), 2)["checks"]
    assert next(said in one["text"] for one in checks if one["name"] == "model")


def test_a_closed_gate_is_said_where_one_would_look(place: Stage) -> None:
    checks = facts(shellback(place, "doctor", "--json", ENABLE_EXECUTE=None))["checks"]
    gate = next(one for one in checks if one["name"] == "gate")
    assert (gate["state"], gate["remedy"]) == ("warn", "set ENABLE_EXECUTE=true")
    with Terminal(place, "chat", ENABLE_EXECUTE=None) as chat:
        chat.until("ENABLE_EXECUTE is not set: the agent has no tools that run commands")
        chat.until("> ")
        chat.leaves("\x04")


def test_a_second_worker_of_one_name_is_told_who_has_it(loop: Stage) -> None:
    second = shellback(loop, "worker")
    assert_refused(second, f"process {loop.workers[0].process.pid} on {os.uname().nodename}", "WORKER_NAME")
    assert loop.workers[0].process.poll() is None


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_message_is_refused(place: Stage, text: str) -> None:
    assert_refused(shellback(place, "send", "-c", "c", text), "empty")


def test_a_message_that_cannot_be_kept_as_it_is_is_refused_whole(place: Stage) -> None:
    assert_refused(shellback(place, "send", "-c", "c", "-", typed="a\0b"), "NUL")
    assert_refused(shellback(place, "send", "-c", "c", "-", typed="x" * 100_001), "at most 100000")
    assert_refused(shellback(place, "send", "-c", "c", "-", typed=b"caf\xe9"), "not UTF-8")
    assert_refused(shellback(place, "send", "-c", "c", os.fsdecode(b"caf\xe9")), "not UTF-8")
    assert place.rows(sa.select(mailbox)) == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 101, "caf\u00e9"])
def test_a_name_that_no_conversation_may_have_is_refused_by_send_and_by_chat(place: Stage, name: str) -> None:
    assert_refused(shellback(place, "send", f"--conversation={name}", "hi"), "1 to 100 letters")
    assert_refused(shellback(place, "chat", f"--conversation={name}"), "1 to 100 letters")
    assert place.rows(sa.select(conversations)) == []


def test_waiting_without_a_worker_says_so_and_keeps_the_message(place: Stage) -> None:
    waited = shellback(
        place, "send", "-c", "alone", "--wait", "--timeout", "0.5", "hi", SHELLBACK_HOME=str(place.root / "alone")
    )
    assert_refused(waited, "no answer within 0.5 s", "is stored")
    assert "no worker of this host runs; start one with `shellback worker`" in waited.stderr


def test_an_unknown_session_or_approval_is_answered_with_where_to_look(place: Stage) -> None:
    for command in ("kill", "logs"):
        assert_refused(shellback(place, command, "xnone"), "no session 'xnone'", "shellback ps --all")
        assert_refused(shellback(place, command, ""), "no session ''")
    for command in ("show", "approve", "deny"):
        assert_refused(shellback(place, "approvals", command, "anone"), "no approval request 'anone'")


def test_an_approval_that_was_decided_or_has_expired_stays_as_it_is(loop: Stage) -> None:
    loop.send("$ touch expired.txt", "late")
    request = loop.pending("late")
    loop.until("it expires", lambda: loop.read(approvals.get, request.id).state == "expired")
    assert_refused(shellback(loop, "approvals", "approve", request.id), request.id, "expired")
    assert_refused(shellback(loop, "approvals", "deny", request.id), request.id, "expired")
    assert not (loop.workspace / "expired.txt").exists()


def test_a_kill_of_what_has_ended_signals_nothing_and_says_how_it_ended(loop: Stage) -> None:
    session = loop.started("$ exit 9 &", "exit 9", "over").id
    loop.ended(f"EXEC_CALLBACK:{session}")
    assert_refused(shellback(loop, "kill", session), session, "has ended already: exit 9", "Nothing was signalled")
    assert_refused(shellback(loop, "logs", "--stderr", session), "one log for both streams")
    shutil.rmtree(loop.home / "sessions" / session)
    assert_refused(shellback(loop, "logs", session), "was deleted", "LOG_AGE_HOURS")


def test_a_kill_without_a_supervisor_says_who_finds_out(sqlite_url: str) -> None:
    with stage(sqlite_url) as lost:
        worker = lost.hire()
        session = lost.started("$ sleep 1000 &", "sleep 1000").id
        worker.stop()
        # Another directory of the same host, in which no supervisor listens.
        home = ensure_home(lost.root / "copy")
        shutil.copy(lost.home / "host_id", home)
        asked = shellback(lost, "kill", session, SHELLBACK_HOME=str(home))
        assert_refused(asked, "no supervisor on this host", "shellback worker")


def test_a_full_disk_is_named_and_the_message_is_not_half_kept(place: Stage) -> None:
    home = place.root / "small"
    home.mkdir()
    script = (
        f"mount -t tmpfs -o size=2m,mode=700 none {home} && "
        f"{' '.join(PROGRAM)} migrate >/dev/null && "
        f"{{ head -c 4m /dev/zero > {home}/filler; {' '.join(PROGRAM)} send -c full - < {place.root}/long; }}"
    )
    (place.root / "long").write_text("x" * 100_000)
    require_namespaces()
    done = run_to_end(*UNSHARE, "sh", "-c", script, env=environment(place, {"SHELLBACK_HOME": str(home)}))
    assert done.returncode == 2, done.stderr
    assert "is full: make room" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_cannot_be_written_is_no_trace(place: Stage) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "ps"], env=environment(place, {}), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_python_that_cannot_make_environments_names_the_package(tmp_path: Path) -> None:
    make = shutil.which("make") or unavailable("no make")
    tools = tmp_path / "bin"
    tools.mkdir()
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in ("Makefile", "requirements-dev.lock", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    done = run_to_end(make, "setup", cwd=tmp_path, env={"PATH": str(tools)})
    assert done.returncode == 2
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"apt install python{version}-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()
