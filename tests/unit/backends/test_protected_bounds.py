"""What is beyond a bound of a workspace, with real git: closed as a whole, also for who knows nothing from before."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.backends import protected
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.core.errors import WorkspaceUnusable
from tests.unit.backends.test_protected import all_of, below, git, repository


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def kept(covers: Covers, path: Path) -> bool:
    """Whether no command can write there."""
    return not {str(path), *map(str, path.parents)}.isdisjoint(all_of(covers))


def decoys(workspace: Path, count: int, names: str = "a{:03}") -> None:
    """Directories that look like repositories, and come before others."""
    for number in range(count):
        (workspace / names.format(number) / ".git").mkdir(parents=True)


def test_sixty_decoys_take_no_protection_from_a_real_repository_also_after_a_restart(workspace: Path) -> None:
    repository(workspace / "z")
    git("config", "core.hooksPath", "tools", cwd=workspace / "z")
    (workspace / "z/tools").mkdir()
    (workspace / "z/tools/pre-commit").touch()
    look = Protected(workspace)
    look.covers()
    decoys(workspace, 60)
    known, fresh = look.covers(), Protected(workspace).covers()
    assert below(known.closed, workspace) == {f"a{number:03}/.git" for number in range(50 - 1, 60)}
    assert below(fresh.closed, workspace) == {f"a{number:03}/.git" for number in range(50, 60)} | {"z/.git"}
    for covers in (known, fresh):
        for name in (".git/config", ".git/hooks/pre-commit", ".git/commondir", "tools/pre-commit"):
            assert kept(covers, workspace / "z" / name), name
        assert not kept(covers, workspace / "z" / "file")


def test_repositories_beyond_what_can_be_closed_one_by_one_are_closed_with_what_holds_them(workspace: Path) -> None:
    repository(workspace / "z/a/b/c/real")
    decoys(workspace / "many", protected.PLACES + protected.CLOSED + 20, "a{:03}/b")
    covers = Protected(workspace).covers()
    assert below(covers.closed, workspace) == {"many", "z"}
    assert kept(covers, workspace / "z/a/b/c/real/.git/config")


def test_where_only_the_workspace_itself_could_be_closed_it_is_refused_with_the_remedy(workspace: Path) -> None:
    decoys(workspace, protected.PLACES + protected.CLOSED + 1)
    with pytest.raises(WorkspaceUnusable) as refusal:
        Protected(workspace).covers()
    assert f"more than {protected.PLACES} repositories" in str(refusal.value)
    assert "WORKSPACE_ROOT" in str(refusal.value)


def test_a_flood_of_directories_hides_no_repository_it_is_closed_itself(workspace: Path) -> None:
    (workspace / "z/y/x/.git").mkdir(parents=True)
    for number in range(100):
        (workspace / f"a/b/c{number}").mkdir(parents=True)
    covers = Protected(workspace, directories=20).covers()
    assert f"{workspace}/z/y/x/.git/hooks" in covers.stubs
    assert covers.closed == covers.masked == (f"{workspace}/a/b",)
    assert kept(covers, workspace / "a/b/c1/.git/config")


def test_what_was_closed_for_want_of_room_is_looked_into_when_there_is_some(workspace: Path) -> None:
    look = Protected(workspace, directories=20)
    for number in range(15):
        (workspace / f"a/{number}").mkdir(parents=True)
    (workspace / "z").mkdir()
    assert look.covers().closed == ()
    for number in range(5):
        (workspace / f"z/y/{number}").mkdir(parents=True)
    assert below(look.covers().closed, workspace) == {"z/y"}
    assert below(look.covers().closed, workspace) == {"z/y"}
    (workspace / "a").rename(workspace.parent / "a")
    assert look.covers().closed == ()


def test_directories_spread_so_widely_that_none_can_be_closed_are_refused(workspace: Path) -> None:
    for number in range(25):
        (workspace / f"a{number}").mkdir()
    with pytest.raises(WorkspaceUnusable, match="more than 20 directories"):
        Protected(workspace, directories=20).covers()


def test_the_repository_of_the_root_is_protected_however_many_there_are(workspace: Path) -> None:
    decoys(workspace, protected.PLACES + 1)
    look = Protected(workspace)
    assert below(look.covers().closed, workspace) == {f"a{protected.PLACES:03}/.git"}
    repository(workspace)
    assert f"{workspace}/.git/config" in look.covers().readonly


def test_environments_beyond_the_bound_are_out_of_sight_with_their_directory(workspace: Path) -> None:
    (workspace / "a").mkdir()
    for number in range(protected.DOTENVS + 3):
        (workspace / f"a/.env.{number}").touch()
    (workspace / "z/deep").mkdir(parents=True)
    (workspace / "z/deep/.env").touch()
    (workspace / ".env").touch()
    covers = Protected(workspace).covers()
    assert {"a", "z/deep", ".env"} <= below(covers.masked, workspace)
    assert below(covers.closed, workspace) == {"a", "z/deep"}
    assert not below(covers.readonly, workspace) & {"a", "z/deep"}
    for number in range(protected.DOTENVS):
        (workspace / f".env.{number}").touch()
    with pytest.raises(WorkspaceUnusable, match=f"more than {protected.DOTENVS} "):
        Protected(workspace).covers()


def test_a_configuration_too_long_to_be_read_closes_what_it_is_for(workspace: Path) -> None:
    """Its end could name hooks."""
    place = repository(workspace / "lib")
    with (place / ".git/config").open("a") as file:
        file.write("# long\n" * 20_000 + "[core]\n\thooksPath = tools\n")
    covers = Protected(workspace).covers()
    assert below(covers.closed, workspace) == {"lib"}
    assert kept(covers, workspace / "lib/tools/pre-commit")
