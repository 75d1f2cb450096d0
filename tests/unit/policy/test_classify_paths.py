"""Which files may be named: resolved as the kernel would, in an allowed directory, and no secret."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.policy.classify import paths
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.paths import Files
from tests.judged import around, make_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


def reads(directory: Path, text: str, *, sandboxed: bool = True) -> bool:
    try:
        Files(around(directory, sandboxed=sandboxed)).read(text)
    except Asks:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    ["a.txt", "./a.txt", "src/../a.txt", "missing", "src/missing", "src", "src/", ".", "-", "/usr/share", "/dev/null",
     "/etc/os-release", "/proc/cpuinfo", ".env.example"],
)  # fmt: skip
def test_may_be_read(tree: Path, text: str) -> None:
    assert reads(tree, text)


@pytest.mark.parametrize(
    "text",
    ["..", "../x", "link", "link/passwd", "link/missing", "nowhere/x", "nowhere/", "/", "/etc/passwd", "/etc/shadow",
     "/proc/self/environ", "/proc/1/environ", "/proc/self/cwd/a.txt", "/dev/stdin", "/dev/zero", "/dev/fd/0", "/sys/x",
     "/run/x", "/root/x", ".env", "./.env", "src/../.env", ".git/config", "server.pem", "id_rsa", ".ssh/config",
     "src/../link/passwd", "a.txt/x", "x\0y", "a" * 5000],
)  # fmt: skip
def test_may_not_be_read(tree: Path, text: str) -> None:
    assert not reads(tree, text)


def test_symlinks_lead_where_they_lead(tree: Path) -> None:
    (tree / "inside").symlink_to("src/main.py")
    (tree / "outside").symlink_to("/etc/passwd")
    (tree / "self").symlink_to("/proc/self/environ")
    (tree / "quiet").symlink_to("/dev/stdin")
    (tree / "secret").symlink_to(".env")
    (tree / "loop").symlink_to("loop")
    (tree / "up").symlink_to("..")
    found = [name for name in ("inside", "outside", "self", "quiet", "secret", "loop", "up") if reads(tree, name)]
    assert found == ["inside"]


def test_a_special_file_is_not_read(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert not reads(tree, "pipe")


def test_the_way_down_to_the_workspace_may_be_looked_at_in_the_sandbox_only(tree: Path) -> None:
    Files(around(tree)).look("..")
    with pytest.raises(Asks):
        Files(around(tree, sandboxed=False)).look("..")
    with pytest.raises(Asks):
        Files(around(tree)).descend("/", follows=False, reads=False)


def test_on_the_host_a_tree_with_a_secret_is_not_read_whole(tree: Path) -> None:
    Files(around(tree)).descend(".", follows=False, reads=True)
    outside = around(tree, sandboxed=False)
    with pytest.raises(Asks):
        Files(outside).descend(".", follows=False, reads=True)
    Files(outside).descend("src", follows=False, reads=True)
    Files(outside).descend(".", follows=False, reads=True, hidden=False)


def test_through_symlinks_a_tree_is_read_only_if_all_of_them_stay_inside(tree: Path) -> None:
    with pytest.raises(Asks):
        Files(around(tree)).descend(".", follows=True, reads=True)
    Files(around(tree)).descend("src", follows=True, reads=True)


def test_a_large_tree_asks_where_it_has_to_be_known(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MOST_SEEN", 3)
    with pytest.raises(Asks):
        Files(around(tree, sandboxed=False)).descend(".", follows=False, reads=True, hidden=False)


def verdict(tree: Path, command: str) -> str:
    return classify(command, around(tree)).verdict


def test_patterns_stand_for_what_is_there(tree: Path) -> None:
    assert verdict(tree, "cat *.txt") == "read_only"
    (tree / "-n.txt").touch()
    assert verdict(tree, "cat *.txt") == "needs_approval"
    assert verdict(tree, "cat -- *.txt") == "read_only"
    (tree / "z.txt").symlink_to("/etc/passwd")
    assert verdict(tree, "cat -- *.txt") == "needs_approval"
    assert verdict(tree, "ls -l -- *.txt") == "read_only"


@pytest.mark.parametrize("pattern", ["*/", "*/x", "l*/passwd", "*/*", "lin?/../etc/passwd"])
def test_a_pattern_stands_for_what_it_leads_out_to_too(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert verdict(tmp_path.resolve(), f"cat -- {pattern}") == "needs_approval"


def test_cd_is_followed(tree: Path) -> None:
    (tree / "src/up").symlink_to("/etc/passwd")
    assert verdict(tree, "cd src && cat main.py") == "read_only"
    assert verdict(tree, "cd src && cat up") == "needs_approval"
    assert verdict(tree, "cat up; cd src") == "read_only"
    assert verdict(tree, "cd src; cat ../a.txt; cd ..; cat a.txt") == "needs_approval"
    assert verdict(tree, "cd link && ls") == "needs_approval"
    assert verdict(tree, "for i in 1 2; do cd src; ls; done") == "needs_approval"
    assert verdict(tree, "while cd ..; do ls; done") == "needs_approval"
    (tree / "sub").symlink_to("src")
    assert verdict(tree, "ls -l sub/") == "read_only"
    assert verdict(tree, "cd sub && ls") == "needs_approval"
    assert verdict(tree, "cd nowhere && ls") == "needs_approval"
    assert verdict(tree, "cd; ls") == "needs_approval"


def test_loop_variables_stand_for_each_of_their_values(tree: Path) -> None:
    assert verdict(tree, 'for f in a.txt src/main.py; do head -1 "$f"; done') == "read_only"
    assert verdict(tree, 'for f in a.txt .env; do head -1 "$f"; done') == "needs_approval"
    assert verdict(tree, 'for f in a.txt -o; do sort "$f"; done') == "needs_approval"
    assert verdict(tree, "for f in 'a b'; do cat $f; done") == "needs_approval"
    assert verdict(tree, "for f in sort ls; do $f; done") == "needs_approval"
    # Nothing hidden is there now; when it runs it may be.
    assert verdict(tree / "src", 'for f in .*; do cat "$f"; done') == "needs_approval"
    assert verdict(tree / "src", "cat .*") == "needs_approval"


def test_a_program_is_trusted_by_where_it_lies(tree: Path) -> None:
    for command in (
        "./cat a.txt",
        "evil/ls",
        f"{tree}/evil/ls",
        "~/bin/ls",
        "/usr/../usr/bin/cat a.txt",
        "../x/cat a.txt",
    ):
        assert verdict(tree, command) == "needs_approval", command
    assert verdict(tree, "/usr/bin/cat a.txt") == "read_only"


def test_a_search_path_that_others_can_write_is_not_trusted(tree: Path) -> None:
    where = around(tree)
    (tree / "evil").chmod(0o777)
    first = replace(where, search=(str(tree / "evil"), *where.search))
    assert classify("ls", first).verdict == "needs_approval"
    assert classify("wc a.txt", first).verdict == "read_only"
