"""How a container is made: every word that holds it, and a description that survives us."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shellback.exec import PodmanSandboxConfig
from shellback.exec.backends import container, container_probe, containers, homes
from shellback.exec.backends.container import Container, ContainerLimits, Mount
from shellback.exec.backends.docker import Docker
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import WORK
from shellback.exec.policy import binding
from shellback.exec.policy.rules.matching import Rules
from shellback.settings import Settings
from shellback.storage.db import Database
from shellback.wiring.policing import policy_for
from tests.supervisors import until

WANT = Container(
    scope="talk",
    profile="work",
    image="python:3",
    image_id="abc",
    workspace="/srv/ws",
    place="1:2",
    writable=True,
    mounts=(Mount(source="/srv/ws/.git/hooks", target="/workspace/.git/hooks", identity="1:3"),),
    env=("PATH",),
)


def test_every_word_that_holds_a_container_is_there() -> None:
    words = " ".join(Podman().words(WANT, Path("/state/containers/name")))
    for needed in (
        "--cap-drop all --cap-add CHOWN --cap-add KILL --cap-add SETGID --cap-add SETUID --cap-add SYS_PTRACE",
        "no-new-privileges", "--read-only ",
        "--sysctl net.ipv4.ping_group_range=1 0",
        "--network none", "--pull never", "--memory 1073741824 --memory-swap 1073741824", "--pids-limit 1024",
        "--cpus 1", "/srv/ws:/workspace:rw", "/srv/ws/.git/hooks:/workspace/.git/hooks:ro",
        "--label shellback.scope=talk", "mode=0700", "core=0:0", "--tmpfs /tmp:rw", "--tmpfs /home/agent:rw",
    ):  # fmt: skip
        assert needed in words
    assert not {"--privileged", "--pid", "--ipc", "--device", "--userns", "--env", "host"} & set(words.split())
    assert "seccomp=" not in words


def test_docker_is_told_the_same_in_its_own_words() -> None:
    words = " ".join(Docker().words(WANT, Path("/state/containers/name")))
    for needed in (
        "--cap-drop all --cap-add CHOWN --cap-add KILL --cap-add SETGID --cap-add SETUID --cap-add SYS_PTRACE",
        "no-new-privileges", "--read-only ", "--sysctl net.ipv4.ping_group_range=1 0", "--network none", "--pull never",
        "--memory 1073741824 --memory-swap 1073741824", "--pids-limit 1024", "--ipc private", "--cgroupns private",
        "--mount type=bind,source=/srv/ws,destination=/workspace --mount",
        "destination=/workspace/.git/hooks,readonly,bind-nonrecursive=true", "--tmpfs /tmp:rw", "core=0:0",
    ):  # fmt: skip
        assert needed in words
    assert not {"--privileged", "--pid", "--device", "--userns", "--env", "host", "--volume"} & set(words.split())
    odd = Docker().words(replace(WANT, workspace='/srv/a:b,"c'), Path("/state"))
    assert 'type=bind,"source=/srv/a:b,""c",destination=/workspace' in odd


def test_the_network_is_podman_s_own_where_it_is_asked_for() -> None:
    assert "--network" not in Podman().words(replace(WANT, network=True), Path("/state/containers/name"))


def test_what_cannot_be_written_has_nothing_mounted_below_it_either() -> None:
    words = " ".join(Podman().words(replace(WANT, writable=False), Path("/state")))
    assert "/srv/ws:/workspace:ro,bind" in words


def test_a_description_comes_back_whole_and_a_broken_one_is_none() -> None:
    assert Container.from_json(WANT.to_json()) == WANT
    for text in ("", "{}", "[]", WANT.to_json()[:-9], WANT.to_json().replace('"scope"', '"other"')):
        with pytest.raises(ValueError, match=r".+"):
            Container.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "other"}, {"profile": "read_only"}, {"image_id": "def"}, {"place": "1:3"}, {"network": True},
        {"limits": ContainerLimits(processes=9)}, {"mounts": ()}, {"user": 1000},
        {"mounts": (replace(WANT.mounts[0], identity="1:4"),)},
    ],
)  # fmt: skip
def test_containers_that_differ_in_anything_have_different_names(change: dict[str, Any]) -> None:
    here = Path("/state/containers")
    other = replace(WANT, **change)
    assert other.name(here) != WANT.name(here) == WANT.name(here)
    assert WANT.name(Path("/other/containers")) != WANT.name(here)
    assert re.fullmatch("shellback-[0-9a-f]{16}", WANT.name(here))


def test_a_path_that_podman_would_read_otherwise_is_brought_in_another_way_or_refused() -> None:
    odd = replace(WANT, workspace="/srv/a:b")
    assert "type=bind,source=/srv/a:b,destination=/workspace,nosuid,nodev" in Podman().words(odd, Path("/state"))
    with pytest.raises(WorkspaceUnusable, match="rename it"):
        Podman().words(replace(WANT, workspace="/srv/a:b,c"), Path("/state"))


def test_the_default_image_is_that_of_the_settings() -> None:
    named = {Settings.load({}).podman_image, container.IMAGE, PodmanSandboxConfig().image}
    assert named == {"docker.io/library/python:3.12-bookworm"}


def test_scratches_are_never_most_of_the_memory() -> None:
    assert ContainerLimits.of().memory_bytes == 1024**3
    assert ContainerLimits.of().scratch_bytes == 1024**3 // 4
    assert ContainerLimits.of(memory_bytes=2**30 * 8, scratch_bytes=2**20).scratch_bytes == 2**20


TABLE = """1 0 0:1 / / rw - overlay overlay rw
2 1 254:0 /srv/ws /workspace rw - ext4 /dev/vda rw
3 2 {device} {root} {place} ro - ext4 /dev/vda rw
"""


@pytest.mark.parametrize(
    ("device", "root", "place", "good"),
    [
        ("254:0", "/srv/ws/.git/hooks", "/workspace/.git/hooks", True),
        ("254:0", "/root", "/workspace/.git/hooks", False),
        ("254:1", "/srv/ws/.git/hooks", "/workspace/.git/hooks", False),
        ("254:0", "/srv/ws/.git/hooks", "/workspace/old/hooks", False),
        ("254:0", "/srv/ws/.git/hooks//deleted", "/workspace/.git/hooks", False),
    ],
)
def test_mounts_are_compared_with_what_they_were_to_be(device: str, root: str, place: str, good: bool) -> None:
    table = containers._table(TABLE.format(device=device, root=root, place=place))  # pyright: ignore[reportPrivateUsage]
    assert (not list(containers._wrong(table, WANT))) is good  # pyright: ignore[reportPrivateUsage]


def test_a_container_without_its_workspace_is_not_as_it_was_to_be() -> None:
    table = containers._table(TABLE.splitlines()[0])  # pyright: ignore[reportPrivateUsage]
    for want in (WANT, replace(WANT, mounts=())):
        assert list(containers._wrong(table, want)) == ["/srv/ws"]  # pyright: ignore[reportPrivateUsage]


def test_mounts_that_cannot_be_seen_are_no_mounts() -> None:
    with pytest.raises(BackendUnavailable, match="cannot be seen"):
        containers.check_mounts(2**22 + 1, WANT)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("state", "bound_s", "said"),
    [("running", 0.05, "it runs, and no supervisor answered in .* within 0.05 s"), ("exited", 600.0, "it ended")],
)
async def test_one_that_runs_gets_its_time_to_answer_and_one_that_has_ended_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, bound_s: float, said: str
) -> None:
    class Made(Podman):
        ran = False

        def state(self, name: str) -> tuple[str, str] | None:
            return (state, name) if self.ran else None

        def run(self, name: str, words: object) -> str:
            self.ran = True
            return name

        def remove(self, name: str) -> None:
            self.ran = False

    monkeypatch.setattr(containers, "_UP_S", bound_s)
    engine = Made()
    with pytest.raises(BackendUnavailable, match=f"does not come up: {said}"):
        await containers.Containers(tmp_path, engine).ensure(WANT)
    assert not engine.ran


@pytest.mark.anyio
async def test_nobody_waits_any_longer_for_a_container_whose_state_cannot_be_told(tmp_path: Path) -> None:
    class Made(Podman):
        ran = False

        def state(self, name: str) -> tuple[str, str] | None:
            if self.ran:
                raise BackendUnavailable("podman does not answer")
            return None

        def run(self, name: str, words: object) -> str:
            self.ran = True
            return name

    before = asyncio.all_tasks()
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await containers.Containers(tmp_path, Made()).ensure(WANT)
    await until(lambda: not asyncio.all_tasks() - before)  # what was cancelled ends by itself


@pytest.mark.anyio
@pytest.mark.parametrize("coming_up", [False, True])
async def test_a_container_takes_the_place_of_one_at_rest_and_of_none_that_is_coming_up(
    tmp_path: Path, coming_up: bool
) -> None:
    class Made(Podman):
        def state(self, name: str) -> tuple[str, str] | None:
            return None

    made = containers.Containers(tmp_path, Made())
    home = made.home(replace(WANT, image="python:2"))
    home.mkdir()
    homes.describe(home, WANT)
    if coming_up:
        vars(made)["_making"][home.name] = None
    await vars(containers.Containers)["_replace"](made, made.home(WANT), WANT)
    assert home.exists() == coming_up


@pytest.mark.anyio
async def test_containers_of_a_probe_are_taken_away_when_both_looks_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []

    class Probed:
        shell = ""
        containers = SimpleNamespace(root=tmp_path)

        @contextlib.contextmanager
        def apart(self, purpose: str) -> Generator[Probed]:
            yield self
            steps.append(f"{purpose}: gone")

    async def look(backend: object, profile: str, decoy: Path) -> None:
        if profile == WORK:
            raise BackendUnavailable("no room")
        await asyncio.sleep(0.05)
        steps.append("ended")

    monkeypatch.setattr(container_probe, "_look", look)
    with pytest.raises(BackendUnavailable, match="no room"):
        await vars(container_probe)["_looks"](Probed())
    assert steps == ["ended", "probe: gone"]


@pytest.fixture
def backend(tmp_path: Path) -> PodmanBackend:
    (tmp_path / "ws").mkdir()
    return PodmanBackend(tmp_path / "ws", containers.Containers(tmp_path / "containers", Podman()), image="some:1")


@pytest.mark.parametrize(("shell", "at_once"), [("/bin/bash", True), ("/bin/sh", False)])
def test_nothing_runs_without_a_person_where_the_shell_is_not_the_one_that_is_read(
    backend: PodmanBackend, shell: str, at_once: bool
) -> None:
    backend.shell = shell
    policy = policy_for(Settings.load({}), cast("Database", None), backend, Rules())
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
