"""What is asked of podman, and what is said where it does not do it; a script stands in for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends import container_engine, podman
from shellback.exec.backends.podman import LOCAL, MISSING, Podman
from shellback.exec.core.errors import BackendUnavailable
from tests.supervisors import returning

Stand = Callable[[str], Path]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Make a script podman, which notes its words; `$*` in it are those."""
    monkeypatch.setattr(podman, "_TRIED", {})

    def make(script: str) -> Path:
        path, words = tmp_path / "podman", tmp_path / "words"
        path.write_text(f'#!/bin/sh\necho "$*" >>{words}\n{script}\n')
        path.chmod(0o755)

        def found(name: str) -> str:
            return str(path) if name == "podman" else f"/usr/bin/{name}"

        monkeypatch.setattr(podman, "found", found)
        return words

    return make


def answering(version: str = "4.9.3", connections: object = (), more: str = "") -> str:
    return (
        f"case $1 in version) echo {version};; system) echo '{json.dumps(connections)}';;"
        f" info) echo {'false' if os.geteuid() == 0 else 'true'};; {more} esac"
    )


def test_without_podman_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman, "found", returning(None))
    with pytest.raises(BackendUnavailable) as refused:
        Podman().check()
    assert str(refused.value) == MISSING
    with pytest.raises(BackendUnavailable, match="apt install podman"):
        Podman().state("any")


@pytest.mark.parametrize(("version", "good"), [("4.2.9", False), ("3.4.4", False), ("4.3.1", True), ("5.6.0", True)])
def test_a_podman_that_is_too_old_is_refused(stand_in: Stand, version: str, good: bool) -> None:
    stand_in(answering(version))
    if good:
        Podman().check()
        return
    with pytest.raises(BackendUnavailable, match=rf"podman {version} is too old: 4\.3"):
        Podman().check()


@pytest.mark.parametrize(
    ("given", "connections", "said"),
    [
        ({"url": "ssh://me:secret@far.example/run/podman.sock"}, [], "PODMAN_BASE_URL leads to a remote engine"),
        ({"url": "tcp://10.0.0.1:8080"}, [], "remote engine"),
        (
            {"connection": "far"},
            [{"Name": "far", "URI": "ssh://core@far/x", "Default": False}],
            "PODMAN_CONNECTION=far",
        ),
        ({"connection": "none"}, [{"Name": "far", "URI": "ssh://core@far/x"}], "no connection 'none' .there is far."),
        ({}, [{"Name": "machine", "URI": "ssh://core@127.0.0.1:5/x", "Default": True}], "default connection machine"),
    ],
)
def test_a_remote_engine_is_refused_with_the_reason(
    stand_in: Stand, given: dict[str, Any], connections: object, said: str
) -> None:
    stand_in(answering(connections=connections))
    with pytest.raises(BackendUnavailable, match=said) as refused:
        Podman(**given).check()
    remedy = "unset PODMAN_BASE_URL" if given.get("url") else "PODMAN_CONNECTION=local"
    assert remedy in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "connections", "words"),
    [
        ({}, None, "inspect"),
        ({}, [{"Name": "here", "URI": "unix:///run/podman.sock", "Default": True}], "inspect"),
        ({"connection": LOCAL}, [{"Name": "far", "URI": "ssh://far/x", "Default": True}], "inspect"),
        (
            {"connection": "here"},
            [{"Name": "here", "URI": "unix:///run/x.sock"}],
            "--connection here container inspect",
        ),
        (
            {"url": "unix:///run/x.sock", "identity": "/k"},
            [],
            "--url unix:///run/x.sock --identity /k container inspect",
        ),
    ],
)
def test_an_engine_of_this_machine_is_used_by_the_name_it_was_given(
    stand_in: Stand, given: dict[str, Any], connections: object, words: str
) -> None:
    noted = stand_in(
        'case "$*" in *version*) echo 5.0;; *connection\\ list*) echo '
        f"'{json.dumps(connections)}';; *info*) echo {'false' if os.geteuid() == 0 else 'true'};;"
        " *inspect*) echo running 1234;; esac"
    )
    podman = Podman(**given)
    podman.check()
    assert podman.state("name") == ("running", "1234")
    assert words in noted.read_text().splitlines()[-1]


def test_the_engine_behind_a_socket_has_to_run_as_the_same_user(stand_in: Stand) -> None:
    other = "true" if os.geteuid() == 0 else "false"
    stand_in(f'case "$*" in *version*) echo 5.0;; *info*) echo {other};; esac')
    with pytest.raises(BackendUnavailable, match="runs as another user"):
        Podman(url="unix:///run/x.sock").check()


