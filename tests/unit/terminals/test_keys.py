"""What keys send: held against the description of xterm that programs read themselves."""

from __future__ import annotations

import curses
import re

import pytest

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.terminals.keys import (
    ALTERNATE_SCREEN,
    APPLICATION_CURSOR,
    BRACKETED_PASTE,
    CURSOR_HIDDEN,
    MOUSE,
    NAMES,
    Modes,
    Typing,
    key_bytes,
)

CAPABILITIES = {
    "Up": "kcuu1",
    "Down": "kcud1",
    "Left": "kcub1",
    "Right": "kcuf1",
    "Home": "khome",
    "End": "kend",
    "PageUp": "kpp",
    "PageDown": "knp",
    "Insert": "kich1",
    "Delete": "kdch1",
    "BTab": "kcbt",
    "S-Tab": "kcbt",
    "S-Up": "kri",
    "S-Left": "kLFT",
    "S-End": "kEND",
    "S-Delete": "kDC",
    "C-Right": "kRIT5",
    "M-Home": "kHOM3",
    "C-PageUp": "kPRV5",
    "C-S-Down": "kDN6",
    "S-F1": "kf13",
    "C-F5": "kf29",
    **{f"F{number}": f"kf{number}" for number in range(1, 13)},
}


@pytest.mark.parametrize(("key", "capability"), CAPABILITIES.items())
def test_a_named_key_is_the_one_that_programs_expect(key: str, capability: str) -> None:
    curses.setupterm("xterm-256color", 1)
    # Programs that read the description switch the terminal to application cursor keys first.
    assert key_bytes([key], application=True) == curses.tigetstr(capability)


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("Up", b"\x1b[A"),
        ("Home", b"\x1b[H"),
        ("Enter", b"\r"),
        ("Space", b" "),
        ("Esc", b"\x1b"),
        ("BSpace", b"\x7f"),
        ("C-c", b"\x03"),
        ("C-C", b"\x03"),
        ("^c", b"\x03"),
        ("^[", b"\x1b"),
        ("C-Space", b"\x00"),
        ("C-?", b"\x7f"),
        ("C-\\", b"\x1c"),
        ("C-/", b"\x1f"),
        ("M-x", b"\x1bx"),
        ("M-é", "\x1bé".encode()),
        ("M-Enter", b"\x1b\r"),
        ("C-M-x", b"\x1b\x18"),
        ("M-C-x", b"\x1b\x18"),
        ("S-a", b"A"),
        ("M-S-a", b"\x1bA"),
        ("a", b"a"),
        ("^", b"^"),
        ("-", b"-"),
        ("中", "中".encode()),
        ("hello", b"hello"),
        ("C-x and more", b"C-x and more"),
        ("Hello World", b"Hello World"),
        ("Update", b"Update"),
        ("c++", b"c++"),
        ("print('x')", b"print('x')"),
    ],
)
def test_keys_and_text_are_told_apart(key: str, sent: bytes) -> None:
    assert key_bytes([key]) == sent


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("enter", "Enter"),
        ("ESC", "Esc"),
        ("C-ß", "ß"),
        ("C-\u017f", "\u017f"),
        ("Entr", "Enter"),
        ("PageDwn", "PageDown"),
        ("<Enter>", "Enter"),
        ("<C-c>", "C-c"),
        ("Ctrl+C", "C-c"),
        ("ctrl-c", "C-c"),
        ("Alt-x", "M-x"),
        ("Shift-Tab", "S-Tab"),
        ("c-c", "C-c"),
        ("f5", "F5"),
        ("F13", "F12"),
        ("C-Enter", "Enter"),
        ("S-1", "1"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, nearest: str) -> None:
    said = f"there is no key {key!r}; the nearest is {nearest}. To type it as text, give it as literal"
    with pytest.raises(InvalidCommand, match=re.escape(said)):
        key_bytes(["a", key])


def test_what_is_no_key_at_all_is_refused_with_those_that_are() -> None:
    for key in ("C-foo", "^é", "M-nonsense"):
        with pytest.raises(InvalidCommand, match=r"there is no key .*; keys are Enter, Tab"):
            key_bytes([key])
    for empty in ([], [""]):
        with pytest.raises(InvalidCommand, match="there is nothing to type"):
            key_bytes(empty)
    with pytest.raises(InvalidCommand, match="there is nothing to type"):
        Typing().sent()


def test_every_name_sends_something_of_its_own() -> None:
    sent = {name: key_bytes([name]) for name in NAMES}
    assert all(sent.values())
    assert len(set(sent.values())) == len(NAMES) - 9  # so many are second names


def test_text_a_paste_bytes_and_keys_go_in_this_order() -> None:
    typing = Typing(keys=["Up", "C-c"], literal="Enter\n", hex="00 fF", paste="a\r\nb\n")
    assert typing.sent() == b"Enter\na\rb\r\x00\xff\x1b[A\x03"
    modes = frozenset({BRACKETED_PASTE, APPLICATION_CURSOR})
    assert typing.sent(modes) == b"Enter\n\x1b[200~a\rb\r\x1b[201~\x00\xff\x1bOA\x03"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hex": "1b5"}, "hex is '1b5'; it must be pairs of digits"),
        ({"hex": "xy"}, "hex is 'xy'"),
        ({"paste": "rm\x1b[201~\r"}, "paste has control characters"),
        ({"paste": "\x9b201~"}, "paste has control characters"),
    ],
)
def test_what_cannot_be_typed_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        Typing(**given).sent()


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_modes_are_read_off_the_output(piece: int) -> None:
    def after(data: bytes) -> frozenset[str]:
        modes = Modes()
        for position in range(0, len(data), piece):
            modes.feed(data[position : position + piece])
        return modes.names

    assert after(b"text") == frozenset()
    assert after(b"\x1b[?1049h\x1b[?1h\x1b=text\x1b[?25l") == {ALTERNATE_SCREEN, APPLICATION_CURSOR, CURSOR_HIDDEN}
    assert after(b"\x1b[?1;25;2004;1002h" + b"x" * 500 + b"\x1b[?1l") == {BRACKETED_PASTE, MOUSE}
    assert after(b"\x1b[?2004h\x1bc") == frozenset()
    assert after(b"\x1b[?1h\x1b[!p") == frozenset()
    assert after(b"\x1b[?1\x1b[?9999h\x1b[1h\x1b[?h") == frozenset()
