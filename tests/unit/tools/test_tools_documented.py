"""The tools that docs/agents.md lists are those that a model sees, with the same parameters."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition

from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.tools.toolset import ExecTools
from shellback.exec.watching.memory import MemoryWatchStore
from shellback.exec.watching.watcher import Watcher
from tests.execs import places, unstarted_engine

DOCUMENT = Path(__file__).parents[3] / "docs" / "agents.md"


def tools_of(tmp_path: Path) -> list[ToolDefinition]:
    """All tools, as a model sees them."""
    engine = unstarted_engine(*places(tmp_path))
    watcher = Watcher(engine, MemoryWatchStore())
    tools = ExecTools(engine, enabled=True, shell=True, blocks=True, watcher=watcher).toolset()
    model = TestModel(call_tools=[])
    asyncio.run(Agent(model, toolsets=[tools], output_type=[str, DeferredToolRequests]).run("look"))
    assert model.last_model_request_parameters is not None
    return model.last_model_request_parameters.function_tools


def test_calls_have_the_defaults_that_the_specifications_name(tmp_path: Path) -> None:
    named = {
        ("shell_execute", "timeout_seconds"): 30.0,
        ("shell_execute", "capture_output"): True,
        ("run_shell", "timeout_ms"): 60_000,
        ("execute", "background"): False,
    }
    seen = {
        (tool.name, name): about.get("default")
        for tool in tools_of(tmp_path)
        for name, about in tool.parameters_json_schema["properties"].items()
    }
    assert named.items() <= seen.items()


def test_the_document_lists_every_tool_with_its_parameters(tmp_path: Path) -> None:
    seen: dict[str, tuple[list[str], str]] = {}
    required: set[str] = set()
    for tool in tools_of(tmp_path):
        properties = tool.parameters_json_schema["properties"]
        required |= set(tool.parameters_json_schema.get("required", []))
        shown = [
            name if (default := about.get("default")) is None else f"{name}={str(default).lower()}"
            for name, about in properties.items()
        ]
        seen[tool.name] = (shown, "yes" if tool_named(tool.name).asks else "no")
    names = "|".join(tool.name for tool in tools().values())
    rows = re.findall(rf"^\| `({names})` \|(.*)\| (yes|no) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: (re.findall(r"`([^`]+)`", parameters), asking) for name, parameters, asking in rows} == seen
    ours = {"code", "path", "pattern", "content", "old_string", "new_string"}
    assert (
        required
        == {"command", "session_id", "session_ids", "data", "signal", "rows", "cols", "action", "op", "pinned"} | ours
    )


def test_the_document_says_which_tool_is_for_what() -> None:
    table = DOCUMENT.read_text().partition("| to | the agent uses |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    assert all(purpose and tools for purpose, tools in rows)
    named = {name for _, tools in rows for name in re.findall(r"`(\w+)`", tools)}
    named_in_the_text = {"shell", "process_pin"}
    without_counterpart = {"run_js", "run_curl"}
    arguments_and_programs = {"background", "yield_after", "python3", "node", "curl"}
    assert (
        named
        == {tool.name for tool in tools().values()} - named_in_the_text | without_counterpart | arguments_and_programs
    )
