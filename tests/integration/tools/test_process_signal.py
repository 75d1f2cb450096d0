"""A signal by its name reaches a process once, after a person has approved it, and a repeat of the call sends none."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncGenerator

import pytest
from pydantic_ai.exceptions import ToolFailed
from pydantic_core import ValidationError

from shellback.exec.core.errors import TaskCompleted
from shellback.exec.core.identity import act_of, call_key, origin_of
from shellback.exec.core.model import SessionId
from tests.desks import Desk, context_of, here
from tests.terminals import Typist, typist

pytestmark = pytest.mark.anyio

__all__ = ["here"]

HEARS = """
import os, signal
for name in ("INT", "TERM", "HUP", "USR1", "USR2", "QUIT", "CONT"):
    number = getattr(signal, f"SIG{name}")
    signal.signal(number, lambda *_, name=name: os.write(1, name.encode() + b"\\n"))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.fixture
async def program(here: Desk) -> AsyncGenerator[Typist]:
    """A program that prints the name of each signal it gets, and ends of none but KILL."""
    here.put("hears.py", HEARS)
    hears = await typist(here.engine, "exec python3 hears.py")
    await hears.until("^ready$")
    yield hears
    with contextlib.suppress(TaskCompleted):
        await here.engine.supervised.port.signal(hears.session.id, signal.SIGKILL)
    await hears.ended()


@pytest.mark.usefixtures("each_backend")
async def test_each_signal_reaches_the_process_after_a_person_has_approved_it(here: Desk, program: Typist) -> None:
    assert await here.asks("process_signal", session_id=program.session.id, signal="HUP")
    for name in ("INT", "TERM", "HUP", "USR1", "USR2", "QUIT"):
        shown = await here.seen("process_signal", session_id=program.session.id, signal=name)
        assert shown["signal"] == name
        said = await here.call("process_signal", again=True, approved=True, session_id=program.session.id, signal=name)
        assert said.value == f"[sent SIG{name} to session {program.session.id}]"
        await program.until(f"^{name}$")


async def test_a_process_that_is_stopped_goes_on_when_it_is_continued(here: Desk, program: Typist) -> None:
    for name in ("STOP", "USR1", "CONT"):
        await here.approved("process_signal", session_id=program.session.id, signal=name)
    await program.until(lambda screen: {"USR1", "CONT"} <= set(screen.text.split()))


async def test_a_repeat_of_the_call_sends_no_second_signal(here: Desk, program: Typist) -> None:
    about = {"session_id": program.session.id, "signal": "USR1"}
    first = await here.approved("process_signal", **about)
    await program.until("^USR1$")
    assert await here.call("process_signal", again=True, approved=True, **about) == first
    await here.approved("process_signal", session_id=program.session.id, signal="USR2")
    assert (await program.until("^USR2$")).text.count("USR1") == 1


async def test_a_call_that_was_interrupted_sends_no_second_signal_and_says_so(here: Desk, program: Typist) -> None:
    about = {"session_id": program.session.id, "signal": "USR1"}
    await here.seen("process_signal", **about)
    origin = origin_of(context_of(here.deps, "process_signal", here.count, approved=True))
    await here.engine.store.begin_call(act_of(origin, SessionId(program.session.id), "process_signal", "input"))
    with pytest.raises(ToolFailed, match="not known whether the signal was sent"):
        await here.call("process_signal", again=True, approved=True, **about)
    assert await here.engine.store.recalled(call_key(origin)) == {}


async def test_an_approval_of_all_input_to_a_session_holds_for_signals(here: Desk, program: Typist) -> None:
    here.standing[program.session.id] = "a7"
    assert not await here.asks("process_signal", session_id=program.session.id, signal="HUP")
    await program.until("^HUP$")


async def test_what_cannot_be_signalled_is_answered_and_nobody_is_asked(here: Desk, program: Typist) -> None:
    with pytest.raises(ToolFailed, match="no session"):
        await here.call("process_signal", session_id="x1", signal="HUP")
    with pytest.raises(ValidationError):
        await here.call("process_signal", session_id="x1", signal="KILL")
    await here.approved("process_kill", session_id=program.session.id)
    with pytest.raises(ToolFailed, match="ended by signal"):
        await here.call("process_signal", session_id=program.session.id, signal="HUP")
