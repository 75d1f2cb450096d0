"""The table of named workspaces: read anew when its file changes, and only then; the file is trusted each time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shellback.exec.core.errors import PolicyUnusable
from shellback.exec.policy.rules import file as policy_file
from shellback.exec.policy.rules.file import workspaces


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shellback.toml"
    path.write_text('[workspaces]\nweb = "/web"\n')
    path.chmod(0o600)
    return path


def test_a_file_that_has_not_changed_is_parsed_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = workspaces(file)
    assert list(first) == ["web"]
    monkeypatch.setattr(policy_file, "workspaces_in", None)
    assert workspaces(file) is first


@pytest.mark.parametrize("how", ["in place", "renamed over", "of the same size and time"])
def test_a_change_is_seen_at_once(file: Path, how: str) -> None:
    workspaces(file)
    before = file.stat()
    draft = file.with_name("draft")
    if how == "in place":
        file.write_text('[workspaces]\nother = "/web"\n')
    else:
        draft.write_text('[workspaces]\nweb = "/api"\n' if how != "renamed over" else '[workspaces]\nother = "/w"\n')
        draft.chmod(0o600)
        os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
        draft.replace(file)
    found = workspaces(file)
    assert list(found) == (["web"] if how == "of the same size and time" else ["other"])
    assert how != "of the same size and time" or found["web"].path == Path("/api")


def test_a_file_that_others_may_write_meanwhile_is_not_believed(file: Path) -> None:
    workspaces(file)
    file.chmod(0o622)
    with pytest.raises(PolicyUnusable, match="others may write it"):
        workspaces(file)
    file.chmod(0o600)
    assert list(workspaces(file)) == ["web"]
    file.write_text("[workspaces\n")
    for _ in range(2):
        with pytest.raises(PolicyUnusable, match="not TOML"):
            workspaces(file)
