"""When commands run in containers: where it is asked for, and where bubblewrap cannot be had and the image is here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shellback.exec import PodmanSandboxConfig
from shellback.exec.backends import container_probe, podman, probe
from shellback.exec.backends.podman import Podman
from shellback.exec.backends.probe import Found
from shellback.exec.core.errors import BackendUnavailable
from shellback.settings import Settings
from shellback.wiring.choice import choose, made, podman_sandbox

NONE = BackendUnavailable("no bubblewrap here")
Answers = dict[str, Found | BackendUnavailable]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    return {"WORKSPACE_ROOT": str(workspace), "SHELLBACK_HOME": str(tmp_path / "home")}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What the two tries find out, by the backend's name."""
    answers: Answers = {"bubblewrap": NONE, "podman": Found(ok=True)}

    def answer(name: str, _backend: object) -> Found:
        one = answers[name]
        if isinstance(one, BackendUnavailable):
            raise one
        return one

    monkeypatch.setattr(probe, "probe", partial(answer, "bubblewrap"))
    monkeypatch.setattr(container_probe, "probe", partial(answer, "podman"))
    monkeypatch.setattr("shellback.exec.backends.host.HostBackend.check", lambda self: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return answers


def test_a_container_is_taken_where_it_is_asked_for(settings: dict[str, str], found: Answers) -> None:
    found["bubblewrap"] = Found(ok=True)
    chosen = choose(Settings.load({**settings, "BACKEND": "podman"}))
    assert chosen.backend.name == "podman"
    assert chosen.why == "BACKEND=podman asks for it; podman works here"


@pytest.mark.parametrize("name", ["bubblewrap", "podman"])
@pytest.mark.parametrize("why", [BackendUnavailable("it refuses"), Found(ok=False, why="it refuses")])
def test_a_named_backend_never_falls_back(
    settings: dict[str, str], found: Answers, why: Found | BackendUnavailable, name: str
) -> None:
    found[name] = why
    with pytest.raises(BackendUnavailable, match=f"BACKEND={name} cannot be used here: it refuses"):
        choose(Settings.load({**settings, "BACKEND": name}))


def test_without_a_name_bubblewrap_comes_first_then_a_container_then_the_host(
    settings: dict[str, str], found: Answers
) -> None:
    chosen = choose(Settings.load(settings))
    assert (chosen.backend.name, chosen.fallen_back) == ("podman", False)
    assert "no bubblewrap here" in chosen.why
    found["podman"] = BackendUnavailable("no image")
    chosen = choose(Settings.load(settings))
    assert (chosen.backend.name, chosen.fallen_back) == ("host", True)
    assert "no sandbox works: no bubblewrap here" in chosen.why
    assert "no image" in chosen.why
    found["bubblewrap"] = Found(ok=True)
    assert choose(Settings.load(settings)).backend.name == "bubblewrap"


def test_settings_shape_the_container(settings: dict[str, str], found: Answers) -> None:
    from shellback.exec.backends.podman import PodmanBackend

    more = {"PODMAN_IMAGE": "some:1", "SANDBOX_PROCESSES": "99", "NETWORK": "on", "PODMAN_IDLE_SECONDS": "60"}
    backend = choose(Settings.load({**settings, **more, "BACKEND": "podman"})).backend
    assert isinstance(backend, PodmanBackend)
    assert (backend.image, backend.limits.processes, backend.network) == ("some:1", 99, True)
    assert backend.limits.memory_bytes == 2**30
    assert backend.containers.idle_s == 60
    assert backend.containers.root == Path(settings["SHELLBACK_HOME"]) / "containers"


def test_settings_name_the_engine(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[dict[str, Any]] = []

    class Noting(Podman):
        def __init__(self, **given: Any) -> None:
            noted.append(given)
            super().__init__(**given)

    monkeypatch.setattr(podman, "Podman", Noting)
    named = {"PODMAN_BASE_URL": "unix:///x.sock", "PODMAN_IDENTITY": "/key", "PODMAN_CONNECTION": "here"}
    made(Settings.load({**settings, **named}), "podman")
    assert {"url": "unix:///x.sock", "identity": "/key", "connection": "here"}.items() <= noted[0].items()


def test_a_sandbox_of_an_agent_is_refused_with_a_list_that_it_would_not_have(settings: dict[str, str]) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be held to NETWORK=ask: set NETWORK=off or NETWORK=on"):
        podman_sandbox(Settings.load({**settings, "PODMAN_IMAGE": "some:1", "NETWORK": "ask"}))


def test_settings_shape_the_sandbox_of_an_agent_too(settings: dict[str, str], tmp_path: Path) -> None:
    more = {"PODMAN_IMAGE": "some:1", "SHELLBACK_CACHE": str(tmp_path / "cache"), "HOST_MOUNT_ROOTS": str(tmp_path)}
    section = podman_sandbox(Settings.load({**settings, **more}), scope="mine", env={"A": "b"})
    config = section.config
    assert isinstance(config, PodmanSandboxConfig)
    assert (config.image, config.network, dict(config.env)) == ("some:1", False, {"A": "b"})
    assert config.allowed_roots == (tmp_path,)
    assert section.overlay == tmp_path / "cache/podman/mine"
