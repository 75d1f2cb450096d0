"""What a check may look at: some directories and what is below, however a path gets there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shellback.exec.core.sight.sight import PUBLIC_TREES, Sight, TooMuch, Unseen, expanded


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "ws"
    (place / "a/b").mkdir(parents=True)
    (place / "a/b/f").write_text("text")
    (place.parent / "other").mkdir()
    (place.parent / "other/f").write_text("text")
    return place


def sight(ws: Path, *, entries: int = 100, seconds: float = 60) -> Sight:
    return Sight((str(ws), *PUBLIC_TREES), entries=entries, seconds=seconds)


@pytest.mark.parametrize("way", ["a/b/f", "./a/../a/b/f", "../ws/a/b/f", "a/b/../../../ws//a/b/f", "l/f", "up/a/b/f"])
def test_a_path_leads_where_the_kernel_says(ws: Path, way: str) -> None:
    (ws / "l").symlink_to("a/b")
    (ws / "up").symlink_to(ws)
    assert sight(ws).real(f"{ws}/{way}") == str(ws / "a/b/f") == os.path.realpath(f"{ws}/{way}")


def test_a_symlink_may_lead_to_another_directory_that_is_looked_at(ws: Path) -> None:
    (ws / "tool").symlink_to("/bin/sh")
    assert sight(ws).real(f"{ws}/tool") == os.path.realpath("/bin/sh")


@pytest.mark.parametrize("way", ["../other/f", "out/f", "up/other/f", "../../../../../etc/passwd", "proc"])
def test_what_lies_outside_is_not_looked_at(ws: Path, way: str) -> None:
    (ws / "out").symlink_to("../other")
    (ws / "up").symlink_to("..")
    (ws / "proc").symlink_to("/proc/self/environ")
    with pytest.raises(Unseen):
        sight(ws).place(f"{ws}/{way}")
    assert sight(ws).status(f"{ws}/{way}") is None


def test_the_way_down_is_told_apart_from_what_lies_outside(ws: Path) -> None:
    with pytest.raises(Unseen) as above:
        sight(ws).place(f"{ws}/..")
    assert above.value.above == str(ws.parent)


def test_the_whole_machine_is_all_but_what_is_another_thing_for_each(ws: Path) -> None:
    everything = Sight(("/",))
    assert everything.content(str(ws / "a/b/f"), 9) == b"text"
    with pytest.raises(Unseen):
        everything.place("/proc/self/environ")


def test_so_many_names_are_looked_at(ws: Path) -> None:
    for number in range(20):
        (ws / str(number)).touch()
    with pytest.raises(TooMuch):
        sight(ws, entries=10).names(str(ws))
    with pytest.raises(TooMuch):
        expanded(f"{ws}/*", sight(ws, seconds=0))


def test_a_pattern_of_another_place_stands_for_nothing(ws: Path) -> None:
    assert expanded(f"{ws.parent}/*/f", sight(ws)) == []
    assert expanded(f"{ws}/*/*/f", sight(ws)) == [f"{ws}/a/b/f"]


def test_only_a_plain_file_is_read(ws: Path) -> None:
    os.mkfifo(ws / "pipe")
    (ws / "link").symlink_to("a/b/f")
    for name in ("pipe", "link", "a"):
        with pytest.raises(OSError, match=r"regular file|directory"):
            sight(ws).content(f"{ws}/{name}", 9)
    assert sight(ws).content(f"{ws}/link", 9, follow=True) == b"text"
