"""Parts of the command line that need no program: moments, tables, transcripts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import click
import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart

from shellback.cli import events, output
from shellback.cli.conversations import lines_of
from shellback.cli.events import KINDS
from shellback.cli.logs import OfTerminal
from shellback.cli.options import Moment
from shellback.cli.shared import Columns, print_json, table_lines
from shellback.exec.reports.blocks import MARK
from shellback.work.queue import stream
from shellback.work.queue.mailbox import Letter
from shellback.work.turn.hearing import contents_of


@pytest.mark.parametrize(
    ("text", "ago"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("3d", 3 * 86400), ("0s", 0)]
)
def test_a_duration_is_counted_back_from_now(text: str, ago: float) -> None:
    assert Moment().convert(text, None, None) == pytest.approx(time.time() - ago, abs=5)


def test_a_time_is_taken_as_it_is_with_its_zone_or_as_one_of_here() -> None:
    moment = datetime(2026, 3, 1, 12, 30, tzinfo=UTC).timestamp()
    assert Moment().convert("2026-03-01T12:30Z", None, None) == moment
    assert Moment().convert("2026-03-01 13:30+01:00", None, None) == moment
    here = datetime(2026, 3, 1, 12, 30).astimezone().timestamp()
    assert Moment().convert("2026-03-01T12:30", None, None) == here


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5w", "1e9", "2026-13-01", "99999999999d"])
def test_what_is_neither_is_refused_with_both_forms(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"90s, 10m, 2h, 3d.*2026-"):
        Moment().convert(text, None, None)


def test_every_kind_of_event_can_be_asked_for() -> None:
    assert all(f"`{kind}`" in str(stream.__doc__) for kind in KINDS)
    assert str(stream.__doc__).count("`") == 2 * len(KINDS)


def test_states_have_their_colour_and_columns_stay_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "drawn", str)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows: list[dict[str, Any]] = [{"s": "running", "x": 1}, {"s": "lost", "x": "\x1b[31m"}]
    columns: Columns[dict[str, Any]] = {"STATE": itemgetter("s"), "X": itemgetter("x")}
    lines = table_lines(rows, columns)
    assert lines[1] == "\x1b[32mrunning\x1b[0m  1"
    assert lines[2].startswith("\x1b[31mlost   \x1b[0m  ")
    assert "\\x1b[31m" in lines[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert table_lines(rows, columns)[1] == "running  1"


def test_a_message_is_shown_without_instructions_its_calls_whole_and_nothing_drives_the_terminal() -> None:
    message = {
        "timestamp": "not one",
        "parts": [
            {"part_kind": "system-prompt", "content": "hidden"},
            {"part_kind": "user-prompt", "content": "two\nlines \x1b[2J"},
            {"part_kind": "tool-call", "tool_name": "execute", "args": {"command": "x" * 100}},
            {"part_kind": "tool-return", "tool_name": "execute", "content": ["a", 1]},
            {"part_kind": "tool-return", "tool_name": "execute", "content": "y" * 100},
            {"part_kind": "some-new-part", "content": 1},
        ],
    }
    lines = [click.unstyle(line) for line in lines_of(message, cut=20)]
    assert lines[:2] == ["person: two", "    lines \\x1b[2J"]
    assert lines[2] == f'call execute: {{"command": "{"x" * 100}"}}'
    assert lines[3:4] == ['result of execute: ["a", 1]']
    assert lines[4].startswith(f"result of execute: {'y' * 20}… (80 more")
    assert lines[5].startswith("some-new-part: ")
    assert not any("hidden" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        ("tool_call", {"tool": "execute", "args": {"command": "ls\nrm x", "cwd": "a"}}, r"execute: ls\x0arm x; cwd a"),
        ("tool_call", {"tool": "process_list", "args": {}}, "process_list"),
        ("approval", {"id": "a1", "tool": "execute", "command": "rm x", "mounts": {"view": "1"}}, "a1 execute: rm x"),
        ("approval", {"id": "a1", "tool": "rm", "path": "x", "size": 3}, "a1 rm: path x, size 3"),
        ("tool_result", {"tool": "execute", "text": "one\ntwo", "outcome": "success"}, "execute: one⏎ two"),
        ("decision", {"id": "a1", "decision": "approved", "by": "ann"}, "id a1, decision approved, by ann"),
        ("stopping", {"by": "ann", "reason": None}, "by ann"),
        ("message", {"text": "hello", "by": "ann"}, "hello"),
    ],
)
def test_an_event_is_told_in_words_and_a_call_whole(kind: str, payload: dict[str, Any], told: str) -> None:
    event = stream.Event(id=1, conversation_id="c", turn_id="t", epoch=1, kind=kind, payload=payload, created_at=0.0)
    assert click.unstyle(events.line(event)).split(maxsplit=4)[4] == told


def test_a_log_of_a_terminal_is_text_wherever_it_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    printed = b"\x1b[?2004h50 %\r\x1b[K\x1b[32mdone\x1b[0m\r\n\x1b]0;title\x07$ \xc3\xa9"
    for size in range(1, len(printed) + 1):
        shown = OfTerminal()
        for at in range(0, len(printed), size):
            shown.write(printed[at : at + size])
        assert capsys.readouterr().out == "50 %\ndone\n$ é", size


def test_what_was_shown_of_processes_is_not_said_to_be_a_persons() -> None:
    shown = {"content": "process:s1: running", "metadata": {MARK: {"s1": [0, 0, False]}}, "kind": "text-content"}
    message = {"parts": [{"part_kind": "user-prompt", "content": ["hello", shown, {"url": "x"}]}]}
    lines = [click.unstyle(line) for line in lines_of(message, cut=None)]
    assert lines == ["person: hello", "processes: process:s1: running", 'person: {"url": "x"}']


def test_json_is_json_also_of_half_a_character_and_has_nothing_but_ascii(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    print_json({"said": "\ud83d é\u202e"})
    assert capsysbinary.readouterr().out == b'{"said": "\\ud83d \\u00e9\\u202e"}\n'


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("turn_failed", {"reason": "the model was not reached"}),
        ("typed", {"session_id": "s1", "bytes": 3, "by": "ann", "over": True}),
    ],
)
def test_what_nobody_said_is_said_to_be_ours_and_what_a_person_said_is_theirs(
    kind: str, payload: dict[str, Any]
) -> None:
    letters = [
        Letter(id=1, kind="message", payload={"text": "[turn failed: no]", "by": "ann"}),
        Letter(id=2, kind=kind, payload=payload),
    ]
    request = ModelRequest(parts=[UserPromptPart(contents_of(letters))])
    (message,) = ModelMessagesTypeAdapter.dump_python([request], mode="json")
    lines = [click.unstyle(line) for line in lines_of(message, cut=None)]
    assert [line.split(": ")[0] for line in lines if not line.startswith("    ")] == ["person", "shellback"]


def fitting(width: int, monkeypatch: pytest.MonkeyPatch, *, wide: bool = False) -> list[str]:
    from shellback.cli import shared

    monkeypatch.setattr(shared, "columns", lambda: width)
    table = [["SESSION", "STATE", "BACKEND", "AGE", "COMMAND"], ["x" * 16, "running", "host/work", "3m", "make all"]]
    with click.Context(click.Command("ps")) as ctx:
        ctx.meta["wide"] = wide
        return [*shared.laid_out([table])]


def test_a_table_fits_the_terminal_and_names_the_columns_that_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting(100, monkeypatch)[0].split() == ["SESSION", "STATE", "BACKEND", "AGE", "COMMAND"]
    narrow = fitting(40, monkeypatch)
    assert narrow[0].split() == ["SESSION", "STATE", "BACKEND", "COMMAND"]
    assert narrow[-1] == "--wide also shows AGE"
    assert all(len(row) <= 40 for row in narrow)
    assert fitting(40, monkeypatch, wide=True) == fitting(100, monkeypatch, wide=True)


def test_ids_are_as_short_as_is_unique_on_a_terminal_and_whole_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from shellback.cli import shared

    ids = ["abcdefgh12345678", "abcdefgh12399999", "zzz", "qrstuvwxyz000000", "abcdefgh12345678"]
    table = [["SESSION", "NAME"], *([one, one] for one in ids)]
    for width, wide, shown in (
        (80, False, ["abcdefgh1234", "abcdefgh1239", "zzz", "qrstuv", "abcdefgh1234"]),
        (80, True, ids),
        (None, False, ids),
    ):
        monkeypatch.setattr(shared, "columns", lambda width=width: width)
        with click.Context(click.Command("ps")) as ctx:
            ctx.meta["wide"] = wide
            rows = [row.split() for row in shared.laid_out([table])][1:]
        assert [row[0] for row in rows] == shown
        assert [row[1] for row in rows] == ids


def test_what_a_row_is_about_is_folded_and_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from shellback.cli import shared

    monkeypatch.setattr(shared, "columns", lambda: 40)
    _, *rows = shared.laid_out([[["ID", "WHAT"], ["a7db", "word " * 30]]])
    assert all(row.startswith("      ↳ ") for row in rows[1:])
    assert " ".join("".join(row.removeprefix("      ↳ ") for row in rows).split()) == "a7db " + ("word " * 30).strip()


def test_a_value_that_is_cut_is_cut_so_that_its_row_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from shellback.cli import shared

    monkeypatch.setattr(shared, "columns", lambda: 40)
    table = shared.table_of(["word " * 30], {"STATE": lambda _: "running", "COMMAND": str})
    assert [*shared.laid_out([table])][1:] == ["running  word word word word word word …"]


def test_a_column_that_does_not_fit_leaves_its_place_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from shellback.cli import shared

    monkeypatch.setattr(shared, "columns", lambda: 60)
    rows = [*shared.laid_out([[["ID", "NAME", "STATE", "WHAT"], ["a", "n" * 40, "running", "w" * 30]]])]
    assert [row.split() for row in rows[:2]] == [["ID", "STATE", "WHAT"], ["a", "running", "w" * 30]]
    assert rows[2] == "--wide also shows NAME"


def test_a_folded_line_keeps_its_colours_and_shows_nothing_of_what_marks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from shellback.cli import output

    mark = output._OURS  # pyright: ignore[reportPrivateUsage]

    def drawn(sequence: str) -> str:
        return mark + sequence + mark

    monkeypatch.setattr(output, "drawn", drawn)
    monkeypatch.setattr("shellback.environment.plain_terminal", lambda: False)
    line = f"at  {output.styled('one two three four', 'red')}  and {output.styled('five', 'bold')}\tsix"
    rows = output.fitted(line, 16)
    seen = "".join(row.replace(mark, "|") + "\n" for row in rows)
    assert seen == (
        "at  |\x1b[31m|one two\n    ↳  three\n    ↳  four|\x1b[0m| \n    ↳  and |\x1b[1m|five\n    ↳ |\x1b[0m|    six\n"
    )


def test_the_verdict_is_about_the_worst_first() -> None:
    from shellback.checks import Check, verdict

    fine, odd = Check("kernel", "ok", "new"), Check("disk", "warn", "nearly full")
    broken = Check("worker", "fail", "none runs", "start it")
    assert verdict([fine]) == "fine: nothing to do"
    assert verdict([fine, odd]) == "1 warning; first disk: nearly full"
    assert verdict([odd, broken, broken]) == "2 problems; first worker: start it"
