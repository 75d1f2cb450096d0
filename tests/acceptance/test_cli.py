"""The command line, each command as a program of its own beside a real worker."""

from __future__ import annotations

import re
import signal
import sys
from typing import Any

import click
import pytest
import sqlalchemy as sa

from shellback.cli.main import COMMANDS, cli
from shellback.exec.core.model import SessionId, SessionState
from shellback.storage.tables import conversations, workers
from tests.commands import Terminal, assert_refused, begun, facts, shellback
from tests.execs import end_of
from tests.stage import Stage, staged

GATE = "touch up-{0}; while [ ! -e go-{0} ]; do sleep 0.02; done"
"""Says that it runs by a file, and goes on when there is another one."""
STOPPED = sa.select(workers.c.stopped_at)


place = staged(worker=True, LOG_BYTES="65536")
empty = staged(scope="function")


def started(place: Stage, conversation: str, command: str) -> SessionId:
    """Have a command run in the background; its session's id."""
    return place.started(f"$ {command} &", command, conversation).id


def until_file(place: Stage, name: str) -> None:
    place.until(f"{name} is there", (place.workspace / name).exists)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_says_what_it_does_and_that_of_everyday_ones_has_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    text = command.get_help(click.Context(command, info_name=name))
    assert len(text.splitlines()) >= 5
    assert "--help" in text
    everyday = name in {"worker", "chat", "send", "approvals", "ps", "logs", "kill"}
    assert not everyday or re.search(rf"\n +\S* ?.*shellback {name}", text)


def test_send_wait_prints_the_answer_and_ends_with_0(place: Stage) -> None:
    said = facts(shellback(place, "send", "-c", "answered", "--wait", "--json", "hello there"))
    assert said["outcome"] == "answered"
    assert "hello there" in said["answer"]
    told = shellback(place, "send", "-c", "answered", "--wait", "-", typed="from a pipe\n")
    assert (told.returncode, told.stderr) == (0, "")
    assert "from a pipe" in told.stdout


def test_send_wait_ends_with_3_while_a_call_waits_and_the_approved_call_runs_once(place: Stage) -> None:
    text = "$ printf 'first\\nsecond\\n' >> twice.txt; exit 3"
    said = facts(shellback(place, "send", "-c", "asked", "--wait", "--json", text), 3)
    assert said["outcome"] == "pending_approval"
    (request,) = said["approvals"]
    assert request["command"] == text.removeprefix("$ ")
    listed = facts(shellback(place, "approvals", "list", "-c", "asked", "--json"))
    assert [one["id"] for one in listed] == [request["id"]]
    shown = shellback(place, "approvals", "show", request["id"][:8])
    assert request["command"] in shown.stdout
    assert listed[0]["digest"] in shown.stdout
    decided = facts(shellback(place, "approvals", "approve", request["id"], "--json"))
    assert decided == {"id": request["id"], "state": "approved", "conversation": "asked"}
    place.until("the answer", lambda: any("exit code 3" in text for text in place.answers(conversation="asked")))
    assert (place.workspace / "twice.txt").read_text() == "first\nsecond\n"
    found = facts(shellback(place, "ps", "--all", "-c", "asked", "--json"))["sessions"]
    assert [(one["state"], one["end"]["exit_code"]) for one in found] == [("exited", 3)]
    assert "exit 3" in shellback(place, "ps", "--all", "-c", "asked").stdout


def test_a_denial_tells_the_agent_the_reason_and_nothing_runs(place: Stage) -> None:
    shellback(place, "send", "-c", "denied", "--wait", "$ touch never.txt")
    request = place.pending("denied")
    kept = shellback(place, "send", "-c", "denied", "are you there?")
    assert "1 call(s) wait for approval" in kept.stdout
    denied = shellback(place, "approvals", "deny", request.id, "--reason", "not on a Friday")
    assert denied.stdout == f"{request.id} denied\n"
    place.until("the denial", lambda: any("not on a Friday" in text for text in place.answers(conversation="denied")))
    assert not (place.workspace / "never.txt").exists()


def test_send_interrupt_drops_what_waits_and_is_answered(place: Stage) -> None:
    shellback(place, "send", "-c", "dropped", "--wait", "$ touch dropped.txt")
    told = shellback(place, "send", "-c", "dropped", "--wait", "--interrupt", "something else")
    assert told.returncode == 0, told.stderr
    assert "something else" in told.stdout
    assert not (place.workspace / "dropped.txt").exists()
    listed = facts(shellback(place, "approvals", "list", "-c", "dropped", "--all", "--json"))
    assert [one["state"] for one in listed] == ["superseded"]


