"""The workspace is a directory, not a prefix; what lies outside of what a check looks at, and listed secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.secrets import DEFAULT_SECRETS, Secrets, named, secret_paths
from shellback.exec.core.sight.sight import PUBLIC_TREES, Sight, TooMuch, Unseen, expanded, inside, sandbox_cwd


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "ws-evil").mkdir()
    (root / "file").write_text("")
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "sub")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.mark.parametrize("cwd", [None, "", ".", "~"])
def test_the_workspace_itself_is_the_default(workspace: Path, cwd: str | None) -> None:
    assert sandbox_cwd(cwd, workspace) == workspace


@pytest.mark.parametrize("cwd", ["sub", "./sub", "~/sub", "in", "sub/../sub", "{}/sub"])
def test_directories_inside_are_resolved(workspace: Path, cwd: str) -> None:
    assert sandbox_cwd(cwd.format(workspace), workspace) == workspace / "sub"


@pytest.mark.parametrize("cwd", ["..", "/", "../ws-evil", "out", "out/ws-evil", "sub/../../ws-evil", "loop"])
def test_a_path_that_leaves_is_refused_with_the_workspace_named(workspace: Path, cwd: str) -> None:
    with pytest.raises(PathOutsideSandbox) as refusal:
        sandbox_cwd(cwd, workspace)
    assert str(refusal.value) == f"cwd {cwd!r} is outside the workspace; use a directory inside {workspace}"


def test_a_sibling_with_the_same_prefix_is_outside(workspace: Path) -> None:
    with pytest.raises(PathOutsideSandbox):
        sandbox_cwd(f"{workspace}-evil", workspace)
    assert not inside(Path(f"{workspace}-evil"), workspace)


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("missing", "does not exist; create it first"),
        ("file", "is not a directory; give the directory that holds it"),
        ("a\0b", "holds a NUL byte"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_entered_is_refused_with_a_remedy(workspace: Path, cwd: str, said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        sandbox_cwd(cwd, workspace)


def test_inside_follows_symlinks(workspace: Path) -> None:
    assert inside(workspace / "in", workspace)
    assert not inside(workspace / "out", workspace)
    assert not inside(workspace / "loop", workspace)


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "ws"
    (place / "a/b").mkdir(parents=True)
    (place / "a/b/f").write_text("text")
    (place.parent / "other").mkdir()
    (place.parent / "other/f").write_text("text")
    return place


def sight(ws: Path, *, entries: int = 100, seconds: float = 60) -> Sight:
    return Sight((str(ws), *PUBLIC_TREES), entries=entries, seconds=seconds)


@pytest.mark.parametrize("way", ["a/b/f", "./a/../a/b/f", "../ws/a/b/f", "a/b/../../../ws//a/b/f", "l/f", "up/a/b/f"])
def test_a_path_leads_where_the_kernel_says(ws: Path, way: str) -> None:
    (ws / "l").symlink_to("a/b")
    (ws / "up").symlink_to(ws)
    assert sight(ws).real(f"{ws}/{way}") == str(ws / "a/b/f") == os.path.realpath(f"{ws}/{way}")


def test_a_symlink_may_lead_to_another_directory_that_is_looked_at(ws: Path) -> None:
    (ws / "tool").symlink_to("/bin/sh")
    assert sight(ws).real(f"{ws}/tool") == os.path.realpath("/bin/sh")


@pytest.mark.parametrize("way", ["../other/f", "out/f", "up/other/f", "../../../../../etc/passwd", "proc"])
def test_what_lies_outside_is_not_looked_at(ws: Path, way: str) -> None:
    (ws / "out").symlink_to("../other")
    (ws / "up").symlink_to("..")
    (ws / "proc").symlink_to("/proc/self/environ")
    with pytest.raises(Unseen):
        sight(ws).place(f"{ws}/{way}")
    assert sight(ws).status(f"{ws}/{way}") is None


def test_the_way_down_is_told_apart_from_what_lies_outside(ws: Path) -> None:
    with pytest.raises(Unseen) as above:
        sight(ws).place(f"{ws}/..")
    assert above.value.above == str(ws.parent)


def test_the_whole_machine_is_all_but_what_is_another_thing_for_each(ws: Path) -> None:
    everything = Sight(("/",))
    assert everything.content(str(ws / "a/b/f"), 9) == b"text"
    with pytest.raises(Unseen):
        everything.place("/proc/self/environ")


def test_so_many_names_are_looked_at(ws: Path) -> None:
    for number in range(20):
        (ws / str(number)).touch()
    with pytest.raises(TooMuch):
        sight(ws, entries=10).names(str(ws))
    with pytest.raises(TooMuch):
        expanded(f"{ws}/*", sight(ws, seconds=0))


def test_a_pattern_of_another_place_stands_for_nothing(ws: Path) -> None:
    assert expanded(f"{ws.parent}/*/f", sight(ws)) == []
    assert expanded(f"{ws}/*/*/f", sight(ws)) == [f"{ws}/a/b/f"]


def test_only_a_plain_file_is_read(ws: Path) -> None:
    os.mkfifo(ws / "pipe")
    (ws / "link").symlink_to("a/b/f")
    for name in ("pipe", "link", "a"):
        with pytest.raises(OSError, match=r"regular file|directory"):
            sight(ws).content(f"{ws}/{name}", 9)
    assert sight(ws).content(f"{ws}/link", 9, follow=True) == b"text"


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


SECRET = (
    ".ssh/id_ed25519",
    ".ssh",
    ".aws/credentials",
    ".config/gcloud/x",
    ".netrc",
    ".docker/config.json",
    ".claude/x",
)
ALIKE = (".sshx", ".ssh.txt", ".config", ".config/git/config", ".", "..", "notes")


@pytest.mark.parametrize("name", [*SECRET, *ALIKE])
def test_a_secret_and_what_is_below_it_is_secret_and_no_name_that_only_begins_alike(
    home: Path, secrets: tuple[Path, ...], name: str
) -> None:
    assert Secrets(secrets)(home / name) is (name in SECRET)


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


HOLDING = (".env", ".env.local", ".env.production", ".ENV", ".env.example.local", ".envrc")
TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", "env", "x.env")


@pytest.mark.parametrize("name", [*HOLDING, *TEMPLATES])
def test_environments_hold_secrets_wherever_they_are_and_their_templates_do_not(tmp_path: Path, name: str) -> None:
    assert named(name) is (name in HOLDING)
    assert Secrets()(tmp_path / "deep" / name) is (name in HOLDING)


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
