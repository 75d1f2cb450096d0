"""The process tools: list, poll, log, write, keys, resize, screen, kill. Their docstrings are prompt text."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from shellback.exec.core import limits
from shellback.exec.core.identity import origin_of
from shellback.exec.core.model import Session, WindowSize
from shellback.exec.engine.sessions import Listed, check_input
from shellback.exec.engine.waiting import shown, waiting
from shellback.exec.log.output import OutputLog, Slice
from shellback.exec.policy.tools import (
    PROCESS_KILL,
    PROCESS_LIST,
    PROCESS_LOG,
    PROCESS_POLL,
    PROCESS_RESIZE,
    PROCESS_SCREEN,
    PROCESS_SEND_KEYS,
    PROCESS_WRITE,
)
from shellback.exec.reports.render import err_measured, err_path, facts, inside, killed_text, measured, polled
from shellback.exec.terminals.keys import Typing
from shellback.exec.terminals.screen import screen_text
from shellback.exec.tools.tool_calls import ToolCalls, answering


def process_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tools for sessions that exist, without gate and approval."""
    tools = FunctionToolset[Any](id="process_manager", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=PROCESS_LIST.metadata)
    async def process_list(ctx: RunContext[Any]) -> ToolReturn[list[dict[str, Any]]]:
        """List the processes started in this conversation, oldest first: all that run, and the last 100 that ended."""
        with answering():
            listed = await calls.sessions(ctx).list()
        live = sum(entry.session.live for entry in listed)
        return ToolReturn([_row(entry) for entry in listed], metadata={"total": len(listed), "live": live})

    @tools.tool(metadata=PROCESS_POLL.metadata)
    async def process_poll(ctx: RunContext[Any], session_id: str) -> ToolReturn[dict[str, Any]]:  # noqa: D417 - the context is no parameter of the tool
        """Read the state of a process and what it printed since the last poll, and whether it waits for input.

        Args:
            session_id: The session to look at.
        """
        with answering():
            session, new, err = await calls.sessions(ctx).poll(session_id, origin_of(ctx))
            waits = await waiting(calls.engine, session)
        value = polled(session, new, err)
        if waits is not None:
            value["waiting_for_input"] = shown(waits, session)
        return ToolReturn(value, metadata={**facts(session), **measured(new, err), "next_offset": new.end})

    @tools.tool(metadata=PROCESS_LOG.metadata)
    async def process_log(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        session_id: str,
        offset: int = 0,
        limit: int = limits.LOG_PAGE_LINES,
        byte_offset: int | None = None,
        byte_limit: int = limits.RESULT_CHARS,
        stderr: bool = False,
    ) -> ToolReturn[str]:
        """Read the output of a process, running or ended, by lines or by bytes.

        Args:
            session_id: The session whose output to read.
            offset: First line, counted from 0; negative counts from the end, -20 is the last 20 lines.
            limit: How many lines.
            byte_offset: Read by bytes from this offset instead of by lines.
            byte_limit: How many bytes, at most 30000; used with byte_offset.
            stderr: Read standard error, where that is kept apart, as of run_shell and shell.
        """
        with answering():
            sessions = calls.sessions(ctx)
            if byte_offset is None:
                session, shown = await sessions.log_lines(session_id, offset, limit, err=stderr)
            else:
                session, shown = await sessions.log_bytes(session_id, byte_offset, byte_limit, err=stderr)
        return ToolReturn(
            shown.text,
            metadata={
                "session_id": session.id,
                "log_path": session.log_path,
                "total": shown.lines_total,
                "dropped_lines": shown.dropped_lines,
                "dropped_bytes": shown.bytes_dropped,
                "byte_offset": shown.start,
                **_read(session, shown, calls.engine.streams(session), err=stderr),
            },
        )

    @tools.tool(metadata=PROCESS_WRITE.metadata)
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
        return await _write(calls, ctx, "process_write", args, data.encode("utf-8", "replace"), eof=eof)

    @tools.tool(metadata=PROCESS_KILL.metadata)
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

    _add_terminal_tools(tools, calls)
    return tools


