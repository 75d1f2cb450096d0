"""`process_signal`: a signal by its name, to a process and everything it started. Its docstring is prompt text."""

from __future__ import annotations

import signal as signals
from typing import Literal

from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import InputUnknown, TaskCompleted
from shellback.exec.core.identity import act_of
from shellback.exec.core.model import Session
from shellback.exec.tools.tool import ExecTool, Invocation, Result

_Signal = Literal["INT", "TERM", "HUP", "USR1", "USR2", "STOP", "CONT", "QUIT"]


async def _runs(call: Invocation) -> Session:
    """The session of a call; TaskCompleted if it has ended, except in a replay."""
    session = await call.session()
    if session.end is not None and not await call.made_before():
        raise TaskCompleted(session.id, how_it_ended(session.end))
    return session


@ExecTool(category="process", approval="judge", input=True, ready=_runs)
async def process_signal(call: Invocation, session_id: str, signal: _Signal) -> Result[str]:
    """Send a signal to a process and everything it started, for example HUP to make a server read its configuration.

    What it does is up to the program; most end unless they handle it. STOP suspends and CONT resumes. To end a process
    for certain use process_kill.

    Args:
        session_id: The session to signal.
        signal: The name of the signal.
    """
    await call.calls.granted(call)
    session, store = await call.session(), call.engine.store
    done = await store.begin_call(act_of(call.origin, session.id, call.tool.name, "input"))
    if done is None:
        try:
            await call.engine.supervised.port.signal(session.id, signals.Signals[f"SIG{signal}"])
        except TaskCompleted as error:
            await store.end_call(call.key, {"ended": error.end})
            raise
        done = dict[str, object](signal=signal)
        await store.end_call(call.key, done)
    if "ended" in done:
        raise TaskCompleted(session.id, str(done["ended"]))
    if not done:
        raise InputUnknown(
            f"not known whether the signal was sent to session {session_id}; it is not sent a second time, look at the "
            "state of the session before you send it again"
        )
    return Result(f"[sent SIG{signal} to session {session_id}]", {"session_id": session_id, "signal": signal})
