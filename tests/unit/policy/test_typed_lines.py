"""What a call leaves of a line that is not ended, and what the next call may not pretend to know."""

from __future__ import annotations

import pytest

from shellback.exec.policy.typed_lines import MOST, left_of, lines_of


@pytest.mark.parametrize(
    ("before", "data", "left"),
    [("", b"ls", "ls"), ("ls", b" -l", "ls -l"), ("ls", b"\r", ""), ("", b"ls\n", ""), ("", b"ls\r\npwd", "ls\npwd"),
     ("", b"", ""), ("", b"s\\\r", "s\\\n"), ("s\\\n", b"udo\r", ""), ("", b"echo '\r", "echo '\n"),
     ("echo '\n", b"'\r", ""),
     ("", b"\x03", ""), ("rm ", b"\x03", None), (None, b"\x03", None), (None, b"ls\n", ""), (None, b"ls", None),
     ("", b"a\x15", None), ("", b"a\tb\n", None), ("", b"\xff\n", None), ("", b"x" * (MOST + 1), None),
     ("", b"for a in b\r", "for a in b\n"), ("for a in b\n", b"do date; done\r", ""), ("", b"x=$(\n", "x=$(\n")],
)  # fmt: skip
def test_what_is_left_is_all_that_a_shell_has_not_run_yet(before: str | None, data: bytes, left: str | None) -> None:
    assert left_of(before, lines_of(data)) == left


def test_the_end_of_the_input_ends_the_line() -> None:
    assert lines_of(b"ls", eof=True) == "ls\n"
    assert lines_of(b"", eof=True) == ""
