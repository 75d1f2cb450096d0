"""The README's table of backends, against what comes of every row here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import images, sandboxes
from tests.features import KINDS, markdown, measured

README = Path(__file__).parents[2] / "README.md"
NEEDED = {"host": lambda: None, "bubblewrap": sandboxes.needed, "podman": images.needed}


def written() -> list[list[str]]:
    """The table of the README as cells, its head first."""
    table = README.read_text().split("<!-- features -->\n")[1].split("\n<!-- /features -->")[0]
    lines = [line for line in table.splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_of_the_readme_is_what_comes_of_trying_it(kind: str) -> None:
    NEEDED[kind]()
    found = measured([kind])
    head, *rows = written()
    column = head.index(kind)
    said = {row[0]: row[column] for row in rows}
    # Where the whole machine runs as one user, that user's own bound on processes may be lower than the row's.
    assert {**found[kind], **_unsure(kind, said)} == said


def _unsure(kind: str, said: dict[str, str]) -> dict[str, str]:
    return {} if kind != "host" or os.geteuid() == 0 else {name: said[name] for name in said if "processes are" in name}


def test_the_table_that_is_printed_is_the_one_that_is_written() -> None:
    head, *rows = written()
    found = {kind: {row[0]: row[head.index(kind)] for row in rows} for kind in KINDS}
    assert markdown(found) in README.read_text()
