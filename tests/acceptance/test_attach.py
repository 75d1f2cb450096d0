"""`shellback attach` in a pane of tmux: a person sees what the agent's terminal shows, types, resizes, leaves."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import termios
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.storage.tables import audit, events, mailbox
from tests.commands import PROGRAM, Terminal, assert_refused, environment, shellback, told
from tests.panes import DETACH, PATIENCE_S, Pane, Started, pane, started
from tests.podmans import contained
from tests.stage import Stage, stage, working
from tests.supervisors import run_to_end

SHELL = "PS1='agent:' bash --norc --noprofile"


@pytest.fixture(scope="module")
def on_stage() -> Generator[Started]:
    with stage() as made, started(made) as running:
        yield running


@pytest.fixture
def person(on_stage: Started) -> Generator[Pane]:
    with pane(on_stage.stage) as made:
        yield made


def typed(made: Stage, session_id: str) -> list[dict[str, Any]]:
    query = sa.select(mailbox.c.payload).where(mailbox.c.kind == "typed").order_by(mailbox.c.id)
    return [payload for payload in made.scalars(query) if payload["session_id"] == session_id]


def stty(person: Pane) -> str:
    person.keys("C-l")
    # Its lines are as long as the terminal is wide, and its first tells the size.
    person.line("stty -a | tr '\\n' ' ' | sed 's/rows.*line/line/' | md5sum")
    found = re.search(r"^([0-9a-f]{32})  -$", person.until(r"^[0-9a-f]{32}  -$"), re.MULTILINE)
    assert found is not None
    return found[1]


def test_a_person_sees_types_resizes_and_leaves(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(SHELL)
    before = stty(person)
    usual = on_stage.size(session)
    person.attach(session, "^agent:")
    person.does("echo $((40+2)) at $(stty size)", "^42 at 30 100$")
    person.resize(26, 90)
    on_stage.stage.until("the new size", lambda: on_stage.size(session) == (26, 90))
    # Between two programs, a shell that is interrupted goes on with the second.
    person.does("sh -c 'echo sle''eps; exec sleep 600'; echo not here", "^sleeps$")
    person.keys("C-c", shows=r"^agent:$")
    person.does(
        """sh -c 'trap "echo it quits; exit" QUIT; echo now; while :; do sleep 0.05; done'; stty size""", "^now$"
    )
    person.keys(DETACH, DETACH, shows=r"^26 90$")
    # The key may be shown before what it causes.
    assert len(re.findall(r"^(?:\^\\)?it quits", on_stage.log(session), re.MULTILINE)) == 1
    shown = person.leave()
    assert f"[detached from {session.id}; it keeps running: shellback attach {session.id}]" in shown
    assert stty(person) == before
    on_stage.stage.until("its own size again", lambda: on_stage.size(session) == usual)

    person.attach(session, r"^42 at 30 100$")
    shown = person.does("exit 3", r"^code=3$")
    assert f"[{session.id} ended: exit 3]" in shown
    assert stty(person) == before


def test_how_to_leave_can_be_read_above_whatever_comes(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(SHELL)
    person.attach(session, "^agent:")
    person.does("seq 1 200", "^200$")
    assert f"[attached to {session.id}" not in person.shown()
    assert f"[attached to {session.id}" in person.history()
    person.leave()


def test_full_screen_programs_are_drawn_and_take_keys(on_stage: Started, person: Pane) -> None:
    Path(on_stage.stage.workspace / "text").write_text("".join(f"line {number}\n" for number in range(500)))
    Path(on_stage.stage.workspace / "text").chmod(0o666)
    session = on_stage.start("less text; vim -u NONE -N text; echo over; sleep 600")
    on_stage.until(session, "line 20")
    person.attach(session, "^line 20$")
    assert person.mode("alternate_on") == "1"
    person.keys("G", shows="^line 499$")
    person.keys("k", "k", "PPage", "g", shows="^line 0$")
    person.keys("q")
    person.until('"text" 500L')
    person.keys("O")
    person.line("typed by a person")
    person.keys("Escape", DETACH, shows=r"^code=0$")
    assert person.mode("alternate_on") == "0"
    shown = person.attach(session, "^typed by a person$")
    assert "line 0" in shown
    person.keys(":", "q", "!", "Enter", shows="^over$")
    person.leave()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back_after_a_signal(on_stage: Started, person: Pane, number: int) -> None:
    session = on_stage.start("printf '\\033[?1049h\\033[?1000h\\033[?25l\\033[?1hhere'; cat")
    before = stty(person)
    person.attach(session, "here")
    assert person.mode("mouse_any_flag") == "1"
    person.does("typed", "typed")
    os.kill(person.child(), number)
    person.until(rf"^code={128 + number}$")
    assert stty(person) == before
    assert [person.mode(name) for name in ("alternate_on", "mouse_any_flag", "cursor_flag")] == ["0", "0", "1"]
    assert typed(on_stage.stage, session.id)[0]["over"]


def test_the_terminal_is_given_back_where_the_attachment_is_killed(on_stage: Started, person: Pane) -> None:
    session = on_stage.start("printf '\\033[?1049h\\033[?1000h\\033[?25l\\033[?1hhere'; cat")
    # In a shell that gives a terminal back itself nothing would be shown of it.
    person.does("exec sh", r"^person:exec sh\nperson:$")
    before = modes(person)
    person.attach(session, "here")
    assert person.mode("mouse_any_flag") == "1"
    assert modes(person) != before
    os.kill(person.child(), signal.SIGKILL)
    on_stage.stage.until(
        "the terminal as it was",
        lambda: [person.mode(name) for name in ("alternate_on", "mouse_any_flag", "cursor_flag")] == ["0", "0", "1"],
    )
    on_stage.stage.until("its modes as they were", lambda: modes(person) == before)


def test_nobody_watches_a_terminal_that_was_given_back(on_stage: Started, person: Pane) -> None:
    session = on_stage.start("echo here; cat")
    person.attach(session, "here")
    (watcher,) = children(person.child())
    person.leave()
    assert not Path(f"/proc/{watcher}").exists()


def modes(person: Pane) -> list[Any]:
    fd = os.open(person.mode("pane_tty"), os.O_RDWR | os.O_NOCTTY)
    try:
        return termios.tcgetattr(fd)
    finally:
        os.close(fd)


def children(pid: int) -> list[int]:
    return [int(child) for child in run_to_end("pgrep", "-P", str(pid), check=True).stdout.split()]


def test_a_killed_attachment_leaves_the_row_that_somebody_typed(on_stage: Started, person: Pane) -> None:
    session = on_stage.start("cat")
    person.attach(session)
    person.line("seven")
    on_stage.until(session, "seven\r\nseven")
    os.kill(person.child(), signal.SIGKILL)
    person.until(r"code=137")
    (row,) = typed(on_stage.stage, session.id)
    assert row["over"] is False
    assert row["bytes"] > 0


def test_what_was_typed_is_told_in_bytes_and_kept_nowhere(on_stage: Started, person: Pane) -> None:
    made = on_stage.stage
    session = on_stage.start("read -rsp 'Password: ' given; echo; echo ${#given} characters", conversation="told")
    person.attach(session, "Password:")
    person.does("hunter2-very-secret", r"^code=0$")
    (row,) = typed(made, session.id)
    assert row == {"session_id": session.id, "bytes": 20, "by": row["by"], "over": True}
    event = sa.select(events.c.payload).where(events.c.kind == "typed", events.c.conversation_id == "told")
    noted = sa.select(audit.c.done_by, audit.c.surface, audit.c.facts).order_by(audit.c.id)
    kept = made.rows(noted.where(audit.c.event == "typed", audit.c.session_id == session.id))
    assert made.scalars(event)[-1]["text"] == f"[a person typed into session {session.id} (20 bytes) at the terminal]"
    assert [(by, surface, facts["over"]) for by, surface, facts in kept] == [
        (row["by"], "attach", over) for over in (False, True)
    ]
    assert kept[-1][2]["bytes"] == 20
    # By another process: closing a file of the database here would let go of the locks that we hold on it.
    found = run_to_end("grep", "-rl", "hunter2", made.root)
    assert (found.returncode, found.stdout) == (1, "")


QUERIES = r"printf '\033[c\033[6n\033[5n\033[21t\033]52;c;c2VjcmV0\007\033]11;?\007\033Z\005\033P$qm\033\134ready\n'"


def test_nothing_that_a_program_prints_makes_the_terminal_type(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(f"stty raw -echo; read -rn1; {QUERIES}; head -c 23 | cat -v; cat")
    person.attach(session)
    person.keys("x", shows="ready")
    person.keys("a", "b", "c", "d")
    # The supervisor has answered three of them, once; the terminal of the person was asked none.
    person.until(r"\^\[\[\?62;22c\^\[\[1;1R\^\[\[0nabcd")
    shown = person.leave()
    assert person.clipboard() == ""
    assert re.search(r"^person:$", shown.rstrip(), re.MULTILINE)  # no answer was left for the shell either


def test_who_only_looks_on_writes_nothing(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(f"stty raw -echo; echo begun; until [ -e asked ]; do sleep 0.05; done; {QUERIES}; cat -v")
    on_stage.until(session, "begun")
    usual = on_stage.size(session)
    person.resize(50, 140)
    before = stty(person)
    person.attach(session, options="--read-only")
    (on_stage.stage.workspace / "asked").touch()
    person.until("ready")
    assert on_stage.size(session) == usual
    person.line("not typed")
    person.keys("Up")
    person.resize(45, 130)
    person.leave()
    assert stty(person) == before
    assert on_stage.size(session) == usual
    assert on_stage.log(session).endswith("ready\n^[[?62;22c^[[2;6R^[[0n")
    assert typed(on_stage.stage, session.id) == []


def test_an_ended_process_shows_what_was_last_and_how_it_ended(on_stage: Started) -> None:
    session = on_stage.ended(on_stage.start("printf 'one\\r\\033[2Jlast words'; exit 4"))
    shown = shellback(on_stage.stage, "attach", session.id[:8])
    assert shown.returncode == 0
    assert shown.stdout.strip() == "last words"
    assert f"[{session.id} has ended: exit 4; nothing is attached]" in shown.stderr


def test_a_process_without_a_terminal_gets_lines(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(
        "echo first >&2; while read -r line; do echo got $line; done; kill -TERM $$", pty=False, stdin=True
    )
    shown = person.attach(session)
    assert "lines are sent, Ctrl-D ends its input; Ctrl-C or C-\\ leaves" in shown
    person.until("^first$")
    person.does("a line", "^got a line$")
    person.leave()
    person.keys("C-l")
    person.attach(session, "^got a line$")
    person.keys("C-d", shows=r"^code=143$")
    assert typed(on_stage.stage, session.id)[0]["bytes"] == len("a line\n")


def test_a_supervisor_may_be_replaced_meanwhile(on_stage: Started, person: Pane) -> None:
    session = on_stage.start(SHELL)
    person.attach(session)
    person.does("echo bef''ore", "^before$")
    on_stage.stage.kill_supervisor()
    person.resize(26, 90)  # there may be none to ask for it now
    on_stage.stage.until("another", lambda: on_stage.size(session) == (26, 90))
    person.does("echo aft''er", "^after$")
    person.leave()


def test_much_output_is_not_shown_later_than_it_comes(on_stage: Started, person: Pane) -> None:
    session = on_stage.start("read -r; yes $(seq 20) | head -c 10000000; echo; echo over; cat")
    person.attach(session)
    person.keys("Enter", shows="^over$")
    person.leave()


@pytest.mark.parametrize("controlling", [True, False], ids=["told of it", "not told"])
def test_a_terminal_that_goes_away_is_no_end_of_input(on_stage: Started, *, controlling: bool) -> None:
    session = on_stage.start("echo begun; cat; echo was told of an end", pty=False, stdin=True)
    ours, theirs = os.openpty()
    person = subprocess.Popen(
        [*PROGRAM, "attach", session.id],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(on_stage.stage, {}),
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None,  # noqa: PLW1509 - nothing but one system call
    )
    os.close(theirs)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    said = person.communicate(timeout=PATIENCE_S)[1]
    assert person.returncode == 128 + signal.SIGHUP
    assert b"detached" in said
    assert typed(on_stage.stage, session.id) == []
    assert on_stage.log(session) == "begun\n"


def test_a_closed_standard_output_and_a_dumb_terminal_are_refused(on_stage: Started) -> None:
    session = on_stage.start("cat")
    words = ("sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "attach", session.id)
    closed = run_to_end(*words, env=environment(on_stage.stage, {}))
    assert_refused(closed, "not a terminal", f"shellback logs -f {session.id}")
    with Terminal(on_stage.stage, "attach", session.id, TERM="dumb") as terminal:
        terminal.until("TERM=dumb cannot")
        assert terminal.ended() == 2


def test_what_cannot_be_attached_says_why(on_stage: Started) -> None:
    made = on_stage.stage
    session = on_stage.start("sleep 600", pty=False)
    assert_refused(shellback(made, "attach", "nothing"), "no session", "shellback ps --all")
    assert_refused(shellback(made, "attach", session.id), "not a terminal", f"shellback logs -f {session.id}")
    assert_refused(shellback(made, "attach", session.id, "--detach-key", "x"), "C-x")
    assert_refused(shellback(made, "attach", session.id, "--detach-key", "C-c"), "choose another")
    with Terminal(made, "attach", "--read-write", session.id) as terminal:
        terminal.until("takes no input: give --read-only")
        assert terminal.ended() == 2
    with Terminal(made, "attach", session.id) as terminal:
        terminal.until("read-only")
        terminal.says("\x03", "detached")
        assert terminal.ended() == 0


def test_the_agent_hears_with_its_next_turn_that_a_person_typed() -> None:
    with working() as made:
        session = made.started('!execute_pty {"command": "cat"}', "cat")
        made.until("the answer", made.answers)
        with Terminal(made, "attach", session.id, TERM="xterm") as terminal:
            terminal.until(f"[attached to {session.id}")
            terminal.says("typed\r", "typed")
            terminal.says("\x1c", "detached")
            assert terminal.ended() == 0
        (row,) = typed(made, session.id)
        assert len(made.answers()) == 1  # it woke nobody
        text = f"[a person typed into session {session.id} (6 bytes) at the terminal]"
        assert f"not heard yet: {text}" in told(made, "conversations", "show", "c1").stdout
        made.answer(made.send("And now?"))
        shown = told(made, "conversations", "show", "c1").stdout
        assert f"shellback: {text}" in shown
        assert "not heard yet" not in shown
        assert row["bytes"] == 6


COMMAND = '!execute_pty {"command": "PS1=agent: bash --norc --noprofile"}'


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["bubblewrap", "podman"])
def test_a_person_types_into_it_resizes_it_and_leaves(kind: str) -> None:
    with contained(kind) as made, pane(made) as person:
        made.hire()
        session = made.started(COMMAND, "agent:")
        person.attach(session, "^agent:")
        person.does("echo $((40+2)) at $(stty size)", "^42 at 30 100$")
        person.resize(26, 90)
        person.does("until [ \"$(stty size)\" = '26 90' ]; do sleep 0.05; done; echo re''sized", "^resized$")
        # Between two programs, a shell that is interrupted goes on with the second.
        person.does("sh -c 'echo sle''eps; exec sleep 600'; echo not here", "^sleeps$")
        person.keys("C-c")
        person.keys("C-\\", shows=rf"^\[detached from {session.id}; it keeps running")
        person.until("^code=0$")
        person.attach(session)
        shown = person.does("exit 3", "^code=3$")
        assert f"[{session.id} ended: exit 3]" in shown
