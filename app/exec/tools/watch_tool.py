"""`process_watch`: being told of a process before it ends. Its docstring is prompt text."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import origin_of
from shellback.exec.core.model import Session
from shellback.exec.core.watch import APART_S, LIFE, STRIKES, Watch
from shellback.exec.policy.policy import metadata_of
from shellback.exec.tools.tool_calls import ToolCalls, answering
from shellback.exec.watching.watcher import Watcher


def watch_tools(calls: ToolCalls, watcher: Watcher) -> FunctionToolset[Any]:
    """The tool that watches, without gate and approval."""
    tools = FunctionToolset[Any](id="process_watch", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=metadata_of("process_watch"))
    async def process_watch(  # noqa: D417 - a tool's signature is its contract
        ctx: RunContext[Any],
        session_id: str,
        pattern: str | None = None,
        idle: float | None = None,
        after: float | None = None,
        waiting: bool = False,
        off: bool = False,
    ) -> ToolReturn[dict[str, Any]]:
        """Be woken by a process that runs: when it prints a line, falls silent, waits for input, or after a time.

        Use it instead of polling: end your turn, you are told when it happens ("a server prints listening"). Give
        exactly one of pattern, idle, after, waiting; or off=true. What it printed since your last poll counts, so what
        is there already is told at once. Matches within 15 seconds are told together; after 3 wakes without a call
        about the process, or 8 in all, the watch goes off. The end of a process is told without a watch.

        Args:
            session_id: The session to watch.
            pattern: A regular expression (RE2, case-sensitive, (?i) ignores case), at most 1000 characters; fires on
                lines that have a match.
            idle: Seconds without output, 1 to 3600; fires once for each silence.
            after: Fires once, so many seconds from now, 1 to 86400.
            waiting: Fires when the process waits for input.
            off: End all watches of this session.
        """
        wish = {"pattern": pattern, "idle": idle, "after": after, "waiting": waiting}
        with answering():
            session = await calls.sessions(ctx).get(session_id)
            if off:
                if any(value not in {None, False} for value in wish.values()):
                    raise InvalidCommand("off=true ends the watches of the session; give no condition with it")
                await watcher.off(session.id, origin_of(ctx))
                return ToolReturn({"watch_id": None, "does": f"no watch of session {session.id} is on any more"})
            origin = origin_of(ctx)
            watch = await watcher.place(session, origin, pattern=pattern, idle=idle, after=after, waiting=waiting)
        return ToolReturn(
            {"watch_id": watch.id, "does": _does(watch, session)},
            metadata={"session_id": session.id, "watch_id": watch.id, "kind": watch.kind},
        )

    return tools


def _does(watch: Watch, session: Session) -> str:
    if session.end is not None:
        return f"the session has ended ({how_it_ended(session.end)}): it fires at once, for the last time"
    often = (
        f"at most every {APART_S:g} s and {LIFE} times, {STRIKES} without a call about the session; "
        "off at the end of the session, which is told"
    )
    match watch.kind:
        case "pattern":
            apart = " (not of standard error, which is kept apart)" if session.separate_stderr else ""
            return f"fires on lines that match, from byte {watch.offset} of the output on{apart}, {often}"
        case "idle":
            return f"fires after {watch.seconds:g} s without output, once for each silence, {often}"
        case "after":
            return f"fires once, {watch.seconds:g} s from now, if the session runs then"
        case "input":
            return f"fires when the process waits for input, {often}"
