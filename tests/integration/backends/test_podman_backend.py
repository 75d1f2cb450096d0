"""Commands in containers, of podman and of docker: what they see and may do, and what they do not."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.backends import container_probe, homes
from shellback.exec.backends.container import COMMANDS, Container, ContainerLimits
from shellback.exec.backends.container_probe import probe
from shellback.exec.backends.containers import Containers, check_mounts
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import READ_ONLY, WORK
from tests import dockers, images
from tests.filetrees import give
from tests.podmans import Yard, yard, yards

pytestmark = pytest.mark.anyio

FORKS = """
import os, signal
made = []
try:
    for _ in range(60):
        made.append(os.fork())
        if not made[-1]:
            signal.pause()
except BlockingIOError:
    print("refused")
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


shop = yards("podman", "docker", scope="module")


async def test_a_command_runs_in_the_workspace_as_nobody_with_what_it_was_given_and_nothing_else(shop: Yard) -> None:
    (shop.workspace / "deep").mkdir(exist_ok=True)
    done = await shop.run(
        "pwd; id -u; id -g; id -G; env; echo $0", cwd=str(shop.workspace / "deep"), env={"GIVEN": "1"}
    )
    lines = done.output.splitlines()
    assert done.exit_code == 0
    # Rootless, the first group is ours: see `PodmanBackend.group`.
    group = "65534" if os.geteuid() == 0 else "0"
    assert lines[:4] == ["/workspace/deep", "65534", group, group]
    env = dict(line.split("=", 1) for line in lines[4:-1])
    assert env["GIVEN"] == "1"
    assert env["HOME"] == "/home/agent"
    assert not {"container", "HOSTNAME", "PYTHONPATH", "XDG_RUNTIME_DIR"} & set(env)


async def test_what_a_command_makes_in_the_workspace_is_there_on_the_host_and_the_other_way_round(shop: Yard) -> None:
    (shop.workspace / "from-host").write_text("hello")
    done = await shop.run("cat from-host; echo there >from-command; ln -s from-host link")
    assert done.output == "hello"
    assert (shop.workspace / "from-command").read_text() == "there\n"
    assert (shop.workspace / "link").read_text() == "hello"
    made = (shop.workspace / "from-command").stat()
    assert made.st_uid == (COMMANDS if os.geteuid() == 0 else shop.backend().containers.engine.outer(COMMANDS))


async def test_commands_of_a_scope_share_a_container_and_those_of_others_have_their_own(shop: Yard) -> None:
    await shop.run("echo mine >/tmp/note; echo mine >~/note")
    assert (await shop.run("cat /tmp/note ~/note")).output == "mine\nmine\n"
    other = await shop.run("cat /tmp/note ~/note; true", scope="another")
    assert "mine" not in other.output
    reading = await shop.run("cat /tmp/note; true", profile=READ_ONLY)
    assert "mine" not in reading.output


async def test_a_reading_command_writes_nothing_but_its_own_scratch(shop: Yard) -> None:
    (shop.workspace / "kept").write_text("kept")
    script = "echo x >kept; echo x >new; rm -f kept; mkdir d; chmod 777 .; echo ok >/tmp/own && cat /tmp/own kept"
    done = await shop.run(script, profile=READ_ONLY)
    assert done.output.endswith("ok\nkept")
    assert sorted(path.name for path in shop.workspace.iterdir() if path.name in {"new", "d"}) == []


async def test_no_command_reaches_a_network_or_its_supervisor(shop: Yard) -> None:
    for profile in (WORK, READ_ONLY):
        done = await shop.run(
            "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '; ls /run/shellback; cat /proc/1/environ;"
            " kill -9 1; kill -9 -1; ls /run/shellback/home/sessions; exit 7",
            profile=profile,
        )
        lines = done.output.splitlines()
        assert lines[0] == "lo"
        assert (done.exit_code, done.signal) in {(7, None), (None, 9)}
        assert not any("=" in line for line in lines)
    assert (await shop.run("echo on")).output == "on\n"


