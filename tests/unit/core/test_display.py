"""What a person is shown of a call decodes to what runs, and nothing in it drives a terminal or fools an eye."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shellback.exec.core.display import folded, original, request_lines, shown, shown_line, visible
from tests.displays import TEXTS, assert_faithful, misread

EXAMPLES = 300


@given(TEXTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_is_shown_of_any_text_decodes_to_it_and_has_nothing_raw(text: str) -> None:
    assert_faithful(text)


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS) | st.integers() | st.booleans() | st.none(), max_size=4), TEXTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_request_is_shown_whole_and_no_line_of_it_passes_for_ours(display: dict[str, Any], command: str) -> None:
    lines = request_lines({**display, "command": command or "x"})
    assert not any(misread("\n".join(lines)))
    assert all(line.startswith("    ") for line in lines)
    first, *more = shown(command or "x").split("\n")
    assert lines[0] == f"    command: {first}"
    assert lines[1 : 1 + len(more)] == [f"             {line}" for line in more]


@given(TEXTS, st.integers(8, 120), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=EXAMPLES, deadline=None)
@example("a " * 9 + "b" * 60, 40, 0, 19)
def test_folding_loses_nothing_and_begins_no_line_with_what_it_folded(
    text: str, width: int, indent: int, hang: int
) -> None:
    (line,) = request_lines({"command": shown_line(text).strip() or "x"})[:1]
    line = " " * indent + line
    first, *more = folded([line], width, hang=hang)
    margin = " " * min(max(4 + indent, hang), width // 2) + "↳ "
    assert all(part.startswith(margin) for part in more)
    assert first + "".join(part.removeprefix(margin) for part in more) == line
    assert all(sum(_columns(char) for char in part) <= width for part in (first, *more))


def _columns(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("ls -la | wc -l", "ls -la | wc -l"),
        ("a\x1b[2Kb\r\x7f\x00", r"a\x1b[2Kb\x0d\x7f\x00"),
        ("cp a\u202eb \u2066x\u200b\u00ad", r"cp a\u{202E}b \u{2066}x\u{200B}\u{AD}"),
        ("rm\u00a0-rf\u3000/\u2800x\u115f\u3164", r"rm\u{A0}-rf\u{3000}/\u{2800}x\u{115F}\u{3164}"),
        ("x\U000e0041\ufe0f\U000e0100\ud800", r"x\u{E0041}\u{FE0F}\u{E0100}\u{D800}"),
        ("a\tb", r"a\x09b"),
        ("ls \nx  ", "ls\\x20\nx\\x20\\x20"),
        ("echo x" + " " * 20 + "; rm y", "echo x" + "\\x20" * 20 + "; rm y"),
        (r"printf '\x1b\u{200B}\n'", r"printf '\x5cx1b\x5cu{200B}\n'"),
        ("c\u0430t /\u0440\u0430\u0441\u0435", r"c\u{430}t /\u{440}\u{430}\u{441}\u{435}"),
        ("rm \u2013rf \uff0f\u2044 \u037e \u2024", r"rm \u{2013}rf \u{FF0F}\u{2044} \u{37E} \u{2024}"),
        ("e\u0301 ;\u0338", r"e\u{301} ;\u{338}"),
        ("\u05e9\u05dc; \u0627", r"\u{5E9}\u{5DC}; \u{627}"),
        ("grüße файл 日本語 हिन्दी ไทย 🎉", "grüße файл 日本語 हिन्दी ไทย 🎉"),
    ],
)
def test_each_kind_of_character_is_shown_as_documented(text: str, seen: str) -> None:
    assert shown(text) == seen
    assert original(seen) == text


def test_prose_keeps_its_tabs_and_backslashes_and_every_script() -> None:
    text = "a\tb\nprintf '\\x1b' שלום e\u0301 \u2013 “q”"
    assert visible(text) == text
    assert visible("x\x9b2J\u202e\u00a0\ufe0f\U000e0041\x00") == r"x\u{9B}2J\u{202E}\u{A0}\u{FE0F}\u{E0041}\x00"


def test_a_request_shows_every_fact_of_the_call() -> None:
    display: dict[str, Any] = {
        "cwd": "/w",
        "env": {"A": "1\n2", "B": ""},
        "command": "ls;\nrm x",
        "tier": "read_write",
        "reason": "it removes x",
        "segments": [
            {"text": "ls", "tier": "read_only", "reason": "it lists", "paths": []},
            {"text": "rm x", "tier": "read_write", "reason": "it removes", "paths": ["/w/x", "/w/a b"]},
        ],
        "touches": ["/w/x"],
        "executables": [{"name": "rm", "path": "/bin/rm", "sha256": "0123456789abcdef" * 4}],
        "mounts": {"readable": ["/", "/etc"], "writable": [], "view": "0123456789abcdef" * 4},
        "stdin": "one\ntwo",
        "pty": [40, 120],
        "timeout_s": 30.0,
        "network": False,
        "background": True,
        "keep_stdin_open": False,
        "backend": "bubblewrap",
        "profile": "work",
        "unbound": [],
    }
    assert request_lines(display) == [
        "    command: ls;",
        "             rm x",
        "    runs: 1. ls",
        "               (read_only: it lists)",
        "          2. rm x",
        "               (read_write: it removes)",
        "               (names /w/x; /w/a b)",
        "    tier: read_write, because it removes x",
        "    touches: /w/x",
        "    cwd: /w",
        r"    env: A=1\x0a2",
        "         B=",
        "    executables: rm = /bin/rm (sha256 0123456789ab)",
        "    mounts: readable / /etc; view 0123456789ab",
        "    stdin: one",
        "           two",
        "    pty: 40 120",
        "    with: timeout_s 30, network off, background on, backend bubblewrap, profile work",
    ]