def test_an_image_has_its_id_and_environment_and_is_never_pulled(stand_in: Stand) -> None:
    noted = stand_in(r"""case $1 in image) printf 'abc\t["PATH=/opt/bin:/bin","EMPTY="]\n';; esac""")
    image = Podman().image("some:1")
    assert (image.id, dict(image.env)) == ("abc", {"PATH": "/opt/bin:/bin", "EMPTY": ""})
    assert "pull" not in noted.read_text()
    stand_in(r"printf 'abc\tnull\n'")
    assert dict(Podman().image("some:1").env) == {}
    stand_in("echo 'Error: some:1: image not known' >&2; exit 125")
    with pytest.raises(BackendUnavailable, match="podman pull some:1"):
        Podman().image("some:1")


def test_runtimes_are_tried_and_the_one_that_works_is_remembered(
    stand_in: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    noted = stand_in(
        'case "$*" in "--runtime runc run"*) echo id;;'
        ' *run\\ -d*) echo "Error: OCI runtime error: crun: no cgroups" >&2; exit 126;; esac'
    )
    assert Podman().run("name", ["image"]) == "id"
    first = noted.read_text().splitlines()
    tried = [line for line in first if "run -d" in line]
    assert [line.removesuffix("run -d --name name image") for line in tried] == [
        "",
        "--runtime crun ",
        "--runtime runc ",
    ]
    (line,) = caplog.records
    assert line.__dict__["component"] == "tools.podman"
    assert sum("rm --force" in line for line in first) == 2
    Podman().run("other", ["image"])
    assert noted.read_text().splitlines()[len(first) :] == ["--runtime runc run -d --name other image"]


def test_what_is_wrong_in_any_runtime_is_what_is_said(stand_in: Stand) -> None:
    stand_in(
        'case "$*" in "--runtime runc run"*) echo "Error: runc: exec: python3: executable file not found in PATH" >&2;'
        ' exit 127;; *run\\ -d*) echo "Error: OCI runtime error: crun: no cgroups" >&2; exit 126;; esac'
    )
    with pytest.raises(BackendUnavailable, match="no python3"):
        Podman().run("name", ["image"])


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Error: writing blob: no space left on device", "make room"),
        ('Error: crun: executable file `python3` not found in $PATH: No such file or directory', "no python3"),
        ('Error: runc: exec: "python3": executable file not found in $PATH', "no python3"),
        ("Error: netavark: No such file or directory", "NETWORK=off"),
        ("Error: could not find slirp4netns, the network namespace can't be configured", "NETWORK=off"),
        ("Error: cannot set up namespace using newuidmap: exit status 1", "uidmap"),
        ("Error: error configuring storage: graph driver overlay not supported", "podman info"),
        ("Error: crun: cgroups in hybrid mode not supported", "runc"),
        ("Error: something new", "try it by hand"),
    ],
)  # fmt: skip
def test_a_failure_says_what_podman_printed_and_what_to_do(stand_in: Stand, said: str, remedy: str) -> None:
    noise = 'time="2026" level=warning msg="noise"'
    stand_in(f"case $1 in run|--runtime) cat >&2 <<'END'\n{noise}\n{said}\nEND\nexit 125;; esac")
    with pytest.raises(BackendUnavailable, match=remedy) as refused:
        Podman().run("name", ["image"])
    assert said.removeprefix("Error: ")[:20] in str(refused.value)
    assert "noise" not in str(refused.value)


def test_what_podman_prints_is_bounded(stand_in: Stand) -> None:
    stand_in("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")
    with pytest.raises(BackendUnavailable) as refused:
        Podman().start("name")
    assert len(str(refused.value)) < 1000


def test_a_podman_that_hangs_is_left_with_a_word_about_it(stand_in: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_engine, "ANSWER_S", 0.3)
    stand_in("exec sleep 60")
    with pytest.raises(BackendUnavailable, match=r"`podman start` did not come back within 0\.3 s"):
        Podman().start("name")


def test_what_is_not_there_is_no_failure(stand_in: Stand) -> None:
    stand_in('echo "Error: no such container name" >&2; exit 125')
    assert Podman().state("name") is None


def test_podman_gets_no_setting_and_no_key(stand_in: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("CONTAINER_HOST", "ssh://far")
    stand_in(f"env >{tmp_path}/env; echo running id")
    Podman(environ={"XDG_DATA_HOME": "/data"}).state("name")
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {"PATH", "HOME", "XDG_DATA_HOME"} <= names
    assert not {"ANTHROPIC_API_KEY", "CONTAINER_HOST"} & names


def test_users_of_a_container_have_numbers_here(stand_in: Stand) -> None:
    stand_in("printf '0 1000 1\\n1 100000 65536\\n'")
    assert Podman().outer(0) == 1000
    assert Podman().outer(65534) == 165533
    stand_in("printf '0 1000 1\\n1 100000 10\\n'")
    with pytest.raises(BackendUnavailable, match="add-subuids"):
        Podman().outer(65534)
