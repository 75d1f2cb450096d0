"""Tools for existing sessions: list, poll, log, write, kill, keys, resize, screen."""

from __future__ import annotations

from typing import Any

from shellback.exec.core import limits
from shellback.exec.core.model import Session, WindowSize
from shellback.exec.engine.sessions import Listed, check_input
from shellback.exec.engine.waiting import waiting
from shellback.exec.log.output import OutputLog, Slice
from shellback.exec.reports.render import err_measured, err_path, facts, inside, killed_text, measured, polled
from shellback.exec.terminals.keys import Typing
from shellback.exec.terminals.screen import screen_text
from shellback.exec.tools.shell_calls import size_in_range
from shellback.exec.tools.tool import Args, ExecTool, Invocation, Result


def _data(args: Args) -> bytes:
    return str(args["data"]).encode("utf-8", "replace")


def _keys(args: Args) -> bytes:
    """The bytes for a terminal in its default modes."""
    return Typing(**{name: value for name, value in args.items() if name != "session_id"}).sent()


@ExecTool(category="process")
async def process_list(call: Invocation) -> Result[list[dict[str, Any]]]:
    """List the processes started in this conversation, oldest first: all that run, and the last 100 that ended."""
    listed = await call.sessions.list()
    live = sum(entry.session.live for entry in listed)
    return Result([_row(entry) for entry in listed], {"total": len(listed), "live": live})


@ExecTool(category="process")
async def process_poll(call: Invocation, session_id: str) -> Result[dict[str, Any]]:
    """Read the state of a process and what it printed since the last poll, and whether it waits for input.

    Args:
        session_id: The session to look at.
    """
    session, new, err = await call.sessions.poll(session_id, call.origin)
    value = polled(session, new, err, await waiting(call.engine, session))
    return Result(value, {**facts(session), **measured(new, err), "next_offset": new.end})


@ExecTool(category="process")
async def process_log(
    call: Invocation,
    session_id: str,
    offset: int = 0,
    limit: int = limits.LOG_PAGE_LINES,
    byte_offset: int | None = None,
    byte_limit: int = limits.RESULT_CHARS,
    stderr: bool = False,
) -> Result[str]:
    """Read the output of a process, running or ended, by lines or by bytes.

    Args:
        session_id: The session whose output to read.
        offset: First line, counted from 0; negative counts from the end, -20 is the last 20 lines.
        limit: How many lines.
        byte_offset: Read by bytes from this offset instead of by lines.
        byte_limit: How many bytes, at most 30000; used with byte_offset.
        stderr: Read standard error, where that is kept apart, as of run_shell and shell.
    """
    sessions = call.sessions
    if byte_offset is None:
        session, shown = await sessions.log_lines(session_id, offset, limit, err=stderr)
    else:
        session, shown = await sessions.log_bytes(session_id, byte_offset, byte_limit, err=stderr)
    return Result(
        shown.text,
        {
            "session_id": session.id,
            "log_path": session.log_path,
            "total": shown.lines_total,
            "dropped_lines": shown.dropped_lines,
            "dropped_bytes": shown.bytes_dropped,
            "byte_offset": shown.start,
            **_read(session, shown, call.engine.streams(session), err=stderr),
        },
    )


@ExecTool(category="process", approval="judge", types=True, input=True, terminal=False, typed=_data)
async def process_write(call: Invocation, session_id: str, data: str, eof: bool = False) -> Result[str]:
    """Write text to a process that has a terminal or an open standard input. A line needs its line end.

    Args:
        session_id: The session to write to.
        data: The text, at most 64 KiB.
        eof: Close standard input afterwards; in a terminal, send end of file.
    """
    return await _write(call, data.encode("utf-8", "replace"), eof=eof)


@ExecTool(category="process", approval="ask")
async def process_kill(call: Invocation, session_id: str) -> Result[str]:
    """End a process and everything it started: SIGTERM, two seconds later SIGKILL.

    Args:
        session_id: The session to end.
    """
    await call.calls.granted(call)
    session, survivors = await call.sessions.kill(session_id, call.origin)
    return Result(killed_text(session, survivors), {**facts(session), "survivors": list(survivors)})


@ExecTool(category="process", approval="judge", types=True, input=True, check=lambda _, args: _keys(args), typed=_keys)
async def process_send_keys(
    call: Invocation,
    session_id: str,
    keys: list[str] | None = None,
    literal: str | None = None,
    hex: str | None = None,
    paste: str | None = None,
) -> Result[str]:
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
    typing = Typing(keys=keys, literal=literal, hex=hex, paste=paste)
    pressed = typing.sent()
    session = await call.session()
    check_input(session, terminal=True)
    if session.live and typing.depends_on_modes:
        pressed = typing.sent(await call.calls.screens.modes(session))
    return await _write(call, pressed)


@ExecTool(category="process", approval="judge", input=True, check=size_in_range)
async def process_resize(call: Invocation, session_id: str, rows: int, cols: int) -> Result[str]:
    """Change the size of a process's terminal; a full-screen program draws itself anew.

    Args:
        session_id: The session with the terminal.
        rows: Rows, 2 to 500.
        cols: Columns, 2 to 1000.
    """
    await call.calls.granted(call)
    size = WindowSize(rows, cols)
    session = await call.sessions.resize(session_id, size, call.origin)
    call.calls.screens.resized(session, size)
    return Result(f"[the terminal of session {session_id} has {rows} rows and {cols} columns]", call.args)


@ExecTool(category="process")
async def process_screen(call: Invocation, session_id: str) -> Result[str]:
    """See what a person would see now on the terminal of a process: its rows as plain text, and the cursor.

    For full-screen programs, menus and editors; what was printed line by line is read with process_poll. It
    waits a moment, so that a key that was just pressed has had its effect. Of an ended process it is what was left.
    The last line is about the screen.

    Args:
        session_id: The session with the terminal.
    """
    session = await call.sessions.get(session_id)
    screen = await call.calls.screens.at_rest(session)
    return Result(
        screen_text(screen, session),
        {
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
    """How much was read of one stream, and the size of the other."""
    out, second = streams
    if err:
        return {"err_log_path": err_path(session), **err_measured(shown), "out_bytes_total": out.size()}
    read = {"next_offset": shown.end, **measured(shown)}
    return read if second is None else {**read, "err_log_path": err_path(session), "err_bytes_total": second.size()}


async def _write(call: Invocation, data: bytes, *, eof: bool = False) -> Result[str]:
    session_id: str = call.args["session_id"]
    await call.calls.granted(call)
    written = await call.sessions.write(session_id, data, call.origin, tool=call.tool.name, eof=eof)
    closed = " and closed its input" if eof else ""
    return Result(
        f"[wrote {written} bytes to session {session_id}{closed}]",
        {"session_id": session_id, "bytes_written": written},
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
