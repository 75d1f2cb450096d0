"""What is found in a workspace that changes while it is looked at."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shellback.exec.backends.protected import Protected
from tests.unit.backends.test_protected import all_of, repository, workspace

__all__ = ["workspace"]


def test_a_symlink_put_on_the_way_at_the_last_moment_leads_nowhere(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside/deep/.git").mkdir(parents=True)
    (workspace / "swap/deep").mkdir(parents=True)
    real = os.open

    def raced(path: str, flags: int) -> int:
        if path == f"{workspace}/swap/deep":
            (workspace / "swap").rename(workspace / "away")
            (workspace / "swap").symlink_to(tmp_path / "outside")
        return real(path, flags)

    monkeypatch.setattr(os, "open", raced)
    assert not [path for path in all_of(Protected(workspace).covers()) if path.startswith(f"{workspace}/swap")]


def test_what_stands_still_is_in_every_look_while_all_around_it_moves(workspace: Path, tmp_path: Path) -> None:
    repository(workspace / "still/lib")
    repository(tmp_path / "outside/deep/lib")
    (workspace / "swap/deep/lib").mkdir(parents=True)
    stop = threading.Event()

    def move() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            place = workspace / f"n{number % 5}"
            (place / "x/.git").mkdir(parents=True)
            (workspace / "swap").rename(workspace / "away")
            (workspace / "swap").symlink_to(tmp_path / "outside")
            place.rename(workspace / "other")
            (workspace / "swap").unlink()
            (workspace / "away").rename(workspace / "swap")
            for path in ("x/.git", "x", "."):
                (workspace / "other" / path).rmdir()

    mover = threading.Thread(target=move)
    mover.start()
    try:
        look = Protected(workspace)
        for _ in range(300):
            covers = look.covers()
            assert {f"{workspace}/still/lib/.git/{name}" for name in ("hooks", "config")} <= set(covers.readonly)
            assert not [path for path in all_of(covers) if path.startswith(f"{workspace}/swap")]
    finally:
        stop.set()
        mover.join()


def test_several_threads_may_ask_at_once(workspace: Path) -> None:
    for number in range(100):
        (workspace / f"d{number}/.git" if number % 10 == 0 else workspace / f"d{number}").mkdir(parents=True)
    look = Protected(workspace)
    with ThreadPoolExecutor(8) as threads:
        answers = [one.result() for one in [threads.submit(look.covers) for _ in range(8)]]
    assert answers == [Protected(workspace).covers()] * 8
