"""Settings of git that run nothing: a closed list, read as git reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shellback.exec.wire.gitconfig import MOST_BYTES, UNREADABLE, harmful, settings
from tests.filetrees import git

PLAIN = b"""\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tfsmonitor = false
[remote "origin"]
\turl = https://example.org/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"] ; a note
\tremote = origin
\tmerge = refs/heads/main
[user]
\tname = "A # B"
[submodule "lib"]
\tactive = true
\turl = ../lib
\tupdate = rebase
"""


def test_what_git_writes_itself_is_harmless() -> None:
    assert harmful(PLAIN) == []
    assert harmful(b"") == []


def test_git_itself_writes_nothing_else_for_a_new_repository_a_clone_and_a_submodule(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    git("init", cwd=one)
    git("commit", "--allow-empty", "-m", "x", cwd=one)
    git("clone", str(one), "two", cwd=tmp_path)
    git("submodule", "add", str(one), "lib", cwd=tmp_path / "two")
    git("worktree", "add", str(tmp_path / "three"), cwd=one)
    made = [*tmp_path.rglob("config")]
    assert len(made) == 3
    for path in made:
        assert harmful(path.read_bytes(), place=str(path.parent.relative_to(tmp_path))) == [], path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[core]\nfsmonitor = /w/x", "core.fsmonitor"),
        ("[core]\nfsmonitor", "core.fsmonitor"),
        ("[core] fsmonitor=x", "core.fsmonitor"),
        ("[CORE]\nFsMonitor=x", "core.fsmonitor"),
        ("[core]fsmonitor=\\\nx", "core.fsmonitor"),
        ('[core]\nfsmonitor = " "', "core.fsmonitor"),
        ("[core]\nhooksPath = h", "core.hookspath"),
        ("[core]\npager = x", "core.pager"),
        ("[core]\nsshCommand = x", "core.sshcommand"),
        ("[core]\nworktree = /home/somebody", "core.worktree"),
        ("[core]\nworktree = ../../../..", "core.worktree"),
        ("[include]\npath = x", "include.path"),
        ('[includeIf "gitdir:**"]\npath = x', "includeif.*.path"),
        ('[filter "x"]\nclean = x', "filter.*.clean"),
        ("[filter.x]\nsmudge = x", "filter.*.smudge"),
        ('[alias]\nst = "!x"', "alias.st"),
        ('[submodule "a"]\nupdate = !x', "submodule.*.update"),
        ('[submodule "a"]\nupdate = "!x"', "submodule.*.update"),
        ('[submodule "a"]\nurl = ext::sh -c x', "submodule.*.url"),
        ('[submodule "a"]\nurl = -u./x', "submodule.*.url"),
        ('[remote "a"]\nurl = ext::x', "remote.*.url"),
        ('[remote "a"]\nurl = "ext::x"', "remote.*.url"),
        ('[remote "a"]\nurl = ssh://-oProxyCommand=x/y', "remote.*.url"),
        ('[remote "a"]\nuploadpack = x', "remote.*.uploadpack"),
        ('[remote "a"]\nvcs = ext', "remote.*.vcs"),
        ('[remote "a\nb"]\nvcs = x', UNREADABLE),
        ('[url "ext::x"]\ninsteadOf = https:', "url.*.insteadof"),
        ('[branch "m"]\nremote = ext::x', "branch.*.remote"),
        ('[credential "https://secret@host"]\nhelper = x', "credential.*.helper"),
        ('[remote "a"]\nurl = evil://x', "remote.*.url"),
        ("[extensions]\npartialClone = origin", "extensions.partialclone"),
        ("fsmonitor = x", UNREADABLE),
        ("[core\nfsmonitor = x", UNREADABLE),
        ('[user]\nname = "x', UNREADABLE),
        ("[user]\nname = \\x", UNREADABLE),
        ("[user]\nname = a\0b", UNREADABLE),
        ("[user]\nna me = a", UNREADABLE),
    ],
)
def test_what_may_run_or_read_something_else_is_named_without_its_value(text: str, name: str) -> None:
    assert harmful(text.encode()) == [name]


def test_what_is_too_long_or_no_text_is_not_harmless() -> None:
    assert harmful(b"#" * (MOST_BYTES + 1)) == [UNREADABLE]
    assert harmful(b"[user]\nname = \xff") == [UNREADABLE]


def test_names_are_bounded_and_each_is_told_once() -> None:
    assert harmful(b"[alias]\nx = 1\nx = 2\n") == ["alias.x"]
    assert len(harmful(b"[alias]\n" + b"".join(b"a%d = x\n" % number for number in range(100)))) == 20


def test_a_worktree_inside_the_workspace_is_harmless() -> None:
    assert harmful(b"[core]\nworktree = ../../../lib", place=".git/modules/lib") == []
    assert harmful(b"[core]\nworktree = ../../../../lib", place=".git/modules/lib") == ["core.worktree"]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.decode(),
        '[a "x\\"\\\\y"]\nk = v',
        '[a]\nk = "  x  "  \nl = a  b  # c\nm = "a;b" ; c\nn\no =\n',
        "[a]k=x\\\n  y\n[B.Cd] K = \"q\"'r'\n",
        "\ufeff[a]\r\nk = v\r\n",
        '[a]\n\tk = a\\tb\\n\\"\\\\\n',
    ],
)
def test_settings_are_read_as_git_reads_them(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_bytes(text.encode())
    listed = subprocess.run(
        ["git", "config", "--file", file, "--list", "-z"], capture_output=True, check=True, timeout=60
    ).stdout.decode()
    theirs = [tuple(one.split("\n", 1)) if "\n" in one else (one, None) for one in listed.split("\0") if one]
    assert list(settings(file.read_bytes())) == theirs
