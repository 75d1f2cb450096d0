"""Renders a session and its output: facts for programs, text for the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.end_text import how_it_ended, losses_text
from shellback.exec.core.model import TURN, Session, SessionState
from shellback.exec.engine.waiting import Outcome, Waiting, advice
from shellback.exec.engine.waiting import shown as shown_waiting
from shellback.exec.log.output import Slice
from shellback.exec.wire.gaps import why
from shellback.exec.wire.sandbox import CONTAINED

_TOLD: Final = {
    "always": "a callback tells its end",
    "failure": "a callback tells its end if it fails",
    "never": "you are not told of its end",
}


def _told(session: Session) -> str:
    ends = ", it is stopped at the end of your turn" if session.lifetime == TURN else ""
    return f"{_TOLD[session.on_exit]}{ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFacts:
    """The facts with which each call ends that starts a command and waits for it; more may be added."""

    session_id: str
    state: str
    exit_code: int | None
    signal: int | None
    errno: int | None
    evidence: str | None
    ended_by: str | None
    duration_seconds: float | None
    log_path: str
    survivors: list[int]
    bytes_total: int
    bytes_shown: int
    bytes_dropped: int
    handed_over: bool


def facts(session: Session) -> dict[str, object]:
    """A session as JSON, with the same keys in every state. Paths are this machine's."""
    end = session.end
    return {
        "session_id": session.id,
        "state": session.state.value,
        "exit_code": end.exit_code if end else None,
        "signal": end.signal if end else None,
        "errno": end.errno if end else None,
        "evidence": end.evidence.value if end and end.evidence else None,
        "ended_by": end.ended_by.value if end else None,
        "duration_seconds": round(end.duration_s, 3) if end else None,
        "log_path": session.log_path,
        **({"err_log_path": err_path(session)} if session.separate_stderr else {}),
        "survivors": list(end.survivors) if end else [],
        **inside(session),
    }


def err_path(session: Session) -> str:
    """The path of a session's separate stderr."""
    return f"{session.log_path.removesuffix('.log')}.err"


def inside(session: Session) -> dict[str, object]:
    """Inner paths of directory and logs, for a session in a container; else {}."""
    kind = KINDS.get(session.backend)
    if kind is None or not kind.contained:
        return {}
    paths = {"inner_cwd": session.cwd, "inner_log_path": session.log_path}
    if session.separate_stderr:
        paths["inner_err_log_path"] = err_path(session)
    return {
        name: os.path.normpath(f"{CONTAINED}/{os.path.relpath(path, session.workspace)}")
        for name, path in paths.items()
        if PurePath(path).is_relative_to(session.workspace)
    }


def measured(shown: Slice, err: Slice | None = None) -> dict[str, object]:
    """How much of the output a text has, as JSON; `read` is its byte range, None if the middle was cut out.

    The same for a separate stderr, as `err_*`.
    """
    return {**_counts(shown), "read": None if shown.cut else [shown.start, shown.end], **err_measured(err)}


def err_measured(err: Slice | None) -> dict[str, object]:
    """The counts of a separate stderr, as `err_*`; {} without one."""
    if err is None:
        return {}
    return {f"err_{name}": value for name, value in (*_counts(err).items(), ("next_offset", err.end))}


def _counts(shown: Slice) -> dict[str, object]:
    return {
        "bytes_total": shown.bytes_total,
        "bytes_shown": shown.bytes_shown,
        "bytes_dropped": shown.bytes_dropped,
        **secrets_in(shown),
        **unwritten(shown),
    }


def secrets_in(*streams: Slice | None) -> dict[str, object]:
    """How many secrets were found in texts; {} if none."""
    count = sum(one.secrets for one in streams if one is not None)
    return {"secrets": count} if count else {}


def unwritten(*streams: Slice) -> dict[str, object]:
    """Why output could not be written, and whether more was dropped than counted; mostly {}."""
    found: dict[str, object] = {}
    if number := max(one.errno for one in streams):
        found["dropped_because"] = why(number)
    return found | ({"uncounted": True} if any(one.uncounted for one in streams) else {})


def dropped_words(least: object, because: object) -> tuple[str, str]:
    """The words before a count of dropped bytes (if more was dropped than counted) and after it (the cause)."""
    return "at least " if least else "", f" because {because}" if because else ""


