"""A listed secret is a path and what is below it, not a prefix of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.core.secrets import DEFAULT_SECRETS, Secrets, named, secret_paths


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def secrets(home: Path, tmp_path: Path) -> tuple[Path, ...]:
    return secret_paths((), home=home, state=tmp_path / "state")


def test_every_default_is_below_the_home_and_named_once(home: Path, secrets: tuple[Path, ...]) -> None:
    assert all(entry.startswith("~/") and "*" not in entry for entry in DEFAULT_SECRETS)
    assert len(set(DEFAULT_SECRETS)) == len(DEFAULT_SECRETS)
    assert len(secrets) == len(DEFAULT_SECRETS) + 1
    assert {home / entry[2:] for entry in DEFAULT_SECRETS} <= set(secrets)


@pytest.mark.parametrize(
    "name",
    [".ssh/id_ed25519", ".ssh", ".aws/credentials", ".config/gcloud/x", ".netrc", ".docker/config.json", ".claude/x"],
)
def test_a_secret_and_what_is_below_it_is_secret(home: Path, secrets: tuple[Path, ...], name: str) -> None:
    assert Secrets(secrets)(home / name)


@pytest.mark.parametrize("name", [".sshx", ".ssh.txt", ".config", ".config/git/config", ".", "..", "notes"])
def test_a_name_that_only_begins_alike_is_not(home: Path, secrets: tuple[Path, ...], name: str) -> None:
    assert not Secrets(secrets)(home / name)


def test_the_state_directory_is_secret(tmp_path: Path, secrets: tuple[Path, ...]) -> None:
    assert Secrets(secrets)(tmp_path / "state" / "shellback.db")
    assert not Secrets(secrets)(tmp_path / "state2")


def test_symlinks_are_resolved_on_both_sides(home: Path, tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    (home / ".aws").symlink_to(tmp_path / "vault")
    (tmp_path / "innocent").symlink_to(home / ".ssh")
    secrets = secret_paths((), home=home, state=tmp_path / "state")
    assert Secrets(secrets)(tmp_path / "vault" / "credentials")
    assert Secrets(secrets)(home / ".aws" / "credentials")
    assert Secrets(secrets)(tmp_path / "innocent" / "id_rsa")
    assert Secrets(secrets)(home / "notes" / ".." / ".ssh" / "id_rsa")


def test_entries_of_the_operator_are_added(home: Path, tmp_path: Path) -> None:
    secrets = secret_paths(("~/keys", str(tmp_path / "ca")), home=home, state=tmp_path / "state")
    assert Secrets(secrets)(home / "keys" / "a")
    assert Secrets(secrets)(tmp_path / "ca")
    assert Secrets(secret_paths(("~",), home=home, state=tmp_path / "state"))(home / "a")


@pytest.mark.parametrize("entry", ["keys", "", "~other/keys", "./keys", "~/a\0b"])
def test_an_entry_that_is_no_path_is_refused(home: Path, tmp_path: Path, entry: str) -> None:
    with pytest.raises(ValueError, match="give a path that begins with / or ~/"):
        secret_paths((entry,), home=home, state=tmp_path / "state")


@pytest.mark.parametrize("name", [".env", ".env.local", ".env.production", ".ENV", ".env.example.local", ".envrc"])
def test_environments_hold_secrets_wherever_they_are(tmp_path: Path, name: str) -> None:
    assert named(name)
    assert Secrets()(tmp_path / "deep" / name)


@pytest.mark.parametrize("name", [".env.example", ".env.sample", ".env.template", ".env.dist", "env", "x.env"])
def test_templates_of_environments_do_not(tmp_path: Path, name: str) -> None:
    assert not named(name)
    assert not Secrets()(tmp_path / name)


def test_an_environment_is_known_by_either_of_its_names(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1")
    (tmp_path / "settings").symlink_to(tmp_path / ".env")
    (tmp_path / "plain").write_text("KEY=1")
    (tmp_path / ".env.local").symlink_to(tmp_path / "plain")
    assert Secrets()(tmp_path / "settings")
    assert Secrets()(tmp_path / ".env.local")


def test_a_directory_of_programs_called_env_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".env" / "bin").mkdir(parents=True)
    assert not Secrets()(tmp_path / ".env")
    assert not Secrets()(tmp_path / ".env" / "bin" / "python")


def test_what_cannot_be_resolved_counts_as_secret(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert Secrets()(tmp_path / "loop" / "x")
    assert Secrets()(tmp_path / "a\0b")
