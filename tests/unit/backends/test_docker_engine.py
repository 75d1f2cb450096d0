"""What is asked of docker, and what is said where it cannot be used; a script stands in for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shellback.exec.backends import docker
from shellback.exec.backends.docker import Docker
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.errors import BackendUnavailable
from shellback.settings import Settings
from shellback.wiring.choice import made
from tests.supervisors import returning

Stand = Callable[[str], None]
PLAIN = '["name=seccomp,profile=default"] Debian GNU/Linux 12'


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Make a script docker, which root calls."""
    path = tmp_path / "docker"

    monkeypatch.setattr(docker, "found", returning(str(path)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def make(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def answering(versions: str = "28.2.2 20.10.24", told: str = PLAIN) -> str:
    return f"case \"$*\" in *version*) echo '{versions}';; *info*) echo '{told}';; esac"


def test_an_engine_of_root_on_this_machine_is_used(stand_in: Stand) -> None:
    stand_in(answering())
    Docker().check()


@pytest.mark.parametrize(
    ("versions", "told", "said"),
    [
        ("19.3.1 20.10.1", PLAIN, "docker 19.3.1 is too old: 20.10"),
        ("28.0.1 20.9.1", PLAIN, "docker 20.9.1 is too old: 20.10"),
        ("28.2.2 28.2.2", '["name=seccomp","name=rootless"] Debian', "it runs without root"),
        ("28.2.2 28.2.2", '["name=userns"] Debian', "userns-remap"),
        ("28.2.2 28.2.2", '["name=seccomp"] Docker Desktop', "virtual machine"),
    ],
)
def test_one_that_cannot_be_used_is_refused_with_the_reason(
    stand_in: Stand, versions: str, told: str, said: str
) -> None:
    stand_in(answering(versions, told))
    with pytest.raises(BackendUnavailable, match=said):
        Docker().check()


def test_a_remote_one_is_refused_without_a_word_of_its_address() -> None:
    with pytest.raises(BackendUnavailable, match="DOCKER_HOST leads to a remote engine") as refused:
        Docker(host="tcp://me:secret@far.example:2375").check()
    assert "secret" not in str(refused.value)


def test_without_root_another_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BackendUnavailable, match="BACKEND=podman, which needs no root"):
        Docker().check()


def test_without_docker_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "found", returning(None))
    with pytest.raises(BackendUnavailable, match=r"apt install docker\.io"):
        Docker().state("any")


def test_what_is_gone_is_no_failure_and_an_engine_that_is_not_there_is(stand_in: Stand) -> None:
    stand_in('echo "Error response from daemon: No such container: x" >&2; exit 1')
    Docker().remove("x")
    Docker().stop("x", grace_s=1)
    assert Docker().state("x") is None
    stand_in('echo "Cannot connect to the Docker daemon at unix:///x. Is it running?" >&2; exit 1')
    with pytest.raises(BackendUnavailable, match="systemctl start docker"):
        Docker().remove("x")


def test_settings_name_image_and_socket(tmp_path: Path) -> None:
    given = {"DOCKER_IMAGE": "some:1", "DOCKER_HOST": "unix:///x.sock", "WORKSPACE_ROOT": str(tmp_path)}
    backend = made(Settings.load(given), "docker")
    assert backend.containers is not None
    assert backend.containers.engine.argv("ps")[1:] == ["--host", "unix:///x.sock", "ps"]
    assert "container of the image some:1" in backend.description
    assert "powered by" not in backend.description
    assert backend.powered_by == "Docker"


def test_nobody_gets_it_who_has_not_asked_for_it() -> None:
    assert [kind.name for kind in KINDS.values() if not kind.tried] == ["docker"]
