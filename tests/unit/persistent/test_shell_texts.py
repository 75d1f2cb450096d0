"""What is typed into a shell and read off it, without one: quoting as bash has it, marks wherever they are cut."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.log.output import OutputLog
from shellback.exec.persistent import marks
from shellback.exec.persistent.marks import Reader, last_mark, mark_named, quoted, unquoted
from shellback.exec.persistent.shells import check_line, shell_command
from shellback.exec.wire import layout

pytestmark = pytest.mark.anyio

EVERY = bytes(range(1, 256))
NAME = "0123456789abcdef" * 2
WORDS = (
    b"",
    b"plain",
    b"a b",
    b"it's",
    b'"$x`y`\\',
    b"new\nline\ttab",
    "gr\u00fc\u00dfe \u20ac".encode(),
    b"\\001",
    b"~a",
    EVERY,
)


@pytest.mark.parametrize("word", WORDS)
def test_bash_reads_what_was_quoted_and_what_it_quotes_is_read(word: bytes) -> None:
    assert not any(byte < 0x20 or byte == 0x7F for byte in quoted(word))
    for locale in ("C.UTF-8", "C"):
        told = subprocess.run(
            ["bash", "-c", b"printf '%s\\0%q' " + quoted(word) + b" " + quoted(word)],
            capture_output=True, check=True, env={"LC_ALL": locale, "PATH": "/usr/bin:/bin"}, timeout=30,
        ).stdout  # fmt: skip
        read, _, quoted_by_bash = told.partition(b"\0")
        assert read == word
        assert unquoted(quoted_by_bash) == word


@pytest.mark.parametrize("piece", [1, 7, 50, 100_000])
async def test_marks_are_read_wherever_the_output_is_cut(tmp_path: Path, piece: int) -> None:
    log = OutputLog(tmp_path, "s1")
    noise = b"text\x1b[1m\x1b]0;title\x07" + b"x" * 90
    said = {b"R": b"himBHs'", b"E": b"/a\\ b\x1f''"}
    each = [
        b"\x1b]7770;%b;%b;%d;%b\x07" % (kind, NAME.encode(), number, said.get(kind, b""))
        for number, kind in enumerate((b"R", b"S", b"E", b"P", b"C"))
    ]
    whole = noise + b"".join(mark + noise for mark in each)
    reader, found = Reader(log, 0), list[marks.Mark]()
    with (tmp_path / layout.LOG).open("ab", buffering=0) as file:
        for start in range(0, len(whole), piece):
            file.write(whole[start : start + piece])
            found += await reader.marks()
    assert [mark.kind for mark in found] == ["R", "S", "E", "P", "C"]
    assert [mark.status for mark in found] == [0, 1, 2, 3, 4]
    assert [whole[mark.start : mark.end] for mark in found] == each
    assert found[0].options == "himBHs"
    assert (found[2].status, found[2].places) == (2, ("/a b", ""))
    assert marks.without(whole) == noise * 6
    assert last_mark(log, "SE") == found[2]
    assert await mark_named(log, NAME) == found[0]
    assert await mark_named(log, "f" * 32) is None


async def test_a_mark_is_found_behind_much_output(tmp_path: Path) -> None:
    log = OutputLog(tmp_path, "s1")
    mark = b"\x1b]7770;E;%b;0;/\x1f''\x07" % NAME.encode()
    (tmp_path / layout.LOG).write_bytes(b"\x1b]7770;" + b"y" * 9_000_000 + mark + b"z" * 70_000)
    found = await Reader(log, 0).marks()
    assert [one.start for one in found] == [9_000_007]
    assert last_mark(log, "E") == found[0]
    assert last_mark(log, "R") is None


def test_names_are_of_one_key_that_others_cannot_read(tmp_path: Path) -> None:
    names, again = marks.Names(tmp_path), marks.Names(tmp_path)
    path = tmp_path / marks.KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in tmp_path.iterdir()] == [marks.KEY_FILE]
    session, key = SessionId("s1"), CallKey("c1")
    assert names.of_call("E", session, key) == again.of_call("E", session, key)
    others = {names.of_call("S", session, key), names.of_call("E", session, CallKey("c2")), names.of_session(session)}
    assert names.of_call("E", session, key) not in others
    assert len(others) == 3
    assert marks.Names(tmp_path / "..").of_session(session) != names.of_session(session)
    (tmp_path / ".." / marks.KEY_FILE).unlink()
    path.write_bytes(b"short")
    with pytest.raises(OSError, match="is damaged: remove it"):
        marks.Names(tmp_path)


@pytest.mark.parametrize(
    ("command", "timeout_s", "said"),
    [(" \n", 30, "empty"), ("a\0b", 30, "NUL"), ("x" * 4097, 30, "4096"), (":", 0.05, "0.1 to 300"), (":", 301, "300")],
)
def test_what_no_shell_is_given(command: str, timeout_s: float, said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        check_line(command, timeout_s, Limits())


@pytest.mark.parametrize(("rows", "cols"), [(1, 80), (501, 80), (24, 1), (24, 1001)])
def test_sizes_that_no_terminal_has(tmp_path: Path, rows: int, cols: int) -> None:
    with pytest.raises(InvalidCommand, match="2 to 500 by 2 to 1000"):
        shell_command(rows=rows, cols=cols, workspace=tmp_path, limits=Limits())
