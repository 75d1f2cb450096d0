"""All tools that the modules of `tools.all` declare, in the order in which a model sees them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from shellback.exec.tools import all as modules
from shellback.exec.tools.tool import Action, ExecTool


@cache
def tools() -> dict[str, ExecTool]:
    """All tools by name."""
    return {tool.name: tool for tool in _declared()}


def tool_named(name: str) -> ExecTool:
    """The tool of this name; an unknown one always asks."""
    return tools().get(name) or ExecTool(name=name, approval="ask")


def _declared() -> Iterator[ExecTool]:
    for found in sorted(pkgutil.iter_modules(modules.__path__), key=lambda one: one.name):
        declared = vars(importlib.import_module(f"{modules.__name__}.{found.name}"))
        yield from (one for one in declared.values() if isinstance(one, ExecTool) and not isinstance(one, Action))
