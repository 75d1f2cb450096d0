"""What became of a message is in the exit code of whoever waited for it."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.exceptions import UsageLimitExceeded

from shellback.cli import shared
from shellback.work.approvals.sending import OUT_OF_BUDGET
from shellback.work.turn.hearing import OutOfTime
from tests.commands import begun, facts, shellback
from tests.stage import Stage, staged, working

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"


place = staged(worker=True, TURN_MAX_REQUESTS="2", OFFLINE_SECONDS="0.5")


def outcome(place: Stage, code: int, text: str, conversation: str) -> str:
    return facts(shellback(place, "send", "-c", conversation, "--wait", "--json", text), code)["outcome"]


def test_a_turn_that_failed_ends_send_and_a_piped_chat_with_5() -> None:
    unreachable = {
        "MODEL": "openai-chat:stand-in",
        "MODEL_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_API_KEY": "none",
    }
    with working(**unreachable) as made:
        assert outcome(made, shared.FAILED, "hello", "f") == "failed"
        done = shellback(made, "chat", "-c", "f", typed="hello\n")
        assert done.returncode == shared.FAILED
        assert "cannot be reached" in done.stdout


def test_a_turn_that_used_up_its_budget_ends_with_8(place: Stage) -> None:
    calls = "\n".join(["!process_list {}"] * 3)
    assert outcome(place, shared.OUT_OF_BUDGET, calls, "budget") == "out_of_budget"
    done = shellback(place, "chat", "-c", "budget", typed="!process_list {}\n")
    assert done.returncode in {shared.DONE, shared.OUT_OF_BUDGET}


def test_a_turn_with_a_call_that_was_denied_ends_with_7_and_its_answer_is_there(place: Stage) -> None:
    assert shellback(place, "rules", "add", "deny", "--", "make", "release").returncode == 0
    assert outcome(place, shared.DENIED, "$ make release", "denied") == "denied"
    done = shellback(place, "chat", "-c", "denied", typed="$ make release\nhello\n")
    assert done.returncode == shared.DENIED  # the highest, not the last
    assert outcome(place, shared.DONE, "hello", "denied") == "answered"


def test_a_turn_that_a_person_stopped_ends_with_6(place: Stage) -> None:
    waiting = begun(place, "send", "-c", "stopped", "--wait", "!process_list {}")
    place.until("its turn runs", lambda: not place.no_turn("stopped"))
    assert shellback(place, "stop", "stopped").returncode == 0
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == shared.STOPPED, out


def test_the_table_is_in_the_help_and_in_the_documents(place: Stage) -> None:
    said = " ".join(shellback(place, "--help").stdout.split())
    rows = OPERATIONS.read_text(encoding="utf-8")
    for code, meaning in shared.MEANING.items():
        assert f"{code} {meaning}" in said
        assert f"\n| {code} | " in rows
    assert sorted({UsageLimitExceeded.__name__, OutOfTime.__name__}) == sorted(OUT_OF_BUDGET)
    helped = " ".join(shellback(place, "send", "--help").stdout.split())
    assert all(f"{code} " in helped for code in shared.OF_A_FATE.values())
