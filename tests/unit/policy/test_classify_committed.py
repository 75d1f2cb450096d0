"""git prints nothing of a file that may be a secret without being asked: neither of now, nor of what was committed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.classify import classify
from tests.judged import around, make_tree


def git(tree: Path, *arguments: str) -> str:
    settings = ("user.name=x", "user.email=x@x.invalid", "init.defaultBranch=main", "safe.directory=*")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


@pytest.fixture
def held(tree: Path) -> Path:
    """A repository in which a secret was committed."""
    (tree / "conf").mkdir()
    (tree / "conf/tls.pem").write_text("KEY\n")
    git(tree, "add", "-f", ".env", "conf")
    git(tree, "commit", "-qm", "with secrets")
    return tree


def asks(tree: Path, command: str) -> bool:
    return classify(command, around(tree)).verdict != "read_only"


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
    assert asks(tree, command)


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
    assert asks(held, command)


@pytest.mark.parametrize(
    "command", [one for one in PRINTS if not any(word in one for word in ("range-diff", "glob", "conf", "*.pem"))]
)
def test_it_passes_where_none_is(tree: Path, command: str) -> None:
    assert not asks(tree, command)


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
    assert not asks(held, command)


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
            assert asks(held, command.format(number)), command
    assert asks(held, f"git diff {blob[:9]}..{blob} -- a.txt")
    assert not asks(held, f"git log -1 {git(held, 'rev-parse', 'HEAD')}")


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_an_index_is_read(held: Path, version: str) -> None:
    if version == "3":
        (held / "later").write_text("x")
        git(held, "add", "-N", "later")  # only such an entry makes it of this version
    git(held, "update-index", "--index-version", version)
    assert asks(held, "git diff")
    assert not asks(held, "git diff -- src")
    git(held, "rm", "-q", "--cached", ".env", "conf/tls.pem")
    assert not asks(held, "git diff")


def test_an_index_that_cannot_be_told_asks_for_what_prints_files(tree: Path) -> None:
    index = tree / ".git/index"
    whole = index.read_bytes()
    for damaged in (whole[:40], b"DIRC" + b"\0" * 40, b"", whole[: len(whole) // 2]):
        index.write_bytes(damaged)
        assert asks(tree, "git diff")
        assert not asks(tree, "git log --oneline")
    index.unlink()
    assert asks(tree, "git diff")
    index.symlink_to("../a.txt")
    assert asks(tree, "git diff")
    index.unlink()
    os.mkfifo(index)
    assert asks(tree, "git diff")
    index.unlink()
    index.write_bytes(whole)
    assert not asks(tree, "git diff")
    git(tree, "update-index", "--split-index")
    assert asks(tree, "git diff")


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
        assert asks(tree, command) == asks_about_it, command
    git(tree, "worktree", "add", "-q", "beside")
    beside = replace(around(tree / "beside"), allowed=(tree,))
    assert (classify("git remote -v", beside).verdict == "needs_approval") == asks_about_it
    assert not asks(tree, "git remote")
    assert not asks(tree, "git status")


@pytest.mark.parametrize(
    ("command", "passes"),
    [("sysctl kernel.hostname", True), ("sysctl kernel/hostname", True), ("sysctl -n net.ipv4.ip_forward", True),
     ("sysctl ../../etc/passwd", False), ("sysctl kernel.//.//.etc.passwd", False), ("sysctl /etc/passwd", False),
     ("sysctl kernel/../../etc/passwd", False), ("sysctl -p x", False), ("tput -T xterm cols", True),
     ("tput -T ../../a.txt cols", False)],
)  # fmt: skip
def test_names_of_settings_and_terminals_are_no_paths(tree: Path, command: str, passes: bool) -> None:
    assert asks(tree, command) != passes
