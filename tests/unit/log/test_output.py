"""Slices of a log: every byte shown, counted as dropped, or said to be left out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.core import limits
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import SessionEnd, SessionState
from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import harmless, masked, whole_characters
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.wire import layout
from tests.sessions import a_session

pytestmark = pytest.mark.anyio


def log_of(tmp_path: Path, data: bytes, holes: list[tuple[int, int, int]] | None = None) -> OutputLog:
    (tmp_path / "log").write_bytes(data)
    if holes:
        rows = [{"start": start, "end": end, "newlines": newlines} for start, end, newlines in holes]
        (tmp_path / "holes.json").write_text(json.dumps(rows))
    return OutputLog(tmp_path, "xsession")


def numbered(count: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(count))


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    log = OutputLog(tmp_path, "x")
    assert log.size() == 0
    assert asyncio.run(log.ends()).text == ""
    assert asyncio.run(log.lines(0, 10)).lines_total == 0
    assert log.last_lines(5, 100).text == ""


def test_short_output_is_shown_whole(tmp_path: Path) -> None:
    shown = asyncio.run(log_of(tmp_path, b"a\nb").ends())
    assert (shown.text, shown.bytes_total, shown.bytes_shown, shown.cut) == ("a\nb", 3, 3, False)


@pytest.mark.parametrize("data", [numbered(10_000), b"x" * 100_000, "ä€😀".encode() * 20_000, b"\xff" * 90_000])
def test_long_output_shows_both_ends_within_the_bound_and_says_what_is_missing(tmp_path: Path, data: bytes) -> None:
    log = log_of(tmp_path, data)
    shown = asyncio.run(log.ends())
    assert len(shown.text) <= limits.RESULT_CHARS
    head, note, tail = shown.text.partition("\n[")[0], shown.text, shown.text.rpartition("]\n")[2]
    assert data.decode("utf-8", "replace").startswith(head)
    assert data.decode("utf-8", "replace").endswith(tail)
    assert f"[{len(data) - shown.bytes_shown:,} bytes with" in note
    assert "process_log(session_id='xsession', byte_offset=" in note
    assert shown.bytes_shown > 20_000


def test_what_is_left_out_can_be_read_by_the_offsets_in_the_note(tmp_path: Path) -> None:
    data = numbered(4_000)
    log = log_of(tmp_path, data)
    text = asyncio.run(log.ends()).text
    offset = int(text.partition("byte_offset=")[2].partition(",")[0])
    limit = int(text.partition("byte_limit=")[2].partition(")")[0])
    middle = asyncio.run(log.bytes(offset, limit)).text
    assert text.partition("\n[")[0].encode() + b"\n" == data[:offset] or text.startswith(data[:offset].decode())
    assert data[offset : offset + limit].decode().startswith(middle)


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [(0, 3, range(3)), (5, 2, range(5, 7)), (-3, 10, range(97, 100)), (98, 50, range(98, 100)), (500, 5, range(0))],
)
def test_lines_by_number_and_from_the_end(tmp_path: Path, offset: int, limit: int, expected: range) -> None:
    shown = asyncio.run(log_of(tmp_path, numbered(100)).lines(offset, limit))
    assert shown.text == "".join(f"line {number:06d}\n" for number in expected)
    assert shown.lines_total == 100


def test_a_last_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    shown = asyncio.run(log_of(tmp_path, b"a\nb").lines(-1, 1))
    assert (shown.text, shown.lines_total) == ("b", 2)


def test_lines_are_right_in_a_log_of_many_chunks(tmp_path: Path) -> None:
    log = log_of(tmp_path, numbered(300_000))
    for first in (0, 87_381, 87_382, 250_000, 299_999):
        assert asyncio.run(log.lines(first, 1)).text == f"line {first:06d}\n"
    assert asyncio.run(log.lines(0, 1)).lines_total == 300_000


def test_dropped_ranges_are_counted_and_never_guessed_from_their_zeroes(tmp_path: Path) -> None:
    data = bytearray(numbered(1_000))
    start, end = 12 * 100, 12 * 900
    data[start:end] = bytes(end - start)
    log = log_of(tmp_path, bytes(data), [(start, end, 800)])
    shown = asyncio.run(log.ends())
    assert (shown.bytes_total, shown.bytes_shown, shown.bytes_dropped) == (12_000, 2_400, 9_600)
    assert "[9,600 bytes with 800 line ends were dropped here, not readable]" in shown.text
    assert "line 000099\n" in shown.text
    assert "line 000900\n" in shown.text
    lines = asyncio.run(log.lines(900, 1))
    assert (lines.text, lines.lines_total, lines.dropped_lines) == ("line 000900\n", 1_000, 800)
    assert asyncio.run(log.lines(-1, 1)).text == "line 000999\n"
    assert asyncio.run(log.lines(500, 1)).text.startswith("\n[9,600 bytes with 800 line ends were dropped here")
    assert asyncio.run(log.lines(500, 402)).text.endswith("]\nline 000900\nline 000901\n")


def test_real_zeroes_are_not_taken_for_dropped_ones(tmp_path: Path) -> None:
    shown = asyncio.run(log_of(tmp_path, b"a\0\0b").ends())
    assert (shown.text, shown.bytes_shown, shown.bytes_dropped) == ("ab", 4, 0)


def test_bytes_are_exact_and_end_on_a_character(tmp_path: Path) -> None:
    log = log_of(tmp_path, "aä€b".encode())
    first = asyncio.run(log.bytes(0, 4))
    assert (first.text, first.start, first.end) == ("aä", 0, 3)
    second = asyncio.run(log.bytes(first.end, 10))
    assert (second.text, second.end) == ("€b", 7)


def test_reading_bytes_always_moves_on(tmp_path: Path) -> None:
    log = log_of(tmp_path, "😀".encode() * 3)
    offset, rounds = 0, 0
    while offset < log.size():
        offset = asyncio.run(log.bytes(offset, 2)).end
        rounds += 1
    assert rounds == 6


def test_an_offset_behind_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCommand, match="behind the end of the log, which has 3 bytes"):
        asyncio.run(log_of(tmp_path, b"abc").bytes(4, 1))


def test_last_lines_are_bounded_in_number_and_characters(tmp_path: Path) -> None:
    assert log_of(tmp_path, numbered(50)).last_lines(2, 2_000).text == "line 000048\nline 000049\n"
    shown = log_of(tmp_path, b"y" * 9_000).last_lines(5, 2_000)
    assert (len(shown.text), shown.bytes_shown, shown.bytes_total) == (2_000, 2_000, 9_000)
    assert log_of(tmp_path, b"one").last_lines(5, 2_000).text == "one"


def test_a_poll_stops_before_an_unfinished_character_while_the_process_lives(tmp_path: Path) -> None:
    log = log_of(tmp_path, "ab€".encode()[:-1])
    assert asyncio.run(log.readable_end(ended=False)) == 2
    assert asyncio.run(log.readable_end(ended=True)) == 4


def test_a_symlink_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="Too many levels"):
        asyncio.run(OutputLog(tmp_path, "x").ends())


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;QUJD\x1b\\text", "text"),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\x07\x08\x00b\tc\n", "ab\tc\n"),
        ("\x9b31mx", "31mx"),
        ("\u202eabc\u2066", "abc"),
        ("\x1b]0;never ends " + "x" * 10, ""),
        ("plain äöü 😀\n", "plain äöü 😀\n"),
    ],
)
def test_control_sequences_are_taken_out(raw: str, plain: str) -> None:
    assert harmless(raw) == plain


def test_a_sequence_that_never_ends_cannot_swallow_the_rest() -> None:
    assert harmless("\x1b]0;" + "x" * 10_000 + "the end").endswith("the end")


@pytest.mark.parametrize(
    ("data", "whole"),
    [(b"", 0), (b"a", 1), ("€".encode()[:2], 0), (b"a\xf0\x9f\x98", 1), (b"\x80\x80\x80\x80", 4), (b"\xff", 1)],
)
def test_where_characters_end(data: bytes, whole: int) -> None:
    assert whole_characters(data) == whole


def test_the_end_of_a_process_is_told_though_its_log_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / layout.LOG).mkdir()
    end = SessionEnd(state=SessionState.EXITED, exit_code=3)
    text = wake_text(callback_payload(replace(a_session(), end=end, state=end.state), OutputLog(tmp_path, "s1")))
    assert "exit code 3" in text
    assert "It printed at least 0 bytes, at least 0 of them dropped for good" in text
    assert '"[its output cannot be read: Is a directory]"' in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("origin\thttps://bob:ghp_abc@example.org/x.git (fetch)", "origin\thttps://bob:***@example.org/x.git (fetch)"),
        ("https://:ghp_abc@example.org", "https://:***@example.org"),
        ("https://ghp_0123456789abcdefghij@example.org/x", "https://***@example.org/x"),
        ("oauth2:glpat-1@example.org:x/y", "oauth2:***@example.org:x/y"),
        ("postgresql+psycopg://app:s3cret-word@db/x?y", "postgresql+psycopg://app:***@db/x?y"),
        ("extraheader = AUTHORIZATION: basic eC1hY2Nlc3MtdG9rZW46Z2hz", "extraheader = AUTHORIZATION: basic ***"),
        ("a https://u:one@h b https://u:two@h", "a https://u:***@h b https://u:***@h"),
        ("cut off: https://bob:ghp_ab", "cut off: https://bob:***"),
    ],
)
def test_a_token_is_shown_as_stars(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize(
    "text",
    ["https://example.org/x@y", "git@example.org:x/y.git", "ssh://git@example.org:22/x", "http://localhost:8080",
     "http://localhost:8080/a@b", "postgresql://USER:PASSWORD@HOST/DB", "https://user:$TOKEN@example.org",
     "https://user:{token}@example.org", "redis://user:password@host", "mail bob@example.org: hello", "a:b@c",
     "Authorization: Bearer TOKEN", "std::string a@b"],
)  # fmt: skip
def test_what_is_none_is_left_alone(text: str) -> None:
    assert masked(text) == text


async def test_the_log_keeps_what_was_printed_and_counts_its_bytes(tmp_path: Path) -> None:
    printed = b"https://bob:ghp_abc@example.org/x\n"
    (tmp_path / layout.LOG).write_bytes(printed)
    log = OutputLog(tmp_path, "s1")
    shown = await log.ends()
    assert shown.text == "https://bob:***@example.org/x\n"
    assert (shown.bytes_total, shown.bytes_shown) == (len(printed), len(printed))
    assert await log.raw(0, 1_000) == printed
