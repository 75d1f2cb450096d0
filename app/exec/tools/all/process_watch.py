"""`process_wait`, `process_pin`, `process_watch`: news of processes without polling. Docstrings are prompt text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from shellback.exec.core import limits
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import InvalidCommand, SessionNotFound
from shellback.exec.core.model import CallOrigin, Session, SessionId
from shellback.exec.core.threads import cancelled
from shellback.exec.core.watch import APART_S, LIFE, STRIKES, Watch
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import Waiting, takes_input, until_waiting, waiting
from shellback.exec.log.output import EMPTY, Slice
from shellback.exec.reports.blocks import label_of
from shellback.exec.reports.render import facts, measured, polled
from shellback.exec.tools.tool import ExecTool, Invocation, Result

LONGEST_S: Final = 60.0
ANSWER_S: Final = 5.0
"""Seconds of a turn that are left for the agent's answer."""

Until = Literal["any", "all"]


@ExecTool(category="process")
async def process_wait(
    call: Invocation,
    session_ids: list[str],
    until: Until = "any",
    timeout: float = 30.0,
) -> Result[dict[str, Any]]:
    """Wait until processes end, and read their state and what they printed since the last poll.

    Use it only if you have nothing else to do meanwhile: you are told of every end anyway. It returns early when
    one of them waits for input. An end it tells is not told again.

    Args:
        session_ids: The sessions, 1 to 64.
        until: any: until one has ended, at once if one already has; all: until all have.
        timeout: Seconds to wait at most, 0 to 60.
    """
    sessions = call.sessions
    asked = await _asked(sessions, session_ids, timeout)
    up_to = min(timeout, _left_s(call.ctx.deps) - ANSWER_S)
    found = await _awaited(call.engine, asked, until, up_to)
    told = await _told(call.engine, sessions, asked, call.origin, found)
    rows = [
        {"session_id": session.id, **polled(session, new, err, waits), **({"note": note} if note else {})}
        for session, new, err, waits, note in told
    ]
    known = [{**facts(session), **measured(new, err), "next_offset": new.end} for session, new, err, *_ in told]
    return Result({"why": _why(told, until), "sessions": rows}, {"sessions": known})


@ExecTool(category="process", part="blocks")
async def process_pin(call: Invocation, session_id: str, pinned: bool) -> Result[dict[str, Any]]:
    """Choose whether you go on being shown what a process prints and how it ends.

    What a background process has printed since you last read of it is put before you by itself, from its
    start until some minutes after its end. Unpin one that distracts you; process_poll and process_log
    read it all the same, and its end is told.

    Args:
        session_id: The process.
        pinned: true to be shown it, until you unpin it; false to be shown it no more.
    """
    session = await call.sessions.pin(session_id, pinned, call.origin)
    known = {"session_id": session.id, "label": label_of(session.id), "pinned": pinned}
    return Result(known, known)


@ExecTool(category="process", part="watches")
async def process_watch(
    call: Invocation,
    session_id: str,
    pattern: str | None = None,
    idle: float | None = None,
    after: float | None = None,
    waiting: bool = False,
    off: bool = False,
) -> Result[dict[str, Any]]:
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
    watcher, session = call.calls.watcher, await call.session()
    assert watcher is not None
    if off:
        if any(value not in {None, False} for value in wish.values()):
            raise InvalidCommand("off=true ends the watches of the session; give no condition with it")
        await watcher.off(session.id, call.origin)
        return Result({"watch_id": None, "does": f"no watch of session {session.id} is on any more"})
    watch = await watcher.place(session, call.origin, pattern=pattern, idle=idle, after=after, waiting=waiting)
    return Result(
        {"watch_id": watch.id, "does": _does(watch, session)},
        {"session_id": session.id, "watch_id": watch.id, "kind": watch.kind},
    )


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


class _Told(NamedTuple):
    """One session and its new output; `note` is why its output is missing."""

    session: Session
    new: Slice
    err: Slice | None = None
    waits: Waiting | None = None
    note: str = ""


