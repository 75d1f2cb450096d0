"""What an attacker tried and once got: programs that read their arguments otherwise than their tables said."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shellback.cli.policy import policy
from shellback.exec.policy.classify.classify import classify
from tests.judged import around, make_tree

TRAP = "[core]\n\tfsmonitor = ./evil.sh\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    ],
)
def test_what_would_write_or_run_asks(tree: Path, command: str) -> None:
    assert classify(command, around(tree)).verdict == "needs_approval"


@pytest.mark.parametrize(
    "command",
    [
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
    ],
)
def test_what_would_show_a_secret_or_the_environment_asks(tree: Path, command: str) -> None:
    assert classify(command, around(tree)).verdict == "needs_approval"


@pytest.mark.parametrize(
    "command", ["ss dst evil.example", "ss -t src h.invalid:443", "last -d", "uuidgen -t", "tput init", "tput -S"]
)
def test_what_would_connect_or_run_what_a_terminal_names_asks(tree: Path, command: str) -> None:
    assert classify(command, around(tree)).verdict == "needs_approval"


@pytest.mark.parametrize("command", ["seq inf", "seq 1 inf", "while true; do echo x; done", "until false; do ls; done"])
def test_what_never_ends_asks(tree: Path, command: str) -> None:
    assert classify(command, around(tree)).verdict == "needs_approval"


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
def test_what_only_looks_alike_passes(tree: Path, command: str) -> None:
    assert classify(command, around(tree)).verdict == "read_only"


def bare_at(place: Path, config: str) -> None:
    for name in ("objects", "refs"):
        (place / name).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "config").write_text(config)


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_git_directory_that_is_none_hides_no_other(tmp_path: Path, sandboxed: bool) -> None:
    (tmp_path / ".git").mkdir()
    where = around(tmp_path, sandboxed=sandboxed)
    assert classify("git status", where).verdict == "read_only"
    bare_at(tmp_path, TRAP)
    assert classify("git status", where).verdict == "needs_approval"


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_repository_whose_parts_lie_elsewhere_is_found(tmp_path: Path, sandboxed: bool) -> None:
    bare_at(tmp_path / "evil", TRAP)
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "commondir").write_text("evil\n")
    assert classify("git status", around(tmp_path, sandboxed=sandboxed)).verdict == "needs_approval"


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_git_file_is_followed(tmp_path: Path, sandboxed: bool) -> None:
    bare_at(tmp_path / "evil", TRAP)
    (tmp_path / ".git").write_text("gitdir: evil\n")
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


def test_files_that_git_does_not_track_are_read_with_care_on_the_host(tree: Path) -> None:
    assert classify("git grep --untracked KEY", around(tree, sandboxed=False)).verdict == "needs_approval"


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
