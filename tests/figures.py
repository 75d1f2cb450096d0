"""Figures of the layout: packages, layers, imports between them, branches on tool names, lines.

    python -m tests.figures [--json] [TREE]    a checkout of any commit; this one by default

A part of a package is a subpackage or a loose module right below it. Parts that import each other in a cycle are on one
layer, and modules that do are one link of a chain.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

import grimp

ROOT: Final = Path(__file__).parents[1]
CONTAINERS: Final = ("app", "app/exec", "app/exec/supervisor", "app/work")
"""The packages whose parts are counted."""
PROGRAMS: Final = "classify"
"""The package that compares names of programs, of which some (`grep`, `ls`, `rm`) are names of tools too."""
_ROW: Final = re.compile(r"^\| `(\w+)` \|.*\| (?:yes|no) \|$", re.MULTILINE)
Imports = Mapping[str, Set[str]]


def measure(tree: Path) -> dict[str, Any]:
    """All figures of the checkout `tree`, as portable JSON. In a process that has not imported another tree's package.

    Raises:
        SystemExit: The tree has no table of tools, or another tree's package would be read.
    """
    sources = _sources(tree / "app")
    tests = _sources(tree / "tests")
    root = "shellback" if (tree / "shellback").exists() else "app"
    imports = _imports(tree, root)
    tools = tool_names(tree)
    branches = {
        str(path.relative_to(tree)): lines
        for path, text in sources.items()
        if PROGRAMS not in path.parts and (lines := list(branches_on(text, tools)))
    }
    containers = [name for name in CONTAINERS if (tree / name).is_dir()]
    return {
        "lines": sum(map(_length, sources.values())),
        "modules": len(sources),
        "lines of tests": sum(map(_length, tests.values())),
        "modules of tests": len(tests),
        "deepest import chain": deepest(imports),
        "branches on tool names": sum(map(len, branches.values())),
        "files with such branches": len(branches),
        "packages": {name: _package(tree / name, sources, imports, root) for name in containers},
        "branches": branches,
    }


def tool_names(tree: Path) -> set[str]:
    """The names of all tools: a test holds that docs/agents.md lists exactly those of the toolset."""
    found = set(_ROW.findall((tree / "docs/agents.md").read_text(encoding="utf-8")))
    if not found:
        raise SystemExit(f"figures: no table of tools in {tree}/docs/agents.md: mend the pattern in tests/figures.py")
    return found


def branches_on(text: str, tools: Set[str]) -> Iterator[int]:
    """The lines where something is compared with names of tools, or where a table of them and nothing else begins."""
    module = ast.parse(text)
    compared = {id(side) for one in ast.walk(module) if isinstance(one, ast.Compare) for side in one.comparators}
    for one in ast.walk(module):
        match one:
            case ast.Compare():
                names = [name for side in (one.left, *one.comparators) for name in _literals(side)]
            case ast.match_case(pattern=ast.MatchValue() | ast.MatchOr() as pattern):
                names = _literals(pattern)
            case (
                ast.Assign(value=ast.Tuple() | ast.List() as shown)
                | ast.AnnAssign(value=ast.Tuple() | ast.List() as shown)
            ):
                names = _literals(shown)
            case ast.Set() | ast.Dict() if id(one) not in compared:
                names = _literals(one)
            case ast.Call(func=ast.Name(id="frozenset" | "set" | "dict"), args=[ast.Tuple() | ast.List() as table]):
                names = _literals(table)
            case _:
                continue
        if names and tools >= set(names):
            yield one.pattern.lineno if isinstance(one, ast.match_case) else one.lineno


def _literals(node: ast.AST | None) -> list[str]:
    """The strings that a literal, or a display's elements or keys, are."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.MatchValue(value=value):
            return _literals(value)
        case (
            ast.MatchOr(patterns=listed)
            | ast.Set(elts=listed)
            | ast.List(elts=listed)
            | ast.Tuple(elts=listed)
            | ast.Dict(keys=listed)
        ):
            found = [_literals(one) for one in listed]
            # What else stands in it is no tool's name, so the whole is no table of tools.
            return [name for names in found for name in names or [""]]
        case _:
            return []


