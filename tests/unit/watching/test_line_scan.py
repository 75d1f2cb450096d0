"""Lines that a pattern matches: whatever their escapes and ends, wherever a look begins, in linear time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.watching.conditions import BLOCK, COUNTED, LINE_BYTES, LINES, PATTERN_CHARS, LineScan, compiled


def scan_of(tmp_path: Path, data: bytes, pattern: str, offset: int = 0) -> LineScan:
    (tmp_path / "log").write_bytes(data)
    return LineScan(compiled(pattern), (str(tmp_path / "log"), str(tmp_path / "holes.json")), offset)


def found_in(tmp_path: Path, data: bytes, pattern: str, offset: int = 0, *, last: bool = False) -> list[str]:
    scan = scan_of(tmp_path, data, pattern, offset)
    while scan.look(len(data), last=last):
        pass
    return scan.found.lines


@pytest.mark.parametrize(
    ("data", "pattern", "lines"),
    [
        (b"a\nserver listening on 1\nb\n", "listening", ["server listening on 1"]),
        (b"\x1b[32mser\x1b[0mver \x1b]0;title\x07listening\r\n", "server listening", ["server listening"]),
        (b"10%\r50%\r100%\rdone\r\n", "^100%$", ["100%"]),
        (b"a\nb\n", "a[^x]b|a\\sb|(?s)a.b", []),
        (b"Error\nerror\n", "error", ["error"]),
        (b"Error\n", "(?i)error", ["Error"]),
        ("für\n".encode(), "f.r$", ["für"]),
        (b"\xff ready \xfe\n", "ready", ["� ready �"]),
        (b"ready", "ready", []),
        (b"", "x", []),
    ],
)
def test_complete_lines_are_matched_one_by_one_and_without_their_escapes(
    tmp_path: Path, data: bytes, pattern: str, lines: list[str]
) -> None:
    assert found_in(tmp_path, data, pattern) == lines


def test_a_line_without_its_end_is_matched_where_it_is_the_last_and_told_once(tmp_path: Path) -> None:
    data = b"one\n>>> ready"
    scan = scan_of(tmp_path, data, "rea.*")
    scan.look(len(data))
    assert (scan.found.count, scan.position) == (0, 4)
    scan.look(len(data), last=True)
    assert (scan.take().lines, scan.position) == ([">>> ready"], len(data))
    with (tmp_path / "log").open("ab") as log:
        log.write(b" now\nready again\n")
    scan.look(len(data) + 17)
    assert scan.found.lines == ["ready again"]


def test_what_lies_before_the_offset_is_old_even_within_a_line(tmp_path: Path) -> None:
    assert found_in(tmp_path, b">>> x\r\n>>> ", ">>> ", 4, last=True) == [">>> "]
    assert found_in(tmp_path, b"server listening\n", "listening", 10) == ["server listening"]
    assert found_in(tmp_path, b"\x1b[1mserver\x1b[0m ready\n", "server", 17) == []
    assert found_in(tmp_path, b"ready\nready\n", "ready", 6) == ["ready"]


def test_the_range_of_what_was_found_is_that_of_the_raw_lines(tmp_path: Path) -> None:
    data = b"first\n\x1b[32mone hit\x1b[0m\nno\nand a \x1b[1mhit\x1b[0m\nlast\n"
    scan = scan_of(tmp_path, data, "hit")
    scan.look(len(data))
    found = scan.found
    assert found.count == 2
    assert data[found.start : found.end] == b"\x1b[32mone hit\x1b[0m\nno\nand a \x1b[1mhit\x1b[0m"


def test_blocks_cut_no_line_and_lines_beyond_the_bound_are_looked_at_in_pieces(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    number = BLOCK // len(line)
    data = line * number + b"across the border " * 20 + b"hit\n" + b"y" * (3 * LINE_BYTES) + b"hit"
    assert len(found_in(tmp_path, data, "across.*hit")) == 1
    assert len(found_in(tmp_path, data, "y+hit$")) == 1


def test_counting_stops_at_a_bound_and_only_the_first_lines_are_kept(tmp_path: Path) -> None:
    data = b"hit\n" * (COUNTED + 5)
    scan = scan_of(tmp_path, data, "hit")
    scan.look(len(data))
    assert (scan.found.count, len(scan.found.lines), scan.position) == (COUNTED, LINES, len(data))


def test_what_the_cap_has_dropped_is_passed_over_and_counted(tmp_path: Path) -> None:
    data = b"one\n" + b"\0" * 5000 + b"e hit\nhit two\n"
    (tmp_path / "holes.json").write_text(json.dumps([{"start": 4, "end": 5004, "newlines": 7}]))
    scan = scan_of(tmp_path, data, "hit")
    scan.look(len(data))
    assert (scan.found.count, scan.found.dropped) == (2, 5000)


@pytest.mark.timeout(20)  # what another engine of patterns would never end is over by then
def test_a_pattern_that_takes_others_for_ever_takes_milliseconds(tmp_path: Path) -> None:
    data = b"a" * 60_000 + b"!\n"
    scan = scan_of(tmp_path, data * 4, "(a+)+$")
    began = time.thread_time()
    scan.look(4 * len(data))
    assert time.thread_time() - began < 1.0
    assert scan.found.count == 0


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "does not compile: missing \\)"),
        ("a)(b", "does not compile: unexpected \\)"),
        ("(?<=x)y", "no look-around"),
        ("(a)\\1", "no back-references"),
        ("x{2000}", "does not compile: invalid repetition size"),
        ("", "1 to 1000"),
        ("x" * (PATTERN_CHARS + 1), "has 1001 characters"),
        (".*", "matches an empty line"),
        ("^$", "matches an empty line"),
        ("a\nb", "line by line"),
        (r"\Aready", "line by line"),
        (r"ready\z", "line by line"),
        ("(?-m)^x", "line by line"),
        ("a\ud800", "lone surrogate"),
    ],
)
def test_a_pattern_that_cannot_be_matched_line_by_line_is_refused_with_the_reason(pattern: str, said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        compiled(pattern)
