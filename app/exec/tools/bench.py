"""What carries out the calls of the tools in one workspace."""

from __future__ import annotations

from dataclasses import dataclass

from shellback.exec.shell.workspaces.ground import Ground
from shellback.exec.tools.tool_calls import ToolCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Ground):
    """One workspace, with `calls` for its tool calls."""

    calls: ToolCalls
