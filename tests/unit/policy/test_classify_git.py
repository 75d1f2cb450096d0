"""git: subcommands that only ask; on the host in repositories whose configuration runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.repository import objection
from tests.judged import around, make_tree, trapped


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


def verdict(tree: Path, command: str, *, sandboxed: bool = True) -> str:
    return classify(command, around(tree, sandboxed=sandboxed)).verdict


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


def _bare(git: Path) -> None:
    for part in ("objects", "refs"):
        (git.parent / part).mkdir()
    (git.parent / "HEAD").write_text("ref: refs/heads/main\n")
    (git.parent / "config").write_text("[core]\n\tfsmonitor = ./evil.sh\n")
    git.rename(git.parent / "gone")


TRICKS: dict[str, Callable[[Path], object]] = {
    "filter": _append('[filter "x"]\n\tclean = ./evil.sh\n'),
    "fsmonitor": _append("[core]\n\tfsmonitor = ./evil.sh\n"),
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
