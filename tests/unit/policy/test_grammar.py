"""A command line is taken apart exactly as bash takes it apart, or it asks, or it is refused."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.characters import BLANKS, BYTES, unshowable
from shellback.exec.policy.classify.grammar import COMMANDS, WORDS, parse
from shellback.exec.policy.classify.syntax import Output, Parsed, Redirect, Simple, Unparsable
from shellback.exec.policy.typed_lines import MOST, left_of, lines_of
from tests import lines
from tests.lines import agrees_with_bash, read_as_bash_reads
from tests.supervisors import returning

RARELY = settings(max_examples=60)


def parsed(command: str) -> Parsed:
    found = parse(command)
    assert isinstance(found, Parsed), found
    return found


def inside(command: str) -> list[list[str]]:
    found = parsed(command)
    assert not found.outside, found.outside
    return texts(found)


def texts(found: Parsed) -> list[list[str]]:
    return [[word.text for word in simple.words] for simple in found.commands]


def only(command: str) -> Simple:
    (simple,) = parsed(command).commands
    return simple


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls -la", [["ls", "-la"]]),
        ("t\"\"ouch 'a'\\''b' \"c\"d", [["touch", "a'b", "cd"]]),
        ("find . -name a.txt -e\\xec", [["find", ".", "-name", "a.txt", "-exec"]]),
        ('awk "{print \\$1}" a', [["awk", "{print $1}", "a"]]),
        ('echo "a\\\\" ; touch x ; echo "b"', [["echo", "a\\"], ["touch", "x"], ["echo", "b"]]),
        ('echo \\"; touch x', [["echo", '"'], ["touch", "x"]]),
        ("echo 'a'\\''; touch x; '\\''b'; touch x", [["echo", "a'; touch x; 'b"], ["touch", "x"]]),
        ('echo "\\x \\" \\` \\\\"', [["echo", '\\x " ` \\']]),
        ("ls # a; touch x\npwd", [["ls"], ["pwd"]]),
        ("echo a#b '#' \\#c", [["echo", "a#b", "#", "#c"]]),
        ("ls \\\n  -la \\\n\tsrc", [["ls", "-la", "src"]]),
        ("ls &&\\\n pwd", [["ls"], ["pwd"]]),
        ("git show HEAD@{1} HEAD~1 stash@{0}", [["git", "show", "HEAD@{1}", "HEAD~1", "stash@{0}"]]),
        (
            "find . -exec grep x {} \\; -o -name '*.py'",
            [["find", ".", "-exec", "grep", "x", "{}", ";", "-o", "-name", "*.py"]],
        ),
        ("grep foo$ a", [["grep", "foo$", "a"]]),
        ("{ a; b\n}; (c)", [["a"], ["b"], ["c"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("! a | b |& c || d", [["a"], ["b"], ["c"], ["d"]]),
        (
            "[ -f a ] && test -f b && [[ ! -d c ]]",
            [["[", "-f", "a", "]"], ["test", "-f", "b"], ["[[", "!", "-d", "c", "]]"]],
        ),
        ("ls\ntouch x\n\n", [["ls"], ["touch", "x"]]),
        ("cat <<'E' | grep b\n$(a) `b`\nE\nls", [["cat"], ["grep", "b"], ["ls"]]),
        ("grep -rn 'Größe; ü' src/日本", [["grep", "-rn", "Größe; ü", "src/日本"]]),
        ("# nothing", []),
        ("", []),
    ],
)
def test_words_are_what_the_program_gets(command: str, words: list[list[str]]) -> None:
    assert inside(command) == words


def test_offsets_are_characters_and_texts_are_slices() -> None:
    command = "echo 日本 'é' && ls ü | wc"
    for simple in parsed(command).commands:
        assert command[simple.start : simple.end] == simple.text
        assert [command[word.start : word.end] for word in simple.words] == [word.raw for word in simple.words]


def test_what_reads_a_pipe_is_told_at_any_depth() -> None:
    piped = {simple.words[0].text: simple.piped for simple in parsed("a | { b; c | d; } && (e; f) | g; h").commands}
    assert piped == dict(zip("abcdefgh", (False, True, True, True, False, False, True, False), strict=True))


def test_a_loop_variable_is_known_in_its_loop_only() -> None:
    command = "for f in a *.b ~; do c \"$f\" ${f}x '$f'; done"
    simple = only(command)
    assert [(word.text, word.variables, word.splits) for word in simple.words] == [
        ("c", (), False),
        ("${f}", ("f",), False),
        ("${f}x", ("f",), True),
        ("$f", (), False),
    ]
    assert simple.words[2].with_values({"f": "v"}) == "vx"
    ((name, values),) = simple.loops
    assert name == "f"
    assert values is not None and not isinstance(values, Output)  # noqa: PT018
    assert [(value.text, value.globs, value.tilde) for value in values] == [
        ("a", False, False),
        ("*.b", True, False),
        ("~", False, True),
    ]
    assert not parsed(command).outside
    assert parsed(f"{command}; echo $f").outside


def test_patterns_and_home_are_marked_only_where_they_are_not_quoted() -> None:
    words = only("c *.a '*.a' \\*.a [a] [ ~/a '~/a' a~").words
    assert [(word.globs, word.tilde) for word in words[1:]] == [
        *((True, False), (False, False), (False, False), (True, False), (False, False)),
        *((False, True), (False, False), (False, False)),
    ]


def test_redirections_and_heredocs_are_recorded_also_of_compound_commands() -> None:
    def redirects(command: str) -> list[tuple[str, int | None, str | None]]:
        return [
            (redirect.op, redirect.fd, redirect.target.text if redirect.target else redirect.body)
            for simple in parsed(command).commands
            for redirect in simple.redirects
        ]

    assert redirects("a 2>&1 >b <c &>d 3>>e >|f <>g 2>&-") == [
        *((">&", 2, "1"), (">", None, "b"), ("<", None, "c"), ("&>", None, "d"), (">>", 3, "e"), (">|", None, "f")),
        *(("<>", None, "g"), (">&", 2, "-")),
    ]
    assert redirects("{ a; } > b") == [(">", None, "b")]
    assert redirects("> b") == [(">", None, "b")]
    assert redirects("a <<< 'b c'") == [("<<<", None, "b c")]
    assert redirects("a <<'E' <<-F\n$b\nE\n\tc\n\tF") == [("<<", None, "$b\n"), ("<<-", None, "c\n")]


def test_assignments_are_recorded() -> None:
    simple = only("A='b c' D= ls")
    assert [(name, word.text) for name, word in simple.assignments] == [("A", "b c"), ("D", "")]
    assert [word.text for word in simple.words] == ["ls"]


@pytest.mark.parametrize(
    "command",
    [
        "echo $PATH",
        "echo ${f}",
        'echo "$x"',
        "echo ${x@P}",
        "echo $1 $$ $?",
        "echo $((1))",
        "echo $[1]",
        "((x=1))",
        "echo `a \\` b`",
        "echo `a (`",
        "cat <(a)",
        "a > >(b)",
        "$'a'",
        '$"a"',
        "echo {a,b}",
        "echo {1..3}",
        "echo x{,y}",
        "ls ~root",
        "ls ~+",
        "a b=~/c",
        "ls @(a)",
        "a=(1)",
        "a[0]=1",
        "a+=b",
        "export A=b",
        "declare -x A",
        "unset a",
        "f() { a; }",
        "function f { a; }",
        "case a in b) c;; esac",
        "select f in a; do b; done",
        "coproc a",
        "time",
        "a | time b",
        *("a &", "a & b", "echo !!", "for ((;;)); do a; done", "for f; do a; done", "for PATH in a; do b; done"),
        *("for http_proxy in a; do b; done", "for f in a; do for f in b; do c; done; done", "for f in a; { b; }"),
        "[[ -v a ]]",
        "[[ a -eq b ]]",
        "[[ a =~ b ]]",
        "[[ a == b* ]]",
        "[[ -f a && -f b ]]",
        "[[ a < b ]]",
        "[[ (a) ]]",
        "a {b}>c",
        "cat <<E\n$x\nE",
        "cat <<E\n`a`\nE",
        "cat <<E\na\\\nE\nE",
        "tou\\\nch x",
        "a\\",
        'a "b\\\nc"',
        "a &\\\n& b",
        *('a "*"*.b', "! ! a", "[a'b'c]*", "for f in a; do b '$'$f; done", "a 2>&-b", "((a); b)", "a 99999>b"),
        "((a) # it's\n)",
    ],
)
def test_what_is_outside_the_subset_asks_and_says_where(command: str) -> None:
    found = parsed(command)
    assert found.outside
    for outside in found.outside:
        assert outside.reason
        assert command[outside.start : outside.end] == outside.text


@pytest.mark.parametrize(
    "command",
    [
        "cat <(rm -rf /)",
        "f() { rm -rf /; }",
        "function f { rm -rf /; }",
        "case a in a) rm -rf /;; esac",
        "rm -rf / &",
        "cat <<E\n$(rm -rf /)\nE",
        "echo ${a:-$(rm -rf /)}",
        "echo $(( $(rm -rf /) ))",
        "coproc rm -rf /",
        *("select f in a; do rm -rf /; done", "for ((;;)); do rm -rf /; done", "a[$(rm -rf /)]=1", "! ! rm -rf /"),
        *("r\\\nm -rf /", "((a); rm -rf /)", "a=($(rm -rf /))"),
        "true;" * 200 + "rm -rf /",
    ],
    ids=lambda command: command[-30:],
)
def test_commands_are_listed_also_where_they_are_outside(command: str) -> None:
    found = parsed(command)
    assert found.outside
    assert ["rm", "-rf", "/"] in texts(found)
    assert all(before.start <= after.start for before, after in pairwise(found.commands))


@pytest.mark.parametrize(
    "command",
    ["$(rm -rf /)", "`rm -rf /`", 'echo "$(rm -rf /)"', "echo $(echo $(rm -rf /))", "x=$(rm -rf /)", "time rm -rf /",
     "[[ $(rm -rf /) ]]", "for f in `rm -rf /`; do a; done", "a < $(rm -rf /)", "time -p rm -rf /", "$( (rm -rf /) )"],
)  # fmt: skip
def test_commands_that_are_substituted_are_commands_of_the_line(command: str) -> None:
    found = parsed(command)
    assert not found.outside
    assert ["rm", "-rf", "/"] in texts(found)


def test_a_substitution_is_a_variable_that_says_whose_output_it_is() -> None:
    outer = [simple for simple in parsed('a "$(b)" x$(c | d) `e` $(f; g) $( (h) )').commands if len(simple.words) == 6]
    (simple,) = outer
    assert [word.splits for word in simple.words] == [False, False, True, True, True, True]
    values = dict(simple.loops)
    starts = [values[name] for word in simple.words for name in word.variables]
    assert starts == [Output(5), Output(16), Output(20), Output(None), Output(None)]


def test_what_comes_through_a_pipe_is_told_where_one_command_prints_it() -> None:
    found = parsed("a | b | c; { a; b; } | c; a |& c; ! a | c; (a | c)").commands
    assert [simple.fed_by for simple in found if simple.words[0].text == "c"] == [4, None, None, 36, 44]


def test_a_variable_is_known_where_nothing_but_its_one_assignment_can_have_come_before() -> None:
    for command in ("f=a; b $f", "f=a && b $f", "f=a\nb $f", "g=c; f=$g; b $f", "for i in a; do f=$i; b $f; done"):
        assert not parsed(command).outside, command
    for command in (
        "f=a b $f",
        "c && f=a; b $f",
        "f=a | c; b $f",
        "c | f=a; b $f",
        "(f=a); b $f",
        "{ f=a; }; b $f",
        "if c; then f=a; fi; b $f",
        "if f=a; then c; fi; b $f",
        "F=a; b $F",
        "for i in a; do b $f; f=a; done",
        "c $(f=a); b $f",
    ):
        assert parsed(command).outside, command
    twice = parsed("f=a; f=c; b $f").commands
    assert [simple.sets for simple in twice] == [True, False, False]


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("echo 'a", 5),
        ('echo "a', 5),
        ("echo `a", 5),
        ("echo $(a", 5),
        ("echo ${a", 5),
        ("echo $((1", 7),
        ("ls (", 3),
        ("cat <<E\nno end", 4),
        ("cat <<'E'\nE ", 4),
        ("ls |", 3),
        ("ls &&", 4),
        ("&& ls", 0),
        ("ls ;; pwd", 3),
        (";", 0),
        ("ls )", 3),
        ("( ls", 0),
        ("{ ls", 0),
        ("{ ls }", 0),
        ("}", 0),
        ("fi", 0),
        ("if a; then b", 0),
        ("if a; b; fi", 9),
        ("for f in a; b; done", 12),
        ("while a; do b", 0),
        ("case a in", 0),
        ("ls >", 3),
        ("ls > > a", 3),
        ("cat <<", 4),
        ("a & & b", 4),
        ("f()", 0),
        ("()", 1),
        ("{ }", 2),
        ("[[ a", 0),
        ("a\nb\n)", 4),
        ("echo 日本 'a", 8),
    ],
)
def test_what_bash_refuses_is_refused_with_the_place(command: str, at: int) -> None:
    found = parse(command)
    assert isinstance(found, Unparsable)
    assert found.at == at
    assert found.reason
    assert lines.refusal(command) or "heredoc" in found.reason


def test_more_commands_or_words_than_are_followed_ask_and_are_not_cut() -> None:
    assert not parsed(";".join(["a"] * COMMANDS)).outside
    many = parsed(";".join(["a"] * (COMMANDS + 1)))
    assert many.outside
    assert len(many.commands) == COMMANDS + 1
    assert parsed("a " * (WORDS + 1)).outside
    assert not parsed("{ " * 5 + "a;" + " };" * 5).outside
    assert parsed("{ " * 30 + "a;" + " };" * 30).outside


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "$(",
        "$((",
        "${",
        "{ ",
        "[[ ",
        "if ",
        "case a in ",
        "$((a) ",
        "`",
        '"',
        "\\",
        "<<a ",
        "a;",
        "! ",
        "a=( ",
        "$",
        "*",
        "{a,",
        "f() ",
        "a|",
        "$a",
        "for f in a; do ",
        "\\\n",
        "'",
        "é",
        "{",
        "~=",
        "`a` ",
        "<(",
        "((",
        "a <<'E'\nE\n",
    ],
)
def test_rubbish_neither_fails_nor_takes_long(piece: str) -> None:
    command = (piece * 8192)[: 8192 // len(piece.encode()) * len(piece)]
    took = min(_took(command) for _ in range(3))
    assert took < 0.5


def _took(command: str) -> float:
    began = time.perf_counter()
    parse(command)
    return time.perf_counter() - began


@pytest.fixture
def read_anew() -> Iterator[None]:
    """Nothing that was read before, or is read here, is remembered."""
    parse.cache_clear()
    yield
    parse.cache_clear()


@pytest.mark.usefixtures("read_anew")
def test_a_node_that_is_not_known_to_us_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not parsed("ls | cat").outside
    monkeypatch.setattr(second, "KNOWN", second.KNOWN - {"pipeline"})
    parse.cache_clear()
    assert [outside.reason for outside in parsed("ls | cat").outside] == ["pipeline is not known from character 0"]


@pytest.mark.usefixtures("read_anew")
def test_where_the_two_readers_differ_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second, "disagreement", returning((3, "it can be read in two ways")))
    (outside,) = parsed("ls -la").outside
    assert (outside.reason, outside.start) == ("it can be read in two ways from character 3", 3)


@pytest.mark.parametrize("spans", [[(0, 2)], [(0, 2), (3, 5)], [(0, 6)], [(0, 2), (3, 6), (6, 7)], []])
def test_the_second_reader_objects_to_other_words_than_it_sees(spans: list[tuple[int, int]]) -> None:
    assert second.disagreement("ls -la", [(0, 2), (3, 6)]) is None
    assert second.disagreement("ls -la", spans) is not None


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@RARELY
@given(st.one_of(lines.rubbish(), lines.lines()))
def test_bash_accepts_what_is_read_and_refuses_what_is_refused(command: str) -> None:
    read_as_bash_reads(command)


def test_programs_get_the_words_that_were_read(directory: Path) -> None:
    @RARELY
    @given(lines.lines())
    def holds(command: str) -> None:
        agrees_with_bash(command, directory)

    holds()


@given(st.one_of(st.text(max_size=200), lines.rubbish()))
@settings(deadline=None)
def test_any_text_is_answered_and_always_the_same(command: str) -> None:
    lines.well_formed(command)


def test_values_are_plain() -> None:
    assert hash(only("a 'b' > c").words)
    assert Redirect(op=">") == Redirect(op=">")


@pytest.mark.parametrize(
    ("before", "data", "left"),
    [("", b"ls", "ls"), ("ls", b" -l", "ls -l"), ("ls", b"\r", ""), ("", b"ls\n", ""), ("", b"ls\r\npwd", "ls\npwd"),
     ("", b"", ""), ("", b"s\\\r", "s\\\n"), ("s\\\n", b"udo\r", ""), ("", b"echo '\r", "echo '\n"),
     ("echo '\n", b"'\r", ""),
     ("", b"\x03", ""), ("rm ", b"\x03", None), (None, b"\x03", None), (None, b"ls\n", ""), (None, b"ls", None),
     ("", b"a\x15", None), ("", b"a\tb\n", None), ("", b"\xff\n", None), ("", b"x" * (MOST + 1), None),
     ("", b"for a in b\r", "for a in b\n"), ("for a in b\n", b"do date; done\r", ""), ("", b"x=$(\n", "x=$(\n")],
)  # fmt: skip
def test_what_is_left_is_all_that_a_shell_has_not_run_yet(before: str | None, data: bytes, left: str | None) -> None:
    assert left_of(before, lines_of(data)) == left


def test_the_end_of_the_input_ends_the_line() -> None:
    assert lines_of(b"ls", eof=True) == "ls\n"
    assert lines_of(b"", eof=True) == ""


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