async def _asked(sessions: Sessions, session_ids: Sequence[str], timeout_s: float) -> list[Session]:
    """The sessions that a call names; InvalidCommand if one is unknown, or their number or the time out of range."""
    wanted = list(dict.fromkeys(session_ids))
    if not wanted:
        raise InvalidCommand("session_ids is empty; name the sessions to wait for, process_list shows them")
    if len(wanted) > limits.SESSIONS_PER_CONVERSATION:
        raise InvalidCommand(
            f"session_ids names {len(wanted)} sessions; wait for at most "
            f"{limits.SESSIONS_PER_CONVERSATION} at once, the others with another call"
        )
    if not 0 <= timeout_s <= LONGEST_S:
        raise InvalidCommand(f"timeout is {timeout_s:g} s; it must be 0 to {LONGEST_S:g} s, call again to wait longer")
    found: list[Session] = []
    unknown: list[str] = []
    for session_id in wanted:
        try:
            found.append(await sessions.get(session_id))
        except SessionNotFound:
            unknown.append(session_id)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise InvalidCommand(f"no session {names} in this conversation; process_list shows the ones there are")
    return found


def _left_s(deps: object) -> float:
    left: Any = getattr(deps, "left", None)
    return LONGEST_S + ANSWER_S if left is None else left()


async def _awaited(engine: Engine, asked: Sequence[Session], until: Until, up_to: float) -> dict[SessionId, Waiting]:
    """Wait at most `up_to` seconds for ends; returns the sessions that wait for input."""
    live = [session for session in asked if session.live]
    if up_to <= 0 or not live or (until == "any" and len(live) < len(asked)):
        return {}
    ends = [asyncio.ensure_future(engine.wait(session.id, up_to=up_to)) for session in live]
    inputs = {one.id: asyncio.ensure_future(until_waiting(engine, one)) for one in live if takes_input(one)}
    pending: set[asyncio.Future[Any]] = {*ends, *inputs.values()}
    try:
        while not all(task.done() for task in ends):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            waits = {name: task.result() for name, task in inputs.items() if task.done()}
            if found := {name: wait for name, wait in waits.items() if wait is not None}:
                return found
            over = [task.result() for task in ends if task.done()]
            # A session that has not ended: the time is up, or the turn is to end.
            if over and (until == "any" or any(session.end is None for session in over)):
                break
    finally:
        await cancelled(pending)
    return {}


async def _told(
    engine: Engine, sessions: Sessions, asked: Sequence[Session], origin: CallOrigin, found: dict[SessionId, Waiting]
) -> list[_Told]:
    """Each session and its output since the last poll; the sessions share the room of one result."""
    room = _shares([_unread(engine, session) for session in asked])
    told: list[_Told] = []
    for ordinal, (before, most) in enumerate(zip(asked, room, strict=True), start=1):
        try:
            session, new, err = await sessions.poll(before.id, replace(origin, ordinal=ordinal), most=most)
            told.append(_Told(session, new, err))
        except InvalidCommand as error:
            told.append(_Told(await sessions.get(before.id), EMPTY, note=str(error)))
    now = await asyncio.gather(*(waiting(engine, one.session) for one in told))
    waits = [wait or found.get(one.session.id) for one, wait in zip(told, now, strict=True)]
    return [one._replace(waits=wait if one.session.live else None) for one, wait in zip(told, waits, strict=True)]


def _unread(engine: Engine, session: Session) -> int:
    out, err = engine.streams(session)
    second = 0 if err is None else err.size() - session.poll_err_offset
    return out.size() - session.poll_offset + second


def _shares(wanted: Sequence[int]) -> list[int]:
    """How many characters each may have: equal parts, after those that want less."""
    shares = [0] * len(wanted)
    left = limits.RESULT_CHARS
    for rank, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        shares[index] = left // (len(wanted) - rank)
        left -= min(max(0, wanted[index]), shares[index])
    return shares


def _why(told: Sequence[_Told], until: Until) -> str:
    ended = sum(one.session.end is not None for one in told)
    if ended == len(told):
        return "all have ended"
    if ended and until == "any":
        return "one has ended" if ended == 1 else f"{ended} have ended"
    if any(one.waits is not None for one in told):
        return "one waits for input"
    return "none has ended yet" if not ended else f"{ended} of {len(told)} have ended"
