"""What cannot be shown to a person as what it is never gets as far as being read."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shellback.exec.policy.classify.characters import BLANKS, BYTES, unshowable
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.syntax import Parsed, Unparsable

# All that are assigned, and of the others, which are many and alike, some.
CHARACTERS = [
    character
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(character := chr(code)) not in {"Cn", "Co", "Cs"} or code % 101 == 0
]
SHOWN = frozenset("LNPSM")


def refused(command: str) -> str | None:
    found = unshowable(command)
    return found.reason if found else None


@pytest.mark.parametrize(
    "character",
    [
        *("\0", "\r", "\v", "\f", "\b", "\x1b", "\x7f", "\x85", "\x9b", "\xa0", "\xad", "\u034f", "\u061c", "\u115f"),
        *("\u1160", "\u1680", "\u17b4", "\u180b", "\u180e", "\u180f", "\u2000", "\u200b", "\u200d", "\u200e", "\u2028"),
        *("\u2029", "\u202e", "\u202f", "\u205f", "\u2060", "\u2065", "\u2066", "\u206a", "\u2800", "\u3000", "\u3164"),
        *("\ud800", "\udfff", "\ue000", "\ufe00", "\ufe0f", "\ufeff", "\uffa0", "\ufff0", "\ufff9", "\ufffb", "\ufffc"),
        *("\ufffd", "\ufffe", "\uffff", "\U00013441", "\U0001bca0", "\U0001d159", "\U0001d173", "\U000e0001"),
        *("\U000e0020", "\U000e0100", "\U000e01ef", "\U000f0000", "\U0010ffff", "\u0378"),
    ],
    ids=ascii,
)
def test_a_character_that_is_not_seen_or_not_what_it_seems_is_refused_with_its_place(character: str) -> None:
    for command, at in ((f"ls a{character}b", 4), (f"ls 'a{character}'", 5), (character, 0), (f"ls # {character}", 5)):
        assert unshowable(command) == parse(command)
        assert isinstance(found := unshowable(command), Unparsable)
        assert found.at == at
        assert f"U+{ord(character):04X}" in found.reason


@pytest.mark.parametrize(
    "command",
    [
        'grep -rn "Größe" src',
        "grep Größe src",
        "cat 文件\uff081\uff09.txt",
        "echo 日本語 한국어 ไทย हिन्दी Ελληνικά Кириллиц\u0430",
        "echo 🎉 👍🏽 🇩🇪 ✓ → ½ € №",
        "echo 'שלום עולם' and 'مرحبا'",
        "echo cafe\u0301 n\u0303 o\u0302\u0323",
        "echo 'a \uff1b b | c \u201cd\u201d \u2013 e'",
        "ls\t-la\npwd\n",
        "",
    ],
)
def test_ordinary_text_passes(command: str) -> None:
    assert unshowable(command) is None
    assert isinstance(parsed := parse(command), Parsed)
    assert not parsed.outside


def test_of_all_characters_only_letters_numbers_marks_punctuation_and_symbols_pass() -> None:
    passing = {character for character in CHARACTERS if unshowable(f"a{character}") is None}
    strange = {character for character in passing if unicodedata.category(character)[0] not in SHOWN}
    assert strange == {" ", "\t", "\n"}
    assert {chr(code) for code in range(0x20, 0x7F)} <= passing
    assert {character for character in CHARACTERS if unicodedata.category(character) in {"Lu", "Ll", "Nd"}} <= passing


@pytest.mark.parametrize("blank", [" ", "\t", "\n", " \n", "\t ", "\\\n", " \\\n"])
def test_many_blanks_in_a_row_are_refused(blank: str) -> None:
    most = blank * (BLANKS // len(blank))
    assert refused(f"ls{most}; pwd") is None
    found = unshowable(f"ls{blank * (BLANKS + 1)}; pwd")
    assert found is not None
    assert (found.at, "out of view" in found.reason) == (2, True)


def test_what_is_longer_than_the_most_is_refused_in_bytes() -> None:
    assert refused("a" * BYTES) is None
    assert refused("a" * (BYTES + 1)) is not None
    assert refused("é" * (BYTES // 2)) is None
    found = unshowable("é" * (BYTES // 2 + 1))
    assert found is not None
    assert found.at == BYTES // 2


@pytest.mark.parametrize(
    "command",
    ["echo \u0301a", "echo ;\u0301", "ls |\u20d2 a", "echo '\u0338'", "echo a\u0301\u0301\u0301\u0301\u0301", "\u0301"],
    ids=ascii,
)
def test_a_mark_has_to_stand_on_a_letter_with_few_others(command: str) -> None:
    assert "mark" in str(refused(command))


@pytest.mark.parametrize("command", ["echo א;ב", "echo א | ב", "echo 'א' > 'ב'", "cat א 1 && ب"], ids=ascii)
def test_what_right_to_left_letters_would_turn_round_is_refused(command: str) -> None:
    assert "another order" in str(refused(command))


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("ls \uff1b touch x", 3),
        ("ls\uff1btouch x", 2),
        ("cat a.txt\uff1b touch x", 9),
        ("ls \u2502 cat", 3),
        ("ls \uff5c cat", 3),
        ("ls \u01c0 cat", 3),
        ("ls \u4e28 cat", 3),
        ("ls \uff06\uff06 touch x", 3),
        ("ls \uff1e x", 3),
        ("ls \u037e pwd", 3),
        ("echo \uff04(x)", 5),
        ("echo \u201ca; rm b\u201d", 5),
        ("echo \u2018a; rm b\u2019", 5),
        ("ls \uff03 a", 3),
        ("ls \u2013la", 3),
        ("git status \u2212s", 11),
        ("\uff4c\uff53", 0),
        ("git\u2010status", 3),
        ("l\u0455 -la", 1),
        ("'\uff4c\uff53' -la", 1),
        ("echo `\uff4c\uff53`", 6),
        ("true && \u0441\u0430t a", 8),
    ],
    ids=ascii,
)
def test_a_look_alike_of_an_operator_a_quote_an_option_or_a_program_is_refused(command: str, at: int) -> None:
    found = parse(command)
    assert isinstance(found, Unparsable)
    assert found.at == at
    assert "U+" in found.reason


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
@example("\u05d0" * 300)
@example("e" + "\u0301" * 200)
def test_any_text_is_shown_or_refused_at_a_place_in_it(command: str) -> None:
    found = unshowable(command)
    assert found is None or 0 <= found.at <= len(command)
