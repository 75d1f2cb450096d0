"""Texts for the end of a session, and for losses of protection during it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence

from shellback.exec.core.display import visible_line
from shellback.exec.core.model import Evidence, Loss, SessionEnd, SessionId, SessionState


def how_it_ended(end: SessionEnd) -> str:
    """The end in words, with the kernel's status if it is known."""
    match end.state:
        case SessionState.EXITED:
            return f"exit code {end.exit_code}"
        case SessionState.SIGNALED:
            return f"ended by signal {signal_name(end.signal)}" + _by(end)
        case SessionState.TIMED_OUT:
            # A command that was stopped may end with any status; the status is still a fact.
            status = f"exit code {end.exit_code}" if end.exit_code is not None else f"signal {signal_name(end.signal)}"
            return f"timed out and stopped ({status})"
        case SessionState.START_FAILED:
            changed = end.errno == errno.ESTALE
            why = "what would run changed since it was approved" if changed else os.strerror(end.errno or 0)
            return f"could not be started: {why} (errno {end.errno}); nothing ran"
        case _ if end.evidence is Evidence.NEVER_STARTED:
            return "lost: it was never started; nothing ran"
        case _:
            return f"lost, its exit status is not known: {_evidence(end)}"


def lost_text(session_id: SessionId, end: SessionEnd) -> str:
    """What is known of a lost session, in a sentence for whoever gets an error instead of a result."""
    if end.evidence is Evidence.NEVER_STARTED:
        return f"session {session_id} was never started; nothing ran"
    return (
        f"how session {session_id} ended is not known ({_evidence(end)}); it may have done all, part or nothing of its "
        "work: look at what it was to change before you run it again"
    )


def signal_name(number: int | None) -> str:
    """`SIGTERM` for 15; the number of a signal without a name."""
    if number is None:
        return "unknown"
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _by(end: SessionEnd) -> str:
    if end.ended_by == "protection":
        return " (a protected file was replaced outside, and could not be protected again)"
    if end.ended_by == "lease":
        return " (its machine had lost touch with the database for too long)"
    return f" (by {end.ended_by.value})" if end.ended_by != "itself" else ""


def _evidence(end: SessionEnd) -> str:
    said = {
        "supervisor_killed": "what watched over it was killed",
        "machine_rebooted": "the machine was rebooted",
        "container_restarted": "the container was restarted",
        "host_unreachable": "its host, which has its output, does not answer",
        "record_unreadable": "its exit record cannot be read",
    }
    return said.get(end.evidence or "", "no evidence")


def losses_text(losses: Sequence[Loss]) -> list[str]:
    """Sentences about protected files that were unprotected for a time; [] if there were none."""
    told: list[str] = []
    for path in dict.fromkeys(loss.path for loss in losses):
        of_it = [loss for loss in losses if loss.path == path]
        keys = ", ".join(dict.fromkeys(key for loss in of_it for key in loss.keys))
        times = f"{len(of_it)} times, " if len(of_it) > 1 else ""
        longest = max(loss.ms for loss in of_it)
        told.append(
            f"{visible_line(path)} was replaced outside while this ran, and not protected for {times}"
            + f"up to {longest:.0f} ms"
            + (f"; settings in it that can run programs changed: {keys}" if keys else "")
            + "; a person has to look at it before it is used"
        )
    return told
