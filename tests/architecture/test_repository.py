"""Files around the code say what is so."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATES = ("done", "open", "out of scope (")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(lock: str) -> dict[str, str]:
    """Names and versions that `requirements` + `lock` pins."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text_of(f"requirements{lock}.lock"), re.MULTILINE))


def requirement_rows() -> list[list[str]]:
    lines = text_of("docs/requirements.md").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| ?(\d{3}-|ENV)", line)
    ]


def test_every_requirement_has_one_row_with_a_known_state() -> None:
    rows = requirement_rows()
    ids = [row[0] for row in rows]
    assert len(ids) == len(set(ids))
    counts = {"000": 31, "001": 28, "002": 16, "003": 12, "004": 18}
    expected = {f"{document}-{number:02}" for document, last in counts.items() for number in range(1, last + 1)}
    assert set(ids) == expected | {"ENV"}
    assert [row for row in rows if not row[2].startswith(STATES)] == []


def test_a_requirement_that_is_done_names_tests_that_exist() -> None:
    named = [(row[0], test) for row in requirement_rows() for test in re.findall(r"`([^`]+)`", row[1])]
    missing: list[tuple[str, str]] = []
    for requirement, test in named:
        path, _, function = test.partition("::")
        if not (ROOT / path).is_file() or (function and f"def {function}(" not in text_of(path)):
            missing.append((requirement, test))
    assert missing == []
    assert [row[0] for row in requirement_rows() if row[2] == "done" and "`" not in row[1]] == []


@pytest.mark.parametrize("name", ["", "-dev", "-lowest"])
def test_a_lock_pins_by_hash_and_names_no_address(name: str) -> None:
    lock = text_of(f"requirements{name}.lock")
    assert re.search(r"\w+://|file:|--index|--find-links", lock) is None
    pinned = re.findall(r"^[A-Za-z0-9][^\n]*", lock, re.MULTILINE)
    assert pinned
    assert [line for line in pinned if "==" not in line or not line.endswith("\\")] == []


def test_the_locks_hold_what_the_project_asks_for() -> None:
    project: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))
    always, groups = project["project"]["dependencies"], project["dependency-groups"]
    dev = [one for one in groups["dev"] if isinstance(one, str)]
    for name, asked in [("", always), ("-dev", always + groups["test"] + dev), ("-lowest", always + groups["test"])]:
        assert {re.split(r"[^\w.-]", requirement)[0] for requirement in asked} <= pins(name).keys()


def test_a_dependency_is_a_range_and_the_lowest_lock_has_its_lower_end() -> None:
    lowest = pins("-lowest")
    project: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["project"]
    for asked in project["dependencies"] + project["optional-dependencies"]["otel"]:
        found = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+),<[\d.]+", asked)
        assert found, f"{asked} has no lower and upper end"
        name, end = found.groups()
        assert f"{lowest[name]}.0.0".startswith(f"{end}."), f"{name} {lowest[name]} is not the lower end of {asked}"


def test_both_locks_agree() -> None:
    assert pins("").items() <= pins("-dev").items()


def test_make_lists_its_targets() -> None:
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    for target in ("setup", "demo", "test", "check", "bench"):
        assert f"make {target} " in said


def test_what_ci_runs_is_a_program() -> None:
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, timeout=30, check=True)


def test_make_and_the_evidence_say_the_same_of_how_long_something_takes() -> None:
    takes = dict(re.findall(r"^\| `make ([a-z-]+)` \| (\d+ minutes) \|", text_of("docs/evidence.md"), re.MULTILINE))
    made = dict(re.findall(r"^([a-z-]+):.*\((\d+ minutes)\)", text_of("Makefile"), re.MULTILINE))
    assert {"soak", "polls"} <= made.keys()
    assert {name: takes[name] for name in made} == made


def test_the_script_of_others_on_the_site_is_the_one_that_is_named() -> None:
    script = hashlib.sha256((ROOT / "docs/site/mermaid.tiny.js").read_bytes()).hexdigest()
    assert f"sha256 {script}\n" in text_of("mkdocs.yml")
