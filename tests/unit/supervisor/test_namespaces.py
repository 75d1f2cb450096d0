"""What the first process of a command's PID namespace waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shellback.exec.supervisor.sandbox.namespaces import GO, told


@pytest.fixture
def life() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def test_it_stays_once_it_is_told_its_mark_and_to_stay(life: tuple[int, int]) -> None:
    os.write(life[1], b"x1@/home\n")
    os.write(life[1], GO + b"\n")
    assert told(life[0]) == b"x1@/home"
    os.close(life[1])


@pytest.mark.parametrize("said", [b"", b"x1@/ho", b"x1@/home\n"])
def test_it_goes_when_nobody_is_left_who_could_tell(life: tuple[int, int], said: bytes) -> None:
    os.write(life[1], said)
    os.close(life[1])
    assert told(life[0]) is None


@pytest.mark.timeout(30)
def test_it_goes_when_somebody_holds_the_line_who_never_says_more(life: tuple[int, int]) -> None:
    os.write(life[1], b"x1@/home\n")
    assert told(life[0], patience_s=0.1) is None
    os.close(life[1])