def _add_terminal_tools(tools: FunctionToolset[Any], calls: ToolCalls) -> None:
    @tools.tool(metadata=PROCESS_SEND_KEYS.metadata)
    async def process_send_keys(  # noqa: D417 - a tool's signature is its contract
        ctx: RunContext[Any],
        session_id: str,
        keys: list[str] | None = None,
        literal: str | None = None,
        hex: str | None = None,
        paste: str | None = None,
    ) -> ToolReturn[str]:
        """Type into a process that has a terminal: text, then keys by name. Look at the effect with process_screen.

        What is given is sent in the order literal, paste, hex, keys. To run a line: literal="ls -l", keys=["Enter"].
        A program reads Escape and a key sent together as Alt with that key: send Escape in a call of its own.

        Args:
            session_id: The session with the terminal.
            keys: Key names as in tmux: Enter, Tab, S-Tab, Escape, Space, BSpace, Up, Down, Left, Right, Home, End,
                PageUp, PageDown, Insert, Delete, F1 to F12; with Ctrl, Alt, Shift: C-c, M-x, S-Up, C-M-x. A single
                character is that key. An unknown name is refused.
            literal: Text, typed exactly as it stands.
            hex: Bytes in hexadecimal, as in "1b 5b 41".
            paste: Text of one or more lines, marked as pasted where the program knows pastes: lines are not run or
                indented one by one.
        """
        args = {"session_id": session_id, "keys": keys, "literal": literal, "hex": hex, "paste": paste}
        typing = Typing(keys=keys, literal=literal, hex=hex, paste=paste)
        with answering():
            pressed = typing.sent()
            session = await calls.sessions(ctx).get(session_id)
            check_input(session, terminal=True)
            if session.live and typing.depends_on_modes:
                pressed = typing.sent(await calls.screens.modes(session))
        return await _write(calls, ctx, "process_send_keys", args, pressed)

    @tools.tool(metadata=PROCESS_RESIZE.metadata)
    async def process_resize(ctx: RunContext[Any], session_id: str, rows: int, cols: int) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Change the size of a process's terminal; a full-screen program draws itself anew.

        Args:
            session_id: The session with the terminal.
            rows: Rows, 2 to 500.
            cols: Columns, 2 to 1000.
        """
        args = {"session_id": session_id, "rows": rows, "cols": cols}
        with answering():
            origin = origin_of(ctx)
            await calls.granted(ctx, "process_resize", args, origin)
            session = await calls.sessions(ctx).resize(session_id, WindowSize(rows, cols), origin)
            calls.screens.resized(session, WindowSize(rows, cols))
        return ToolReturn(f"[the terminal of session {session_id} has {rows} rows and {cols} columns]", metadata=args)

    @tools.tool(metadata=PROCESS_SCREEN.metadata)
    async def process_screen(ctx: RunContext[Any], session_id: str) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """See what a person would see now on the terminal of a process: its rows as plain text, and the cursor.

        For full-screen programs, menus and editors; what was printed line by line is read with process_poll. It
        waits a moment, so that a key that was just pressed has had its effect. Of an ended process it is what was left.
        The last line is about the screen.

        Args:
            session_id: The session with the terminal.
        """
        with answering():
            session = await calls.sessions(ctx).get(session_id)
            screen = await calls.screens.at_rest(session)
        return ToolReturn(
            screen_text(screen, session),
            metadata={
                "session_id": session.id,
                "rows": screen.rows,
                "cols": screen.cols,
                "cursor": list(screen.cursor),
                "title": screen.title,
                "modes": sorted(screen.modes),
                "partial": screen.partial,
                "log_path": session.log_path,
            },
        )


def _read(session: Session, shown: Slice, streams: tuple[OutputLog, OutputLog | None], *, err: bool) -> dict[str, Any]:
    """How much of which stream was read; what is kept of the other one is named too."""
    out, second = streams
    if err:
        return {"err_log_path": err_path(session), **err_measured(shown), "out_bytes_total": out.size()}
    read = {"next_offset": shown.end, **measured(shown)}
    return read if second is None else {**read, "err_log_path": err_path(session), "err_bytes_total": second.size()}


async def _write(
    calls: ToolCalls, ctx: RunContext[Any], tool: str, args: dict[str, Any], data: bytes, *, eof: bool = False
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
