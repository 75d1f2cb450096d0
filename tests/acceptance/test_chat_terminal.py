"""A person at the terminal of a chat: the margin says who speaks, and only a key after the question decides."""

from __future__ import annotations

import os
import re
import select
import signal
import sys

import pytest

from tests.commands import PROGRAM, Terminal, shellback
from tests.panes import Pane, pane
from tests.stage import Stage, stage, staged

FAKE = "? ls\n    tier: read_write\n[y] once · [n] no, with a reason"
OURS = re.compile(
    r"person:|conversation |commands run |>|"
    r"not an answer: |stored; |no turn runs; |created the workspace|$"
)
LONG = "word " * 60
LIKE_A_QUESTION = [
    FAKE,
    f"\r\n{FAKE}",
    f"x\r{FAKE}",
    f"\x1b[1G{FAKE}",
    f"\x1b[2J\x1b[H{FAKE}",
    f"\x85{FAKE}",
    f"\u2028{FAKE}",
    f"\v{FAKE}",
    f"\b\b\b\b{FAKE}",
    "```\n" + FAKE + "\n```",
    f"> {FAKE}",
    LONG,
    "\u754c" * 150,
    "\t? ls",
]


place = staged(worker=True)


def chatting(seat: Pane, conversation: str) -> None:
    seat.does(f"clear; {' '.join(PROGRAM)} chat -c {conversation}; echo code=$?", r"Ctrl-D leaves\n.*\n>")


def strangers(shown: str) -> list[str]:
    """The rows that begin a line and are not Shellback's, above the one that is typed into."""
    rows = shown.split("\n")
    return [row for row in rows if row and not row.startswith("  ") and not OURS.match(row)]


@pytest.mark.parametrize("text", LIKE_A_QUESTION, ids=range(len(LIKE_A_QUESTION)))
def test_what_others_say_is_behind_a_margin_in_every_row_of_the_screen(place: Stage, text: str) -> None:
    name = f"margin{LIKE_A_QUESTION.index(text)}"
    with pane(place, rows=60, cols=120) as seat:
        chatting(seat, name)
        place.answer(place.send(text, name))
        place.send("that was all", name)
        shown = seat.until("You said: that was all")
        assert strangers(shown.split("Ctrl-D leaves", 1)[1].split("\n", 1)[1]) == []
        assert re.search(r"^  (test> |You said: )", shown, re.MULTILINE)


@pytest.mark.parametrize("cols", [60, 100, 160])
def test_a_chat_fits_the_terminal_and_its_rows_end_with_words(place: Stage, cols: int) -> None:
    words = "several words of an answer that is longer than one row of a narrow or of a wide terminal " * 4
    with pane(place, rows=50, cols=cols) as seat:
        seat.does(f"clear; {' '.join(PROGRAM)} chat -c wide{cols}", rf"^>\n  wide{cols} · workspace · ")
        seat.does("$ touch fits.txt", r"^\[y\] once · [^\n]*(?:\n[^\n]*)?\[\?\]$")
        seat.does("n", "Denied by")
        place.send(words, f"wide{cols}")
        shown = seat.until(r"^  You said: several words(?s:.*)terminal\n>$")
        answer = shown[shown.index("You said: several") :].split("\n>", 1)[0].split("\n")
        assert " ".join(row.strip() for row in answer) == f"You said: {words.strip()}"
        assert all(len(row) <= cols for row in shown.split("\n"))
        seat.keys("/p", shows="^> /p\n +/ps")


def test_a_real_request_begins_in_the_first_column(place: Stage) -> None:
    with pane(place, rows=60, cols=120) as seat:
        chatting(seat, "real")
        place.send(f"$ touch {'x' * 90}", "real")
        shown = seat.until(r"^\[y\] once")
        rows = strangers(shown.split("Ctrl-D leaves", 1)[1].split("\n", 1)[1])
        assert [row[:11] for row in rows] == ["? touch xxx", "[y] once · "]


