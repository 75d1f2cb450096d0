"""`[credentials]` of the operator's file."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from shellback.exec.core.display import request_lines
from shellback.exec.core.errors import BackendUnavailable, PolicyUnusable
from shellback.exec.core.limits import Limits
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.rules.file import load, network, workspaces
from shellback.exec.proxy import authority
from shellback.exec.wire import layout
from shellback.exec.wire.credentials import BUNDLE
from shellback.settings import Settings, secret_environment
from shellback.wiring.choice import choose, credentials, made
from tests.documents import ROOT, blocks
from tests.sandboxes import needed

VALUE = "ghp_0123456789abcdefghij"
LIST = '[network]\nhosts = ["a.example", "*.b.example:8443"]\n'
HUB = '[credentials.hub]\nenv = "HUB_VALUE"\nhosts = ["a.example"]\nvariable = "HUB_TOKEN"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "token").write_text(f"{VALUE}\n")
    path = tmp_path / "home/shellback.toml"
    path.write_text(LIST + HUB)
    return path


def settings(file: Path, **more: str) -> Settings:
    return Settings.load({
        "WORKSPACE_ROOT": str(file.parents[1] / "ws"), "SHELLBACK_HOME": str(file.parent), "NETWORK": "list", **more
    })  # fmt: skip


@pytest.mark.parametrize(
    ("line", "old", "new", "said"),
    [
        (4, 'env = "HUB_VALUE"', 'env = "HUB_VALUE"\nfile = "/x"', "one source"),
        (3, 'env = "HUB_VALUE"', "", "write the name of a variable as env, or a file"),
        (4, 'env = "HUB_VALUE"', 'file = "token"', "write the whole path"),
        (5, '["a.example"]', '["c.example"]', "add it to hosts of [network]"),
        (5, '["a.example"]', '["b.example:8443"]', "add it to hosts of [network]"),
        (5, '["a.example"]', '["x.b.example"]', "add it to hosts of [network]"),
        (5, '["a.example"]', '["*"]', "name those that need it"),
        (5, '["a.example"]', "[]", "list one that is in [network]"),
        (6, "variable", 'as = "cookie"\nvariable', "write one of bearer, basic, header"),
        (3, "variable", 'as = "header"\nvariable', 'write both as = "header" and header'),
        (7, "variable", 'as = "header"\nheader = "X Key"\nvariable', "as in X-Api-Key"),
        (7, "variable", 'as = "header"\nheader = "Host"\nvariable', "as in X-Api-Key"),
        (3, "variable", 'as = "basic"\nvariable', 'write both as = "basic" and user'),
        (7, "variable", 'as = "basic"\nuser = "a:b"\nvariable', "write the name of a user"),
        (6, "HUB_TOKEN", "LD_PRELOAD", "write another one, as in GITHUB_TOKEN"),
        (6, "HUB_TOKEN", "TERM", "one that each command has"),
        (7, "variable", "\nvariables", "the keys here are env, file, hosts"),
        (3, "[credentials.hub]", '[credentials."a b"]', "use 1 to 40 letters"),
        (9, "variable", f"{HUB.replace('hub', 'two')}\nvariable", "has hub already"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_remedy(file: Path, line: int, old: str, new: str, said: str) -> None:
    if "two" in new:
        file.write_text(LIST + HUB + HUB.replace(".hub", ".two"))
    else:
        file.write_text((LIST + HUB).replace(old, new))
    with pytest.raises(PolicyUnusable) as refused:
        load(file)
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{file}:{line}: ")


@pytest.mark.parametrize(
    ("hub", "given", "said"),
    [
        (HUB, {}, ":4: env: HUB_VALUE is not set, or is no secret: set it for the worker"),
        (HUB, {"HUB_VALUE": "short"}, ":4: env: the value has fewer than 8 letters and digits: use a longer one"),
        (
            HUB.replace('env = "HUB_VALUE"', 'file = "/no/such"'),
            {},
            ":4: file: /no/such: No such file or directory: make it",
        ),
    ],
)
def test_a_value_that_cannot_be_had_refuses_the_file_and_is_not_shown(
    file: Path, hub: str, given: dict[str, str], said: str
) -> None:
    file.write_text(LIST + hub)
    with pytest.raises(PolicyUnusable) as refused:
        network(file, given)
    assert said in str(refused.value)
    assert not any(value in str(refused.value) for value in given.values())
    assert load(file).rules == ()


def test_the_file_that_the_document_shows_is_one(file: Path) -> None:
    shown, only = [one.text for one in blocks(ROOT / "docs/secrets.md") if one.language == "toml"]
    token = file.parents[1] / "token"
    file.write_text(shown.replace("/etc/shellback/registry-token", str(token)))
    assert [one.name for one in network(file, {"GITHUB_VALUE": VALUE}).credentials] == ["github", "clone", "registry"]
    named = '[network]\nhosts = ["api.github.com"]\n[workspaces]\nsite = "/srv/site"\nother = "/srv/other"\n'
    file.write_text(named + only.replace("/etc/shellback/site-token", str(token)))
    held = {name: [one.name for one in network(file, {}, workspace=name).credentials] for name in ("", "site", "other")}
    assert held == {"": [], "site": ["site"], "other": []}
    assert {name: dict(one.own) for name, one in workspaces(file).items()} == {
        "site": {"credentials": ("site",)},
        "other": {},
    }


def test_a_variable_that_other_programs_get_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUB_VALUE", "LC_X", "MODEL", "DATABASE_URL"):
        monkeypatch.setenv(name, "something-0123456789")
    found = secret_environment()
    assert "HUB_VALUE" in found
    assert not {"PATH", "HOME", "LC_X", "MODEL", "DATABASE_URL"} & {*found}


def test_what_is_approved_names_the_credential_and_never_its_value(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    monkeypatch.setenv("HUB_VALUE", VALUE)
    backend = made(settings(file), "bubblewrap")
    spec = command_spec(command="true", workspace=backend.workspace, limits=Limits())
    asked = proposal_for(spec, backend)
    assert "hub (bearer) for a.example in HUB_TOKEN" in "\n".join(request_lines(asked.facts))
    plan = asyncio.run(backend.plan(spec, "talk"))
    assert plan.sandbox is not None
    assert plan.env["HUB_TOKEN"].startswith("ghp_")
    for text in (
        repr(plan),
        repr(asked),
        backend.description,
        str(plan.sandbox.to_wire()),
        repr(credentials(backend)),
    ):
        assert VALUE not in text
    assert [one.value for one in credentials(backend)] == [VALUE]
    monkeypatch.setenv("HUB_VALUE", VALUE[::-1])
    assert proposal_for(spec, made(settings(file), "bubblewrap")).facts == asked.facts
    file.write_text((LIST + HUB).replace('["a.example"]', '["a.example:443"]'))
    other = made(settings(file), "bubblewrap")
    assert proposal_for(spec, other).facts != asked.facts
    again = asyncio.run(other.plan(spec, "talk"))
    assert again.sandbox is not None
    assert again.sandbox.key != plan.sandbox.key
    assert again.env["HUB_TOKEN"] != plan.env["HUB_TOKEN"]


def test_a_file_with_a_value_is_hidden_from_commands_and_never_in_a_workspace(file: Path) -> None:
    needed()
    token = file.parents[1] / "token"
    file.write_text(LIST + HUB.replace('env = "HUB_VALUE"', f'file = "{token}"'))
    backend = made(settings(file, SANDBOX_READABLE=str(file.parents[1] / "token")), "bubblewrap")
    plan = asyncio.run(backend.plan(command_spec(command="true", workspace=backend.workspace, limits=Limits()), "talk"))
    assert plan.sandbox is not None
    assert str(token) in plan.sandbox.hidden
    inside = token.rename(file.parents[1] / "ws/token")
    file.write_text(file.read_text().replace(str(token), str(inside)))
    with pytest.raises(PolicyUnusable, match=r"is in the workspace .*: move it elsewhere"):
        made(settings(file), "bubblewrap")


def test_the_authority_is_made_once_and_its_key_is_the_owners(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_VALUE", VALUE)
    place = file.parent / layout.AUTHORITY
    found: list[bytes] = []
    for _ in range(2):
        made(settings(file), "bubblewrap")
        found.append((place / authority.KEY).read_bytes())
    assert found[0] == found[1]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes == {authority.KEY: 0o600, authority.CERTIFICATE: 0o644, BUNDLE: 0o644}
    bundle = (place / BUNDLE).read_bytes()
    assert bundle.endswith((place / authority.CERTIFICATE).read_bytes())
    assert bundle.startswith(authority.trusted().read_bytes()[:1000])


def test_the_authority_is_made_before_there_is_a_state_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_VALUE", VALUE)
    home = tmp_path / "later/home"
    made(settings(file, SHELLBACK_HOME=str(home), POLICY_FILE=str(file)), "bubblewrap")
    assert (home / layout.AUTHORITY / authority.KEY).exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_after_a_change_of_what_the_machine_trusts_commands_have_another_instance_with_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed()
    monkeypatch.setenv("HUB_VALUE", VALUE)
    # As a process of our number, in another container, left it that was killed.
    left = file.parent / layout.AUTHORITY / f".{BUNDLE}.{os.getpid()}"
    changing = tmp_path / "changing.pem"
    monkeypatch.setattr(authority, "SYSTEM", (str(changing),))
    keys: list[str] = []
    for text in ("one", "one", "two"):
        changing.write_text(text)
        backend = made(settings(file), "bubblewrap")
        spec = command_spec(command="true", workspace=backend.workspace, limits=Limits())
        sandbox = asyncio.run(backend.plan(spec, "talk")).sandbox
        assert sandbox is not None
        keys.append(sandbox.key)
        left.touch()
    assert keys[0] == keys[1] != keys[2]


def test_a_machine_that_trusts_nobody_has_no_credentials(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_VALUE", VALUE)
    monkeypatch.setattr(authority, "SYSTEM", ())
    with pytest.raises(BackendUnavailable, match="install the package ca-certificates"):
        choose(settings(file, BACKEND="bubblewrap"))
