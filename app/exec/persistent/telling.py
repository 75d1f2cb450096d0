"""Texts about a command in a shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shellback.exec.core import limits
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.model import EndedBy, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.log.output import EMPTY, OutputLog, Slice
from shellback.exec.log.plain_text import continuation_bytes, masked, whole_characters
from shellback.exec.persistent.marks import without

BUSY: Final = (
    "a command runs in shell {0}, so this one was not run: read what it prints, answer or interrupt it with write "
    "(C-c is the character \\u0003), or kill the shell"
)
INTERRUPTED: Final = 130
_SETTLED_S: Final = 0.02
_PROMPT_S: Final = 0.5


async def executed(
    engine: Engine, session: Session, recorded: Mapping[str, Any], command: str, *, raw: bool, shown: Slice | None
) -> Executed:
    """The result from the record of the call, with the command's output: `shown`, or from the log."""
    log = engine.output(session)
    how, start, end = recorded["how"], int(recorded["start"]), int(recorded["end"])
    shown_slice = shown or await log.ends(start, end)
    whole = ""
    if raw:
        text = await piece(log, start, end, raw=True)
        tail = "" if how != "ended" else (await prompt(engine, session, int(recorded["upto"])))[0]
        whole = f"{command}\r\n".replace("\r\n", "\n").replace("\n", "\r\n") + text + tail
    return Executed(
        session=session,
        output=shown_slice.text,
        raw=whole,
        exit_code=recorded["status"],
        cwd=recorded["cwd"],
        timed_out=how == "timeout",
        alive=how != "gone" and session.end is None,
        waiting=how == "waiting",
        note=_note(session, how, recorded),
        slice=shown_slice,
        duration_ms=recorded["took_ms"],
    )


async def prompt(engine: Engine, session: Session, at: int) -> tuple[str, int]:
    """The output after `at` until the shell rests, and the offset of its end; a prompt comes in one piece, or soon."""
    log = engine.output(session)
    follower = Follower(engine, session)
    size = at
    for _ in range(round(_PROMPT_S / _SETTLED_S)):
        grown = await follower.grown(size, rest_s=_SETTLED_S, timeout_s=_SETTLED_S * 2)
        if (grown.size <= size and without(log.piece(at, 4096))) or grown.ended:
            break
        size = grown.size
    return await piece(log, at, size, raw=True), size


async def piece(log: OutputLog, start: int, end: int, *, raw: bool) -> str:
    """A range of the log as text, its middle left out where it is long; `raw` keeps control sequences but ours."""
    if not raw:
        return (await log.ends(start, end)).text
    if end - start <= limits.RESULT_CHARS:
        return masked(without((await log.shown(start, end))[0]).decode("utf-8", "replace"))
    half = limits.RESULT_CHARS // 2
    (head, _), (tail, _) = await log.shown(start, start + half), await log.shown(end - half, end)
    head, tail = head[: whole_characters(head)], tail[continuation_bytes(tail) :]
    left = f"\r\n[{end - start - 2 * half:,} bytes left out here; process_log has them from byte "
    return (
        masked(without(head).decode("utf-8", "replace"))
        + f"{left}{start + half}]\r\n"
        + masked(without(tail).decode("utf-8", "replace"))
    )


def how_ended(session: Session, idle_s: float) -> str:
    """How a shell ended, for a call that needed it."""
    assert session.end is not None
    if session.end.ended_by is EndedBy.LIFETIME:
        span = f"{idle_s / 60:g} minutes" if idle_s >= 60 else f"{idle_s:g} s"
        return f"it expired, after {span} without a call and without output; start another"
    return f"{how_it_ended(session.end)}; start another"


def note_of_read(session: Session, idle_s: float, *, running: bool) -> str:
    """The note beside the output that was read."""
    if session.end is not None:
        return f"the shell has ended: {how_ended(session, idle_s)}"
    return "a command still runs" if running else ""


def _note(session: Session, how: str, recorded: Mapping[str, Any]) -> str:
    notes: list[str] = []
    if recorded["left"]:
        notes.append(
            f"the command left the shell in {recorded['left']}, which is outside of the workspace: it was put "
            f"back to {recorded['cwd']}"
        )
    match how:
        case "timeout":
            notes.append(
                "the command still runs: read shows what it prints, write types into it (C-c is the character "
                "\\u0003), kill ends the shell"
            )
        case "waiting":
            notes.append(
                "the command runs and waits for input: answer with write, or interrupt it with the character \\u0003; "
                f"a password is for a person to type, with `shellback attach {session.id}`"
            )
        case "inside":
            notes.append("another shell runs inside and prompts: exec runs commands in it until it exits")
        case "replaced":
            notes.append(
                "by exec another shell is in the place of the one that ran the command: what that one had beside its "
                "environment and directory (variables, functions, options) is gone"
            )
        case "interrupted" if recorded["status"] != INTERRUPTED:
            notes.append(
                "the shell left the command before its end, for an error of its own: exit_code is what its prompt tells"
            )
        case "gone":
            notes.append(f"the shell has ended: {how_it_ended(session.end)}" if session.end else "the shell has ended")
        case _:
            pass
    return "; ".join(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A new shell and its first output: the prompt."""

    session: Session
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The result of a command in a shell.

    `output` is plain text, head and tail if it is long; `slice` says which part of the output that is. `raw` is what a
    terminal showed: command, output with control sequences, prompt. `exit_code` None is unknown: the command runs, or
    an inner shell has the terminal, or a signal ended the shell. With `timed_out` and `waiting` (for input) it still
    runs. `note` has further facts and the next step.
    """

    session: Session
    output: str
    raw: str = ""
    exit_code: int | None = None
    cwd: str = ""
    timed_out: bool = False
    alive: bool = True
    waiting: bool = False
    note: str = ""
    slice: Slice = field(default=EMPTY)
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Output since the last read. `running`: a command that no call waits for still runs.

    `exit_code` is that of such a command, if it has ended since.
    """

    session: Session
    output: str
    alive: bool
    running: bool = False
    exit_code: int | None = None
    note: str = ""
    slice: Slice = field(default=EMPTY)