def deepest(imports: Imports) -> int:
    """How many links the longest chain of imports has."""
    reached = {one: _reached(imports, one) for one in imports}
    # Whoever reaches more comes later, so what a module imports has its depth already; a cycle shares its own.
    depth: dict[frozenset[str], int] = {}
    cycle = {one: frozenset({one} | {other for other in reached[one] if one in reached[other]}) for one in imports}
    for one in sorted(imports, key=lambda name: len(reached[name] | {name})):
        below = {cycle[other] for same in cycle[one] for other in imports[same]} - {cycle[one]}
        depth[cycle[one]] = 1 + max((depth[other] for other in below), default=0)
    return max(depth.values(), default=0)


def _reached(imports: Imports, start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def _imports(tree: Path, root: str) -> dict[str, set[str]]:
    sys.path.insert(0, str(tree))
    try:
        spec = importlib.util.find_spec(root)
        if spec is None or not spec.origin or not Path(spec.origin).resolve().is_relative_to(tree / "app"):
            raise SystemExit(f"figures: {root} is not read from {tree}")
        graph = grimp.build_graph(root, cache_dir=None)
    finally:
        sys.path.remove(str(tree))
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def _package(place: Path, sources: Mapping[Path, str], imports: Imports, root: str) -> dict[str, Any]:
    lines: dict[str, int] = {}
    loose = set[str]()
    for path, text in sources.items():
        if path.is_relative_to(place) and path != place / "__init__.py":
            part = path.relative_to(place).parts[0].removesuffix(".py")
            lines[part] = lines.get(part, 0) + _length(text)
            loose |= {part} if path.parent == place else set()
    above = ".".join((root, *place.parts[place.parts.index("app") + 1 :]))
    between: dict[str, set[str]] = {part: set() for part in lines}
    single = 0
    for one, named in imports.items():
        for other in named:
            ends = [name.removeprefix(f"{above}.").partition(".")[0] for name in (one, other)]
            if one.startswith(f"{above}.") and other.startswith(f"{above}.") and ends[0] != ends[1]:
                between[ends[0]].add(ends[1])
                single += 1
    return {
        "packages": len(lines) - len(loose),
        "loose modules": len(loose),
        "layers": deepest(between),
        "imports between them": sum(map(len, between.values())),
        "module by module": single,
        "lines": dict(sorted(lines.items(), key=lambda one: -one[1])),
    }


def _sources(place: Path) -> dict[Path, str]:
    # Links are not followed: app/migrations is one.
    found = sorted(path for path in place.rglob("*.py") if not path.is_symlink() and path.resolve() == path)
    return {path: path.read_text(encoding="utf-8") for path in found}


def _length(text: str) -> int:
    return len(text.splitlines())


def table(found: Mapping[str, Any]) -> str:
    """The same for people."""
    packages: Mapping[str, Mapping[str, Any]] = found["packages"]
    rows = [f"{name:26}{value:>8,}" for name, value in found.items() if isinstance(value, int)]
    heads = [name for name in packages["app"] if name != "lines"]
    rows += ["", f"{'':20}" + "".join(f"{head:>22}" for head in heads)]
    rows += [f"{name:20}" + "".join(f"{one[head]:>22,}" for head in heads) for name, one in packages.items()]
    for name, one in packages.items():
        rows += ["", f"lines in {name}: " + ", ".join(f"{part} {count:,}" for part, count in one["lines"].items())]
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one tree and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT, metavar="TREE", help="a checkout (this one)")
    parser.add_argument("--json", action="store_true", help="as JSON, with the place of each branch")
    options = parser.parse_args(argv)
    found = measure(options.tree.resolve())
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
