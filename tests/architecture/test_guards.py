"""Each guard can be taken away as its record says; `make guards` sees its tests turn red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.records import Change, Guard, read, unfit

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
