"""Where the cursor is, as the supervisor reads it off the output: held against the screen that is shown."""

from __future__ import annotations

import random

import pytest

from shellback.exec.supervisor.process.queries import Cursor
from shellback.exec.terminals.emulator import Emulator
from tests.unit.terminals.test_emulator import sequences


def both(data: bytes, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
    cursor, emulator = Cursor(rows, cols), Emulator(rows, cols)
    cursor.feed(data)
    emulator.feed(data)
    return (cursor.y, min(cursor.x, cols - 1)), (emulator.cursor.y, min(emulator.cursor.x, cols - 1))


@pytest.mark.parametrize("seed", range(40))
def test_it_is_where_the_screen_has_it(seed: int) -> None:
    chosen = random.Random(seed)
    rows, cols = chosen.randint(4, 30), chosen.randint(8, 90)
    parts = sequences(chosen, rows, cols).replace(b"\x1bH", b"").replace(b"\x1b[3g", b"").replace(b"\x1b[0g", b"")
    for end in range(0, len(parts), 100):
        # Nothing is asked within a sequence.
        ours, theirs = both(parts[:end].rpartition(b"\x1b")[0], rows, cols)
        assert ours == theirs


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", (1, 1)),
        (b"\x1b[999;999H", (6, 11)),
        (b"\x1b[2;4r\x1b[?6h\x1b[2;3H", (2, 3)),
        (b"x" * 11, (1, 11)),
        (b"x" * 12, (2, 2)),
        (b"x" * 1000, (6, 11)),
        ("中文字中文字".encode(), (2, 3)),
        ("e\u0301e\u0301\u200d".encode(), (1, 3)),
        (b"\x1b[?7l" + b"x" * 50, (1, 11)),
        (b"ab\x1b[?1048h\x1b[5;5H\x1b[?1048l", (1, 3)),
        (b"ab\x1b[2\n;\r5H\x1b]0;title\x07\x1bP+q\x1b\\", (2, 5)),
        (b"\x1b[3;3H\x1bc\x1b[>4;2m\x1b[4:3m", (1, 1)),
    ],
)
def test_it_is_told_as_a_terminal_tells_it(data: bytes, place: tuple[int, int]) -> None:
    cursor = Cursor(6, 11)
    cursor.feed(data)
    assert cursor.place() == place
