"""The commands that read: what waits, what is said, what happened, who works; beside a real worker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from shellback.work.queue.items import Priority
from tests.commands import Terminal, assert_refused, begun, every_command, facts, shellback, told
from tests.databases import unless
from tests.stage import Stage, stage, staged, working

WAIT = "while [ ! -e {}-talks ]; do sleep 0.02; done"
TALKS = f"echo first; {WAIT.format('go')}; echo second; {WAIT.format('end')}"


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    """A worker, one conversation that has run a command, one that waits for approval."""
    with working() as made:
        made.ended(made.send("hello there", "said"))
        made.send("$ printf 'ran\\n'; exit 3", "said")
        made.approve("said")
        made.until("its end", lambda: any("exit code 3" in text for text in made.answers(conversation="said")))
        made.send("$ touch waits.txt", "waits")
        made.pending("waits")
        yield made


empty = staged()


class Follower:
    """A command whose lines are read while it runs, and which is ended by Ctrl-C."""

    def __init__(self, place: Stage, *args: str) -> None:
        self.process = begun(place, *args)

    def until(self, *parts: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if all(part in line for part in parts):
                return line
        raise AssertionError(f"no line with {parts}: {self.process.communicate()}")

    def interrupted(self) -> None:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err.strip()) == (130, "stopped")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def test_queue_counts_what_waits_by_priority_and_names_what_is_blocked(place: Stage, empty: Stage) -> None:
    empty.send("one", "a", priority=Priority.LOW)
    empty.send("two", "b", priority=Priority.LOW)
    empty.send("three", "c", priority=Priority.NORMAL)
    found = facts(told(empty, "queue", "--json"))
    assert [(one["priority"], one["items"]) for one in found["waiting"]] == [("NORMAL", 1), ("LOW", 2)]
    assert all(one["oldest"] <= time.time() for one in found["waiting"])
    assert re.search(r"^LOW +2 +\d+s$", told(empty, "queue").stdout, re.MULTILINE)
    blocked = facts(told(place, "queue", "--json"))["blocked"]
    assert [(one["conversation"], one["reason"]) for one in blocked] == [("waits", "approval")]
    assert "shellback approvals list" in told(place, "queue").stdout


def test_queue_shows_the_turn_that_runs(place: Stage) -> None:
    place.started("$ while [ ! -e go-slow ]; do sleep 0.02; done", "go-slow", "slow")
    # The wake of a process of another test may have its turn at the same time.
    running = facts(told(place, "queue", "--json"))["running"]
    assert [one["conversation"] for one in running].count("slow") == 1
    assert "slow" in told(place, "queue").stdout
    (place.workspace / "go-slow").touch()
    place.until("the turn ends", lambda: any("exit code 0" in text for text in place.answers(conversation="slow")))


def test_conversations_are_listed_shown_and_exported_whole(place: Stage) -> None:
    listed = {one["id"]: one for one in facts(told(place, "conversations", "list", "--json"))}
    assert (listed["waits"]["state"], listed["waits"]["blocked_reason"]) == ("blocked", "approval")
    assert listed["waits"]["pending_approvals"] == 1
    assert re.search(r"^waits +blocked +approval", told(place, "conversations", "list").stdout, re.MULTILINE)
    shown = told(place, "conversations", "show", "said").stdout
    assert "person: hello there" in shown
    assert re.search(r"call execute: .*printf", shown)
    assert "result of execute: " in shown
    assert re.search(r"\[\d+ earlier messages", told(place, "conversations", "show", "said", "-n", "1").stdout)
    file = place.root / "said.json"
    written = told(place, "conversations", "export", "said", "-o", str(file))
    assert written.stdout == ""
    assert "1 approvals, 1 sessions in " in written.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    document = json.loads(file.read_text())
    assert document == facts(told(place, "conversations", "export", "said")) | {"exported_at": document["exported_at"]}
    messages = ModelMessagesTypeAdapter.validate_python(document["messages"])
    assert ModelMessagesTypeAdapter.dump_json(messages).decode() == place.history("said")
    assert [(one["state"], one["end"]["exit_code"]) for one in document["sessions"]] == [("exited", 3)]
    assert [one["state"] for one in document["approvals"]] == ["used"]
    assert_refused(told(place, "conversations", "export", "said", "-o", str(file)), "replace it with --force")
    assert told(place, "conversations", "export", "said", "-o", str(file), "--force").returncode == 0


def test_events_are_told_since_a_moment_by_kind_and_while_they_happen(place: Stage) -> None:
    lines = told(place, "events", "-c", "said", "--json").stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert [kind for kind in kinds if kind in {"message", "approval", "decision"}] == [
        "message", "message", "approval", "decision",
    ]  # fmt: skip
    assert told(place, "events", "-c", "said", "--since", "0s").stdout == ""
    only = told(place, "events", "-c", "said", "--since", "1h", "-k", "decision").stdout.splitlines()
    assert [re.search(r"said +decision +id a", line) is not None for line in only] == [True]
    with Follower(place, "events", "-f", "--json", "-c", "news", "--since", "1m") as follower:
        place.send("what is new", "news")
        assert json.loads(follower.until('"message"'))["payload"]["text"] == "what is new"
        follower.until('"answer"')
        follower.interrupted()


def test_workers_are_listed_alive_with_their_pid(place: Stage) -> None:
    (worker,) = facts(told(place, "workers", "--json"))
    assert (worker["state"], worker["pid"]) == ("alive", place.workers[-1].process.pid)
    assert re.search(r"\balive\b", told(place, "workers").stdout)


def test_a_watch_on_a_pipe_prints_what_changes_and_ends_with_130(place: Stage) -> None:
    with (
        Follower(place, "approvals", "list", "--watch", "--json", "-c", "watched") as asked,
        Follower(place, "ps", "--watch", "-c", "watched") as processes,
    ):
        place.send("$ while [ ! -e go-watched ]; do sleep 0.02; done &", "watched")
        new = json.loads(asked.until('"new"'))
        assert (new["state"], new["conversation_id"]) == ("pending", "watched")
        place.approve("watched")
        assert json.loads(asked.until('"gone"'))["id"] == new["id"]
        processes.until("go-watched", "new")
        (place.workspace / "go-watched").touch()
        processes.until("go-watched", "gone")
        asked.interrupted()
        processes.interrupted()


def test_a_watch_on_a_terminal_draws_in_place_with_colours_unless_told_not_to(place: Stage) -> None:
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal(place, "approvals", "list", "--watch", TERM="xterm", COLUMNS="200", **environ) as terminal:
            terminal.until("touch waits.txt")
            terminal.leaves("\x03", 130)
        # Cursor movements are taken out of what a terminal has shown, colours with them: look at the bytes.
        assert ("\x1b[33mpending" in terminal.raw) is coloured
        assert "\x1b[H" in terminal.raw
    assert "\x1b" not in shellback(place, "approvals", "list", TERM="xterm").stdout


def test_logs_since_leaves_out_what_was_printed_before(place: Stage) -> None:
    session = place.started(f"$ {TALKS} &", "go-talks", "talks").id
    place.until("its first word", lambda: "first" in told(place, "logs", session).stdout)
    time.sleep(1.2)  # times are kept to the second
    moment = datetime.now(UTC).isoformat()
    assert told(place, "logs", session, "--since", moment).stdout == ""
    (place.workspace / "go-talks").touch()
    place.until("its second word", lambda: "second" in told(place, "logs", session).stdout)
    assert told(place, "logs", session).stdout == "first\nsecond\n"
    assert told(place, "logs", session, "--since", moment).stdout == "second\n"
    assert facts(told(place, "logs", session, "--since", "10m", "--json"))["text"] == "first\nsecond\n"
    assert told(place, "logs", session, "--since", "10m", "-n", "1").stdout == "second\n"
    with Follower(place, "logs", "-f", "--since", moment, session) as follower:
        follower.until("second")
        (place.workspace / "end-talks").touch()
        assert follower.process.communicate(timeout=60)[0] == ""


def completed(place: Stage, words: str, **environ: str) -> list[str]:
    """What bash is told for the last of the words."""
    asked: dict[str, Any] = {
        "_SHELLBACK_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    asked |= environ
    done = shellback(place, **asked)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_names_and_ids_are_completed_and_nothing_is_said_where_there_is_no_database(place: Stage, empty: Stage) -> None:
    assert completed(place, "shellback conversations show sa") == ["said"]
    session = place.sessions()[0].id
    assert completed(place, f"shellback logs {session[:6]}") == [session]
    request = place.requests()[0].id
    assert completed(place, "shellback approvals show ") == [request]
    assert completed(place, "shellback que") == ["queue"]
    nowhere = empty.root / "nowhere"
    assert completed(place, "shellback conversations show sa", SHELLBACK_HOME=str(nowhere)) == []
    assert completed(place, "shellback conversations show sa", TURN_SLOTS="many") == []
    assert not nowhere.exists()


def test_the_fields_of_what_a_command_lists_are_completed(empty: Stage) -> None:
    assert completed(empty, "shellback ps -o conv") == ["conversation_id"]
    assert completed(empty, "shellback ps -o id,st") == ["id,stdin_open", "id,state", "id,started_at"]
    assert completed(empty, "shellback ps -o state,id,sta") == ["state,id,started_at"]  # each once
    assert completed(empty, "shellback ps -o id,end.exit") == ["id,end.exit_code"]
    assert completed(empty, "shellback ps --all --fields end.sig") == ["end.signal"]
    assert completed(empty, "shellback ps -o id.") == []
    assert completed(empty, "shellback ps -o nothing.") == []
    # A flag that lists something else; a list within an object; a group that lists by itself.
    assert "uid" in completed(empty, "shellback ps --unknown -o ")
    assert completed(empty, "shellback config -o setting,f") == ["setting,from"]
    assert completed(empty, "shellback containers -o cont") == ["container_id"]
    for words, command in every_command():
        if any(one.name == "fields" for one in command.params):
            assert completed(empty, f"shellback {words} -o "), words


ASKED = "shellback ps -o id,end.ex"
IN_A_SHELL = {
    "bash": f". /dev/stdin; COMP_WORDS=({ASKED}) COMP_CWORD=3; _shellback_completion shellback; echo $COMPREPLY",
    "zsh": "compdef() :; compadd() print -r -- $completions; . /dev/stdin; "
    f"words=({ASKED}) CURRENT=4; _shellback_completion",
    "fish": f"source; complete -C '{ASKED}'",
}
"""Reads the script, and has the shell complete with it."""


@pytest.mark.parametrize("shell", IN_A_SHELL)
def test_a_shell_completes_by_the_script_that_is_printed_for_it(empty: Stage, shell: str) -> None:
    unless(None if shutil.which(shell) else f"{shell} is not installed")
    script = told(empty, "completion", shell).stdout
    done = subprocess.run(
        [shell, "-c", IN_A_SHELL[shell]],
        input=script,
        text=True,
        capture_output=True,
        env=empty.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(empty.root)},
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("id,end.exit_code\n", "")


def test_config_tells_values_and_where_they_come_from_and_hides_what_is_secret(empty: Stage) -> None:
    directory = empty.root / "elsewhere"
    directory.mkdir()
    (directory / ".env").write_text("LOG_FORMAT=json\nTURN_SLOT=9\nOPENAI_API_KEY=sk-hush\n")
    secrets = {"DATABASE_URL": "postgresql://u:hush@h/d", "NOTIFY_WEBHOOK": "https://example.com/hush"}
    found = shellback(empty, "config", "--json", cwd=directory, **secrets)
    assert "hush" not in found.stdout + found.stderr
    rows = {row["setting"]: row for row in facts(found)["settings"]}
    assert (rows["LOG_FORMAT"]["value"], rows["LOG_FORMAT"]["from"]) == ("json", ".env")
    assert (rows["TURN_SLOTS"]["value"], rows["TURN_SLOTS"]["from"]) == (32, "default")
    assert rows["SHELLBACK_HOME"] | {"allowed": ""} == {
        "setting": "SHELLBACK_HOME", "value": str(empty.home), "from": "environment", "allowed": "",
    }  # fmt: skip
    secrets = {"DATABASE_URL": "postgresql://u:hu://sh@h/d", "NOTIFY_COMMAND": "curl -H hush"}
    changed = shellback(empty, "config", "--changed", cwd=directory, **secrets)
    assert "OPENAI_API_KEY" in changed.stdout
    assert "TURN_SLOT in .env is not a setting: did you mean TURN_SLOTS?" in changed.stderr
    assert "APPROVAL_TTL" not in changed.stdout
    assert "hu" not in re.sub(r"\S*shellback\S*", "", changed.stdout + changed.stderr)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("conversations", "show", "sayd"), "did you mean said?"),
        (("conversations", "export", "nobody"), "`shellback conversations list` lists them"),
        (("conversations", "export", "said", "-o", "/proc/none/x.json"), "cannot be written"),
        (("conversations", "export", "said", "-o", "/"), "is a directory"),
        (("conversations", "export", "said", "-o", "/dev/full", "--force"), "is not a regular file: omit -o"),
        (("conversations", "export", "said", "-o", "x" * 300), "cannot be written (File name too long)"),
        (("conversations", "show", "\udcff"), "'\\udcff' is not UTF-8"),
        (("ps", "-c", "\udcff"), "is not UTF-8"),
        (("logs", "\udcff"), "is not UTF-8"),
        (("approvals", "show", "\udcff"), "is not UTF-8"),
        (("events", "--since", "yesterday"), "neither a duration (90s, 10m, 2h, 3d) nor a time"),
        (("events", "--kind", "gossip"), "'message', 'text'"),
        (("logs", "nothing", "--since", "1w"), "neither a duration"),
        (("completion", "tcsh"), "'bash', 'zsh', 'fish'"),
        (("queue", "--priority"), "shellback queue --help"),
    ],
)
def test_what_cannot_be_shown_is_answered_with_cause_and_remedy(place: Stage, args: Any, said: str) -> None:
    assert_refused(shellback(place, *args), said)


@pytest.mark.parametrize("args", ["events --json", "conversations export said", "config", "ps --watch --all"])
def test_a_reader_that_goes_away_ends_it_without_a_trace(place: Stage, args: str) -> None:
    with Follower(place, *args.split()) as reader:
        assert reader.process.stdout is not None
        assert reader.process.stderr is not None
        reader.process.stdout.readline()
        reader.process.stdout.close()
        if "--watch" in args:
            reader.process.send_signal(signal.SIGINT)
        assert reader.process.stderr.read().strip() in {"", "stopped"}
        reader.process.wait(60)


def test_a_terminal_that_does_not_have_every_character_gets_escapes_and_json_stays_json(place: Stage) -> None:
    place.ended(place.send("☃ melts\x9b2J", "snow"))
    western: dict[str, Any] = {"PYTHONIOENCODING": "latin-1"}
    assert "message      \\u{2603} melts\\u{9B}2J" in shellback(place, "events", "-c", "snow", **western).stdout
    assert "person: \\u{2603} melts" in shellback(place, "conversations", "show", "snow", **western).stdout
    assert "☃ melts" in str(facts(shellback(place, "conversations", "export", "snow", **western)))
    lines = shellback(place, "events", "-c", "snow", "--json", **western).stdout.splitlines()
    assert "☃ melts" in json.loads(lines[0])["payload"]["text"]


def test_every_reading_command_makes_what_it_needs_where_nothing_was_yet(empty: Stage) -> None:
    home = empty.root / "fresh"
    for args in ("queue", "conversations list", "events", "workers", "approvals list"):
        done = told(empty, *args.split(), SHELLBACK_HOME=str(home))
        assert (done.returncode, done.stderr) == (0, ""), args
    assert_refused(told(empty, "conversations", "show", "x", SHELLBACK_HOME=str(home)), "no conversation 'x'")


VIEWS = (
    ("ps",),
    ("ps", "--all"),
    ("queue",),
    ("approvals", "list"),
    ("conversations", "list"),
    ("conversations", "show", "waits"),
    ("events",),
)
OLD = "no worker of this host is alive: this is the state of"


@pytest.fixture(scope="module")
def left() -> Iterator[Stage]:
    """What a worker left that was killed: a process that it took to run, and a request."""
    with working() as made:
        made.send("$ touch waits.txt", "waits")
        made.pending("waits")
        for view in VIEWS:
            done = told(made, *view)
            assert OLD not in done.stdout + done.stderr
            assert all(one["data_age_s"] == 0 for one in ages(made, *view))
        made.workers[0].process.kill()
        made.workers[0].process.wait()
        yield made


def ages(place: Stage, *view: str) -> list[dict[str, Any]]:
    if view[0] == "events":
        return []
    found = facts(told(place, *view, "--json"))
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else [found]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_view_says_how_old_it_is_once_its_worker_was_killed(left: Stage, view: tuple[str, ...]) -> None:
    done = told(left, *view)
    assert OLD in done.stdout + done.stderr
    assert all(one["data_age_s"] > 0 for one in ages(left, *view))


@pytest.mark.parametrize("view", [("queue",), ("ps",)], ids=" ".join)
def test_where_no_worker_has_ever_run_a_view_says_that(view: tuple[str, ...]) -> None:
    with stage() as empty:
        empty.send("hello", "a")
        assert "no worker has run here" in told(empty, *view).stdout
        assert [one["data_age_s"] for one in ages(empty, *view)] == [None]
