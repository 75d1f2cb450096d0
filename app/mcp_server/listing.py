"""What a client is told of the tools, from their facts."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

if TYPE_CHECKING:
    from shellback.exec.tools.tool import ExecTool

GROUPS: Final = ("exec", "process", "session", "workspace", "watch")
DEFAULT: Final = ("exec", "process", "session", "workspace")
"""Without `watch`: a hit is an event, which a client does not hear."""


def chosen(tools: list[dict[str, Any]], groups: Collection[str]) -> list[dict[str, Any]]:
    """Those of these groups, without what only we need to know."""
    return [{name: fact for name, fact in tool.items() if name != "group"} for tool in tools if tool["group"] in groups]


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
        "outputSchema": output_schema(tool),
        "annotations": hints,
        "group": group_of(tool),
    }


def output_schema(tool: ExecTool) -> dict[str, Any]:
    """What is in the structured content of a call that did not fail: the value, and the facts of a command."""
    from pydantic import TypeAdapter

    from shellback.exec.reports.render import StartedFacts

    (value,) = get_args(get_type_hints(tool.run)["return"])
    known: dict[str, Any] = TypeAdapter(StartedFacts).json_schema() if tool.spec is not None else {}
    return {
        "type": "object",
        "properties": {"result": TypeAdapter(value).json_schema(), **known.get("properties", {})},
        "required": ["result", *known.get("required", ())],
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
