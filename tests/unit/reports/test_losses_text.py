"""How losses of covers read, and that they are kept as they were told."""

from __future__ import annotations

from shellback.exec.core.end_text import losses_text
from shellback.exec.core.model import EndedBy, Loss, SessionEnd, SessionState
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.reports.render import ended_line
from shellback.storage.session_rows import end_to_json
from tests.unit.reports.test_render import ended

LOSSES = (
    Loss(path="/ws/.git/config", at=1.0, ms=4.2, how="restored"),
    Loss(path="/ws/.git/config", at=2.0, ms=9.8, how="ended", keys=("core.fsmonitor",)),
)
SAID = (
    "/ws/.git/config was replaced outside while this ran, and not protected for 2 times, up to 10 ms; settings in it"
    " that can run programs changed: core.fsmonitor; a person has to look at it before it is used"
)


def test_losses_of_a_file_are_one_sentence_with_the_longest_time_and_names_of_settings() -> None:
    assert losses_text(LOSSES) == [SAID]


def test_a_path_that_would_steer_a_terminal_is_made_visible() -> None:
    (said,) = losses_text([Loss(path="/ws/a\n\x1b[2J/.env", at=1.0, ms=1.0, how="restored")])
    assert said.isprintable()


def test_the_end_and_the_wake_say_what_was_not_protected_and_why_it_was_ended() -> None:
    session = ended(state=SessionState.SIGNALED, exit_code=None, signal=9, ended_by=EndedBy.PROTECTION, losses=LOSSES)
    line = ended_line(session)
    assert SAID in line
    assert "(a protected file was replaced outside, and could not be protected again)" in line
    assert SAID in wake_text(callback_payload(session, None))


def test_an_end_is_read_as_it_was_written() -> None:
    end = SessionEnd(state=SessionState.EXITED, exit_code=0, losses=LOSSES)
    assert SessionEnd.of(end_to_json(end)) == end