async def test_a_secret_of_the_workspace_is_empty_to_a_reading_command_also_one_that_has_just_come(shop: Yard) -> None:
    (shop.workspace / "app").mkdir(exist_ok=True)
    first, second = shop.workspace / ".env", shop.workspace / "app" / ".env.local"
    first.write_text("KEY=one\n")
    assert (await shop.run("cat .env; ls -A", profile=READ_ONLY)).output.splitlines()[:1] != ["KEY=one"]
    second.write_text("KEY=two\n")
    done = await shop.run("cat .env app/.env.local", profile=READ_ONLY)
    assert (done.exit_code, done.output) == (0, "")
    # Written anew, as editors do: what was covered before is another file by then.
    (shop.workspace / "aside").write_text("KEY=three\n")
    (shop.workspace / "aside").replace(first)
    assert (await shop.run("cat .env app/.env.local", profile=READ_ONLY)).output == ""
    assert (await shop.run("cat .env")).output == "KEY=three\n"
    # The same inode again, as when its number is given to what comes in its place: what was mounted on it is gone.
    before = shop.backend().container(READ_ONLY, "talk")
    os.link(first, shop.workspace / "aside")
    first.unlink()
    (shop.workspace / "aside").rename(first)
    assert shop.backend().container(READ_ONLY, "talk") != before, "also where something still runs in that container"
    assert (await shop.run("cat .env", profile=READ_ONLY)).output == ""
    first.unlink()
    second.unlink()


async def test_a_secret_that_is_written_anew_while_its_container_is_made_is_covered(
    shop: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = shop.backend()
    secret, aside = shop.workspace / ".env", shop.workspace / "aside"
    ensure, made = backend.containers.ensure, list[str]()

    async def meanwhile(want: Container) -> Path:
        home = await ensure(want)
        made.append(home.name)
        if len(made) < 3:
            aside.write_text(f"KEY={len(made)}\n")
            aside.replace(secret)
        return home

    monkeypatch.setattr(backend.containers, "ensure", meanwhile)
    done = await shop.run("cat .env", profile=READ_ONLY, backend=backend)
    assert (done.exit_code, done.output, len(made)) == (0, "", 3)
    secret.unlink()


async def test_a_container_that_has_lost_a_cover_is_made_anew_once_nothing_runs_in_it(shop: Yard) -> None:
    hidden = shop.workspace / "bared"
    hidden.mkdir(exist_ok=True)
    backend = shop.backend(hidden=(hidden,))
    want = await asyncio.to_thread(backend.container, WORK, "bare")
    home = await backend.containers.ensure(want)
    hidden.rmdir()
    hidden.mkdir()
    with pytest.raises(BackendUnavailable):
        check_mounts(homes.peer(home), want)
    assert await backend.containers.ensure(want) == home
    check_mounts(homes.peer(home), want)


async def test_hooks_and_configuration_that_are_there_cannot_be_changed_nor_moved_away(shop: Yard) -> None:
    repository = shop.workspace / "repo" / ".git"
    for name in ("hooks", "objects", "refs"):
        (repository / name).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n")
    (repository / "config").write_text("[core]\n")
    (shop.workspace / ".vscode").mkdir(exist_ok=True)  # a container of another test has it stood in for
    give(shop.workspace)
    done = await shop.run(
        "cd repo; echo x >.git/hooks/pre-commit; echo x >>.git/config; echo x >../.vscode/tasks.json; mv .git old;"
        " cd ..; mv repo old; rm -rf repo/.git; echo y >repo/note; echo y >repo/.git/index; cat repo/.git/config"
    )
    assert done.output.endswith("[core]\n")
    assert (repository / "config").read_text() == "[core]\n"
    assert not list((repository / "hooks").iterdir())
    assert not (shop.workspace / "old").exists()
    assert not (shop.workspace / "repo" / "old").exists()
    assert not list((shop.workspace / ".vscode").iterdir())


async def test_what_is_hidden_is_not_there_for_anybody(shop: Yard) -> None:
    hidden, orders = shop.workspace / "state", shop.workspace / ".env.orders"
    hidden.mkdir(exist_ok=True)
    (hidden / "key").write_text("secret")
    orders.write_text("MODE=1")
    backend = shop.backend(hidden=(hidden,), orders=(orders,))
    for profile in (WORK, READ_ONLY):
        done = await shop.run("ls -A state; cat .env.orders; echo x >state/new; true", profile=profile, backend=backend)
        assert "key" not in done.output
        assert "MODE" not in done.output
    assert sorted(path.name for path in hidden.iterdir()) == ["key"]


async def test_memory_and_processes_are_bounded_for_all_commands_together() -> None:
    limits = ContainerLimits(memory_bytes=128 * 2**20, processes=40, scratch_bytes=2**24)
    with yard(limits=limits) as small:
        found = await asyncio.to_thread(probe, small.backend())
        if found.unbounded:
            pytest.skip(f"podman bounds nothing here: {found.unbounded}")
        many = await small.run(f"python3 -c '{FORKS}'")
        assert many.output == "refused\n"
        large = await small.run("python3 -c 'b = bytearray(400 << 20)'; echo ended with $?")
        assert "ended with 137" in large.output
        full = await small.run("head -c 64M /dev/zero >/tmp/file; echo ended with $?; rm /tmp/file")
        assert "ended with 1" in full.output


async def test_the_probe_says_what_holds_and_how_long_it_took(shop: Yard) -> None:
    backend = shop.backend()
    found = await asyncio.to_thread(probe, backend)
    assert found.ok, found.why
    assert "no capabilities" in found.in_force[0]
    assert found.instance_ms > 0
    assert found.start_ms > 0
    assert backend.shell == "/bin/bash"
    if not found.unbounded:
        assert "1024 MiB of memory" in backend.description


def test_the_probe_tells_a_limit_that_podman_left_out(shop: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    # As with cgroup v1 and no root: podman says nothing, and the kernel has no bound.
    monkeypatch.setattr(container_probe, "_LIMITS", {"memory": ("none",), "processes": ("none",), "cpu": ("none",)})
    backend = shop.backend()
    found = probe(backend)
    assert found.ok
    assert found.unbounded == (
        "memory of all processes together (SANDBOX_MEMORY_BYTES)",
        "processes (SANDBOX_PROCESSES)",
        "CPU time",
    )
    assert "at most 1 CPU" not in backend.description
    assert backend.facts(WORK)["limits"]["processes"] == 1024


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("outside", ["/etc"], "it can write /etc"),
        ("init", True, "first process"),
        ("ours", True, "its supervisor's files"),
        ("spaces", True, "user namespaces"),
        ("decoy", True, "/tmp of the host"),
        ("network", ["lo", "eth0"], "network interfaces"),
        ("place", [1, 1], "another directory"),
    ],
)
def test_the_probe_refuses_a_container_that_does_not_hold(
    shop: Yard, monkeypatch: pytest.MonkeyPatch, key: str, value: object, word: str
) -> None:
    seen = dict(_seen(shop))

    async def looks(_backend: object) -> list[object]:
        look = container_probe._Look({**seen, key: value}, 1.0, 1.0)  # pyright: ignore[reportPrivateUsage]
        return [look, look]

    monkeypatch.setattr(container_probe, "_looks", looks)
    found = probe(shop.backend())
    assert not found.ok
    assert word in found.why


