"""Links to logs, in a directory that commands may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shellback.exec.log.links import LogLinks


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    return root


def links_of(workspace: Path) -> LogLinks:
    return LogLinks(workspace, workspace.parent / "sessions")


def test_the_link_points_to_the_log(workspace: Path) -> None:
    links = links_of(workspace)
    links.add("x1", separate_stderr=True)
    links.add("x1", separate_stderr=True)
    assert links.path("x1") == f"{workspace}/.tmp/exec/x1.log"
    assert os.readlink(links.path("x1")) == f"{workspace.parent}/sessions/x1/log"
    assert os.readlink(workspace / ".tmp/exec/x1.err") == f"{workspace.parent}/sessions/x1/err"
    assert (workspace / ".tmp/.gitignore").read_text() == "*\n"
    links.close()


@pytest.mark.parametrize("planted", [".tmp", ".tmp/exec"])
def test_a_planted_symlink_is_not_followed(workspace: Path, planted: str, caplog: pytest.LogCaptureFixture) -> None:
    target = workspace.parent / "elsewhere"
    target.mkdir()
    (workspace / planted).parent.mkdir(exist_ok=True)
    (workspace / planted).symlink_to(target)
    links = links_of(workspace)
    links.add("x1", separate_stderr=False)
    assert list(target.iterdir()) == []
    assert "no link to the log of session x1" in caplog.text
    links.close()


def test_a_planted_gitignore_is_left_as_it_is(workspace: Path) -> None:
    precious = workspace.parent / "precious"
    precious.write_text("precious")
    (workspace / ".tmp").mkdir()
    (workspace / ".tmp/.gitignore").symlink_to(precious)
    links = links_of(workspace)
    links.add("x1", separate_stderr=False)
    assert precious.read_text() == "precious"
    links.close()


def test_a_removed_directory_is_made_again(workspace: Path) -> None:
    links = links_of(workspace)
    links.add("x1", separate_stderr=False)
    (workspace / ".tmp/exec/x1.log").unlink()
    (workspace / ".tmp/exec").rmdir()
    links.add("x2", separate_stderr=False)
    assert (workspace / ".tmp/exec/x2.log").is_symlink()
    links.close()


def test_a_directory_that_was_moved_away_is_made_again(workspace: Path) -> None:
    links = links_of(workspace)
    links.add("x1", separate_stderr=False)
    (workspace / ".tmp").rename(workspace / "moved")
    links.add("x2", separate_stderr=False)
    assert (workspace / ".tmp/exec/x2.log").is_symlink()
    links.close()


def test_removing_what_is_not_there_is_fine(workspace: Path) -> None:
    links = links_of(workspace)
    links.add("x1", separate_stderr=False)
    links.remove("x1")
    links.remove("x1")
    assert not (workspace / ".tmp/exec/x1.log").is_symlink()
    links.close()
    links.close()
