"""Hooks of MkDocs: pages that are generated from the code, and a check that the site loads nothing from elsewhere.

https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition

import shellback
from shellback.cli.events import KINDS
from shellback.exec.policy.rules.named import OWN
from shellback.exec.tools.registry import tool_named
from shellback.settings import Settings
from shellback.work.approvals.audit import Entry
from shellback.work.queue.items import ItemType, Priority, WorkItem
from shellback.work.queue.stream import Event

ROOT: Final = Path(__file__).parents[2]
LANGUAGES: Final = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".example": "ini"}
_OF_WORKSPACES: Final = "A [workspace](../sandbox.md#settings-of-its-own) may have its own."
_OUTSIDE: Final = re.compile(r"\]\(\.\./([\w./-]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each file of the repository that a page links to."""
    linked = {name for one in files.documentation_pages() for name in _OUTSIDE.findall(one.content_string)}
    pages = {
        "reference/tools.md": "\n".join(_tools()),
        "reference/command-line.md": "\n".join(_command_line()),
        "reference/settings.md": "\n".join(_settings()),
        "reference/events.md": "\n".join(_events()),
        "reference/python.md": "\n".join(_python()),
    }
    pages |= {_page(name): "\n".join(_source(name)) for name in linked}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to files of the repository to the pages that show them."""
    return markdown if page.file.generated_by else _OUTSIDE.sub(lambda found: f"]({_page(found[1])})", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a page that loads a script, a style, a font or a picture from another place.

    Raises:
        PluginError: A page does; names it and the address.
    """
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        reader = _Loads()
        reader.feed(path.read_text(encoding="utf-8"))
        if reader.found:
            raise PluginError(
                f"{path.relative_to(config.site_dir)} loads {reader.found[0]}: put the file into docs/site"
            )


class _Loads(HTMLParser):
    """Collects addresses on other hosts that a browser loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = given.get("src") or (given.get("href") if tag == "link" and given.get("rel") != "canonical" else None)
        if loads and re.match(r"(https?:)?//", loads):
            self.found.append(loads)


def _page(name: str) -> str:
    """The page that shows a file or a directory of the repository."""
    return f"repository/{name.strip('/.').replace('.', '_')}.md"


def _source(name: str) -> Iterator[str]:
    path = ROOT / name
    yield f"# {name}\n"
    for one in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        if path.is_dir():
            yield f"\n## {one.relative_to(path)}\n"
        yield f"````{LANGUAGES.get(one.suffix, 'text')}\n{one.read_text(encoding='utf-8')}````"


APPROVAL: Final = {
    "pass": "No approval.",
    "ask": "A person approves each call.",
    "judge": "Policy decides: a command that only reads may run at once; a person approves the others.",
}


def _tools() -> Iterator[str]:
    yield "# Tools\n\nWhat the model is given. [Agents](../agents.md) says how the tools behave.\n"
    for tool in asyncio.run(_definitions()):
        yield f"\n## {tool.name}\n\n{tool.description}\n\n{APPROVAL[tool_named(tool.name).approval]}\n"
        schema = tool.parameters_json_schema
        if schema["properties"]:
            yield "| parameter | type | default | description |\n|---|---|---|---|"
        for name, about in schema["properties"].items():
            default = "required" if name in schema.get("required", ()) else f"`{json.dumps(about.get('default'))}`"
            yield f"| `{name}` | {_type(about)} | {default} | {_cell(about.get('description', ''))} |"


def _type(about: dict[str, Any]) -> str:
    """A schema in a word or two."""
    if "anyOf" in about:
        return " or ".join(_type(one) for one in about["anyOf"] if one.get("type") != "null")
    if "enum" in about:
        return ", ".join(f"`{one}`" for one in about["enum"])
    return f"array of {_type(about['items'])}" if "items" in about else str(about.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


async def _definitions() -> list[ToolDefinition]:
    from shellback.exec.watching.memory import MemoryWatchStore
    from shellback.exec.watching.watcher import Watcher

    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as workspace:
        engine = shellback.Engine(
            shellback.MemorySessionStore(),
            shellback.SupervisorClient(Path(home)),
            shellback.HostBackend(Path(workspace)),
            home=Path(home),
        )
        watcher = Watcher(engine, MemoryWatchStore())
        tools = shellback.ExecTools(engine, enabled=True, shell=True, blocks=True, watcher=watcher).toolset()
        model = TestModel(call_tools=[])
        await Agent(model, toolsets=[tools], output_type=[str, DeferredToolRequests]).run("")
        assert model.last_model_request_parameters is not None
        return model.last_model_request_parameters.function_tools


def _command_line() -> Iterator[str]:
    yield "# Command line\n\n[Exit codes](../operations.md#exit-codes) are the same for all commands.\n"
    yield "::: mkdocs-click"
    yield from (f"    :{option}" for option in ("module: shellback.cli.main", "command: cli", "prog_name: shellback"))
    yield from ("    :depth: 1", "    :style: table")


def _settings() -> Iterator[str]:
    """`.env.example` has the text of each setting; the code has what it takes."""
    yield "# Settings\n\nEnvironment variables, or lines of `.env`. `shellback config` shows the values in force.\n"
    text: list[str] = []
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"# --- (.*?) -+$", line):
            yield f"\n## {found[1].capitalize()}\n"
            text = []
        elif found := re.match(r"#([A-Z_]+)=(.*)$", line):
            field = Settings.model_fields.get(found[1].lower())
            if text or field:
                yield f"\n### {found[1]}\n\n{' '.join(text)}\n"
            takes = f"Takes {field.description}. " if field else ""
            own = _OF_WORKSPACES if found[1].lower() in OWN else ""
            yield f"Default: {f'`{found[2]}`' if found[2] else 'empty'}. {takes}{own}\n"
            text = []
        elif line.startswith("# "):
            text.append(line.removeprefix("# "))
        elif not line:
            text = []


def _events() -> Iterator[str]:
    yield "# Events and JSON schemas\n"
    yield "What `--json` prints, one object a line, and what a work item on the queue holds.\n"
    yield "\n## Kinds of events\n\n" + ", ".join(f"`{kind}`" for kind in KINDS) + ".\n"
    yield "\n## Types and priorities of work items\n\n" + ", ".join(f"`{one}`" for one in ItemType) + ".\n"
    yield "\n".join(["| priority | number |", "|---|---|", *(f"| {one.name} | {one.value} |" for one in Priority)])
    for title, kind in (
        ("`shellback events --json`", Event),
        ("`shellback audit --json`", Entry),
        ("Work item", WorkItem),
    ):
        schema = TypeAdapter(kind).json_schema(mode="serialization")
        yield f"\n## {title}\n\n```json\n{json.dumps(schema, indent=2)}\n```"


def _python() -> Iterator[str]:
    yield "# Python API\n\nThe names of `shellback`. [The library](../library.md) has an example of each.\n"
    for name in shellback.__all__:
        one = getattr(shellback, name)
        yield f"\n::: {one.__module__}.{one.__qualname__}\n    options:\n      heading_level: 2"
