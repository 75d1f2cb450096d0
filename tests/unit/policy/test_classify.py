"""What only reads: files that may be named, git, what one command hands to another, small languages, and attacks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shellback.cli.policy import policy
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify import arguments, paths
from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.git import GIT
from shellback.exec.policy.classify.languages import awk, jq, sed
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Argument, Call, Invocation, Kind, program
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.repository import objection
from shellback.exec.policy.classify.syntax import Word
from tests.judged import around, git, make_tree, trapped


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


def verdict(tree: Path, command: str, *, sandboxed: bool = True) -> str:
    return classify(command, around(tree, sandboxed=sandboxed)).verdict


def passes(tree: Path, command: str, *, sandboxed: bool = True) -> bool:
    return verdict(tree, command, sandboxed=sandboxed) == "read_only"


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


@pytest.fixture
def held(tree: Path) -> Path:
    """A repository in which a secret was committed."""
    (tree / "conf").mkdir()
    (tree / "conf/tls.pem").write_text("KEY\n")
    git(tree, "add", "-f", ".env", "conf")
    git(tree, "commit", "-qm", "with secrets")
    return tree


NAMED = (
    "git show HEAD:.env", "git show HEAD:./.env", "git -C src show HEAD:conf/tls.pem", "git cat-file -p :conf/tls.pem",
    "git log -L1,1:.env", "git log -L1,+2:conf/tls.pem", "git log -p -- .env", "git diff HEAD~1 -- conf/tls.pem",
    "git blame conf/tls.pem", "git grep KEY HEAD -- .env", "git stash show -p -- .env", "git blame -S .env a.txt",
    "git blame -S /etc/passwd a.txt", "git blame --contents .env a.txt", "git cat-file --batch",
    "git cat-file --batch-all-objects --batch", "echo HEAD:.env | git cat-file --batch", "git diff --submodule=diff",
    "git grep -f .env", "git for-each-ref --format='%(raw)'", "git stash show -p --include-untracked",
)  # fmt: skip


@pytest.mark.parametrize("command", NAMED)
def test_what_names_a_secret_asks_in_every_repository(tree: Path, command: str) -> None:
    assert not passes(tree, command)


PRINTS = (
    "git diff", "git diff HEAD", "git diff --cached", "git diff HEAD~1 HEAD", "git show", "git show HEAD", "git log -p",
    "git log -S KEY", "git log -GKEY --oneline", "git log -U1", "git grep KEY", "git grep KEY HEAD", "git grep -c KEY",
    "git grep -e KEY HEAD", "git show --stat -p", "git stash show", "git reflog -p", "git status -v",
    "git diff -- conf", "git diff -- .", "git diff conf", "git -C src diff", "git -C src diff -- ..", "git show main",
    "git diff -- '*.pem'", "git diff -- 'c*'", "git diff -- ':(glob)**/x'", "git diff -- ':!a.txt'",
    "git whatchanged -p", "git diff -- ':!.env'", "git diff-tree -p HEAD", "git log --cc",
    "git diff --word-diff", "git range-diff a b c",
    "git diff -- ':(exclude)c?nf' ':!.env'", "git -C conf diff -- ':!tls.pem' ':!.env'",
)  # fmt: skip


@pytest.mark.parametrize("command", PRINTS)
def test_what_prints_files_asks_where_a_secret_is_among_those_that_are_committed(held: Path, command: str) -> None:
    assert not passes(held, command)


@pytest.mark.parametrize(
    "command", [one for one in PRINTS if not any(word in one for word in ("range-diff", "glob", "conf", "*.pem"))]
)
def test_it_passes_where_none_is(tree: Path, command: str) -> None:
    assert passes(tree, command)


@pytest.mark.parametrize(
    "command",
    ["git diff -- a.txt", "git diff a.txt", "git show HEAD -- src", "git log -p -- src 'a*.txt'", "git show HEAD:a.txt",
     "git log -L1,2:a.txt", "git grep -n KEY -- src", "git grep KEY src/main.py", "git grep -e KEY HEAD a.txt",
     "git blame a.txt", "git diff --stat",
     "git diff --name-only HEAD~1", "git show --stat", "git log --oneline", "git log -3 --stat", "git status -s",
     "git -C src diff -- .", "git -C src diff -- main.py", "git cat-file -p HEAD", "git cat-file -t HEAD:.gitignore",
     "git diff -- ':!.env' ':!conf'", "git diff -- ':(top,exclude).env' ':(exclude)*.pem'", "git rev-parse HEAD:a.txt",
     "git show --name-only HEAD"],
)  # fmt: skip
def test_what_prints_other_files_passes_where_a_secret_is_committed(held: Path, command: str) -> None:
    assert passes(held, command)


def test_a_number_may_be_that_of_a_secret(held: Path) -> None:
    blob = git(held, "rev-parse", "HEAD:.env")
    for command in (
        "git show {}",
        "git cat-file -p {}",
        "git cat-file blob {}",
        "git show --stat {}",
        "git grep KEY {}",
    ):
        for number in (blob, blob[:7], blob.upper()):
            assert not passes(held, command.format(number)), command
    assert not passes(held, f"git diff {blob[:9]}..{blob} -- a.txt")
    assert passes(held, f"git log -1 {git(held, 'rev-parse', 'HEAD')}")


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_an_index_is_read(held: Path, version: str) -> None:
    if version == "3":
        (held / "later").write_text("x")
        git(held, "add", "-N", "later")  # only such an entry makes it of this version
    git(held, "update-index", "--index-version", version)
    assert not passes(held, "git diff")
    assert passes(held, "git diff -- src")
    git(held, "rm", "-q", "--cached", ".env", "conf/tls.pem")
    assert passes(held, "git diff")


def test_an_index_that_cannot_be_told_asks_for_what_prints_files(tree: Path) -> None:
    index = tree / ".git/index"
    whole = index.read_bytes()
    for damaged in (whole[:40], b"DIRC" + b"\0" * 40, b"", whole[: len(whole) // 2]):
        index.write_bytes(damaged)
        assert not passes(tree, "git diff")
        assert passes(tree, "git log --oneline")
    index.unlink()
    assert not passes(tree, "git diff")
    index.symlink_to("../a.txt")
    assert not passes(tree, "git diff")
    index.unlink()
    os.mkfifo(index)
    assert not passes(tree, "git diff")
    index.unlink()
    index.write_bytes(whole)
    assert passes(tree, "git diff")
    git(tree, "update-index", "--split-index")
    assert not passes(tree, "git diff")


def test_a_working_tree_of_another_repository_has_an_index_of_its_own(held: Path) -> None:
    git(held, "worktree", "add", "-q", "beside")
    git(held / "beside", "rm", "-q", ".env", "conf/tls.pem")
    beside = around(held / "beside")
    assert classify("git diff", beside).verdict == "needs_approval"  # the one above is another that git may take
    (held / "beside").rename(held.parent / f"{held.name}-beside")
    moved = replace(around(held.parent / f"{held.name}-beside"), allowed=(held.parent,))
    assert classify("git diff -- .", moved).verdict == "read_only"


def test_a_listed_path_that_is_committed_is_one_too(held: Path) -> None:
    git(held, "rm", "-q", "--cached", ".env", "conf/tls.pem")
    where = replace(around(held), secret=Secrets((held / "src",)))
    for command in ("git diff", "git show HEAD:src/main.py", "git log -p -- src"):
        assert classify(command, where).verdict == "needs_approval"
    assert classify("git diff -- a.txt", where).verdict == "read_only"
    assert classify("git -C tests show HEAD:src/main.py", where).verdict == "needs_approval"


@pytest.mark.parametrize(
    ("url", "asks_about_it"),
    [("https://user:ghp_abc@example.org/x.git", True), ("https://ghp_0123456789abcdefghij@example.org/x", True),
     ("oauth2:glpat-123@example.org:x/y.git", True), ("https://example.org/x.git", False),
     ("git@example.org:x/y", False), ("ssh://git@example.org:22/x", False), ("../beside", False)],
)  # fmt: skip
def test_addresses_of_remotes_ask_where_there_is_a_token_in_one(tree: Path, url: str, asks_about_it: bool) -> None:
    git(tree, "remote", "add", "origin", url)
    shows = ("git remote -v", "git remote get-url origin", "git config remote.origin.url", "git -C src remote -v")
    for command in shows:
        assert passes(tree, command) != asks_about_it, command
    git(tree, "worktree", "add", "-q", "beside")
    beside = replace(around(tree / "beside"), allowed=(tree,))
    assert (classify("git remote -v", beside).verdict == "needs_approval") == asks_about_it
    assert passes(tree, "git remote")
    assert passes(tree, "git status")


@pytest.mark.parametrize(
    ("command", "read_only"),
    [("sysctl kernel.hostname", True), ("sysctl kernel/hostname", True), ("sysctl -n net.ipv4.ip_forward", True),
     ("sysctl ../../etc/passwd", False), ("sysctl kernel.//.//.etc.passwd", False), ("sysctl /etc/passwd", False),
     ("sysctl kernel/../../etc/passwd", False), ("sysctl -p x", False), ("tput -T xterm cols", True),
     ("tput -T ../../a.txt cols", False)],
)  # fmt: skip
def test_names_of_settings_and_terminals_are_no_paths(tree: Path, command: str, read_only: bool) -> None:
    assert passes(tree, command) == read_only


def test_a_plain_repository_is_asked_on_the_host_too(tree: Path) -> None:
    assert objection(tree) is None
    assert objection(tree / "src") is None
    assert verdict(tree, "git status", sandboxed=False) == "read_only"


def test_where_there_is_no_repository_nothing_objects(tmp_path: Path) -> None:
    assert objection(tmp_path) is None


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_trapped_repository_asks_everywhere(tree: Path, sandboxed: bool) -> None:
    trapped(tree)
    for command in ("git status", "git diff", "git log -p", "git show", "git blame a.txt"):
        assert verdict(tree, command, sandboxed=sandboxed) == "needs_approval"


def _append(text: str) -> Callable[[Path], object]:
    return lambda git: _more(git / "config", text.encode())


def _more(file: Path, content: bytes) -> None:
    file.write_bytes(file.read_bytes() + content)


TRAP = "[core]\n\tfsmonitor = ./evil.sh\n"


def bare_at(place: Path, config: str) -> None:
    for name in ("objects", "refs"):
        (place / name).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "config").write_text(config)


def _bare(git: Path) -> None:
    bare_at(git.parent, TRAP)
    git.rename(git.parent / "gone")


TRICKS: dict[str, Callable[[Path], object]] = {
    "filter": _append('[filter "x"]\n\tclean = ./evil.sh\n'),
    "fsmonitor": _append(TRAP),
    "fsmonitor_true": _append("[core]\n\tfsmonitor = true\n"),
    "same_line": _append("[core] fsmonitor = ./evil.sh\n"),
    "other_case": _append("[CORE]\n\tFsMonitor = ./evil.sh\n"),
    "dotted": _append("[diff.x]\n\ttextconv = ./evil.sh\n"),
    "driver": _append('[diff "x"]\n\tcommand = ./evil.sh\n'),
    "external": _append("[diff]\n\texternal = ./evil.sh\n"),
    "pager": _append("[core]\n\tpager = ./evil.sh\n"),
    "pager_of_one": _append("[pager]\n\tlog = ./evil.sh\n"),
    "alias": _append("[alias]\n\tlog = !./evil.sh\n"),
    "hooks_path": _append("[core]\n\thooksPath = evil\n"),
    "ssh": _append("[core]\n\tsshCommand = ./evil.sh\n"),
    "gpg": _append("[gpg]\n\tprogram = ./evil.sh\n[log]\n\tshowSignature = true\n"),
    "include": _append("[include]\n\tpath = ../evilhome/git/config\n"),
    "include_if": _append('[includeIf "gitdir:/"]\n\tpath = ../evilhome/git/config\n'),
    "worktree": _append("[core]\n\tworktree = /\n"),
    "attributes": _append("[core]\n\tattributesFile = /x\n"),
    "promisor": _append('[remote "x"]\n\tpromisor = true\n\tuploadpack = ./evil.sh\n'),
    "pretty": _append("[pretty]\n\tx = %GG\n[format]\n\tpretty = x\n"),
    "continued": _append("[user]\n\tname = x \\\n[core]\n"),
    "garbage": _append("\x00\n"),
    "no_section": lambda git: (git / "config").write_text("fsmonitor = x\n"),
    "not_utf8": lambda git: (git / "config").write_bytes(b"[user]\n\tname = \xff\n"),
    "long": _append("# x\n" * 50_000),
    "worktree_config": lambda git: (git / "config.worktree").write_text(""),
    "common_directory": lambda git: (git / "commondir").write_text("../evilhome\n"),
    "file": lambda git: (git.rename(git.parent / "elsewhere"), git.write_text("gitdir: elsewhere\n")),
    "symlink": lambda git: git.symlink_to(git.rename(git.parent / "elsewhere")),
    "hook": lambda git: (git / "hooks/post-index-change").write_text("#!/bin/sh\n"),
    "submodules": lambda git: (git / "modules").mkdir(),
    "gitlink": lambda git: _more(git / "index", b"\x00\x00\xe0\x00"),
    "shared_index": lambda git: (git / "sharedindex.0").touch(),
    "bare": _bare,
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_what_could_run_something_asks_on_the_host(tree: Path, name: str) -> None:
    (tree / ".git/hooks").mkdir(exist_ok=True)
    TRICKS[name](tree / ".git")
    assert objection(tree) is not None
    assert verdict(tree, "git status", sandboxed=False) == "needs_approval"


@pytest.mark.parametrize("name", ["filter", "fsmonitor", "other_case", "dotted", "external", "alias", "gpg", "include"])
def test_settings_that_name_a_program_ask_in_a_sandbox_too(tree: Path, name: str) -> None:
    TRICKS[name](tree / ".git")
    assert verdict(tree, "git status") == "needs_approval"


@pytest.mark.parametrize("name", ["hook", "hooks_path", "worktree_config", "submodules"])
def test_what_runs_only_when_something_is_written_passes_in_a_sandbox(tree: Path, name: str) -> None:
    (tree / ".git/hooks").mkdir(exist_ok=True)
    TRICKS[name](tree / ".git")
    assert verdict(tree, "git status") == "read_only"


def test_usual_settings_are_no_objection(tree: Path) -> None:
    _append(
        '[remote "origin"]\n\turl = https://example.invalid/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n[user]\n\tname = A "B" C\n# x\n; x\n'
        "[color] ui = auto\n[core]\n\tfsmonitor = false\n\tautocrlf\n[pull]\n\trebase = true\r\n"
    )(tree / ".git")
    assert objection(tree) is None


@pytest.mark.parametrize(
    "command",
    ["git diff a.txt /etc/passwd", "git diff a.txt ../../etc/passwd", "git diff a.txt link/passwd", "git -C link log",
     "git -C / status", "git show HEAD:.env", "git blame --contents /etc/passwd a.txt", "git diff -- /etc/shadow"],
)  # fmt: skip
def test_what_leads_out_of_the_repository_asks(tree: Path, command: str) -> None:
    assert verdict(tree, command) == "needs_approval"


@pytest.mark.parametrize(
    "text",
    ["s3cret = x\n", "s3cret-token\n", '[alias]\n\ts3cret = !x\n', '[filter "s3cret"]\n\tclean = s3cret\n',
     '[s3cret]\n\ts3cret = s3cret\n', "[core]\n\tfsmonitor = s3cret\n", '[diff "s3cret"]\n\ttextconv = x\n'],
)  # fmt: skip
def test_a_reason_holds_nothing_of_what_stands_in_the_file(tree: Path, text: str) -> None:
    (tree / ".git/config").write_text(text)
    for sandboxed in (True, False):
        said = classify("git status", around(tree, sandboxed=sandboxed))
        assert said.verdict == "needs_approval" or "s3cret" in text.partition("=")[0]
        assert "s3cret" not in said.reason


HANDED = ("find . -name '*.txt' | xargs cat", "cat $(find . -name '*.txt')", "for f in $(ls *.txt); do cat $f; done")
WHOLE = ("find . -name '*.txt' -print0 | xargs -0 cat", "find . -name '*.txt' -exec cat {} +")


@pytest.fixture
def handed(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").touch()
    return tmp_path.resolve()


@pytest.mark.parametrize("name", ["a -o PWNED.txt", "a\n-o\nb.txt", "'a.txt", "a\\.txt", "[a].txt"])
def test_a_name_that_would_be_taken_apart_asks_where_it_is(handed: Path, name: str) -> None:
    assert all(passes(handed, command) for command in (*HANDED, *WHOLE))
    (handed / name).touch()
    assert not any(passes(handed, command) for command in HANDED)
    assert all(passes(handed, command) for command in WHOLE)


@pytest.mark.parametrize("command", [*HANDED, *WHOLE])
def test_what_a_name_leads_to_is_looked_at(handed: Path, command: str) -> None:
    (handed / "b.txt").symlink_to("/etc/passwd")
    assert not passes(handed, command)


def test_plain_files_are_no_symlinks(handed: Path) -> None:
    (handed / "b.txt").symlink_to("/etc/passwd")
    assert passes(handed, "find . -type f -exec cat {} +")
    assert not passes(handed, "find . -type f -o -name x -exec cat {} +")
    assert not passes(handed, "find . -exec cat {} + -type f")


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_secret_among_what_is_found_asks(handed: Path, sandboxed: bool) -> None:
    (handed / "deep").mkdir()
    (handed / "deep/.env").touch()
    for command in (
        "find . -type f -exec cat {} +",
        "find . | xargs head",
        "cat $(find deep)",
        "grep -rl x . | xargs cat",
        "find . -name '*.txt' -o -name x -exec cat {} +",
        "find . ! -name '*.txt' -exec cat {} +",
    ):
        assert not passes(handed, command, sandboxed=sandboxed), command
    for command in (*HANDED, *WHOLE, "find . -maxdepth 1 -type f -exec cat {} +"):
        assert passes(handed, command, sandboxed=sandboxed), command


def test_a_name_that_asks_for_secrets_asks_though_none_is_there(handed: Path) -> None:
    for name in (".env", ".e*", "id_rsa", "*.pem", "credentials.json"):
        assert not passes(handed, f"find . -name '{name}' -exec cat {{}} +"), name


def test_a_name_that_is_an_option_asks(handed: Path) -> None:
    assert passes(handed, "ls | xargs sort")
    (handed / "-oPWNED").touch()
    assert not passes(handed, "ls | xargs sort")
    assert not passes(handed, "sort $(ls)")
    assert passes(handed, "find . -type f | xargs sort")


def test_a_tree_that_is_too_large_to_know_asks(handed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (handed / "b.txt").touch()
    monkeypatch.setattr(paths, "MOST_SEEN", 0)
    assert not passes(handed, "find . -name '*.txt' -exec cat {} +")


def test_a_judgement_can_be_shown_and_kept(handed: Path) -> None:
    for command in (*HANDED, *WHOLE, "echo \"$(cat a.txt)\" | xargs -I{} echo 'x {}'"):
        found = classify(command, around(handed))
        assert found.verdict == "read_only", command
        assert "\\x00" not in repr(found)


def test_a_wrapper_runs_only_programs_that_are_trusted(handed: Path) -> None:
    (handed / "cat").touch()
    for wrapper in ("timeout 5", "nice", "env", "command", "stdbuf -oL", "echo a | xargs", "find . -exec"):
        end = " {} +" if "find" in wrapper else ""
        assert passes(handed, f"{wrapper} cat{end}"), wrapper
        assert not passes(handed, f"{wrapper} ./cat{end}"), wrapper
        assert not passes(handed, f"{wrapper} touch{end}"), wrapper


FIBONACCI = "a0=x; a1=y; " + "".join(f'a{n}="$a{n - 1}$a{n - 2}"; ' for n in range(2, 18)) + 'echo "$a17"'
PRINTED = "a0=x; a1=y; " + "".join(f'a{n}=$(echo "$a{n - 1}$a{n - 2}"); ' for n in range(2, 14)) + 'echo "$a13"'
LOOPS = (
    "for b0 in x x; do "
    + "".join(f"for b{n} in {f'$b{n - 1} ' * 8}; do " for n in range(1, 6))
    + "echo $b5"
    + "; done" * 6
)


@pytest.mark.parametrize("command", [FIBONACCI, PRINTED, LOOPS], ids=["assignments", "substitutions", "loops"])
def test_variables_set_from_one_another_are_each_looked_up_once(
    handed: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    expanded = 0
    expand = arguments.expand

    def counted(word: Word, bound: arguments.Bound, files: Files) -> list[Argument]:
        nonlocal expanded
        expanded += 1
        return expand(word, bound, files)

    monkeypatch.setattr(arguments, "expand", counted)
    classify(command, around(handed))
    assert expanded <= 60  # a few for each word; not one for each way to them


def test_values_that_double_are_not_followed(handed: Path) -> None:
    doubling = "; ".join(["a0=xxxxxxxx", *(f'a{n}="$a{n - 1}$a{n - 1}"' for n in range(1, 12))])
    assert passes(handed, 'a0=xxxxxxxx; a1="$a0$a0"; echo "$a1"')
    assert not passes(handed, f'{doubling}; echo "$a11"')


def test_a_variable_that_is_set_from_itself_asks(handed: Path) -> None:
    assert not passes(handed, "for x in a; do for x in $x b; do echo $x; done; done")


def filters(language: Callable[[str], None], script: str) -> bool:
    try:
        language(script)
    except Asks:
        return False
    return True


LANGUAGES = {"sed": sed, "awk": awk, "jq": jq}
FILTERS: dict[str, list[str]] = {
    "sed": [
        "", "p", "1,5p", "$!N;P;D", "/a/,/b/d", "/a/I,+3!d", r"\,a,d", "s/a/b/", "s/a/b/g2p", "s|a|b|I;p", "y/abc/xyz/",
        "5q", "q1",
        ":a;N;$!ba;s/\\n/ /g", "1~2d", "0,/x/d", "{p;p}", "/a/{s/b/c/;p}", "1i some text; w x", "=;l 5;F",
        "s/[^,]*[]x]//", "s/[[:space:]]*$//", "s/a/\\//",
        "2,$ { n ; d }", "b;t;T x", "z;x;h;G",
    ],
    "awk": [
        "1", "NR>1", "{print}", "{print $1, $NF}", "/a|b/", "!/a/", "$1 ~ /x/ || /y/",
        "BEGIN{FS=\",\"} {s+=$2} END{print s/NR}", "{if ($1 > 5) print; else next}",
        "{a[$1]++} END{for (k in a) print k, a[k]}",
        "{print (a+b)/2}", "{printf \"%s\\n\", $1}", "length($0) > 80", "!seen[$0]++",
        "{gsub(/[[:space:]]+/, \" \"); print}",
        "{print substr($0, 1, 3) \"|\" $2}", "$3 > 1 {x = $3 / 2; print x}", "{print a[1]/2}", "{print 1/2; y = 3 > 2}",
    ],
    "jq": [
        ".", ".env", ".a.env", '.["x"]', "map(.a) | length", "$x", ".environment", "envelope",
    ],
}  # fmt: skip
MORE: dict[str, list[str]] = {
    "sed": [
        "w x", "1w x", "$!w x", "/a/w x", "s/a/b/w x", "s/a/b/gw x", "s/a/b/e", "e", "1e touch x", "r /etc/passwd",
        "R x", "W x",
        "{w x\n}", "p;w x", "p\nw x", "}w x", ":a w x", "ba w x", "s/[/]/x/w y/", "s/[/]/x/", "s/[]/x/", "s/[^/]*$//",
        "s/[]/]w/x/", "/[/w x/p",
        "s/a/\\/w x/;w y", "y/a/b/w x", "1,2,3p", "v;w x",
        "a\\\nx", "a x\\", "i x\nw y", "#n\nw x", "s/a/b", "s", "M", "s/a\nb/c/", "1,w x", "saba", "sébéwé", "q1 w x",
        "l5w x",
        "s/a/b/;;;w x", "!w x", "+1p w",
    ],
    "awk": [
        "BEGIN{system(\"x\")}", "{print > \"x\"}", "{print >> \"x\"}", "{print | \"x\"}", "\"x\" | getline",
        "{getline < \"x\"}",
        "{print |& \"x\"}", "{printf(\"x\") > \"y\"}", "BEGIN{print ENVIRON[\"A\"]}", "BEGIN{ARGV[1]=\"x\"}",
        "@include \"x\"",
        "BEGIN{f=\"system\";@f(\"x\")}", "{print /\"/ | \"x\" } #\"", "{if (1) /\"/ ; print | \"x\" } #\"/",
        "{print a,\nb > \"x\"}",
        "function f(x){system(x)}", "f(1)", "{close(\"x\")}", "{print \\\n> \"x\"}", "#x\n{print > \"y\"}",
        "{print PROCINFO[1]}",
        "/[/]\"/{print > \"x\"} #\"/", "{return /\"/ > \"x\"}", "/x", "\"x", "{ print /a/ /\"/ | \"x\" }",
        "{print length /\"/ > \"x\"}",
        "/a[/", "é", "{x = \"a\" /\"/ ; print | \"y\" } #\"", "{ print $0 > $1 }", "{fflush()}",
        "BEGIN { while (1) /\"/; print|\"x\" }",
    ],
    "jq": [
        "env", "$ENV", "$ENV.HOME", "env.HOME", "[env]", "..env", '"\\(env)"', "$ ENV",
        'import "x" as x; .', 'include "x"; .',
        "input_filename", "$__prog_args", ". | env", "modulemeta", "get_search_list",
    ],
}  # fmt: skip


def every(scripts: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(language, script) for language, some in scripts.items() for script in some]


@pytest.mark.parametrize(("language", "script"), every(FILTERS))
def test_a_script_that_only_filters_its_input_passes(language: str, script: str) -> None:
    assert filters(LANGUAGES[language], script)


@pytest.mark.parametrize(("language", "script"), every(MORE))
def test_a_script_that_may_do_more_asks(language: str, script: str) -> None:
    assert not filters(LANGUAGES[language], script)


TABLE = program("-ab --all", text="-e --expr", number="-n --lines", maybe="-U --color", digits=True)


def taken(directory: Path, *arguments: str, pattern: str = "") -> Invocation:
    given = tuple(Argument(text, pattern if text.startswith(pattern[:1] or "\0") else "") for text in arguments)
    return match(TABLE, Call(name="it", arguments=given, files=Files(around(directory))))


@pytest.mark.parametrize(
    ("arguments", "options", "operands"),
    [
        (["-ab", "x"], [("-a", None), ("-b", None)], ("x",)),
        (["-an5", "x"], [("-a", None), ("-n", "5")], ("x",)),
        (["-n", "5"], [("-n", "5")], ()),
        (["--lines=5", "--lines", "6"], [("--lines", "5"), ("--lines", "6")], ()),
        (["--color", "x"], [("--color", None)], ("x",)),
        (["--color=no", "-U3", "-U", "x"], [("--color", "no"), ("-U", "3"), ("-U", None)], ("x",)),
        (["-20", "x"], [("-NUM", "20")], ("x",)),
        (["x", "-a"], [("-a", None)], ("x",)),
        (["--", "-z", "--all"], [], ("-z", "--all")),
        (["-", "-e-z", "-n", "-3"], [("-e", "-z"), ("-n", "-3")], ("-",)),
    ],
)
def test_options_and_operands(
    tmp_path: Path, arguments: list[str], options: list[tuple[str, str | None]], operands: tuple[str, ...]
) -> None:
    found = taken(tmp_path, *arguments)
    assert (list(found.options), found.operands) == (options, operands)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-z"],
        ["-az"],
        ["--al"],
        ["--line=5"],
        ["--all=x"],
        ["-n", "x"],
        ["-nx"],
        ["-n"],
        ["--lines"],
        ["-5a"],
        ["-e"],
        ["-e", "-z"],
        ["-e", "--"],
    ],
)
def test_what_the_table_does_not_know_asks(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(Asks):
        taken(tmp_path, *arguments)


def test_a_pattern_makes_no_option_and_no_value(tmp_path: Path) -> None:
    for given in (["-a"], ["-n", "-5"]):
        with pytest.raises(Asks):
            taken(tmp_path, *given, pattern="-*")
    with pytest.raises(Asks):
        taken(tmp_path, "-e", "x", pattern="x*")
    assert taken(tmp_path, "--expr=*.x", pattern="--expr=*.x").options == (("--expr", "*.x"),)


def test_where_the_number_of_operands_counts_no_pattern_makes_them(tmp_path: Path) -> None:
    table = program("", most=1)
    call = Call(name="it", arguments=(Argument("a.txt", "*.txt"),), files=Files(around(tmp_path)))
    with pytest.raises(Asks):
        match(table, call)
    assert match(program(""), call).operands == ("a.txt",)


def test_the_first_operand_may_be_of_another_kind(tmp_path: Path) -> None:
    table = program("", text="-e", first=Kind.TEXT, first_unless="-e")
    files = Files(around(tmp_path))
    match(table, Call(name="it", arguments=(Argument("/etc/shadow"),), files=files))
    with pytest.raises(Asks):
        match(table, Call(name="it", arguments=(Argument("-ex"), Argument("/etc/shadow")), files=files))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("redteam"))


@pytest.mark.parametrize(
    "command",
    [
        # An option takes the -- for its value, and what follows is an option again.
        "git diff --skip-to -- --output=PWNED a",
        "git diff --rotate-to -- --output=PWNED a",
        "git diff --find-object -- --output=PWNED a",
        "git diff --stat-width -- --output=PWNED a",
        "tree --charset -- -o PWNED",
        # The letters behind it are options, and its value is the next word.
        "tree -Po x PWNED",
        "tree -Io x PWNED",
        "tree -PI x y",
        # An option, or --, in the place of a subcommand is another subcommand.
        "git stash -- show",
        "git stash --all -- list",
        "git stash --include-untracked -- list",
        "git submodule --all -- status",
        # Keywords of one awk only: what others take for a division is a pattern.
        'awk \'switch ($0) { case /1"/: print "x" > "PWNED"; case /" 1/: next }\' a.txt',
        # Signatures are checked by a program, whatever stands between % and G.
        "git log --format='%+G?'",
        "git log --pretty='tformat:%-GK'",
        "git shortlog --group='format:%G?'",
        # A merge that is made again is written.
        "git log --remerge-diff",
        "git log --diff-merges=remerge",
        "git log --diff-merges r",
        # Options that conflict are all read again the BSD way, where e is the environment.
        "ps -eTH",
        "ps -eLT",
        "ps -e -T --forest",
        "ps -ef -o args -p 1",
        "ps -ef --format args -U 0",
        "ps -eT m",
        "jq -n '$#\nENV'",
        "jq -n '$ # it\n __prog_args'",
        "jq -R -- . --arg a.txt /etc/shadow",
        "git show :0:.env",
        "git show HEAD:../.env",
        "git cat-file -p HEAD:src/../.env",
        "git log -p -- .env",
        "git blame .env",
        "git grep KEY .env",
        "iconv -f ./charmap -t utf8 a.txt",
        "ss dst evil.example",
        "ss -t src h.invalid:443",
        "last -d",
        "uuidgen -t",
        "tput init",
        "tput -S",
        # They never end.
        "seq inf",
        "seq 1 inf",
        "while true; do echo x; done",
        "until false; do ls; done",
    ],
)
def test_what_would_write_run_connect_never_end_or_show_a_secret_asks(attacked: Path, command: str) -> None:
    assert not passes(attacked, command)


@pytest.mark.parametrize(
    "command",
    [
        "ps -ef",
        "ps -eo pid,comm --sort=-rss",
        "ps -e -o pid,args",
        "ps -eLf",
        "ss -tln sport = :80",
        "ss -t state established dst 10.0.0.1:443",
        "tree -aL 2",
        "tree -L2 -I x src",
        "git diff --stat -- a.txt",
        "git diff --diff-algorithm=patience",
        "git stash list",
        "git log --format='%h %an %s'",
        "git show HEAD:a.txt",
        "jq --arg a b '.[$a]' data.json",
        "iconv -f UTF-8 -t ASCII//TRANSLIT a.txt",
        "seq -w 1 0.5 3",
        "tput cols",
    ],
)
def test_what_only_looks_alike_passes(attacked: Path, command: str) -> None:
    assert passes(attacked, command)


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_git_directory_that_is_none_hides_no_other(tmp_path: Path, sandboxed: bool) -> None:
    (tmp_path / ".git").mkdir()
    where = around(tmp_path, sandboxed=sandboxed)
    assert classify("git status", where).verdict == "read_only"
    bare_at(tmp_path, TRAP)
    assert classify("git status", where).verdict == "needs_approval"


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
@pytest.mark.parametrize(
    "leads", [{"HEAD": "ref: refs/heads/main\n", "commondir": "evil\n"}, {".git": "gitdir: evil\n"}]
)
def test_a_repository_that_lies_elsewhere_is_found(tmp_path: Path, leads: dict[str, str], sandboxed: bool) -> None:
    bare_at(tmp_path / "evil", TRAP)
    for name, text in leads.items():
        (tmp_path / name).write_text(text)
    assert classify("git status", around(tmp_path, sandboxed=sandboxed)).verdict == "needs_approval"


def test_configuration_in_a_home_that_is_the_workspace_is_nobodys_word(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    where = replace(around(place, sandboxed=False), home=place)
    assert classify("git status", where).verdict == "read_only"
    (place / ".gitconfig").write_text(TRAP)
    assert classify("git status", where).verdict == "needs_approval"
    (place / ".gitconfig").write_text("[user]\n\tname = x\n")
    assert classify("git status", where).verdict == "read_only"
    (place / ".jq").write_text("def map(f): env;")
    assert classify("jq 'map(.)' a.json", where).verdict == "needs_approval"
    assert classify("curl --version", where).verdict == "needs_approval"


def test_files_that_git_does_not_track_are_read_with_care_on_the_host(attacked: Path) -> None:
    assert classify("git grep --untracked KEY", around(attacked, sandboxed=False)).verdict == "needs_approval"


def test_a_name_made_for_it_does_not_hold_up_a_pattern(tmp_path: Path) -> None:
    (tmp_path / ("a" * 250)).touch()
    began = time.process_time()
    assert classify(f"cat {'*a' * 40}*b", around(tmp_path.resolve())).verdict == "read_only"
    assert time.process_time() - began < 1  # seconds


def test_stars_in_a_pattern_match_what_bash_matches(tmp_path: Path) -> None:
    for name in ("-oab.txt", "x.txt", "xay.txt"):
        (tmp_path / name).touch()
    where = around(tmp_path.resolve())
    for pattern in ("*", "*b.txt", "-*", "?oab*", "*o*a*b*t", "[x-]*"):
        assert classify(f"sort {pattern}", where).verdict == "needs_approval", pattern
    for pattern in ("x*", "*y.txt", "x?y.*", "x*a*t"):
        assert classify(f"sort {pattern}", where).verdict == "read_only", pattern


def test_each_line_is_answered_by_one_whatever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELLBACK_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WORKSPACE_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    lines = [
        b"",
        b"rubbish",
        b"[" * 100_000,
        b'{"command": 1}',
        b'{"command": "\xff"}',
        b'{"command": "ls", "cwd": "loop"}',
        b'{"command": "ls", "cwd": "' + b"a" * 9_000 + b'\\u0000"}',
        b'{"command": "' + b"a" * (1 << 20) + b'"}',
        b'{"command": "ls\\ud800"}',
        b'{"command": "ls"}',
    ]
    done = CliRunner().invoke(policy, ["check"], input=b"\n".join(lines) + b"\n")
    assert (done.exit_code, done.exception) == (0, None)
    said = [json.loads(line)["verdict"] for line in done.stdout.splitlines()]
    assert said == ["deny"] * (len(lines) - 1) + ["read_only"]


def test_a_row_has_its_own_options_and_those_of_the_rows_that_it_is_like() -> None:
    assert {"--count", "--graph", "--stat"} <= GIT["rev-list"].flags | GIT["rev-list"].optional
    assert "--count" not in GIT["log"].flags
    assert GIT["show"] == GIT["log"]


def test_a_row_that_says_what_no_table_knows_is_no_row() -> None:
    with pytest.raises(TypeError):
        program("-a", flag="-b")
