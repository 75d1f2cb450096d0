"""The workspace is a directory, not a prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.sight.sight import inside, sandbox_cwd


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "ws-evil").mkdir()
    (root / "file").write_text("")
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "sub")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.mark.parametrize("cwd", [None, "", ".", "~"])
def test_the_workspace_itself_is_the_default(workspace: Path, cwd: str | None) -> None:
    assert sandbox_cwd(cwd, workspace) == workspace


@pytest.mark.parametrize("cwd", ["sub", "./sub", "~/sub", "in", "sub/../sub"])
def test_directories_inside_are_resolved(workspace: Path, cwd: str) -> None:
    assert sandbox_cwd(cwd, workspace) == workspace / "sub"


def test_an_absolute_path_inside_is_fine(workspace: Path) -> None:
    assert sandbox_cwd(str(workspace / "sub"), workspace) == workspace / "sub"


@pytest.mark.parametrize("cwd", ["..", "/", "../ws-evil", "out", "out/ws-evil", "sub/../../ws-evil", "loop"])
def test_a_path_that_leaves_is_refused_with_the_workspace_named(workspace: Path, cwd: str) -> None:
    with pytest.raises(PathOutsideSandbox) as refusal:
        sandbox_cwd(cwd, workspace)
    assert str(refusal.value) == f"cwd {cwd!r} is outside the workspace; use a directory inside {workspace}"


def test_a_sibling_with_the_same_prefix_is_outside(workspace: Path) -> None:
    with pytest.raises(PathOutsideSandbox):
        sandbox_cwd(f"{workspace}-evil", workspace)
    assert not inside(Path(f"{workspace}-evil"), workspace)


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("missing", "does not exist; create it first"),
        ("file", "is not a directory; give the directory that holds it"),
        ("a\0b", "holds a NUL byte"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_entered_is_refused_with_a_remedy(workspace: Path, cwd: str, said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        sandbox_cwd(cwd, workspace)


def test_inside_follows_symlinks(workspace: Path) -> None:
    assert inside(workspace / "in", workspace)
    assert not inside(workspace / "out", workspace)
    assert not inside(workspace / "loop", workspace)
