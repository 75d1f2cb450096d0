"""What the soak and the polls are counted with."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart

from chaos import options, polls
from chaos.soak.batch_agent import decide
from chaos.soak.figures import Figure, judged, of_delays
from chaos.soak.staff import Outage
from chaos.soak.verdict import Delay
from shellback.exec.reports.callback_text import HEADER


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        (options.whole, "0"), (options.whole, "-5"), (options.whole, "x"), (options.whole, "1.5"),
        (options.seconds, "0"), (options.seconds, "nan"), (options.seconds, "inf"), (options.seconds, "x"),
        (options.pattern, "["),
    ],
)  # fmt: skip
def test_a_number_that_means_nothing_is_refused(allowed: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no"):
        allowed(text)
    assert (options.whole("3"), options.seconds("0.5"), options.pattern("a.c")) == (3, 0.5, "a.c")


def test_what_is_told_to_end_takes_everything_down_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    down: list[str] = []

    def run() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            down.append("all of it")
        return 0

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert options.unless_cut_off("soak", run) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (down, capsys.readouterr().err) == (["all of it"], "soak: cut off\n")


def test_the_agent_makes_all_calls_of_a_message_at_once_and_then_repeats_the_news() -> None:
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("$ one &\n$ two &")])]
    calls = decide(history)
    assert isinstance(calls, list)
    assert [(call.args_as_dict()["command"], call.tool_call_id) for call in calls] == [
        ("one", "call_1"),
        ("two", "call_2"),
    ]
    news = f"{HEADER}\nSession x1: exit code 0, after 1.0 s."
    returns = [ToolReturnPart("execute", "started", call.tool_call_id) for call in calls]
    history += [ModelResponse(parts=[*calls]), ModelRequest(parts=[*returns, UserPromptPart(news)])]
    assert decide(history) == f"success: started\nsuccess: started\n{news}"
    history += [ModelResponse(parts=[TextPart("done")]), ModelRequest(parts=[UserPromptPart("$ three &")])]
    calls = decide(history)
    assert isinstance(calls, list)
    assert [call.tool_call_id for call in calls] == ["call_3"]


def test_only_what_ends_outside_of_outages_has_to_be_told_at_once() -> None:
    delays = [Delay(session=f"s{at}", ended_at=at, seconds=seconds) for at, seconds in ((10.0, 0.1), (21.0, 9.0))]
    outage = Outage("postgres", gone_at=20.0, back_at=22.0)
    assert all(figure.met for figure in of_delays(delays, [outage]))
    late = Delay(session="s30", ended_at=30.0, seconds=1.5)
    assert [figure.name for figure in of_delays([*delays, late], [outage]) if not figure.met] == [
        "exit to enqueued, p99"
    ]


@pytest.mark.parametrize(("value", "met"), [(1999, False), (2000, True), (2001, False)])
def test_an_exact_figure_is_a_limit_to_both_sides(value: int, *, met: bool) -> None:
    assert Figure(name="callbacks", value=value, limit=2000, exactly=True).met is met


def test_gaps_between_polls_come_from_the_log_of_postgres(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "2026-11-22 01:00:00.000 UTC [7] LOG:  execute <unnamed>: SELECT *\n\tFROM dbos.queues WHERE name = $1\n"
        "2026-11-22 01:00:00.000 UTC [7] DETAIL:  parameters: $1 = 'wakes.h'\n"
        "2026-11-22 01:00:00.250 UTC [7] LOG:  execute <unnamed>: SELECT * FROM dbos.queues WHERE name = $1\n"
        "2026-11-22 01:00:00.250 UTC [7] DETAIL:  parameters: $1 = 'turns.h'\n"
        "2026-11-22 01:00:00.500 UTC [8] LOG:  execute <unnamed>: SELECT * FROM dbos.queues WHERE name = $1\n"
        "2026-11-22 01:00:00.500 UTC [8] DETAIL:  parameters: $1 = 'wakes.h'\n"
    )
    looks = polls.read_log(log, "wakes.h", 0.0, float("inf"))
    assert polls.gaps(looks.rounds) == pytest.approx([0.5])


def test_a_figure_that_falls_short_is_named_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    kept, short = Figure(name="kept", value=1, limit=1), Figure(name="short", value=2, limit=1)
    assert judged("soak", [kept]) == 0
    assert judged("soak", [kept, short]) == 1
    assert capsys.readouterr().err == "soak: short: 2, allowed is <= 1\n"
