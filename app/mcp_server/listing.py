"""What a client is told of the tools. Their schemas take seconds to make, so they are kept in the state directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shellback.exec.tools.tool import ExecTool

GROUPS: Final = ("exec", "process", "session", "workspace", "watch")
DEFAULT: Final = ("exec", "process", "session", "workspace")
"""Without `watch`: a hit is an event, which a client does not hear."""
FILE: Final = "mcp-tools.json"
_TOOLS: Final = Path(__file__).parent.parent / "exec/tools"


def listed(home: Path, groups: Collection[str], switches: str) -> list[dict[str, Any]] | None:
    """The tools of these groups as clients are told; None if they must be made first. `switches` are the operator's."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads((home / FILE).read_bytes())
        if kept["made_by"] == _maker(switches):
            return chosen(kept["tools"], groups)
    return None


def chosen(tools: list[dict[str, Any]], groups: Collection[str]) -> list[dict[str, Any]]:
    """Those of these groups, without what only we need to know."""
    return [
        {name: value for name, value in tool.items() if name != "group"} for tool in tools if tool["group"] in groups
    ]


def keep(home: Path, tools: list[dict[str, Any]], switches: str) -> None:
    """Keep the tools for the next start. A failure is no loss: they are made again."""
    with contextlib.suppress(OSError):
        draft = home / f".{FILE}.{os.getpid()}"
        draft.write_text(json.dumps({"made_by": _maker(switches), "tools": tools}))
        draft.replace(home / FILE)


def described(tool: ExecTool, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A tool as clients are told; the hints follow from its facts."""
    starts = any(
        act.spec is not None or act.line is not None or act.typed is not None
        for act in (tool, *(tool.act({tool.choice: name}) for name in tool.acts))
    )
    changes = tool.asks or tool.part == "watches" or any(act.asks for act in tool.acts.values())
    hints = {
        "readOnlyHint": not changes,
        "destructiveHint": changes and tool.part != "watches",
        "idempotentHint": not changes,
        "openWorldHint": starts,
    }
    return {
        "name": tool.name,
        "description": description,
        "inputSchema": schema,
        "annotations": hints,
        "group": group_of(tool),
    }


def group_of(tool: ExecTool) -> str:
    """The group by which `--tools` chooses a tool; "" if no client can have it."""
    match tool.part:
        case "commands":
            return tool.category
        case "sessions" | "shell":
            return "session"
        case "watches":
            return "watch"
        case "workspace":
            return "workspace"
        case _:
            return ""


def _maker(switches: str) -> str:
    """Changes with everything that the descriptions are made from."""
    sources = sorted((str(path), path.stat().st_mtime_ns) for path in _TOOLS.rglob("*.py"))
    made_from = [switches, *sources, *(version(name) for name in ("shellback", "pydantic-ai-slim", "pydantic"))]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
