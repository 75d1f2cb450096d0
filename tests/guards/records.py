"""Guards as records: what is replaced by what, so that a promise does not hold any more.

`G1.toml` has those of promise G1, and so on; one of them is::

    [adopted_once]
    what = "a process is adopted once"
    tests = ["tests/some/test_file.py::test_name"]
    [[adopted_once.changes]]
    file = "app/work/hosts/unknown.py"
    old = 'before is not None'
    new = 'False'

`old` has to occur exactly once in the file as the changes before it left it, and is as short as that allows. There
are two kinds. Without a newline at its end it is an expression: it is looked for exactly as it is, anywhere in a line.
With one it is whole lines, at whatever depth they are indented; `new` is indented as they were, and may be empty::

    old = '''
    if not known:
        return None
    '''
    new = ''
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement; `file` is a path in the repository."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Guard:
    """One record."""

    name: str
    promise: str
    what: str
    tests: Sequence[str]
    changes: Sequence[Change]


class BadRecord(Exception):
    """Raised for a record that cannot be read or applied."""


def read(directory: Path = HERE) -> list[Guard]:
    """All guards, by promise and in the order of its file.

    Raises:
        BadRecord: A file is not TOML, or a record lacks something or has too much.
    """
    guards: list[Guard] = []
    for path in sorted(directory.glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise BadRecord(f"{path.name}: {error}") from None
        for name, table in tables.items():
            try:
                fields: dict[str, Any] = {**table, "changes": [Change(**change) for change in table["changes"]]}
                guards.append(Guard(name, path.stem, **fields))
            except (KeyError, TypeError) as error:
                raise BadRecord(f"{name} in {path.name}: {error}") from None
    if twice := {guard.name for guard in guards if sum(other.name == guard.name for other in guards) > 1}:
        raise BadRecord(f"two records with one name: {', '.join(sorted(twice))}")
    return guards


def without(guard: Guard, root: Path) -> dict[str, str]:
    """What the guard's files below `root` hold when it is taken away; nothing is written.

    Raises:
        BadRecord: The guard cannot be taken away as its record says.
    """
    texts: dict[str, str] = {}
    for change in guard.changes:
        if not (root / change.file).is_file():
            raise BadRecord(f"{change.file} is no file")
        before = texts.get(change.file) or (root / change.file).read_text(encoding="utf-8")
        texts[change.file] = _replaced(before, change)
    for file, text in texts.items():
        try:
            compile(text, file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise BadRecord(f"{file} does not compile without it: {error}") from None
    return texts


def unfit(guard: Guard, root: Path) -> str:
    """What is wrong with the guard's record, or nothing."""
    if not guard.tests or not guard.changes:
        return "it names no test or no change"
    if missing := [test for test in guard.tests if not _exists(test, root)]:
        return f"there is no {' '.join(missing)}"
    try:
        without(guard, root)
    except BadRecord as error:
        return str(error)
    return ""


def _exists(test: str, root: Path) -> bool:
    path, *names = test.partition("[")[0].split("::")
    if not names or not (root / path).is_file():
        return not names and (root / path).exists()
    text = (root / path).read_text(encoding="utf-8")
    if len(names) == 1:
        return f"def {names[0]}(" in text
    # A class may have its tests from another module.
    modules = (one for directory in ("tests", "app") for one in (root / directory).rglob("*.py"))
    return f"class {names[0]}" in text and any(f"def {names[1]}(" in one.read_text(encoding="utf-8") for one in modules)


def _replaced(text: str, change: Change) -> str:
    found = list(re.finditer(_pattern(change.old), text, re.MULTILINE))
    if len(found) != 1:
        raise BadRecord(f"{change.file} has {len(found)} times, not once: {change.old.strip()}")
    [match] = found
    new = textwrap.indent(change.new, match["indent"]) if change.old.endswith("\n") else change.new
    if new == match[0]:
        raise BadRecord(f"{change.file} is left as it is: {change.old.strip()}")
    return text[: match.start()] + new + text[match.end() :]


def _pattern(old: str) -> str:
    if not old.endswith("\n"):
        return re.escape(old)
    first, *rest = old.splitlines()
    lines = [f"^(?P<indent> *){re.escape(first)}\n"]
    lines += [f"(?P=indent){re.escape(line)}\n" if line else "\n" for line in rest]
    return "".join(lines)
