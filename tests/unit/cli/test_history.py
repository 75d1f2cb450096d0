"""The history of chats: a file that only its owner reads, bounded, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shellback.cli.terminal import history
from shellback.cli.terminal.history import FILE, History


def hidden(line: str) -> str:
    return line.replace("s3cret", "[secret S]")


def test_lines_are_there_for_the_next_chat_each_once_in_a_row_and_with_their_lines(tmp_path: Path) -> None:
    mine = History(tmp_path, hidden)
    for line in ("first", "first", "two\nlines", "  ", "say s3cret", "first"):
        mine.add(line)
    assert History(tmp_path, hidden).lines() == ["first", "two\nlines", "say [secret S]", "first"]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in (tmp_path / FILE).read_text()


def test_it_is_bounded_in_lines_and_in_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 10)
    mine = History(tmp_path, hidden)
    mine.add("x" * (history.LONGEST + 1))
    for number in range(50):
        mine.add(str(number))
    assert mine.lines() == [str(number) for number in range(40, 50)]
    assert len((tmp_path / FILE).read_text().splitlines()) == 10
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(history, "BYTES", 20)
    assert mine.lines()[-1] == "49"
    assert (tmp_path / FILE).stat().st_size <= 20


def test_what_cannot_be_read_or_written_is_left_out_and_no_chat_fails(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'"good"\n{"half\n\xff\n[1]\n"last"\n')
    assert History(tmp_path, hidden).lines() == ["good", "last"]
    missing = History(tmp_path / "none", hidden)
    missing.add("nowhere")
    assert missing.lines() == []


def test_it_is_written_through_no_link_of_others(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    History(tmp_path, hidden).add("never")
    assert not (tmp_path / "elsewhere").exists()


def test_two_chats_add_to_the_same_file(tmp_path: Path) -> None:
    one, other = History(tmp_path, hidden), History(tmp_path, hidden)
    for number in range(5):
        one.add(f"one {number}")
        other.add(f"other {number}")
    assert len(one.lines()) == 10
    assert all(json.loads(line) for line in (tmp_path / FILE).read_text().splitlines())
