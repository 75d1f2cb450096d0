"""What `make compose-test` says where it cannot be run, and what it takes over from the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compose import bases, project
from tests.compose.__main__ import main


def test_without_an_engine_it_names_what_is_missing_and_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "docker is not installed; podman is not installed" in said
    assert "COMPOSE=/path/to/podman-compose" in said
    assert main(["--compose", "/nowhere/podman-compose"]) == 2


def test_the_copy_has_what_the_image_is_built_from_and_nothing_of_the_person_s(tmp_path: Path) -> None:
    project.copied(tmp_path)
    assert bases.names(tmp_path) == bases.names(project.ROOT)
    assert (tmp_path / "app" / "settings.py").is_file()
    assert not (tmp_path / ".env").exists()
