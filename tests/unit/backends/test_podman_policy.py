"""What a container changes for whoever judges and binds its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from shellback.exec.backends.containers import Containers
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.policy import binding
from shellback.settings import Settings
from shellback.storage.db import Database
from shellback.wiring.policing import policy_for


@pytest.fixture
def backend(tmp_path: Path) -> PodmanBackend:
    (tmp_path / "ws").mkdir()
    return PodmanBackend(tmp_path / "ws", Containers(tmp_path / "containers", Podman()), image="some:1")


@pytest.mark.parametrize(("shell", "at_once"), [("/bin/bash", True), ("/bin/sh", False)])
def test_nothing_runs_without_a_person_where_the_shell_is_not_the_one_that_is_read(
    backend: PodmanBackend, shell: str, at_once: bool
) -> None:
    backend.shell = shell
    policy = policy_for(Settings.load({}), cast("Database", None), backend)
    assert ("run at once" in policy.asking) is at_once


def test_a_script_is_bound_by_the_name_that_it_has_in_the_container(backend: PodmanBackend) -> None:
    script = backend.workspace / "make.sh"
    script.write_text("echo made\n")

    def bound(command: str) -> list[str]:
        found: Any = binding.read(
            command, cwd=str(backend.workspace), workspace=backend.workspace, inner=backend.inner
        ).facts()
        assert found["executables"] == []
        return [str(row["path"]) for row in found["scripts"]]

    assert bound("bash make.sh") == bound("bash /workspace/make.sh") == [str(script)]
    assert bound("bash /workspacemake.sh; /usr/bin/env true") == []


def test_paths_are_those_of_the_container(backend: PodmanBackend) -> None:
    workspace = backend.workspace
    assert backend.inside(str(workspace)) == "/workspace"
    assert backend.inside(str(workspace / "a" / "b")) == "/workspace/a/b"
    assert backend.inside("/tmp") == "/tmp"
