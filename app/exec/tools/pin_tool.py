"""`process_pin`: which processes a conversation is shown. Its docstring is prompt text."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from shellback.exec.core.identity import origin_of
from shellback.exec.policy.policy import metadata_of
from shellback.exec.reports.blocks import label_of
from shellback.exec.tools.tool_calls import ToolCalls, answering


def pin_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tool for the blocks of processes, without gate and approval."""
    tools = FunctionToolset[Any](id="process_blocks", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=metadata_of("process_pin"))
    async def process_pin(ctx: RunContext[Any], session_id: str, pinned: bool) -> ToolReturn[dict[str, Any]]:  # noqa: D417 - the context is no parameter of the tool
        """Choose whether you go on being shown what a process prints and how it ends.

        What a background process has printed since you last read of it is put before you by itself, from its
        start until some minutes after its end. Unpin one that distracts you; process_poll and process_log
        read it all the same, and its end is told.

        Args:
            session_id: The process.
            pinned: true to be shown it, until you unpin it; false to be shown it no more.
        """
        with answering():
            session = await calls.sessions(ctx).pin(session_id, pinned, origin_of(ctx))
        known = {"session_id": session.id, "label": label_of(session.id), "pinned": pinned}
        return ToolReturn(known, metadata=known)

    return tools