def test_send_wait_ends_with_4_when_the_conversation_is_set_aside(empty: Stage) -> None:
    process = begun(empty, "send", "-c", "aside", "--wait", "--json", "hello")
    aside = sa.update(conversations).where(conversations.c.id == "aside")
    aside = aside.values(state="blocked", blocked_reason="set_aside")
    empty.until("the message is kept", lambda: empty.change(aside))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert '"outcome": "set_aside"' in out
    assert "no worker of this host runs" in err


def test_logs_follow_a_process_to_its_end(place: Stage) -> None:
    session = started(place, "followed", f"echo begin; {GATE.format('f')}; printf '\\033[31mend'; exit 7")
    until_file(place, "up-f")
    follower = begun(place, "logs", "-f", session[:10])
    assert follower.stdout is not None
    assert follower.stdout.readline() == "begin\n"
    (place.workspace / "go-f").touch()
    out, err = follower.communicate(timeout=60)
    assert out == r"\x1b[31mend"
    assert f"{session} ended: exit 7" in err
    assert follower.returncode == 0
    again = shellback(place, "logs", "-f", "-n", "1", session)
    assert again.stdout == r"\x1b[31mend"
    assert shellback(place, "logs", "--raw", "-n", "1", session).stdout == "\x1b[31mend"
    assert facts(shellback(place, "logs", "--json", session))["text"] == "begin\n\x1b[31mend"


def test_logs_say_what_was_dropped_and_where(place: Stage) -> None:
    session = started(place, "holes", "seq 1 60000; exit 0")
    place.until("its end", lambda: session not in {one.id for one in place.sessions(live=True)})
    lines = shellback(place, "logs", "-n", "100000", session).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("1", "60000")
    dropped = [line for line in lines if "dropped here" in line]
    assert len(dropped) == 1
    count = int(re.sub(r"\D", "", dropped[0]))
    shown = sum(len(line) + 1 for line in lines if line.isdigit())
    total = sum(len(f"{n}\n") for n in range(1, 60001))
    assert total - 10 <= count + shown <= total + 10  # the lines at the edges are cut
    assert facts(shellback(place, "logs", "--json", "-n", "100000", session))["bytes_dropped_in_text"] == count


def test_kill_ends_everything_a_process_started_and_the_agent_hears_of_it(place: Stage) -> None:
    session = started(place, "killed", "sleep 1000 & touch up-k; sleep 1000")
    until_file(place, "up-k")
    place.until("no turn is left that could hear of its end by the way", lambda: place.no_turn("killed"))
    done = shellback(place, "kill", session)
    assert done.returncode == 0, done.stderr
    wake = place.ended(f"EXEC_CALLBACK:{session}")
    assert "signal" in wake["answer"]
    ended = next(one for one in place.sessions() if one.id == session)
    assert ended.state is SessionState.SIGNALED
    assert end_of(ended).ended_by == "person"
    assert_refused(shellback(place, "kill", session), "has ended already: signal", "Nothing was signalled")


def test_migrate_and_doctor_on_a_new_place(empty: Stage) -> None:
    new: dict[str, Any] = {"SHELLBACK_HOME": str(empty.root / "new")}
    doctor = facts(shellback(empty, "doctor", "--json", **new))
    assert doctor["ok"] is True
    assert {one["name"] for one in doctor["checks"]} >= {"kernel", "gate", "model", "backend", "database", "supervisor"}
    assert shellback(empty, "migrate", "--check", **new).returncode == 2
    assert facts(shellback(empty, "migrate", "--json", **new))["after"] == "current"
    assert facts(shellback(empty, "migrate", "--check", "--json", **new))["before"] == "current"


def test_chat_on_a_terminal_streams_asks_and_shows_a_wake_while_a_person_types(place: Stage) -> None:
    with Terminal(place, "chat", "-c", "talk") as chat:
        chat.until("Ctrl-D leaves")
        chat.says("hello there\n", "You said: hello there")
        chat.says(f"$ {GATE.format('c')}; exit 5 &\n", "? touch up-c", "[y] once")
        chat.says("meanwhile\n", "stored; the agent gets it after your y or n")
        chat.says("y\n", "You said: meanwhile")
        until_file(place, "up-c")
        chat.says("half a li", "half a li")
        (place.workspace / "go-c").touch()
        chat.until("ended: exit code 5")
        chat.until("> half a li")  # what was being typed is drawn again
        chat.says("ne\n", "You said: half a line")
        chat.says("$ touch refused.txt\n", "[y] once")
        chat.says("n not today\n", "Denied by")
        chat.leaves("\x04")
    assert "Traceback" not in chat.shown
    assert not (place.workspace / "refused.txt").exists()


