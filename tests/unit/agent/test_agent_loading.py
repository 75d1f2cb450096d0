"""`AGENT`: what it may name, what becomes of it, and what is said when it cannot be used."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from shellback.agent.errors import AgentError, AgentUnavailable, ModelUnavailable
from shellback.agent.loading import extended, has_output_for_approvals, load_agent
from shellback.cli.shared import known_error
from shellback.settings import Settings
from shellback.wiring import agency
from shellback.work.turn.turn import answer_text


@dataclass
class Deps:
    word: str = "theirs"


class Report(BaseModel):
    title: str
    lines: list[int]


class Ours(AbstractCapability[Any]):
    """Brings a tool and instructions, as the exec capability does."""

    def get_toolset(self) -> AbstractToolset[Any]:
        def shout(ctx: RunContext[Any]) -> str:
            return f"{ctx.deps.word}!"

        return FunctionToolset[Any]([shout], id="ours")

    def get_instructions(self) -> str:
        return "Shout."


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of our own, and no module of it left behind."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refused(named: str) -> str:
    with pytest.raises(AgentUnavailable) as caught:
        load_agent(named)
    assert known_error(caught.value) == str(caught.value)
    return str(caught.value)


def joined(agent: Agent[Any, Any], model: Model | None = None) -> Agent[Any, Any]:
    return extended(agent, model or TestModel(), [Ours()], deps_type=Deps)


def test_an_agent_is_found_in_a_module_of_the_current_directory(here: Path) -> None:
    (here / "robots.py").write_text(
        "from pydantic_ai import Agent\nmine = Agent(name='m')\n"
        "def make():\n    return mine\nclass In:\n    agent = mine\n"
    )
    found = load_agent("robots:mine")
    assert found.name == "m"
    assert load_agent("robots:make") is found
    assert load_agent("robots:In.agent") is found


def test_a_module_of_the_current_directory_does_not_stand_in_for_an_installed_one(here: Path) -> None:
    (here / "wave.py").write_text("agent = 1")
    assert "no 'agent'" in refused("wave:agent")


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_an_agent_is_made_from_a_spec(here: Path, ending: str) -> None:
    # JSON is YAML too
    (here / f"robot.{ending}").write_text('{"model": "test", "name": "from-file", "instructions": "Be brief."}')
    found = load_agent(f"robot.{ending}")
    assert found.name == "from-file"
    assert isinstance(found.model, TestModel)


@pytest.mark.parametrize(
    ("text", "named", "words"),
    [
        ("", "robots", ["cannot be read", "MODULE:ATTRIBUTE"]),
        ("", "robots:", ["cannot be read"]),
        ("", "nowhere:agent", ["does not import", "ModuleNotFoundError", "nowhere"]),
        ("", "robots:agent", ["no 'agent' in", "robots.py"]),
        ("", "shellback:agent", ["`shellback` is Shellback itself"]),
        (
            "import nothing_like_it",
            "robots:agent",
            ["ModuleNotFoundError", "robots.py, line 1: import nothing_like_it"],
        ),
        ("x = 1\nboom = 1 / 0", "robots:agent", ["ZeroDivisionError", "robots.py, line 2: boom = 1 / 0"]),
        ("def (", "robots:agent", ["SyntaxError", "robots.py, line 1"]),
        ("import sys\nsys.exit(3)", "robots:agent", ["SystemExit: 3", "line 2"]),
        ("agent = 7", "robots:agent", ["is not a Pydantic AI Agent but builtins.int"]),
        ("def agent(x): ...", "robots:agent", ["without arguments", "TypeError"]),
        ("def agent():\n    raise OSError('no disk')", "robots:agent", ["OSError: no disk", "line 2"]),
        ("async def agent(): ...", "robots:agent", ["is not a Pydantic AI Agent but builtins.coroutine"]),
        ("", "missing.json", ["no agent spec", "FileNotFoundError"]),
        ("", "broken.json", ["no agent spec"]),
        ("", "list.yaml", ["no agent spec", "must parse to an object"]),
        ("", "unknown.json", ["no agent spec", "NoSuchCapability"]),
        (
            "from pydantic_ai import Agent\nfrom pydantic_ai.agent import WrapperAgent\nagent = WrapperAgent(Agent())",
            "robots:agent",
            ["is not a Pydantic AI Agent", "WrapperAgent", "name the agent inside it"],
        ),
        (
            "from pydantic_ai import Agent\nagent = Agent('openai:gpt-5')",
            "robots:agent",
            ["OPENAI_API_KEY", "robots.py, line 2"],
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_cause_and_its_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str, words: list[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (here / "robots.py").write_text(text)
    (here / "broken.json").write_text("{")
    (here / "list.yaml").write_text("- 1")
    (here / "unknown.json").write_text('{"capabilities": ["NoSuchCapability"]}')
    said = refused(named)
    for word in words:
        assert word in said
    assert "Traceback" not in said


def test_a_joined_agent_has_theirs_and_ours_and_the_original_is_as_it_was() -> None:
    theirs = Agent[Any, str]("test", instructions="Be kind.", capabilities=[Hum()])

    @theirs.tool_plain
    def add(x: int) -> int:
        return x + 1

    @theirs.tool
    def word(ctx: RunContext[Any]) -> str:
        return ctx.deps.word

    before = dict(vars(theirs))
    model = TestModel()
    mine = joined(theirs, model)
    assert vars(theirs) == before
    assert (mine.name, theirs.name) == ("shellback", None)
    result = asyncio.run(mine.run("go", deps=Deps()))
    assert result.output == '{"add":1,"word":"theirs","hum":"hm","shout":"theirs!"}'
    parameters = model.last_model_request_parameters
    assert parameters is not None
    said = "\n".join(part.content for part in parameters.instruction_parts or [])
    assert [said.index(text) for text in ("Be kind.", "Hum.", "Shout.")]
    assert parameters.allow_text_output
    assert "shout" not in str(asyncio.run(theirs.run("go", deps=Deps())).output)


class Hum(AbstractCapability[Any]):
    """One of theirs, which binds itself to its agent."""

    def get_toolset(self) -> AbstractToolset[Any]:
        def hum() -> str:
            return "hm"

        return FunctionToolset[Any]([hum], id="hum")

    def get_instructions(self) -> str:
        return "Hum."


def asks(ctx: RunContext[Any], tool: ToolDefinition, args: dict[str, Any]) -> bool:
    return True


@pytest.mark.parametrize(
    "output",
    [
        str,
        Report,
        [str, Report],
        [str, DeferredToolRequests],
        ToolOutput(Report),
        PromptedOutput(Report),
        Literal["a", "b"],
    ],
)
def test_whatever_its_output_a_joined_agent_can_end_in_calls_that_wait(output: Any) -> None:
    theirs: Agent[Any, Any] = Agent("test", name="theirs", output_type=output)

    @theirs.tool_plain(requires_approval=True)
    def risky() -> str:
        return "done"

    mine = joined(theirs, TestModel(call_tools=["risky"]))
    assert has_output_for_approvals(mine)
    assert isinstance(asyncio.run(mine.run("go", deps=Deps())).output, DeferredToolRequests)
    assert mine.name == "theirs"


def test_what_validates_their_output_goes_on_validating() -> None:
    theirs = Agent("test", output_type=Report, retries={"output": 2})

    @theirs.output_validator
    def check(report: Report) -> Report:
        seen.append(report.title)
        if len(seen) < 3:
            raise ModelRetry("again")
        return report

    seen: list[str] = []
    mine = joined(theirs, TestModel(call_tools=[]))
    assert isinstance(asyncio.run(mine.run("go", deps=Deps())).output, Report)
    assert len(seen) == 3


@pytest.mark.parametrize("wanted", [object, type(None), Deps, Any])
def test_tools_that_want_no_dependencies_of_their_own_run(wanted: Any) -> None:
    joined(Agent("test", deps_type=wanted))


@pytest.mark.parametrize("wanted", [int, Report, dict[str, int]])
def test_dependencies_that_a_turn_does_not_have_are_refused(wanted: Any) -> None:
    with pytest.raises(AgentUnavailable, match=r"deps_type.*Omit deps_type"):
        joined(Agent("test", deps_type=wanted))


def test_a_tool_of_theirs_with_the_name_of_one_of_ours_is_refused_at_the_start() -> None:
    theirs = Agent("test")

    @theirs.tool_plain
    def shout() -> str:
        return ""

    with pytest.raises(AgentUnavailable, match="shout"):
        joined(theirs)


def test_a_function_for_a_model_that_cannot_stream_is_refused_with_what_to_give_it() -> None:
    def answers(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("hello")])

    for model in (FunctionModel(answers), WrapperModel(FunctionModel(answers))):
        with pytest.raises(AgentUnavailable, match="stream_function=") as refused:
            extended(Agent(model), model, [], deps_type=Deps)
        assert "worker streams" in str(refused.value)


def test_an_agent_that_is_durable_already_is_refused() -> None:
    with pytest.raises(AgentUnavailable, match=r"DBOSDurability.*Leave it out"):
        joined(Agent("test", name="durable", capabilities=[DBOSDurability()]))


def test_its_own_model_is_used_unless_model_is_set(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "robots.py").write_text(
        "from pydantic_ai import Agent\nwith_one = Agent('test')\nwithout = Agent()\n"
        "late = Agent('openai:x', defer_model_check=True)"
    )
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def model_of(**environ: str) -> str:
        made = agency.agent_with(Settings.load({"HOME": str(here), **environ}), [])
        assert isinstance(made.model, Model)
        return made.model.model_id

    assert model_of() == "function:offline"
    assert model_of(AGENT="robots:with_one") == "test:test"
    assert model_of(AGENT="robots:with_one", MODEL="offline") == "function:offline"
    assert model_of(AGENT="robots:without") == "function:offline"
    assert model_of(AGENT="robots:late", MODEL_BASE_URL="http://127.0.0.1:1/v1") == "openai:x"
    with pytest.raises(ModelUnavailable, match="OPENAI_API_KEY"):
        model_of(AGENT="robots:late")
    with pytest.raises(ModelUnavailable, match=r"MODEL_BASE_URL is set, but the model of AGENT.*Set MODEL too"):
        model_of(AGENT="robots:with_one", MODEL_BASE_URL="http://127.0.0.1:1/v1")
    assert model_of(AGENT="robots:with_one", MODEL="offline", MODEL_BASE_URL="http://h/v1") == "function:offline"
    with pytest.raises(AgentError, match=r"MODEL_BASE_URL does not go with groq"):
        model_of(MODEL="groq:x", MODEL_BASE_URL="http://127.0.0.1:1/v1")


def test_an_answer_with_a_structure_is_json() -> None:
    assert answer_text("plain") == "plain"
    assert answer_text(Report(title="t", lines=[1])) == '{\n  "title": "t",\n  "lines": [\n    1\n  ]\n}'
    assert answer_text([Deps()]) == '[\n  {\n    "word": "theirs"\n  }\n]'
    assert answer_text(None) == "null"
