"""What hides secrets as the settings and the policy file say."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from shellback.exec.log.mask import Mask
from shellback.settings import Settings
from shellback.wiring import masking


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.log.mask.FRESH_S", 0.0)


def written(path: Path, text: str) -> str:
    """Write a file that only its owner may write; the text."""
    path.write_text(text)
    path.chmod(0o600)
    return text


def hub(root: Path) -> str:
    """The tables of a credential whose value is in the file `value`."""
    return f'[network]\nhosts = ["example.org"]\n[credentials.hub]\nfile = "{root}/value"\nhosts = ["example.org"]\n'


def mask_of(root: Path) -> Mask:
    (root / "workspace").mkdir()
    given = {"SHELLBACK_HOME": str(root / "home"), "WORKSPACE_ROOT": str(root / "workspace"), "SECRETS": "mask"}
    return masking.mask_for(Settings.load({**given, "HOME": str(root), "POLICY_FILE": str(root / "shellback.toml")}))


@pytest.mark.parametrize(
    "then", ["", "[credentials", '[[rules]]\neffect = "allow"\nprefix = ["ls"]\n'], ids=["empty", "unusable", "without"]
)
def test_what_a_policy_file_has_said_is_hidden_whatever_becomes_of_it(tmp_path: Path, then: str) -> None:
    value, token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    written(tmp_path / "value", value)
    written(tmp_path / "key", f"TOKEN={token}\n")
    (tmp_path / "site").mkdir()
    policy = tmp_path / "shellback.toml"
    site = f'[workspaces.site]\npath = "{tmp_path}/site"\nsecret_paths = "{tmp_path}/key"\n'
    whole = written(policy, hub(tmp_path) + site)
    mask = mask_of(tmp_path)
    for text in (whole, then, then):
        written(policy, text)
        mask.refresh()
        assert mask.hide_text(f"{value} {token}") == "[secret hub] [secret TOKEN]", text
    other = secrets.token_urlsafe(24)
    written(tmp_path / "value", other)
    written(policy, hub(tmp_path))
    mask.refresh()
    assert mask.hide_text(f"{value} {other}") == "[secret hub] [secret hub]"


def test_of_what_policy_files_have_said_the_latest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "GONE", 2)
    values = [secrets.token_urlsafe(24) for _ in range(5)]
    written(tmp_path / "shellback.toml", hub(tmp_path))
    mask = mask_of(tmp_path)
    for value in values:
        written(tmp_path / "value", value)
        mask.refresh()
    assert [mask.hide_text(value) == "[secret hub]" for value in values] == [False, False, True, True, True]
