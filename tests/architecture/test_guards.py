"""Each guard can be taken away as its record says; `make guards` sees its tests turn red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.records import BadRecord, Change, Guard, read, unfit, without

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """\
def first(known):
    if not known:
        return None
    return known


def second(known):
    if known:
        return first(known)
    return None
"""


def guard(*changes: tuple[str, str], tests: tuple[str, ...] = ("test_it.py::test_it",)) -> Guard:
    return Guard("name", "G1", "what", tests, [Change("app/it.py", old, new) for old, new in changes])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "it.py").write_text(SOURCE)
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    return tmp_path


def test_every_record_applies_and_its_tests_exist() -> None:
    guards = read()
    assert {f"G{number}" for number in range(1, 9)} == {one.promise for one in guards}
    assert {one.name: trouble for one in guards if (trouble := unfit(one, ROOT))} == {}


def test_an_expression_is_replaced_where_it_stands(tree: Path) -> None:
    changed = without(guard(("not known", "False"), ("if known", "if first")), tree)
    assert changed == {"app/it.py": SOURCE.replace("not known", "False").replace("if known", "if first")}


def test_whole_lines_are_found_at_any_depth_and_keep_it(tree: Path) -> None:
    gone = without(guard(("if not known:\n    return None\n", "")), tree)["app/it.py"]
    assert gone == SOURCE.replace("    if not known:\n        return None\n", "")
    changed = without(guard(("return first(known)\n", "if first:\n    pass\n")), tree)["app/it.py"]
    assert changed == SOURCE.replace("return first(known)\n", "if first:\n            pass\n")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("not there", "", "0 times, not once"),
        ("return None", "pass", "2 times, not once"),
        ("return None\n", "pass\n", "2 times, not once"),
        ("known:\n", "", "0 times, not once"),
        ("not known", "not known", "left as it is"),
        ("if not known:\n", "if not known:\n", "left as it is"),
        ("if not known:\n", "", "does not compile"),
    ],
)
def test_a_record_that_does_not_fit_says_why(tree: Path, old: str, new: str, says: str) -> None:
    assert says in unfit(guard((old, new)), tree)


@pytest.mark.parametrize(
    "test", ["test_it.py::test_another", "test_gone.py", "test_gone.py::test_it", "test_it.py::Tests::test_it"]
)
def test_a_record_whose_test_is_gone_says_which(tree: Path, test: str) -> None:
    assert unfit(guard(("not known", "False"), tests=(test,)), tree) == f"there is no {test}"


def test_a_record_without_a_test_or_a_change_is_none(tree: Path) -> None:
    assert unfit(guard(("not known", "False"), tests=()), tree) == "it names no test or no change"
    assert unfit(guard(), tree) == "it names no test or no change"


def test_a_record_of_a_file_that_is_gone_says_so(tree: Path) -> None:
    (tree / "app" / "it.py").unlink()
    assert unfit(guard(("not known", "False")), tree) == "app/it.py is no file"


@pytest.mark.parametrize(
    "text",
    [
        "[one",
        "[one]\nwhat = ''\ntests = []",
        "[one]\nwhat = ''\nchanges = []",
        "[one]\nwhat = ''\ntests = []\nwhy = ''\nchanges = []",
        "[one]\nwhat = ''\ntests = []\n[[one.changes]]\nfile = 'app/it.py'\nold = 'x'",
    ],
)
def test_a_record_that_is_not_one_is_refused_by_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "G1.toml").write_text(text)
    with pytest.raises(BadRecord, match=r"G1\.toml"):
        read(tmp_path)


def test_a_name_stands_for_one_guard(tmp_path: Path) -> None:
    for name in ("G1.toml", "G2.toml"):
        (tmp_path / name).write_text("[one]\nwhat = ''\ntests = []\nchanges = []")
    with pytest.raises(BadRecord, match="two records with one name: one"):
        read(tmp_path)