def polled(session: Session, new: Slice, err: Slice | None = None, waits: Waiting | None = None) -> dict[str, Any]:
    """The state of a session and its `new` output, for a model; with a separate `stderr`."""
    known = facts(session)
    value: dict[str, Any] = {key: known[key] for key in ("state", "exit_code", "signal")}
    value |= {"output": new.text, "next_offset": new.end}
    if new.partial:
        value |= {"truncated": new.cut, "bytes_total": new.bytes_total, "bytes_dropped": new.bytes_dropped}
        value |= unwritten(new)
    value |= secrets_in(new, err)
    if err is not None:
        value["stderr"] = err.text
        if err.partial:
            value |= {"stderr_bytes_total": err.bytes_total, "stderr_bytes_dropped": err.bytes_dropped}
            value |= {f"stderr_{name}": said for name, said in unwritten(err).items()}
            value["truncated"] = new.cut or err.cut
    value |= {key: known[key] for key in ("errno", "evidence", "survivors") if known[key]}
    if session.end and session.end.findings:
        value["findings"] = list(session.end.findings)
    if lost := losses_text(session.end.losses) if session.end else []:
        value["protection_lost"] = lost
    return value if waits is None else {**value, "waiting_for_input": shown_waiting(waits, session)}


def outcome_text(outcome: Outcome) -> str:
    """The result of `execute` for the model: the output, then one line with the state."""
    session = outcome.session
    parts = [outcome.output.text]
    if outcome.err is not None and outcome.err.text:
        parts += ["[stderr:]", outcome.err.text]
    body = "".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part)
    closing = _running(session, outcome) if session.live else ended_line(session, outcome.output, outcome.err)
    for said in (*outcome.findings, outcome.warning):
        closing = f"[{said}]\n{closing}" if said else closing
    return f"{body}{closing}"


def ended_line(session: Session, shown: Slice | None = None, err: Slice | None = None) -> str:
    """The end of a session in one bracketed line."""
    end = session.end
    words = [how_it_ended(end)] if end else [session.state.value]
    if end and end.state not in {SessionState.START_FAILED, SessionState.LOST}:
        words.append(f"{end.duration_s:.1f} s")
    words.append(f"session {session.id}")
    if end and end.survivors:
        pids = ", ".join(str(pid) for pid in end.survivors)
        words.append(f"processes it started are still there: {pids}")
    for name, part in (("", shown), (" of stderr", err)):
        if part is not None and part.partial:
            least, because = dropped_words(part.uncounted, why(part.errno) if part.errno else "")
            shown_of = f"{part.bytes_shown:,} of {least}{part.bytes_total:,} bytes{name} shown"
            words.append(f"{shown_of}, {least}{part.bytes_dropped:,} dropped for good{because}")
    if count := secrets_in(shown, err).get("secrets"):
        words.append(f"{count} secrets in the output")
    told = losses_text(end.losses if end else ())
    return "".join(f"[{line}]\n" for line in told) + f"[{', '.join(words)}]"


def killed_text(session: Session, survivors: Sequence[int]) -> str:
    """The result of `process_kill`: the end, and whether the whole tree is gone."""
    if session.end is None:
        return f"[session {session.id} was told to end and has not yet; process_poll shows when it has]"
    left = f"could not be ended: {', '.join(map(str, survivors))}" if survivors else "its whole process tree is gone"
    return f"[{how_it_ended(session.end)}, session {session.id}; {left}]"


def _running(session: Session, outcome: Outcome) -> str:
    handed_over = outcome.handed_over
    if outcome.waiting is not None:
        return (
            f"[it waits for input, so it was moved to the background, session {session.id}: "
            f"{advice(outcome.waiting, session)}; its timeout still counts, {_told(session)}]"
        )
    if handed_over and not session.background:
        return (
            f"[still running and moved to the background, session {session.id}; {_told(session)}, "
            "process_poll and process_log read its output]"
        )
    if handed_over:
        return (
            f"[started in the background, session {session.id}, log {session.log_path}; "
            f"{_told(session)}, process_poll and process_log read its output]"
        )
    return f"[{session.state.value}, session {session.id}]"
