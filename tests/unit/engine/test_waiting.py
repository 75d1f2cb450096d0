"""What counts as a program that waits for input, by what the kernel says, the silence, and the last line."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from shellback.exec.core.answers import Look, Terminal
from shellback.exec.engine.waiting import Waiting, advice, judged
from tests.sessions import a_session

PLAIN = Terminal(rows=40, cols=120, echo=True, canonical=True, foreground=7)
HIDDEN = Terminal(rows=40, cols=120, echo=False, canonical=True, foreground=7)
RAW = Terminal(rows=40, cols=120, echo=False, canonical=False, foreground=7)

How = Literal["read", "poll", "none", "unknown"]


def judge(how: How, last: str, terminal: Terminal | None = PLAIN, quiet_s: float = 3.0) -> Waiting | None:
    look = Look(pid=7, quiet_s=quiet_s, terminal=terminal, reader=7, name="prog", how=how)
    return judged(look, ["one", *last.split("\n")])


@pytest.mark.parametrize(
    "last",
    [
        "Continue? [Y/n] ",
        "Name: ",
        "Password: ",
        "Overwrite (y/n)? ",
        "$ ",
        ">>> ",
        "--More--",
        "Press any key to go on",
    ],
)
@pytest.mark.parametrize("terminal", [PLAIN, RAW, None])
def test_a_prompt_alone_is_no_evidence(last: str, terminal: Terminal | None) -> None:
    assert judge("none", last, terminal, quiet_s=600.0) is None
    assert terminal is RAW or judge("unknown", last, terminal, quiet_s=5.0) is None


def test_where_the_kernel_does_not_say_a_prompt_and_a_long_silence_are_told_and_end_nothing() -> None:
    found = judge("unknown", "Continue? [Y/n] ", quiet_s=15.0)
    assert found is not None
    assert (found.evidence, found.sure) == ("silence", False)
    assert judge("unknown", "still working", quiet_s=600.0) is None


@pytest.mark.parametrize(
    ("how", "last", "terminal", "quiet_s", "sure"),
    [
        ("read", "Name: ", PLAIN, 0.3, True),
        ("read", "a question without a mark", PLAIN, 0.3, True),
        ("read", "", PLAIN, 1.0, False),
        ("read", "", PLAIN, 2.0, True),
        ("read", "", None, 2.0, True),
        ("read", "", RAW, 60.0, False),  # a client of something far away passes keys on while that works
        ("read", "README (END)", RAW, 0.3, True),
        ("poll", ">>> ", RAW, 1.0, True),
        ("poll", ">>> ", RAW, 0.5, False),
        ("poll", "(Pdb) ", RAW, 1.0, True),
        ("poll", "", RAW, 60.0, False),
        ("poll", "Pick one\n\u276f this\n  that", RAW, 1.0, True),
        ("poll", "x" * 900 + ":", RAW, 60.0, False),
    ],
)
def test_who_reads_waits_and_ends_a_wait_once_there_is_little_doubt(
    how: How, last: str, terminal: Terminal | None, quiet_s: float, sure: bool
) -> None:
    found = judge(how, last, terminal, quiet_s)
    assert found is not None
    assert (found.evidence, found.sure, found.password) == (how, sure, False)


@pytest.mark.parametrize("last", ["listening on 127.0.0.1:8000\n", "45%", "", "compiled in 3 s"])
@pytest.mark.parametrize("terminal", [PLAIN, None])
def test_a_server_that_watches_its_input_beside_its_sockets_does_not_wait_for_it(
    last: str, terminal: Terminal | None
) -> None:
    assert judge("poll", last, terminal, quiet_s=600.0) is None


@pytest.mark.parametrize(
    ("how", "last", "terminal", "password"),
    [
        ("read", "Password: ", HIDDEN, True),
        ("read", "Code from your phone: ", HIDDEN, True),
        ("poll", "", HIDDEN, True),
        ("unknown", "[sudo] password for me: ", HIDDEN, True),
        ("read", "Password: ", PLAIN, False),
        ("poll", "? Enter the passphrase: ****", RAW, True),
        ("poll", "Your PIN: [input is hidden]", RAW, True),
        ("poll", ">>> password: ", RAW, False),
        ("poll", "me@here:~$ echo password: ", RAW, False),
        ("read", "/etc/passwd (END)", RAW, False),
    ],
)
def test_a_password_is_asked_for_where_the_terminal_hides_what_is_typed(
    how: How, last: str, terminal: Terminal, password: bool
) -> None:
    found = judge(how, last, terminal)
    assert found is not None
    assert found.password is password
    assert ("shellback attach s1" in advice(found, a_session(pty=True))) is password


def test_a_long_question_is_told_by_its_end() -> None:
    found: Any = judge("read", "y" * 1000 + "?")
    assert len(found.prompt) == 200