def test_chat_leaves_what_waits_for_approval_and_asks_again_when_it_is_opened(place: Stage) -> None:
    with Terminal(place, "chat", "-c", "later") as chat:
        chat.until("Ctrl-D leaves")
        chat.says("$ echo later; exit 0\n", "[y] once")
        chat.leaves("\x04", 3)
    assert "still wait for approval" in chat.shown
    with Terminal(place, "chat", "-c", "later") as chat:
        chat.until("? echo later; exit 0")
        chat.until("[y] once")
        chat.says("y\n", "exit code 0")
        place.until("no turn is left that a key could stop", lambda: place.no_turn("later"))
        chat.says("\x03", "Ctrl-C again leaves")
        chat.leaves("\x03", 130)
    assert "Traceback" not in chat.shown


def test_alone_on_a_terminal_it_says_what_waits_what_runs_and_what_is_wrong(place: Stage) -> None:
    place.send("$ touch waits.txt", "now")
    place.pending("now")
    with Terminal(place) as alone:
        for text in ("waits:", "shellback approvals list", "runs:", "doctor: "):
            alone.until(text)
        assert alone.ended() == 0
    place.decide(place.pending("now"), "denied")
    nowhere = shellback(place)
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert "Usage: shellback" in nowhere.stderr
    assert_refused(shellback(place, "pss"), "No such command 'pss'. Did you mean 'ps'?")


def test_chat_with_no_worker_has_one_of_its_own_and_ends_it(empty: Stage) -> None:
    with Terminal(empty, "chat") as chat:
        chat.until("its own worker")
        chat.says("hello\n", "You said: hello")
        chat.leaves("\x04")
    assert [moment is not None for moment in empty.scalars(STOPPED)] == [True]
    for noise in ("INFO", "WARNING", "draining", "ready"):
        assert noise not in chat.shown


def test_a_worker_of_a_chat_that_was_killed_ends_too(empty: Stage) -> None:
    with Terminal(empty, "chat") as chat:
        chat.until("Ctrl-D leaves")
        chat.process.send_signal(signal.SIGKILL)
        chat.process.wait()
    empty.until("the worker has ended", lambda: empty.scalars(STOPPED)[0] is not None)


READING = """
import select
from shellback.cli.terminal.line_editor import LineEditor
from shellback.cli.terminal.screen import Keyboard
with Keyboard() as keys:
    print("at work", flush=True)
    select.select([0], [], [])
    for line in LineEditor().feed(keys.read(60)):
        print("the end" if line is None else f"read {line.text}")
"""
LEAVING = """
import select, sys
from shellback.cli.terminal.screen import Keyboard
with Keyboard():
    print("at work", flush=True)
    select.select([0], [], [])
print("left", select.select([0], [], [], 0)[0])
"""


class Reading(Terminal):
    """A program that reads one line, as `chat` does, when it has been given a key."""

    program = (sys.executable, "-c", READING)


class Leaving(Terminal):
    """A program that leaves, as `chat` does, with something typed that it has not read."""

    program = (sys.executable, "-c", LEAVING)


@pytest.mark.parametrize(("keys", "shown"), [("\x04", "the end"), ("typed\n", "read typed")])
def test_a_key_that_is_pressed_while_no_line_is_read_is_for_the_next_one(empty: Stage, keys: str, shown: str) -> None:
    with Reading(empty) as terminal:
        terminal.until("at work")
        terminal.says(keys, shown)
        assert terminal.ended() == 0


def test_what_is_typed_and_not_read_when_a_person_leaves_is_not_for_the_shell_behind(empty: Stage) -> None:
    with Leaving(empty) as terminal:
        terminal.until("at work")
        terminal.says("touch leaked\n", "left []")
        assert terminal.ended() == 0


def test_chat_on_a_pipe_answers_line_by_line_and_ends_with_3_when_a_call_waits(place: Stage) -> None:
    done = shellback(place, "chat", "-c", "pipe", typed="one\n\nprintf 'a\\nb'\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("said: one") < done.stdout.index("said: printf 'a\\nb'")
    waits = shellback(place, "chat", "-c", "pipe", typed="$ touch pipe.txt\ny\n")
    assert waits.returncode == 3
    assert "touch pipe.txt" in waits.stdout
    assert not (place.workspace / "pipe.txt").exists()


def test_a_worker_drains_and_ends_with_0_when_it_is_told_to_stop(empty: Stage) -> None:
    process = begun(empty, "worker")
    assert process.stderr is not None
    assert any(line == "ready\n" for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert "draining" in process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert empty.scalars(STOPPED)[0] is not None