def _seen(shop: Yard) -> dict[str, object]:
    place = shop.workspace.stat()
    backend = shop.backend()
    return {
        "status": {
            "Uid": f"{backend.user} " * 4, "Gid": f"{backend.group} " * 4, "CapEff": "0", "CapPrm": "0", "CapInh": "0",
            "NoNewPrivs": "1", "Seccomp": "2",
        },
        "network": ["lo"], "namespaces": {"pid": "another"}, "outside": [], "decoy": False, "init": False,
        "ours": False, "spaces": False, "writable": [".", "/tmp", "/var/tmp", "/home/agent"], "cwd": "/workspace",
        "place": [place.st_dev, place.st_ino], "limits": {"memory": "1", "processes": "1", "cpu": "1"},
    }  # fmt: skip


async def test_an_image_of_a_name_gives_its_environment_and_is_told_by_its_id(shop: Yard) -> None:
    root = images.test_rootfs()
    name = dockers.image(root, images.IMAGE_ENV) if shop.kind == "docker" else images.test_image()
    backend = shop.backend(image=name)
    done = await shop.run("echo $GREETING $PATH $HOME", backend=backend, scope="image")
    assert done.output == "hello /opt/own/bin:/usr/bin:/bin /home/agent\n"
    known = backend.container(WORK, "image")
    assert len(known.image_id.removeprefix("sha256:")) == 64
    assert known.env == ("GREETING", "PATH")
    by_id = shop.backend(image=known.image_id)
    by_id.check()
    assert by_id.container(WORK, "image").image_id == known.image_id


