"""All uses of private names of Pydantic AI; any release may change them.

tests/architecture/test_private_names.py says what each is used for, and what to do when it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai._utils import abandon_threads_on_cancel
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability
from pydantic_ai.capabilities.combined import bind_capabilities_tier
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.durable_exec.dbos import DBOSDurability
    from pydantic_ai.messages import ModelResponse

__all__ = (
    "abandon_threads_on_cancel",
    "durability",
    "get_current_run_context",
    "interrupted_in",
    "replace_capabilities",
    "take_outputs",
)


def durability(tell: EventStreamHandler[Any], **options: Any) -> DBOSDurability[Any]:
    """DBOS durability that attaches the workspace of a run at its first use, and tells events without steps.

    By default each run begins with a step for its workspace, and each event of a tool call is told in a step: a replay
    does not tell it again. `tell` may be called again. A response is streamed inside its step only, not once more by
    the run. It also says that its hook before a request edits no tool.
    """
    from pydantic_ai.durable_exec.dbos import DBOSDurability  # imports DBOS

    class Durability(DBOSDurability[Any]):
        @property
        def _has_prepare_model_request(self) -> bool:
            # Its hook edits no definition of a tool. If no other capability has such a hook, the definitions are not
            # copied for each request, schemas included.
            return False

        @property
        def has_wrap_run_event_stream(self) -> bool:
            # Only requests ask for this: calls of tools pass the hook anyway.
            return False

        async def _model_request_operation(self, params: Any) -> ModelResponse:
            return await self._model_request_stream_operation(params)

        def _companion_capabilities(self) -> list[AbstractCapability[Any]]:
            return []

        def _prepare_event_dispatch(self, ctx: RunContext[Any], event: AgentStreamEvent) -> None:
            pass

        async def _dispatch_event_stream_event(self, ctx: RunContext[Any], event: AgentStreamEvent) -> None:
            await tell(ctx, self._single_event_stream(event))

    return Durability(event_stream_handler=tell, **options)


def interrupted_in(error: Exception) -> list[ModelResponse]:
    """What the model had said when `error` ended its response; empty if it had said nothing."""
    from pydantic_ai.durable_exec._utils import streamed_before_failing

    response = streamed_before_failing(error)
    return [] if response is None else [replace(response, state="interrupted")]


def take_outputs(agent: Agent[Any, Any], donor: Agent[Any, Any]) -> None:
    """Give `agent` the outputs of `donor`, with the same number of retries."""
    state, given = vars(agent), vars(donor)
    if given["_output_toolset"] is not None and state["_output_toolset"] is not None:
        given["_output_toolset"].max_retries = state["_output_toolset"].max_retries
    state.update({name: given[name] for name in ("_output_type", "_output_schema", "_output_toolset")})


def replace_capabilities(agent: Agent[Any, Any], capabilities: Sequence[AbstractCapability[Any]]) -> None:
    """Repeat what the constructor of an agent does with capabilities, with these."""
    state = vars(agent)
    root = CombinedCapability(capabilities)
    state["_cap_toolsets"] = []
    state["_root_capability"] = root = bind_capabilities_tier(root, agent, innermost=False)
    toolset = root.get_toolset()
    state["_cap_toolsets"] = [] if toolset is None else [toolset]
    state["_root_capability"] = root = bind_capabilities_tier(root, agent, innermost=True)
    state["_cap_instructions"] = root._collect_instructions()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    state["_cap_native_tools"] = list(root.get_native_tools())
    state["_cap_model_settings"] = root.get_model_settings()
