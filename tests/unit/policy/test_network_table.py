"""`[network]` of the operator's file, and that NETWORK=list holds or refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellback.exec.backends import container_probe, probe
from shellback.exec.core.base import Found
from shellback.exec.core.display import request_lines
from shellback.exec.core.errors import BackendUnavailable, PolicyUnusable
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.rules.file import load, network
from shellback.exec.wire.hosts import Hosts
from shellback.settings import Settings
from shellback.wiring import wiring
from shellback.wiring.choice import choose, made
from tests.sandboxes import needed

LONG = [f"{'a' * 60}.{n}.example" for n in range(300)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    path = tmp_path / "home/shellback.toml"
    path.write_text('[network]\nhosts = ["example.org", "db.example.org:5432"]\nprivate = ["10.0.0.0/8"]\n')
    return path


def settings(file: Path, **more: str) -> Settings:
    workspace = file.parents[1] / "ws"
    return Settings.load({
        "WORKSPACE_ROOT": str(workspace), "SHELLBACK_HOME": str(file.parent), "NETWORK": "list", **more
    })  # fmt: skip


def test_sets_are_put_in_place_of_their_names(file: Path) -> None:
    file.write_text(
        '[network]\nhosts = ["a.example", "@more", "a.example"]\n'
        '[network.sets]\nmore = ["b.example:22", "*.c.example"]\n'
    )
    assert network(file, {}).words == ("a.example", "b.example:22", "*.c.example")
    assert load(file).rules == ()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[network]\nhosts = ["https://a.example"]', 2, "a host without its scheme"),
        ('[network]\nhosts = ["*", "a.example"]', 2, "leave it or them out"),
        ('[network]\nhosts = ["@more"]', 2, "define it in [network.sets]"),
        ('[network]\nhosts = "a.example"', 2, "write a list"),
        ('[network]\nhosts = ["a.example"]\nprivate = ["10.0.0.1/8"]', 3, "as in 10.1.0.0/16"),
        ('[network]\nhost = ["a.example"]', 2, "the keys here are hosts, private, sets"),
        ('[network]\nhosts = []\n[network.sets]\nmore = ["a b"]', 4, "in ASCII"),
        (f"[network]\nhosts = {LONG}", 2, "use wildcards"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_remedy_whatever_NETWORK_says(
    file: Path, text: str, line: int, said: str
) -> None:
    file.write_text(text)
    with pytest.raises(PolicyUnusable) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}:{line}: ")
    assert said in str(refused.value)


def test_a_list_without_hosts_is_refused_with_the_remedy(file: Path) -> None:
    file.write_text("")
    with pytest.raises(PolicyUnusable, match=r"has no hosts: write hosts = \[...\]"):
        made(settings(file), "bubblewrap")
    file.unlink()
    with pytest.raises(PolicyUnusable, match="there is no shellback"):
        made(settings(file), "bubblewrap")


def test_a_backend_that_cannot_hold_the_list_is_refused(file: Path) -> None:
    able = "BACKEND=bubblewrap, BACKEND=podman, BACKEND=docker, NETWORK=off or NETWORK=on"
    with pytest.raises(BackendUnavailable, match=f"cannot be held to NETWORK=list: set {able}"):
        choose(settings(file, BACKEND="host"))


def test_auto_never_falls_back_to_a_backend_without_the_list(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_backend: object) -> Found:
        raise BackendUnavailable("no bubblewrap here")

    monkeypatch.setattr(probe, "probe", none)
    monkeypatch.setattr(container_probe, "probe", none)
    with pytest.raises(BackendUnavailable) as refused:
        choose(settings(file))
    assert str(refused.value).count("no bubblewrap here") == 2


def test_that_a_person_is_asked_is_shown_to_who_approves_and_is_part_of_the_digest(file: Path) -> None:
    needed()
    listed, asks = (made(settings(file, NETWORK=value), "bubblewrap") for value in ("list", "ask"))
    spec = command_spec(command="true", workspace=listed.workspace, limits=Limits())
    asked = proposal_for(spec, asks).facts
    assert "private 10.0.0.0/8 ask about others" in "\n".join(request_lines(asked))
    assert asked != proposal_for(spec, listed).facts
    first, second, reads = (
        asyncio.run(one.plan(replace(spec, profile=profile), "talk")).sandbox
        for one, profile in ((listed, WORK), (asks, WORK), (asks, READ_ONLY))
    )
    assert first is not None
    assert second is not None
    assert reads is not None
    assert first.key != second.key
    assert (second.ask_s, reads.ask_s) == (60.0, 0.0)
    assert "waits up to 60 s for a person" in asks.description


def test_without_a_list_a_person_is_asked_about_every_host(file: Path) -> None:
    file.unlink()
    reached = made(settings(file, NETWORK="ask"), "bubblewrap").reached
    assert isinstance(reached, Hosts)
    assert reached.shown == ("ask about others",)
    with pytest.raises(BackendUnavailable, match="cannot be held to NETWORK=ask: set BACKEND=bubblewrap"):
        choose(settings(file, NETWORK="ask", BACKEND="host"))


def test_programs_find_the_proxy_where_only_a_person_is_asked(file: Path) -> None:
    needed()
    file.unlink()
    backend = made(settings(file, NETWORK="ask"), "bubblewrap")
    spec = command_spec(command="true", workspace=backend.workspace, limits=Limits())
    assert "HTTPS_PROXY" in asyncio.run(backend.plan(spec, "talk")).env


@pytest.mark.parametrize("network", ["list", "ask"])
def test_containers_from_before_the_list_can_be_removed(file: Path, network: str) -> None:
    place: Any = SimpleNamespace(
        settings=settings(file, NETWORK=network), home=file.parent / "home", database=None, host_id="h"
    )
    assert wiring.containers(place, "c1") is not None


def test_the_list_is_shown_to_who_approves_and_is_part_of_the_digest(file: Path) -> None:
    needed()
    backend = made(settings(file), "bubblewrap")
    spec = command_spec(command="true", workspace=backend.workspace, limits=Limits())
    asked = proposal_for(spec, backend)
    assert "network example.org db.example.org:5432 private 10.0.0.0/8" in "\n".join(request_lines(asked.facts))
    file.write_text(file.read_text().replace("10.0.0.0/8", "10.1.0.0/16"))
    other = made(settings(file), "bubblewrap")
    assert proposal_for(spec, other).facts != asked.facts
    plans = [asyncio.run(one.plan(spec, "talk")) for one in (backend, other)]
    keys = {plan.sandbox.key for plan in plans if plan.sandbox is not None}
    assert len(keys) == len(plans)
    assert "HTTPS_PROXY" in plans[0].env
    reading = asyncio.run(backend.plan(replace(spec, profile=READ_ONLY), "talk"))
    assert reading.sandbox is not None
    assert not reading.sandbox.hosts
    assert "HTTPS_PROXY" not in reading.env
