"""The table of when what was printed: it may begin too early, never too late, and stays small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shellback.exec.supervisor.records import times
from shellback.exec.supervisor.records.times import Times, offset_since


class Clock:
    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(times, "time", made)
    return made


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_reading_begins_with_the_first_stretch_that_reaches_the_moment(
    clock: Clock, directory: int, tmp_path: Path
) -> None:
    table = Times(directory, "t", 0.0)
    for moment, offset in ((1000.0, 0), (1000.5, 10), (1060.0, 20), (1060.2, 30), (1200.0, 40)):
        clock.now = moment
        table.arrived(offset)
    path = str(tmp_path / "t")
    begins = [offset_since(path, moment) for moment in (0.0, 1000.5, 1000.6, 1060.2, 1060.3, 1200.0)]
    assert begins == [0, 0, 20, 20, 40, 40]
    assert offset_since(str(tmp_path / "none"), 1000.0) == 0


def test_a_process_that_ended_quickly_leaves_no_table(clock: Clock, directory: int, tmp_path: Path) -> None:
    table = Times(directory, "t", 0.0)
    table.arrived(0)
    clock.now += 0.9
    table.arrived(100)
    assert not (tmp_path / "t").exists()


def test_the_table_is_bounded_and_what_it_leaves_out_is_read_earlier(
    clock: Clock, directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "ENTRIES", 16)
    table = Times(directory, "t", 0.0)
    printed: list[tuple[float, int]] = []
    for number in range(1000):
        clock.now += 10.0
        printed.append((clock.now, number * 5))
        table.arrived(number * 5)
    path = tmp_path / "t"
    assert path.stat().st_size <= 17 * 16
    for moment, offset in printed:
        assert offset_since(str(path), moment) <= offset
    assert offset_since(str(path), printed[-1][0]) == printed[-1][1]


def test_a_later_supervisor_goes_on_and_a_table_that_cannot_be_written_is_left_alone(
    clock: Clock, directory: int, tmp_path: Path
) -> None:
    Times(directory, "t", 0.0).arrived(0)
    clock.now = 2000.0
    Times(directory, "t", 1000.0).arrived(50)
    assert [offset_since(str(tmp_path / "t"), moment) for moment in (1000.0, 1000.1)] == [0, 50]
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes() + b"torn")
    assert offset_since(str(tmp_path / "t"), 1000.1) == 50
    clock.now = 3000.0
    Times(directory, "t", 2000.0).arrived(55)
    assert [offset_since(str(tmp_path / "t"), moment) for moment in (1000.1, 2000.1)] == [50, 55]
    Times(directory, "missing/t", 2000.0).arrived(60)


def test_a_clock_that_is_set_back_hides_nothing(
    clock: Clock, directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "ENTRIES", 8)
    table = Times(directory, "t", 0.0)
    printed: list[tuple[float, int]] = []
    for number in range(100):
        clock.now += 10.0 if number % 7 else -45.0
        printed.append((clock.now, number * 5))
        table.arrived(number * 5)
    for moment, offset in printed:
        assert offset_since(str(tmp_path / "t"), moment) <= offset
