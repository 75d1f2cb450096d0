"""What documents and examples show runs, and prints or does what they say."""

from __future__ import annotations

import ast
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.settings import plain_environment
from tests import images, sandboxes
from tests.documents import ROOT, RUN, Block, blocks
from tests.features import KINDS, markdown, measured
from tests.readers import machines, reader
from tests.stage import stage
from tests.supervisors import run_to_end

PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# test_ag_ui.py runs what is js, tests/integration/work/test_hosts.py what is sql
SHOWN = {"text", "mermaid", "json", "toml", "yaml", "ini", "diff", "js", "sql"}
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
        if block.language in RUN
        and not block.machine
        and (block.document, block.first) not in NOT_RUN
        and not of_an_example(block)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in PATHS if to_run(path)])
def test_a_document_does_what_it_says(path: Path) -> None:
    with reader() as somebody:
        for block in to_run(path):
            somebody.follow(block)


@pytest.mark.timeout(300)
def test_three_machines_do_what_scaling_says(postgres_url: str) -> None:
    told = [block for block in blocks(ROOT / "docs/scaling.md") if block.machine]
    with machines({block.machine for block in told}) as there:
        for block in told:
            text = block.text.replace("postgresql://shellback:PASSWORD@db.internal/shellback", postgres_url)
            there[block.machine].follow(replace(block, text=text))
    assert len(there) == 3


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


README = ROOT / "README.md"
EXAMPLES = {
    # Asks, and runs without a queue.
    "own_agent.py": r".*\{'command': 'uname -sm'\} \[y/n\].*Linux.*\[exit code 0.*",
    # Builds, times out, streams and signals without a key.
    "shell_usage.py": r"Working in: {workspace}\nPATH: /.*\ncompiling\n.*waiting: Command timed out after 0\.5s\n.*"
    r"ended by signal 2\nhello world in [^\n]*\nthe answer was y\n",
}
"""What they print."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_works_in_a_new_directory_and_says_what_is_wrong_with_another(example: str) -> None:
    with stage() as place:
        # Which ends its supervisor.
        place.settings = place.settings.model_copy(update={"shellback_home": place.root / "new/state"})
        there = place.root / "new"
        there.mkdir(mode=0o755)
        workspace = there / "workspace"
        argv = (sys.executable, ROOT / "examples" / example)
        good = run_to_end(*argv, cwd=there, env=plain_environment(), input="y\n")
        assert example != "shell_usage.py" or (workspace / "built").read_text() == "done\n"
        workspace.rename(there / "before")
        workspace.touch()
        bad = run_to_end(*argv, cwd=there, env=plain_environment(), input="y\n")
    assert (good.returncode, good.stderr) == (0, "")
    printed = EXAMPLES[example].replace("{workspace}", re.escape(str(workspace.resolve())))
    assert re.fullmatch(printed, good.stdout, re.DOTALL), good.stdout
    assert bad.returncode == 1
    assert bad.stderr.startswith(f"{example.removesuffix('.py')}: workspace ")
    assert len(bad.stderr.splitlines()) == 1


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = next(block for block in blocks(README) if block.language == "python")
    assert textwrap.indent(shown.text, "    ") in (ROOT / "examples/own_agent.py").read_text()


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