def left_of(scope: str, containers: Containers) -> list[tuple[str, str] | None]:
    """What podman says of each container that was described for this scope."""
    described = [home for home in containers.homes() if (known := homes.known(home)) and known.scope == scope]
    return [containers.engine.state(home.name) for home in described]


async def test_an_image_without_python_is_refused_by_name(shop: Yard) -> None:
    backend = shop.backend(image=str(images.without_python()))
    with pytest.raises(BackendUnavailable, match="no python3") as refused:
        await shop.run("true", backend=backend, scope="no python")
    assert backend.image in str(refused.value)
    assert f"{shop.kind.upper()}_IMAGE" in str(refused.value)
    assert set(left_of("no python", backend.containers)) == {None}


async def test_an_image_with_an_older_python_is_refused_with_what_it_needs(
    shop: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.backends.container.CODE", "import sys; sys.exit('Python 3.9 is too old')")
    backend = shop.backend()
    with pytest.raises(BackendUnavailable, match=r"Python 3\.9 is too old; take an image with Python 3\.11"):
        await shop.run("true", backend=backend, scope="old")
    assert set(left_of("old", backend.containers)) == {None}


async def test_an_image_without_bash_has_sh_which_is_said(shop: Yard) -> None:
    backend = shop.backend(image=str(images.without_bash()))
    done = await shop.run("echo $0; echo ${BASH_VERSION:-none}", backend=backend, scope="plain")
    assert done.output == "/bin/sh\nnone\n"
    assert backend.shell == "/bin/sh"
    assert backend.facts(READ_ONLY)["shell"] == "/bin/sh"
    assert "Commands run in sh" in backend.description


async def test_an_image_that_is_not_here_is_refused_with_the_line_that_brings_it(shop: Yard) -> None:
    with pytest.raises(BackendUnavailable, match=f"{shop.kind} pull localhost/shellback-none:1"):
        shop.backend(image="localhost/shellback-none:1").check()


async def test_a_directory_that_is_no_root_file_system_is_refused(shop: Yard, tmp_path: Path) -> None:
    said = "no root file system" if shop.kind == "podman" else "set DOCKER_IMAGE to one that is here"
    with pytest.raises(BackendUnavailable, match=said):
        shop.backend(image=str(tmp_path)).check()


async def test_a_workspace_that_commands_cannot_write_is_refused_with_the_remedy(shop: Yard, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    backend = shop.backend()
    backend.workspace = locked
    with pytest.raises(WorkspaceUnusable, match=f"{locked}|WORKSPACE_ROOT|install -d|chgrp"):
        backend._check_workspace()  # pyright: ignore[reportPrivateUsage]


async def test_a_mount_that_became_another_file_is_noticed_and_nothing_runs(
    shop: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.workspace / ".idea").mkdir(exist_ok=True)
    elsewhere = shop.base / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "key").write_text("secret of the host")
    backend = shop.backend()
    run = backend.containers.engine.run

    def swapped(name: str, words: list[str]) -> str:
        # What a command of another container could do at this very moment.
        (shop.workspace / ".idea").rmdir()
        (shop.workspace / ".idea").symlink_to(elsewhere)
        try:
            return run(name, words)
        finally:
            (shop.workspace / ".idea").unlink()
            (shop.workspace / ".idea").mkdir()

    monkeypatch.setattr(backend.containers.engine, "run", swapped)
    with pytest.raises(BackendUnavailable):
        await shop.run("cat .idea/key", backend=backend, scope="racing")
    (shop.workspace / ".idea").rmdir()
    assert set(left_of("racing", backend.containers)) == {None}


def test_facts_differ_with_what_holds_and_not_with_the_workspace_s_content(shop: Yard) -> None:
    backend = shop.backend()
    backend.check()
    before = json.dumps(backend.facts(WORK))
    (shop.workspace / "more").write_text("")
    assert json.dumps(backend.facts(WORK)) == before
    assert json.dumps(shop.backend(limits=replace(ContainerLimits(), processes=99)).facts(WORK)) != before
    network = shop.backend(network=True)
    network.check()
    assert network.facts(WORK) != backend.facts(WORK)
    assert network.facts(READ_ONLY) == backend.facts(READ_ONLY)
