"""Private names of Pydantic AI and DBOS: each is used in one module, and a release without it fails here by name."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import AsyncIterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import dbos
import pytest
import sqlalchemy as sa
from dbos import WorkflowStatusString
from dbos._queue import queue_worker_thread
from dbos._sys_db import SystemDatabase
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability, LocalWorkspace
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

from shellback.exec.core import pydantic_private
from shellback.storage import schema
from shellback.work.queue import dead_letters

APP: Final = Path(__file__).resolve().parents[2] / "app"
PYDANTIC_AI: Final = "exec/core/pydantic_private.py"
DBOS: Final = "work/queue/dbos_private.py"
PACKAGES: Final = ("dbos", "pydantic_ai")

OUTPUTS: Final = (
    "take_outputs, which adds DeferredToolRequests to an agent of the operator's. Look how Agent.__init__ keeps what"
    " its output_type comes to, and take that over"
)
CAPABILITIES: Final = (
    "replace_capabilities, which gives an agent of the operator's our capabilities. Look what Agent.__init__ does with"
    " capabilities, and do that; if it can be asked to add one, ask"
)
RUNNING: Final = (
    "authority.py: a tool of another agent that an approved call runs has no part in the approval. Find what the"
    " running code can ask for its run; without it `approved` has to answer False"
)
SLOTS: Final = (
    "count_turns, which rings the bell of a queue when a slot becomes free. Find where DBOS counts the running"
    " workflows of a queue; without it a free slot waits for the next look, LOOK_S"
)
TAKEN: Final = (
    "take_items, which ends the wait of a queue's thread at a ring. Find the thread that polls a queue and what it"
    " waits for; without it every item waits for the poll, so shorten POLL_S"
)
POLLS: Final = (
    "without_polls, which launches DBOS without threads that poll for what we do not use. Find what it launches now;"
    " without it a worker at rest runs six statements a second"
)
WAITS: Final = (
    "with_short_waits, which bounds how long DBOS waits before it asks a database again that was away. Find what it"
    " sleeps by; without it turns go on up to 90 s after an outage"
)
THREADS: Final = (
    "hearing.py: a call past its time ends although its thread runs on. Look what FunctionToolset does around a call"
    " that has a timeout, and do that"
)
HALVES: Final = (
    "interrupted_in, which adds what a model had said when its response failed to the history. Find where the step of a"
    " request keeps it; without it the history lacks what people have read"
)


@dataclass(frozen=True, slots=True)
class Private:
    """A name in a module, and what is lost without it."""

    module: str
    name: str
    used_for: str

    @property
    def by(self) -> str:
        """Our module that uses it."""
        return DBOS if self.module.startswith("dbos.") else PYDANTIC_AI


NAMES: Final = (
    Private("pydantic_ai._run_context", "get_current_run_context", RUNNING),
    Private("pydantic_ai._utils", "abandon_threads_on_cancel", THREADS),
    Private("pydantic_ai.durable_exec._utils", "streamed_before_failing", HALVES),
    Private("pydantic_ai.capabilities.combined", "bind_capabilities_tier", CAPABILITIES),
    Private("dbos._core", "ActiveWorkflowById", SLOTS),
    Private("dbos._core", "ActiveWorkflowEntry", SLOTS),
    Private("dbos._queue", "queue_thread", POLLS),
    Private("dbos._queue", "queue_worker_thread", TAKEN),
    Private("dbos._scheduler", "dynamic_scheduler_loop", POLLS),
    Private("dbos._sys_db", "db_retry", WAITS),
    Private("dbos._workflow_commands", "background_jobs_thread", POLLS),
)
STATE: Final = {
    **dict.fromkeys(("_output_type", "_output_schema", "_output_toolset"), OUTPUTS),
    **dict.fromkeys(
        ("_root_capability", "_cap_toolsets", "_cap_instructions", "_cap_native_tools", "_cap_model_settings"),
        CAPABILITIES,
    ),
}
INSTRUCTIONS: Final = "_collect_instructions"
COLUMNS: Final = ("workflow_uuid", "status", "queue_name")
STATUSES: Final = (*dead_letters.GIVEN_UP, "ENQUEUED", "DELAYED")


def gone(what: str, package: str, module: str, used_for: str) -> str:
    return f"{package} {version(package)} has no {what} any more. app/{module} needs it for {used_for}"


@pytest.mark.parametrize("private", NAMES, ids=lambda private: private.name)
def test_a_private_function_that_is_used_is_where_it_was(private: Private) -> None:
    package = "dbos" if private.by == DBOS else "pydantic-ai-slim"
    said = gone(f"{private.module}.{private.name}", package, private.by, private.used_for)
    try:
        module = importlib.import_module(private.module)
    except ImportError:
        pytest.fail(said)
    assert callable(getattr(module, private.name, None)), said


@pytest.mark.parametrize("name", STATE)
def test_an_agent_keeps_its_state_under_the_names_that_are_replaced(name: str) -> None:
    assert name in vars(Agent("test")), gone(f"Agent.{name}", "pydantic-ai-slim", PYDANTIC_AI, STATE[name])


def test_capabilities_collect_their_instructions_as_the_constructor_of_an_agent_asks_them_to() -> None:
    said = gone(f"CombinedCapability.{INSTRUCTIONS}", "pydantic-ai-slim", PYDANTIC_AI, CAPABILITIES)
    assert hasattr(CombinedCapability, INSTRUCTIONS), said


def test_the_workspace_of_a_durable_run_is_attached_by_a_companion_that_can_be_left_out() -> None:
    used_for = "durability, which spares a turn the step that attaches a workspace it may never use"
    said = gone("DBOSDurability._companion_capabilities", "pydantic-ai-slim", PYDANTIC_AI, used_for)
    plain = Agent("test", name="plain", capabilities=[LocalWorkspace("."), DBOSDurability()])
    assert "WorkspaceEnsurer" in kinds(plain), said
    ours = Agent("test", name="ours", capabilities=[LocalWorkspace("."), pydantic_private.durability(unheard)])
    assert "WorkspaceEnsurer" not in kinds(ours), said


@pytest.mark.parametrize("name", ["_prepare_event_dispatch", "_dispatch_event_stream_event", "_single_event_stream"])
def test_events_of_a_durable_run_are_told_by_a_method_that_can_be_replaced(name: str) -> None:
    used_for = "durability, which tells an event without the two transactions of a step"
    assert hasattr(DBOSDurability, name), gone(f"DBOSDurability.{name}", "pydantic-ai-slim", PYDANTIC_AI, used_for)


@pytest.mark.parametrize("name", ["_model_request_operation", "_model_request_stream_operation"])
def test_the_step_of_a_request_is_a_method_that_can_be_replaced(name: str) -> None:
    used_for = "durability, which streams a response inside its step only, and not once more by the run"
    assert hasattr(DBOSDurability, name), gone(f"DBOSDurability.{name}", "pydantic-ai-slim", PYDANTIC_AI, used_for)


def test_a_durable_run_copies_the_definitions_of_tools_only_for_a_hook_that_may_edit_them() -> None:
    name, used_for = "_has_prepare_model_request", "durability, which spares a turn a copy of each tool and its schema"

    class Editing(AbstractCapability[Any]):
        async def prepare_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            return request_context

    said = gone(f"AbstractCapability.{name}", "pydantic-ai-slim", PYDANTIC_AI, used_for)
    for more, copies in ([], False), ([Editing()], True):
        agent = Agent("test", name=f"copies-{copies}", capabilities=[*more, pydantic_private.durability(unheard)])
        assert getattr(agent.root_capability, name, None) is copies, said


async def unheard(_ctx: RunContext[Any], _events: AsyncIterable[AgentStreamEvent]) -> None:
    """No event handler."""


def kinds(agent: Agent[Any, Any]) -> set[str]:
    found = set[str]()

    def look(capability: AbstractCapability[Any]) -> None:
        found.add(type(capability).__name__)

    agent.root_capability.apply(look)
    return found


def test_the_lookup_of_a_recorded_step_is_a_method_that_can_be_replaced() -> None:
    used_for = "without_lookups, which spares the first execution of a turn a transaction before each step"
    said = gone("DBOS._sys_db or SystemDatabase.check_operation_execution", "dbos", DBOS, used_for)
    assert isinstance(vars(dbos.DBOS).get("_sys_db"), property), said
    named = list(inspect.signature(SystemDatabase.check_operation_execution).parameters)
    assert named[:3] == ["self", "workflow_id", "function_id"], said


def test_the_question_for_the_newest_version_is_a_method_that_can_be_replaced() -> None:
    used_for = "with_own_versions, without which items of a host wait while another host's worker of another version"
    said = gone("SystemDatabase._is_latest_version", "dbos", DBOS, f"{used_for} started last")
    assert callable(vars(SystemDatabase).get("_is_latest_version")), said
    assert "self._is_latest_version(" in inspect.getsource(SystemDatabase.start_queued_workflows), said


def test_the_bound_of_a_queue_is_read_anew_for_each_poll() -> None:
    used_for = "with_own_slots, without which a worker has as many turns as another one of its host may have"
    said = gone("SystemDatabase.get_queue or Queue._worker_concurrency", "dbos", DBOS, used_for)
    assert callable(vars(SystemDatabase).get("get_queue")), said
    assert "dbos._sys_db.get_queue(queue.name)" in inspect.getsource(queue_worker_thread), said
    assert "queue._worker_concurrency" in inspect.getsource(SystemDatabase.start_queued_workflows), said


def test_the_table_of_dbos_that_is_read_has_its_columns_and_statuses(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    schema.migrate(url)
    engine = sa.create_engine(url)
    used_for = "what DBOS has given up and what waits on queues of unknown hosts. DBOSClient.list_workflows knows both"
    inspector = sa.inspect(engine)
    assert inspector.has_table("workflow_status"), gone("table workflow_status", "dbos", DBOS, used_for)
    have = {column["name"] for column in inspector.get_columns("workflow_status")}
    engine.dispose()
    for name in COLUMNS:
        assert name in have, gone(f"column workflow_status.{name}", "dbos", DBOS, used_for)
    for status in STATUSES:
        assert status in WorkflowStatusString.__members__, gone(f"status {status}", "dbos", DBOS, used_for)


def private_uses(tree: ast.AST) -> set[str]:
    """Private modules and names that a module imports from either package, and private state that it names."""
    state = {name for name in vars(Agent("test")) if name.startswith("_")} | {INSTRUCTIONS}
    found: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and node.value in state:
            found.add(str(node.value))
        elif isinstance(node, ast.Attribute) and node.attr in {*STATE, INSTRUCTIONS}:
            found.add(node.attr)
        for name in names:
            package, *parts = name.split(".")
            private = any(part.startswith("_") and not part.endswith("__") for part in parts)
            if package in PACKAGES and (private or parts[-1:] == ["bind_capabilities_tier"]):
                found.add(name)
    return found


def test_private_names_are_used_in_one_module_for_each_package() -> None:
    found = {
        str(path.relative_to(APP)): uses
        for path in sorted(APP.rglob("*.py"))
        if (uses := private_uses(ast.parse(path.read_text(encoding="utf-8"))))
    }
    named = {
        module: {f"{one.module}.{one.name}" for one in NAMES if one.by == module} for module in (PYDANTIC_AI, DBOS)
    }
    assert found == named | {PYDANTIC_AI: named[PYDANTIC_AI] | {*STATE, INSTRUCTIONS}}
    assert [str(p.relative_to(APP)) for p in APP.rglob("*.py") if "workflow_status" in p.read_text()] == [DBOS]


@pytest.mark.parametrize(
    "line",
    [
        "from dbos._sys_db import SystemDatabase",
        "from pydantic_ai import _utils",
        "import pydantic_ai._run_context",
        "vars(agent)['_model'] = None",
        "root._collect_instructions()",
    ],
)
def test_a_private_name_anywhere_else_is_found(line: str) -> None:
    assert private_uses(ast.parse(line))