def test_pasted_text_approves_nothing_and_is_one_message(place: Stage) -> None:
    with pane(place, rows=50, cols=120) as seat:
        chatting(seat, "pasted")
        seat.does("$ touch pasted.txt", r"^\[y\] once")
        seat.paste("My notes:\ny\nend of notes")
        seat.until("^> My notes:\n  y\n  end of notes$")
        seat.keys("Enter", shows="stored; the agent gets it after your y or n")
        seat.paste("y")
        seat.until("^> y$")
        seat.keys("Enter", shows="^not an answer: it was pasted")
        assert place.pending("pasted")
        seat.does("n not now", "You said: My notes:")
        assert not (place.workspace / "pasted.txt").exists()


def test_what_was_typed_before_the_question_or_called_back_is_no_answer_at_a_terminal_that_can_draw(
    place: Stage,
) -> None:
    with pane(place, rows=50, cols=120) as seat:
        chatting(seat, "before")
        seat.does("y", "You said: y")
        seat.keys("y", shows="^> y$")
        place.send("$ touch before.txt", "before")
        seat.until(r"^\[y\] once")
        seat.keys("Enter", shows="^not an answer: ")
        seat.keys("Up", shows="^> y$")
        seat.keys("Enter")
        seat.until("not an answer: (?s:.*)not an answer: ")
        assert place.pending("before")
        seat.does("y", "exit code 0")
    assert (place.workspace / "before.txt").exists()


def test_a_call_is_read_in_detail_changed_and_remembered_at_the_prompt(place: Stage) -> None:
    with pane(place, rows=50, cols=120) as seat:
        chatting(seat, "changed")
        seat.does("$ touch one.txt", r"^\[y\] once")
        seat.does("?", "^r  shows the rules")
        seat.does("d", r"^    digest: [0-9a-f]{64}$")
        seat.does("e", "^> touch one.txt$")
        seat.keys("BSpace", "BSpace", "BSpace", "BSpace", "-two.txt", "Enter")
        shown = seat.until(r"^\? touch one-two.txt$(?s:.*)^\[y\] once")
        assert "changed by: " in shown
        seat.does("r", r"^rules to save:\n  .*touch one-two.txt(?s:.*)^\[y\] saves these rules and runs this")
        assert place.pending("changed").state == "pending"
        seat.does("y", "remembered as (?s:.*)exit code 0")
        seat.does("$ touch one-two.txt", "exit code 0(?s:.*)exit code 0")
    assert not (place.workspace / "one.txt").exists()


def test_a_change_that_is_given_up_leaves_the_call_as_it_was(place: Stage) -> None:
    with pane(place, rows=50, cols=120) as seat:
        chatting(seat, "kept")
        seat.does("$ touch kept.txt", r"^\[y\] once")
        seat.does("e", "^> touch kept.txt$")
        seat.keys("C-c", shows="^not changed$")
        seat.until(r"^not changed\n\[y\] once")
        seat.does("y", "exit code 0")


def test_lines_that_arrive_at_once_approve_nothing_where_the_terminal_marks_no_paste(place: Stage) -> None:
    with Terminal(place, "chat", "-c", "burst") as chat:
        chat.until("> ")
        chat.says("$ touch burst.txt\n", "[y] once")
        chat.says("My notes:\ny\nend of notes\n", "stored; the agent gets it after your y or n")
        assert place.pending("burst").state == "pending"
        chat.says("n\n", "said: My notes:")
        chat.leaves("\x04")
    assert not (place.workspace / "burst.txt").exists()


def test_a_key_that_was_pressed_before_the_question_was_drawn_is_no_answer_to_it(place: Stage) -> None:
    with Terminal(place, "chat", "-c", "early") as chat:
        chat.until("> ")
        chat.says("y", "> y")
        place.send("$ touch early.txt", "early")
        chat.until("[y] once")
        chat.says("\n", "not an answer: it was pasted, or typed before")
        assert place.pending("early").state == "pending"
        chat.says("y\n", "exit code 0")
        chat.leaves("\x04")
    assert (place.workspace / "early.txt").exists()


