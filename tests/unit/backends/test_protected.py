"""What is found in real workspaces, made by real git, and found again after they changed."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from shellback.exec.backends import protected
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.backends.trusted import PROTECTED
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.supervisor.sandbox.stubs import make
from tests.filetrees import git


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def repository(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    git("init", "-q", cwd=path)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=path)
    (path / ".git" / "hooks").mkdir(exist_ok=True)
    (path / ".git" / "hooks" / "some.sample").touch()
    return path


def all_of(covers: Covers) -> set[str]:
    return {*covers.readonly, *covers.stubs, *(path for path, _ in covers.placeholders)}


def below(covers: Iterable[str], root: Path) -> set[str]:
    return {os.path.relpath(path, root) for path in covers}


def test_every_row_has_a_reason_and_stands_once() -> None:
    assert len({(rule.where, rule.name) for rule in PROTECTED}) == len(PROTECTED)
    assert all(rule.why and "/" not in rule.name for rule in PROTECTED)
    assert not any(rule.name.startswith(".env") and rule.name != ".envrc" for rule in PROTECTED)


def test_what_is_rare_is_protected_where_it_exists(workspace: Path) -> None:
    rare = next(rule.name for rule in PROTECTED if rule.rare)
    (workspace / rare).mkdir()
    assert below(Protected(workspace).covers().readonly, workspace) == {rare}


def test_in_an_empty_workspace_all_is_stubs_and_placeholders_in_its_root(workspace: Path) -> None:
    covers = Protected(workspace).covers()
    common = [rule for rule in PROTECTED if rule.where == "root" and not rule.rare]
    assert covers == Covers(
        writable=(),
        readonly=(),
        stubs=tuple(sorted(f"{workspace}/{rule.name}" for rule in common if rule.missing is None)),
        placeholders=tuple(sorted((f"{workspace}/{rule.name}", rule.missing) for rule in common if rule.missing)),
        masked=(),
        closed=(),
    )


def test_what_exists_in_the_root_is_read_only_and_an_empty_directory_stays_a_stub(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tasks.json").touch()
    (workspace / ".bashrc").write_text("true\n")
    (workspace / ".idea").mkdir()
    covers = Protected(workspace).covers()
    assert below(covers.readonly, workspace) == {".vscode", ".bashrc"}
    assert {".idea", ".git", ".claude"} <= below(covers.stubs, workspace)


def test_a_repository_cannot_be_renamed_and_its_hooks_and_config_are_read_only(workspace: Path) -> None:
    repository(workspace)
    covers = Protected(workspace).covers()
    assert below(covers.writable, workspace) == {".git"}
    assert below(covers.readonly, workspace) == {".git/hooks", ".git/config"}
    assert (f"{workspace}/.git/commondir", b".\n") in covers.placeholders
    assert not below(covers.stubs, workspace) & {".git", "HEAD", ".git/hooks"}


def test_missing_hooks_of_a_repository_are_a_stub(workspace: Path) -> None:
    repository(workspace)
    (workspace / ".git/hooks/some.sample").unlink()
    for sample in (workspace / ".git/hooks").iterdir():
        sample.unlink()
    (workspace / ".git/hooks").rmdir()
    assert ".git/hooks" in below(Protected(workspace).covers().stubs, workspace)


def test_a_stub_that_another_command_has_is_still_a_stub(workspace: Path) -> None:
    look = Protected(workspace)
    before = look.covers()
    for path in before.stubs:
        Path(path).mkdir()
    assert look.covers() == before


def test_a_placeholder_that_another_command_has_is_still_one(workspace: Path) -> None:
    repository(workspace)
    git("config", "extensions.worktreeConfig", "true", cwd=workspace)
    look = Protected(workspace)
    before = look.covers()
    assert {".git/commondir", ".git/config.worktree", ".gitconfig"} <= below(dict(before.placeholders), workspace)
    for path, content in before.placeholders:
        make(path, content, None)
    assert look.covers() == before
    Path(workspace / ".git/commondir").write_text("../elsewhere")
    assert f"{workspace}/.git/commondir" in look.covers().readonly


def test_git_works_with_stubs_and_placeholders_in_their_places(workspace: Path) -> None:
    repository(workspace / "sub")
    repository(workspace)
    git("config", "extensions.worktreeConfig", "true", cwd=workspace)
    covers = Protected(workspace).covers()
    for path in covers.stubs:
        Path(path).mkdir()
    for path, content in covers.placeholders:
        make(path, content, None)
    (workspace / "file").touch()
    git("add", "file", cwd=workspace)
    git("commit", "-q", "-m", "second", cwd=workspace)
    assert git("status", "--short", "--ignore-submodules", cwd=workspace) == "?? sub/\n"
    assert Path(git("rev-parse", "--git-common-dir", cwd=workspace).strip()) in {Path(".git"), workspace / ".git"}
    assert git("log", "--format=%s", cwd=workspace / "sub") == "first\n"


def test_git_would_take_its_configuration_from_where_commondir_leads(workspace: Path) -> None:
    """Why a missing commondir is covered: it turns a read-only config into one that nobody reads."""
    repository(workspace)
    evil = repository(workspace / "evil")
    git("config", "some.value", "planted", cwd=evil)
    (workspace / ".git/commondir").write_text("../evil/.git\n")
    assert git("config", "some.value", cwd=workspace) == "planted\n"


def test_nested_repositories_are_covered_with_the_way_to_them_pinned(workspace: Path) -> None:
    repository(workspace / "a" / "b" / "lib")
    (workspace / "a" / ".vscode").mkdir()
    covers = Protected(workspace).covers()
    assert below(covers.writable, workspace) == {"a", "a/b", "a/b/lib", "a/b/lib/.git"}
    assert below(covers.readonly, workspace) == {"a/b/lib/.git/hooks", "a/b/lib/.git/config"}
    assert {".git", "HEAD"} <= below(covers.stubs, workspace)


def test_a_worktree_has_its_git_file_and_its_pointers_covered(workspace: Path) -> None:
    repository(workspace / "main")
    git("worktree", "add", "-q", "../tree", cwd=workspace / "main")
    covers = Protected(workspace).covers()
    assert {"tree/.git", "main/.git/worktrees/tree/commondir"} <= below(covers.readonly, workspace)
    assert {"main/.git/worktrees", "main/.git/worktrees/tree", "tree"} <= below(covers.writable, workspace)


def test_a_workspace_that_is_a_worktree_has_its_git_file_covered(workspace: Path, tmp_path: Path) -> None:
    repository(tmp_path / "main")
    git("worktree", "add", "-q", str(workspace / "tree"), cwd=tmp_path / "main")
    covers = Protected(workspace / "tree").covers()
    assert covers.readonly == (f"{workspace}/tree/.git",)
    assert not covers.writable


def test_submodules_and_their_submodules_are_covered(workspace: Path, tmp_path: Path) -> None:
    repository(tmp_path / "inner")
    middle = repository(tmp_path / "middle")
    git("submodule", "--quiet", "add", str(tmp_path / "inner"), "deep", cwd=middle)
    git("commit", "-q", "-m", "with inner", cwd=middle)
    repository(workspace)
    git("submodule", "--quiet", "add", str(middle), "libs/objects", cwd=workspace)
    git("submodule", "--quiet", "update", "--init", "--recursive", cwd=workspace)
    found = below(all_of(Protected(workspace).covers()), workspace)
    for place in (".git", ".git/modules/libs/objects", ".git/modules/libs/objects/modules/deep"):
        assert {f"{place}/hooks", f"{place}/config", f"{place}/commondir"} <= found
    assert {"libs/objects/.git", "libs/objects/deep/.git"} <= found


def test_bare_repositories_are_covered_also_in_the_root(workspace: Path) -> None:
    git("init", "-q", "--bare", str(workspace / "store.git"), cwd=workspace)
    found = below(all_of(Protected(workspace).covers()), workspace)
    assert {"store.git/hooks", "store.git/config", "store.git/commondir", "HEAD"} <= found
    covers = Protected(workspace / "store.git").covers()
    assert {"hooks", "config", "commondir", ".git"} <= below(all_of(covers), workspace / "store.git")
    assert f"{workspace}/store.git/HEAD" not in all_of(covers)


def test_hooks_that_the_configuration_names_are_covered(workspace: Path) -> None:
    repository(workspace)
    git("config", "core.hooksPath", "tools/hooks", cwd=workspace)
    look = Protected(workspace)
    assert "tools" in below(look.covers().stubs, workspace)
    (workspace / "tools/hooks").mkdir(parents=True)
    (workspace / "tools/hooks/pre-commit").touch()
    covers = look.covers()
    assert "tools/hooks" in below(covers.readonly, workspace)
    assert "tools" in below(covers.writable, workspace)
    git("config", "core.hooksPath", "../outside", cwd=workspace)
    assert not any("outside" in path for path in all_of(look.covers()))


@pytest.mark.parametrize("name", [".git", ".vscode", ".bashrc"])
def test_a_protected_path_of_the_root_that_is_a_symlink_is_refused(workspace: Path, tmp_path: Path, name: str) -> None:
    (workspace / name).symlink_to(tmp_path)
    with pytest.raises(WorkspaceUnusable) as refusal:
        Protected(workspace).covers()
    assert str(refusal.value).startswith(f"{workspace}/{name} is a symlink to {tmp_path}, so it cannot be kept")
    assert "remove it" in str(refusal.value)


def test_hooks_of_the_root_repository_that_are_a_symlink_are_refused(workspace: Path, tmp_path: Path) -> None:
    repository(workspace)
    (workspace / ".git/hooks").rename(tmp_path / "hooks")
    (workspace / ".git/hooks").symlink_to(tmp_path / "hooks")
    with pytest.raises(WorkspaceUnusable, match=r"\.git/hooks is a symlink"):
        Protected(workspace).covers()


def test_symlinks_below_the_root_are_not_followed(workspace: Path, tmp_path: Path) -> None:
    repository(tmp_path / "outside")
    (workspace / "way").symlink_to(tmp_path / "outside")
    (workspace / "sub").mkdir()
    (workspace / "sub/.git").symlink_to(tmp_path / "outside/.git")
    assert not any("way" in path or "sub" in path for path in all_of(Protected(workspace).covers()))


def test_nothing_below_what_is_read_only_as_a_whole_is_covered_again(workspace: Path) -> None:
    repository(workspace / ".claude/plugins/lib")
    covers = Protected(workspace).covers()
    assert below(covers.readonly, workspace) == {".claude"}
    assert not covers.writable
    assert not any("/.claude/" in path for path in all_of(covers))


def test_names_that_are_no_text_survive(workspace: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n")
    repository(workspace / name)
    covers = Protected(workspace).covers()
    assert f"{workspace}/{name}/.git/hooks" in covers.readonly
    assert os.fsencode(covers.readonly[0]).startswith(os.fsencode(workspace) + b"/caf\xe9\n/.git/")


def test_environments_and_pipes_are_found_and_symlinks_lead_to_what_they_hold(workspace: Path, tmp_path: Path) -> None:
    (workspace / "app").mkdir()
    os.mkfifo(workspace / "app/pipe")
    for name in (".env", "app/.env.local", "app/.env.example", "plain"):
        (workspace / name).touch()
    (tmp_path / "outside").touch()
    (workspace / "app/.env").symlink_to("../plain")
    (workspace / "app/.env.a").symlink_to(tmp_path / "outside")
    (workspace / "app/.env.b").symlink_to("nowhere")
    (workspace / "app/.env.c").mkdir()
    assert below(Protected(workspace).covers().masked, workspace) == {".env", "app/.env.local", "app/pipe", "plain"}


def test_every_change_is_seen_by_the_next_look(workspace: Path) -> None:
    look = Protected(workspace)
    for turn in range(50):
        place = workspace / f"d{turn % 7}"
        (place / ".git").mkdir(parents=True)
        assert f"{place}/.git/hooks" in look.covers().stubs
        was = place.stat()
        (place / ".git").rmdir()
        (place / ".git").write_text("gitdir: /x")
        os.utime(place, ns=(was.st_atime_ns, was.st_mtime_ns))
        assert f"{place}/.git" in look.covers().readonly
        (place / ".git").unlink()
        place.rename(workspace / "moved")
        assert not [path for path in all_of(look.covers()) if "/d" in path.removeprefix(str(workspace))[:2]]
        (workspace / "moved").rmdir()


def test_a_settled_directory_is_not_read_again(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (workspace / f"d{number}").mkdir()
    monkeypatch.setattr("shellback.exec.backends.protected._SETTLED_NS", -1)
    look = Protected(workspace)
    first = look.covers()
    opened: list[str] = []
    real = os.open

    def noted(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", noted)
    assert look.covers() == first
    assert opened == []
    (workspace / "d3/x").mkdir()
    look.covers()
    assert sorted(opened) == [f"{workspace}/d3", f"{workspace}/d3/x"]


def test_a_directory_just_changed_is_read_again_though_its_ctime_is_the_same(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").mkdir()
    frozen = (workspace / "a").stat().st_ctime_ns
    monkeypatch.setattr("shellback.exec.backends.protected.time.time_ns", lambda: frozen + 1_000_000)
    look = Protected(workspace)
    look.covers()
    real = os.lstat

    def coarse(path: str) -> os.stat_result | Coarse:
        return Coarse(real(path), frozen) if path == f"{workspace}/a" else real(path)

    (workspace / "a/.git").mkdir()
    monkeypatch.setattr(os, "lstat", coarse)
    assert f"{workspace}/a/.git/hooks" in look.covers().stubs


class Coarse:
    """A status whose ctime stands still, as within one tick of a coarse clock."""

    def __init__(self, status: os.stat_result, ctime: int) -> None:
        self.st_ino, self.st_dev, self.st_mode = status.st_ino, status.st_dev, status.st_mode
        self.st_ctime_ns = ctime


def test_a_path_too_long_to_be_named_stops_nothing(workspace: Path) -> None:
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    (workspace / ".git").write_text("gitdir: /x")
    assert all(len(path) < 4096 for path in all_of(Protected(workspace).covers()))


def test_five_thousand_directories_with_a_repository_at_the_end(workspace: Path) -> None:
    for number in range(5000):
        (workspace / f"p{number // 500}" / f"m{number // 50 % 10}" / f"d{number % 50}").mkdir(parents=True)
    (workspace / "p9/m9/d49/.git").mkdir()
    look = Protected(workspace)
    covers = look.covers()
    assert f"{workspace}/p9/m9/d49/.git/hooks" in covers.stubs
    assert covers.closed == ()
    assert look.covers() == covers
    assert Protected(workspace).covers() == covers


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A workspace of somebody who may not read everything, and this process as them."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        root.chmod(0o755)
        (root / "ws").mkdir()
        as_root = os.geteuid() == 0
        if as_root:
            os.chown(root / "ws", 65534, 65534)
            gc.collect()  # what ends with an object is done as the user who made it
            gc.disable()
            os.seteuid(65534)
        try:
            yield root / "ws"
        finally:
            if as_root:
                os.seteuid(0)
                gc.enable()
            for path in (root / "ws").rglob("*"):
                path.chmod(0o755)


@pytest.mark.parametrize("mode", [0o000, 0o600, 0o300])
def test_a_directory_that_nobody_can_look_into_is_read_only_as_a_whole(unprivileged: Path, mode: int) -> None:
    (unprivileged / "a/closed/lib/.git").mkdir(parents=True)
    look = Protected(unprivileged)
    assert f"{unprivileged}/a/closed/lib/.git/hooks" in look.covers().stubs
    (unprivileged / "a/closed").chmod(mode)
    for covers in (look.covers(), look.covers()):
        assert covers.readonly == (f"{unprivileged}/a/closed",)
        assert covers.writable == (f"{unprivileged}/a",)
    (unprivileged / "a/closed").chmod(0o755)
    assert f"{unprivileged}/a/closed/lib/.git/hooks" in look.covers().stubs


def test_a_workspace_that_cannot_be_read_is_refused(unprivileged: Path) -> None:
    unprivileged.chmod(0)
    with pytest.raises(WorkspaceUnusable, match="cannot be read"):
        Protected(unprivileged).covers()
    unprivileged.chmod(0o755)


def test_a_workspace_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceUnusable, match=r"cannot be read \(No such file or directory\)"):
        Protected(tmp_path / "none").covers()


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
