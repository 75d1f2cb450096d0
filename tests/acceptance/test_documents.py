"""What the documents tell a reader to type works, and prints what they say."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, RUN, Block, blocks
from tests.readers import reader

PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = {"text", "mermaid", "json", "toml", "yaml", "ini", "diff"}
ALL = [block for path in PATHS for block in blocks(path)]
LISTED: list[dict[str, str]] = tomllib.loads((ROOT / "docs/not_run.toml").read_text(encoding="utf-8"))["block"]
NOT_RUN = {(one["document"], one["first"]) for one in LISTED}


def of_an_example(block: Block) -> bool:
    """Whether it shows a part of a program in `examples`, word for word, which is run as a whole elsewhere."""
    return block.language == "python" and any(
        block.text in path.read_text(encoding="utf-8")
        or textwrap.indent(block.text, "    ") in path.read_text(encoding="utf-8")
        for path in (ROOT / "examples").glob("*.py")
    )


def to_run(path: Path) -> list[Block]:
    return [
        block
        for block in blocks(path)
        if block.language in RUN and (block.document, block.first) not in NOT_RUN and not of_an_example(block)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in PATHS if to_run(path)])
def test_a_document_does_what_it_says(path: Path) -> None:
    with reader() as somebody:
        for block in to_run(path):
            somebody.follow(block)


def test_every_block_says_what_it_is() -> None:
    assert [str(block) for block in ALL if block.language not in {*RUN, *SHOWN}] == []


def test_what_is_listed_as_not_run_is_there_with_a_reason() -> None:
    there = [(block.document, block.first) for block in ALL if block.language in RUN]
    assert [one for one in NOT_RUN if there.count(one) != 1] == []
    assert len(NOT_RUN) == len(LISTED)
    assert [one for one in LISTED if len(one["reason"].split()) < 3] == []


def test_a_program_that_a_document_shows_is_run_by_a_document_or_a_test() -> None:
    said = "\n".join(block.text for block in ALL if block.language in RUN)
    said += "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in (ROOT / "examples").glob("*.py") if path.name not in said] == []


def headings(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    broken: list[str] = []
    for path in PATHS:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if not link.startswith("https://") and not (target.exists() and (not anchor or anchor in headings(target))):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def logged(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("log"), attr="warning" | "error" | "exception" | "critical"),
                args=[ast.Constant(value=str(text)), *_],
            ):
                yield re.sub(r"%[.\d]*[sdrf]", "...", text)
            case _:
                pass


def test_operations_says_what_to_do_about_every_warning_and_error() -> None:
    told = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    lines = [line for path in (ROOT / "app").rglob("*.py") for line in logged(path)]
    assert len(lines) > 20
    assert [line for line in lines if f"`{line.split(': does')[0]}" not in told] == []
