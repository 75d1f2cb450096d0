"""The process tools: list, poll, log, write, keys, kill. Their docstrings are prompt text."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from app.exec import limits
from app.exec.identity import origin_of
from app.exec.keys import key_bytes
from app.exec.model import Session
from app.exec.output import Slice
from app.exec.policy import metadata_of
from app.exec.render import facts, inside, killed_text, measured
from app.exec.sessions import Listed, check_input
from app.exec.tool_calls import ToolCalls, answering


def process_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tools for sessions that exist, without gate and approval."""
    tools = FunctionToolset[Any](id="process_manager", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=metadata_of("process_list"))
    async def process_list(ctx: RunContext[Any]) -> ToolReturn[list[dict[str, Any]]]:
        """List the processes started in this conversation, oldest first: all that run, and the last 100 that ended."""
        with answering():
            listed = await calls.sessions(ctx).list()
        live = sum(entry.session.live for entry in listed)
        return ToolReturn([_row(entry) for entry in listed], metadata={"total": len(listed), "live": live})

    @tools.tool(metadata=metadata_of("process_poll"))
    async def process_poll(ctx: RunContext[Any], session_id: str) -> ToolReturn[dict[str, Any]]:  # noqa: D417 - the context is no parameter of the tool
        """Read the state of a process and what it printed since the last poll.

        Args:
            session_id: The session to look at.
        """
        with answering():
            session, new = await calls.sessions(ctx).poll(session_id, origin_of(ctx))
        known = facts(session)
        value = {key: known[key] for key in ("state", "exit_code", "signal")}
        value |= {"output": new.text, "next_offset": new.end} | _where_cut(new) | _where_odd(session)
        return ToolReturn(value, metadata={**known, **measured(new), "next_offset": new.end})

    @tools.tool(metadata=metadata_of("process_log"))
    async def process_log(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        session_id: str,
        offset: int = 0,
        limit: int = limits.LOG_PAGE_LINES,
        byte_offset: int | None = None,
        byte_limit: int = limits.RESULT_CHARS,
    ) -> ToolReturn[str]:
        """Read the output of a process, running or ended, by lines or by bytes.

        Args:
            session_id: The session whose output to read.
            offset: First line, counted from 0; negative counts from the end, -20 is the last 20 lines.
            limit: How many lines.
            byte_offset: Read by bytes from this offset instead of by lines.
            byte_limit: How many bytes, at most 30000; used with byte_offset.
        """
        with answering():
            sessions = calls.sessions(ctx)
            if byte_offset is None:
                session, shown = await sessions.log_lines(session_id, offset, limit)
            else:
                session, shown = await sessions.log_bytes(session_id, byte_offset, byte_limit)
        return ToolReturn(
            shown.text,
            metadata={
                "session_id": session.id,
                "log_path": session.log_path,
                "total": shown.lines_total,
                "dropped_lines": shown.dropped_lines,
                "dropped_bytes": shown.bytes_dropped,
                "byte_offset": shown.start,
                "next_offset": shown.end,
                **measured(shown),
            },
        )

    @tools.tool(metadata=metadata_of("process_write"))
    async def process_write(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        session_id: str,
        data: str,
        eof: bool = False,
    ) -> ToolReturn[str]:
        """Write text to a process that has a terminal or an open standard input. A line needs its line end.

        Args:
            session_id: The session to write to.
            data: The text, at most 64 KiB.
            eof: Close standard input afterwards; in a terminal, send end of file.
        """
        args = {"session_id": session_id, "data": data, "eof": eof}
        return await _write(ctx, "process_write", args, data.encode("utf-8", "replace"), eof=eof)

    @tools.tool(metadata=metadata_of("process_send_keys"))
    async def process_send_keys(ctx: RunContext[Any], session_id: str, keys: list[str]) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Press keys in a process that has a terminal.

        Args:
            session_id: The session with the terminal.
            keys: In order: Enter, Tab, Escape, Space, Backspace, C-c, C-d, Up, Down, Left, Right; other text is typed.
        """
        with answering():
            pressed = key_bytes(keys)
            check_input(await calls.sessions(ctx).get(session_id), terminal=True)
        return await _write(ctx, "process_send_keys", {"session_id": session_id, "keys": keys}, pressed, eof=False)

    @tools.tool(metadata=metadata_of("process_kill"))
    async def process_kill(ctx: RunContext[Any], session_id: str) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """End a process and everything it started: SIGTERM, two seconds later SIGKILL.

        Args:
            session_id: The session to end.
        """
        with answering():
            origin = origin_of(ctx)
            await calls.granted(ctx, "process_kill", {"session_id": session_id}, origin)
            session, survivors = await calls.sessions(ctx).kill(session_id, origin)
        return ToolReturn(killed_text(session, survivors), metadata={**facts(session), "survivors": list(survivors)})

    async def _write(
        ctx: RunContext[Any], tool: str, args: dict[str, Any], data: bytes, *, eof: bool
    ) -> ToolReturn[str]:
        session_id: str = args["session_id"]
        with answering():
            origin = origin_of(ctx)
            await calls.granted(ctx, tool, args, origin)
            written = await calls.sessions(ctx).write(session_id, data, origin, tool=tool, eof=eof)
        closed = " and closed its input" if eof else ""
        return ToolReturn(
            f"[wrote {written} bytes to session {session_id}{closed}]",
            metadata={"session_id": session_id, "bytes_written": written},
        )

    return tools


def _row(entry: Listed) -> dict[str, Any]:
    session = entry.session
    known = facts(session)
    return {
        "session_id": session.id,
        "command": session.command,
        "state": session.state.value,
        "exit_code": known["exit_code"],
        "signal": known["signal"],
        "pty": session.pty,
        "cwd": session.cwd,
        "backend": session.backend,
        "profile": session.profile,
        "started_at": session.started_at,
        "uptime_seconds": round(entry.uptime_s, 1),
        "idle_seconds": round(entry.idle_s, 1),
        "lifetime": session.lifetime,
        **{name: path for name, path in inside(session).items() if name == "inner_cwd"},
    }


def _where_cut(shown: Slice) -> dict[str, Any]:
    if not shown.cut and not shown.bytes_dropped:
        return {}
    return {"truncated": shown.cut, "bytes_total": shown.bytes_total, "bytes_dropped": shown.bytes_dropped}


def _where_odd(session: Session) -> dict[str, Any]:
    known = facts(session)
    return {key: known[key] for key in ("errno", "evidence", "survivors") if known[key]}