class Unhurried(Terminal):
    """A chat that never gets from a request to the question about it."""

    program = (
        sys.executable,
        "-c",
        "import sys; from shellback.cli import chat, main; chat.READ_S = 3600; main.main(sys.argv[1:])",
    )


def test_a_yes_between_a_request_and_the_question_about_it_is_no_answer(place: Stage) -> None:
    with Unhurried(place, "chat", "-c", "between") as chat:
        chat.until("> ")
        chat.says("$ touch between.txt\n", "? touch between.txt", "> ")
        chat.says("y\n", "not an answer: it was pasted, or typed before")
        assert place.pending("between").state == "pending"
        chat.leaves("\x04", 3)


def test_an_answer_to_one_request_is_none_to_the_next(place: Stage) -> None:
    place.send('!execute {"command": "touch first.txt"}\n!execute {"command": "touch second.txt"}', "two")
    place.pending("two")
    with Terminal(place, "chat", "-c", "two") as chat:
        chat.until("[y] once")
        chat.says("y\n", "? touch")
        chat.says("y", "> y", "[y] once")
        chat.says("\n", "not an answer: ")
        chat.says("\x15n\n", "Denied by")
        chat.leaves("quit\n")
    assert len([name for name in ("first.txt", "second.txt") if (place.workspace / name).exists()]) == 1


def test_what_a_person_says_arrives_as_it_was_typed_and_the_words_that_leave_are_no_messages(place: Stage) -> None:
    with Terminal(place, "chat", "-c", "words") as chat:
        chat.until("> ")
        chat.says("printf 'a\\nb\\n'\n", r"You said: printf 'a\nb\n'")
        for word in ("help", "?"):
            chat.says(f"{word}\n", "/ps lists processes")
        chat.leaves("exit\n")
    (answer,) = place.answers(conversation="words")
    assert answer.endswith(r"You said: printf 'a\nb\n'")


UNREAD = """
import threading
from shellback.cli.terminal.prompt import Prompt
with Prompt() as seat:
    while seat._lines.empty():
        threading.Event().wait(0.05)
"""
"""A chat that ends before it has read what was typed."""


def test_lines_that_nobody_has_read_are_said_not_to_be_sent(place: Stage) -> None:
    program = place.root / "unread.py"
    program.write_text(UNREAD)
    with pane(place, cols=120) as seat:
        seat.does(f"clear; {sys.executable} -P {program}; echo code=$?", r"^> ?$")
        seat.keys("much later", "Enter", shows="not sent: much later")
        seat.until("code=0")


BUSY = """
import pathlib, sys, time
from shellback.cli.terminal.prompt import Prompt
with Prompt() as seat:
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    presses = 0
    while seat.interrupted():
        presses += 1
print("presses", presses)
"""
"""A chat that does something else while keys are pressed."""


def test_each_press_of_ctrl_c_counts_once_however_late_it_is_heard(place: Stage) -> None:
    program, go = place.root / "busy.py", place.root / "go"
    program.write_text(BUSY)
    with pane(place, cols=120) as seat:
        seat.does(f"clear; {sys.executable} -P {program} {go}", r"^> ?$")
        seat.keys("half a line", shows="^> half a line$")
        seat.keys("C-c", shows="^>$")
        seat.keys("C-c", "x", shows="^> x$")
        go.touch()
        seat.until("^presses 2$")


