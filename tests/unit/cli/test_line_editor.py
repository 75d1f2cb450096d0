"""What is typed in a chat becomes lines, and which of them may be answers."""

from __future__ import annotations

import pytest

from shellback.cli.terminal.line_editor import LONGEST, Line, LineEditor

PASTE = b"\x1b[200~%s\x1b[201~"


def texts(editor: LineEditor, *pieces: bytes) -> list[str | None]:
    return [line if line is None else line.text for piece in pieces for line in editor.feed(piece)]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (b"hello\n", "hello"),
        ("caf\u00e9\n".encode(), "caf\u00e9"),
        (b"helo\x1b[Dl\n", "hello"),
        (b"xhello\x1b[H\x1b[3~\n", "hello"),
        (b"hellox\x7f\n", "hello"),
        (b"gone\x15hello\n", "hello"),
        (b"hello world\x17\x17hello\n", "hello"),
        (b"hello\x01\x0bhello\n", "hello"),
        (b"hel\x1b[15~lo\x1bOP\n", "hello"),
        (b"one\x1b\ntwo\n", "one\ntwo"),
        (rb"printf 'a\nb\n'" + b"\n", r"printf 'a\nb\n'"),
    ],
)
def test_keys_edit_a_line_and_enter_ends_it(keys: bytes, line: str) -> None:
    assert texts(LineEditor(), keys) == [line]
    assert texts(LineEditor(), *(keys[at : at + 1] for at in range(len(keys)))) == [line] or b"\x1b" in keys


def test_the_end_of_input_is_a_key_only_where_nothing_is_typed() -> None:
    editor = LineEditor()
    assert texts(editor, b"a\x04", b"\n", b"\x04") == ["a", None]


def test_a_paste_is_one_message_that_the_next_enter_sends_and_it_never_answers() -> None:
    editor = LineEditor()
    asked = editor.asked()
    assert editor.feed(PASTE % b"My notes:\ry\rend of notes\r") == []
    assert editor.feed(b"\r") == [Line("My notes:\ny\nend of notes\n", None)]
    assert editor.feed(PASTE % b"y") + editor.feed(b"\r") == [Line("y", None)]
    assert editor.feed(b"y\r") == [Line("y", asked)]


def test_a_paste_is_one_however_it_is_cut_into_pieces() -> None:
    whole = PASTE % "a\r\ncaf\u00e9\x1b[201y\rb".encode() + b"\r"
    for at in range(len(whole)):
        editor = LineEditor()
        editor.asked()
        found = editor.feed(whole[:at]) + editor.feed(whole[at:])
        assert found == [Line("a\ncaf\u00e9\x1b[201y\nb", None)], at


def test_lines_that_come_at_once_without_brackets_are_a_paste_too() -> None:
    editor = LineEditor()
    editor.asked()
    assert editor.feed(b"My notes:\ny\nend of notes\n") == [Line("My notes:\ny\nend of notes", None)]


def test_what_was_typed_before_the_question_was_drawn_does_not_answer_it() -> None:
    editor = LineEditor()
    first = editor.asked()
    (line,) = editor.feed(b"y\n")
    assert line == Line("y", first)
    editor.feed(b"y")
    second = editor.asked()
    assert editor.feed(b"\n") == [Line("y", None)]
    editor.feed(b"x\x7f")
    assert editor.feed(b"y\n") == [Line("y", second)]
    assert second != first


def test_a_line_that_is_called_back_does_not_answer() -> None:
    editor = LineEditor()
    editor.feed(b"y\n")
    editor.asked()
    assert editor.feed(b"\x1b[A") + editor.feed(b"\n") == [Line("y", None)]


def test_a_line_is_bounded() -> None:
    editor = LineEditor()
    editor.feed(PASTE % (b"x" * 300_000))
    (line,) = editor.feed(b"\n")
    assert line is not None
    assert len(line.text) == LONGEST


def test_a_row_shows_the_place_of_the_cursor_and_nothing_that_drives_the_terminal() -> None:
    editor = LineEditor()
    editor.feed(PASTE % b"one\rtwo\x9b\x07")
    row, back = editor.row(40)
    assert row == "one⏎two\ufffd\\x07"
    assert back == 0
    editor.feed(b"\x1b[D\x1b[D")
    assert editor.row(40)[1] == 5
    editor.feed(b"x" * 200)
    row, back = editor.row(20)
    assert len(row) <= 20
    assert row.startswith("…")
