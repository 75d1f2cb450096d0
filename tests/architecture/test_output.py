"""Nothing of the product writes to a terminal around the one place that makes text visible (`shellback.cli.output`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

APP = Path(__file__).parents[2] / "app"
# Standard library only, in processes of their own: a supervisor and what it starts, and scripts for other Pythons.
APART = ("exec/supervisor/", "exec/files/grepping.py", "exec/backends/container_probe.py")
# Bytes are what they are for: `attach`, with an allow list of its own, and the place itself, for `logs --raw`.
DOORS = {"cli/output.py", "cli/terminal/raw_terminal.py", "cli/terminal/attached.py"}
FORBIDDEN = {"__stdout__", "__stderr__", "buffer", "detach"}
CLICKS = {
    "style", "secho", "clear", "unstyle", "confirm", "prompt", "get_text_stream", "get_binary_stream", "open_file",
}  # fmt: skip
PUT_IN = {"back", "how", "_STYLES"}
"""What a sequence that is drawn may be made of: a number of columns, a style of the table."""


def sources() -> list[Path]:
    return [path for path in sorted(APP.rglob("*.py")) if not str(path.relative_to(APP)).startswith(APART)]


def around(path: Path) -> Iterator[str]:
    name = str(path.relative_to(APP))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "drawn"
        for node in ast.walk(call)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name("sys"), attr="stdout" | "stderr"), attr=attr):
                if attr in FORBIDDEN and name not in DOORS:
                    yield f"{name}:{node.lineno} has the stream's {attr}"
            case ast.Attribute(value=ast.Name("sys"), attr="__stdout__" | "__stderr__"):
                yield f"{name}:{node.lineno} has the stream of before"
            case ast.Attribute(value=ast.Name("click"), attr=attr) if (
                attr in CLICKS and name != "cli/terminal/screen.py"
            ):
                yield f"{name}:{node.lineno} has click.{attr}"
            case ast.Call(
                func=ast.Attribute(value=ast.Name("os"), attr="write" | "fdopen"), args=[ast.Constant(1 | 2), *_]
            ):
                yield f"{name}:{node.lineno} writes to a number"
            case ast.Call(func=ast.Name("input")):
                yield f"{name}:{node.lineno} calls it"
            case ast.Constant(value=str(text)) if "\x1b" in text and id(node) not in ours:
                if name.startswith("cli/") and name not in {*DOORS, "cli/terminal/line_editor.py"}:
                    yield f"{name}:{node.lineno} has a control sequence that is not `drawn`"
            case ast.Call(func=ast.Name("drawn"), args=[given]) if not _fixed(given):
                yield f"{name}:{node.lineno} draws what is not fixed"
            case _:
                pass


def _fixed(given: ast.expr) -> bool:
    """Whether nothing but a number or a name of a style is put into the sequence."""
    named = {node.id for node in ast.walk(given) if isinstance(node, ast.Name)}
    return isinstance(given, ast.Constant | ast.JoinedStr) and named <= PUT_IN


def test_every_text_reaches_a_terminal_through_the_place_that_makes_it_visible() -> None:
    assert [found for path in sources() for found in around(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.stdout.buffer.write(b'x')",
        "import sys\nprint('x', file=sys.__stderr__)",
        "import click\nclick.secho('x', fg='red')",
        "import os\nos.write(2, b'x')",
        "print('\\x1b[31mx')",
        "from shellback.cli.output import drawn\ndef f(name):\n    print(drawn(name))",
    ],
)
def test_what_goes_around_it_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli").mkdir()
    path = tmp_path / "cli" / "new.py"
    path.write_text(text)
    monkeypatch.setattr("tests.architecture.test_output.APP", tmp_path)
    assert list(around(path))
