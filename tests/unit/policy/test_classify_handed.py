"""What one command hands to another: known only when it runs, and yet no option, no secret and nothing outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.policy.classify import arguments, paths
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.options import Argument
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.syntax import Word
from tests.judged import around

HANDED = ("find . -name '*.txt' | xargs cat", "cat $(find . -name '*.txt')", "for f in $(ls *.txt); do cat $f; done")
WHOLE = ("find . -name '*.txt' -print0 | xargs -0 cat", "find . -name '*.txt' -exec cat {} +")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").touch()
    return tmp_path.resolve()


def passes(tree: Path, command: str, *, sandboxed: bool = True) -> bool:
    return classify(command, around(tree, sandboxed=sandboxed)).verdict == "read_only"


@pytest.mark.parametrize("name", ["a -o PWNED.txt", "a\n-o\nb.txt", "'a.txt", "a\\.txt", "[a].txt"])
def test_a_name_that_would_be_taken_apart_asks_where_it_is(tree: Path, name: str) -> None:
    assert all(passes(tree, command) for command in (*HANDED, *WHOLE))
    (tree / name).touch()
    assert not any(passes(tree, command) for command in HANDED)
    assert all(passes(tree, command) for command in WHOLE)


@pytest.mark.parametrize("command", [*HANDED, *WHOLE])
def test_what_a_name_leads_to_is_looked_at(tree: Path, command: str) -> None:
    (tree / "b.txt").symlink_to("/etc/passwd")
    assert not passes(tree, command)


def test_plain_files_are_no_symlinks(tree: Path) -> None:
    (tree / "b.txt").symlink_to("/etc/passwd")
    assert passes(tree, "find . -type f -exec cat {} +")
    assert not passes(tree, "find . -type f -o -name x -exec cat {} +")
    assert not passes(tree, "find . -exec cat {} + -type f")


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandbox", "host"])
def test_a_secret_among_what_is_found_asks(tree: Path, sandboxed: bool) -> None:
    (tree / "deep").mkdir()
    (tree / "deep/.env").touch()
    for command in (
        "find . -type f -exec cat {} +",
        "find . | xargs head",
        "cat $(find deep)",
        "grep -rl x . | xargs cat",
        "find . -name '*.txt' -o -name x -exec cat {} +",
        "find . ! -name '*.txt' -exec cat {} +",
    ):
        assert not passes(tree, command, sandboxed=sandboxed), command
    for command in (*HANDED, *WHOLE, "find . -maxdepth 1 -type f -exec cat {} +"):
        assert passes(tree, command, sandboxed=sandboxed), command


def test_a_name_that_asks_for_secrets_asks_though_none_is_there(tree: Path) -> None:
    for name in (".env", ".e*", "id_rsa", "*.pem", "credentials.json"):
        assert not passes(tree, f"find . -name '{name}' -exec cat {{}} +"), name


def test_a_name_that_is_an_option_asks(tree: Path) -> None:
    assert passes(tree, "ls | xargs sort")
    (tree / "-oPWNED").touch()
    assert not passes(tree, "ls | xargs sort")
    assert not passes(tree, "sort $(ls)")
    assert passes(tree, "find . -type f | xargs sort")


def test_a_tree_that_is_too_large_to_know_asks(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "b.txt").touch()
    monkeypatch.setattr(paths, "MOST_SEEN", 0)
    assert not passes(tree, "find . -name '*.txt' -exec cat {} +")


def test_a_judgement_can_be_shown_and_kept(tree: Path) -> None:
    for command in (*HANDED, *WHOLE, "echo \"$(cat a.txt)\" | xargs -I{} echo 'x {}'"):
        found = classify(command, around(tree))
        assert found.verdict == "read_only", command
        assert "\\x00" not in repr(found)


def test_a_wrapper_runs_only_programs_that_are_trusted(tree: Path) -> None:
    (tree / "cat").touch()
    for wrapper in ("timeout 5", "nice", "env", "command", "stdbuf -oL", "echo a | xargs", "find . -exec"):
        end = " {} +" if "find" in wrapper else ""
        assert passes(tree, f"{wrapper} cat{end}"), wrapper
        assert not passes(tree, f"{wrapper} ./cat{end}"), wrapper
        assert not passes(tree, f"{wrapper} touch{end}"), wrapper


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
    tree: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    expanded = 0
    expand = arguments.expand

    def counted(word: Word, bound: arguments.Bound, files: Files) -> list[Argument]:
        nonlocal expanded
        expanded += 1
        return expand(word, bound, files)

    monkeypatch.setattr(arguments, "expand", counted)
    classify(command, around(tree))
    assert expanded <= 60  # a few for each word; not one for each way to them


def test_values_that_double_are_not_followed(tree: Path) -> None:
    doubling = "; ".join(["a0=xxxxxxxx", *(f'a{n}="$a{n - 1}$a{n - 1}"' for n in range(1, 12))])
    assert passes(tree, 'a0=xxxxxxxx; a1="$a0$a0"; echo "$a1"')
    assert not passes(tree, f'{doubling}; echo "$a11"')


def test_a_variable_that_is_set_from_itself_asks(tree: Path) -> None:
    assert not passes(tree, "for x in a; do for x in $x b; do echo $x; done; done")