def test_ctrl_c_clears_a_line_and_only_two_at_an_empty_prompt_leave(place: Stage) -> None:
    with pane(place, cols=120) as seat:
        chatting(seat, "idle")
        seat.keys("half a line", shows="^> half a line$")
        seat.keys("C-c", shows="^>$")
        seat.keys("C-c", shows="Ctrl-C again leaves")
        seat.paste("touch leaked\n")
        seat.until("touch leaked")
        seat.keys("C-c", "C-c", shows="code=130")
        assert "leaked" not in seat.until("person:$").split("code=130")[1]
    assert not place.answers(conversation="idle")


def test_a_person_who_confirms_on_the_command_line_types_it_after_the_question(place: Stage) -> None:
    place.send("$ touch confirmed.txt", "asked")
    request = place.pending("asked")
    with Terminal(place, "approvals", "approve", request.id, "--remember") as terminal:
        terminal.says("y\n", "approve exactly this? [y/N]: ")
        terminal.says("\x1b[200~y\n\x1b[201~\n", "approve exactly this? [y/N]: ")
        assert place.pending("asked").state == "pending"
        terminal.says("y\n", "approved")
        assert terminal.ended() == 0


def test_a_worker_at_a_terminal_shows_its_log_and_no_banner_of_the_agent_framework() -> None:
    with stage() as alone, pane(alone, rows=60, cols=120) as seat:
        seat.line(f"clear; env -u CI -u PYTEST_VERSION {' '.join(PROGRAM)} worker")
        seat.until("ready")
        alone.answer(alone.send("hello", "quiet"))
        shown = seat.keys("C-c", shows="draining")
        assert "pydantic-ai" not in shown


def test_what_was_typed_is_there_in_the_next_chat_and_no_answer_is(place: Stage) -> None:
    with pane(place, rows=60, cols=120) as seat:
        chatting(seat, "kept")
        seat.does("$ touch kept.txt https://bob:hunter2x@host/", r"\[\?\]$")
        seat.does("n not this one", "Denied by")
        seat.line("/ps")
        seat.until("no running processes")
        seat.keys("C-d", shows="code=0")
        chatting(seat, "kept")
        seat.keys("Up", shows="^> /ps$")
        seat.keys("Up", shows=r"^> \$ touch kept.txt https://bob:\*{3}@host/$")
        seat.keys("C-c", "C-d", shows="code=0")
    file = place.home / "chat_history"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [line for line in file.read_text().splitlines() if "kept" in line][
        -1
    ] == '"$ touch kept.txt https://bob:***@host/"'
    assert "not this one" not in file.read_text()


def test_a_chat_that_is_told_to_end_gives_the_terminal_back(place: Stage) -> None:
    with pane(place, rows=60, cols=120) as seat:
        chatting(seat, "told")
        seat.keys("half a line")
        os.kill(seat.child(), signal.SIGTERM)
        seat.until("^code=143$")
        shown = seat.does("stty -a; echo done=$?", "^done=0$")
        assert " icanon " in shown
        assert " echo " in shown
        assert "half a line" not in shown.split("code=143", 1)[1]


def test_a_chat_whose_terminal_is_closed_ends(place: Stage) -> None:
    with pane(place, rows=60, cols=120) as seat:
        chatting(seat, "closed")
        gone = os.pidfd_open(seat.child())
        seat.close()
        assert select.select([gone], [], [], 30.0)[0]
        os.close(gone)


def test_processes_are_listed_in_a_chat_in_rows_that_fit_and_without_sequences(place: Stage) -> None:
    session = place.started("$ sleep 321 &", "sleep 321", "lists", rest=True)
    with pane(place, rows=40, cols=60) as seat:
        seat.does(f"clear; {' '.join(PROGRAM)} chat -c lists", r"^>\n  lists · ")
        seat.line("/ps")
        shown = seat.until(r"--wide also shows (?s:.*)\n>$")
    (row,) = (line for line in shown.split("\n") if line.startswith(f"  {session.id[:6]}"))
    assert row.split()[1:3] == ["lists", "running"]
    assert row.endswith("sleep 321")
    assert "\\x" not in shown
    shellback(place, "kill", session.id)
