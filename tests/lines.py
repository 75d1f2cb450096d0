"""Command lines by chance, and bash itself to compare with.

Bash reads any of them (`-n` runs nothing); it runs only what is made of the harmless words here, without a program to
be found, in an empty directory.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.syntax import Output, Parsed, Simple, Unparsable, Word
from tests.supervisors import WHO

BASH: Final = ("/bin/bash", "--noprofile", "--norc")
HOME: Final = "/nowhere/home"
LIMIT_S: Final = 60
TOO_LONG_S: Final = 3
"""What loops for ever is given up."""
_OURS: Final = ("U+", "heredoc", "longer than", "in a row", "another order")
"""What is refused though bash would take it: it cannot be shown, or bash only warns."""
_CONDITIONAL: Final = re.compile(r"&&|\|\||\b(?:if|until|while|for)\b|\[")
_BUILTIN: Final = frozenset({"[", "[[", ":"})
_ENVIRONMENT: Final = {"PATH": "/nowhere", "HOME": HOME, "LC_ALL": "C.UTF-8"}


def _printing(descriptor: int) -> dict[str, str]:
    """What bash calls instead of a program that it does not find, with all that the program would have got."""
    handler = f'() {{ builtin printf "%s\\0" "$#" "$@" >&{descriptor}; return 0; }}'
    return {"BASH_FUNC_command_not_found_handle%%": handler}


def _apart(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Pieces of any text: reserved words, operators and quotes that do not belong together.
PIECES: Final = (
    *_apart(
        r"""p q p1 a é ü → " ' \ ` ( ) [ ] { } ; & | # = * ? ~ $ ! + % @ - : , ^ < > 2 0 && || |& $f ${f} "$f" $( ))"""
    ),
    *_apart(
        r"""$(( <( 2>&1 >x >>x &>x >|x <>x 0<&- >&- <<< ;; {} \; {a,b} ${f:-x} $'a' $"a" $1 $$ ~/ ~u !! -n --x=y"""
    ),
    *_apart("a=1 p() .. a=( ]] [[ fi done esac"),
    *(" ", " ", " ", " ", "\t", "\n", " }", "{ ", "\\\n", "b c", "p a;"),
    *("\nE\n", "<<E\n", "<<'E'\n", "<<-E\n", "# c\n"),
    *(f"{word} " for word in _apart("if then elif else for do until while case select function time coproc ! [ [[ -f")),
    *("'x y'", "p b\n", " in ", "for f in ", " ]", " ]]"),
)
# Words in all the ways in which a word can be written.
WORDS: Final = (
    *_apart(
        r"""p p1 q a=b -n --x=y a#b {} { a{b a}b HEAD~1 ~ ~/a a~ s@{0} @{u} ! a! !a ^ é = =a a:b if then fi in do"""
    ),
    *_apart(
        r"""5 -5 "p" p'' t""p 'a'\''b' \$x '$x' "\$x" a$ \#a '#' "日本" '→ü' [ ] [ab x]] -e\xec a\b '' "" 0x1 '"'"""
    ),
    *_apart(
        r"""a,b 1..2 a.b/c /nowhere/y \; \| "|" '&' "\`p\`" +x a+=b x[1] \~ '~'/a \* "*" '*'a \\ '\' "'" *.zz ?.zz"""
    ),
    *("'p q'", "p\\ q", '"a b"', '"a\\"b"', '"a\\\\"', '"\\x"', "'a\nb'", '"a\nb"'),
)
LOOPED: Final = ("$f", '"$f"', "${f}x", '"a${f}b"')
REDIRECTIONS: Final = (*_apart(">/dev/null 2>&1 2>/dev/null <<<a &>x >>x 1>&2 >|x <&-"), "> x", "2> x", "<<<'a b'")
BLANKS: Final = (" ", "  ", "\t", " \\\n ")
ENDS: Final = (";", "\n", " ;", "\n\n", " # c'\"(\n")
BETWEEN: Final = (" | ", " && ", " || ", "; ", ";", "\n", "|", "&&", " |\n", " |& ", " &&\n ", "  # x\n")
TESTS: Final = ("[ -f a ]", "[ ! -d 'a b' ]", "[[ -f a ]]", "[[ ! a == b ]]", '[[ "a b" ]]', "[ a = b ]", "[[ -n x ]]")


def rubbish() -> st.SearchStrategy[str]:
    """Text that is seldom a command."""
    return st.lists(st.sampled_from(PIECES), min_size=1, max_size=24).map("".join)


@st.composite
def simple(draw: st.DrawFn, *, looped: bool = False) -> str:
    """A simple command, its words and redirections in any order."""
    words = WORDS + LOOPED * 4 if looped else WORDS
    parts = [draw(st.sampled_from(("p", "q", "p1", "'p'", "\\p", "p''")))]
    parts += [
        draw(st.sampled_from(words)) + draw(st.sampled_from(("", "", "", "", "a", "'b'", "\\c", "=")))
        for _ in range(draw(st.integers(0, 4)))
    ]
    for redirection in draw(st.lists(st.sampled_from(REDIRECTIONS), max_size=2)):
        parts.insert(draw(st.integers(0, len(parts))), redirection)
    return draw(st.sampled_from(BLANKS)).join(parts)


@st.composite
def command(draw: st.DrawFn, depth: int, *, looped: bool = False) -> str:
    """A command, compound where there is depth left."""
    if depth == 0 or draw(st.integers(0, 9)) < 4:
        return draw(simple(looped=looped))
    inner = lines(depth - 1, looped=looped)
    end = draw(st.sampled_from(ENDS))
    match draw(st.integers(0, 7)):
        case 0:
            return f"{{ {draw(inner)}{end}}}"
        case 1:
            return f"({draw(inner)})"
        case 2:
            otherwise = draw(st.sampled_from(("", f"elif {draw(inner)}{end}then p{end}", f"else {draw(inner)}{end}")))
            return f"if {draw(inner)}{end}then {draw(inner)}{end}{otherwise}fi"
        case 3 if not looped:
            values = " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=3)))
            return f"for f in {values}{end}do {draw(lines(depth - 1, looped=True))}{end}done"
        case 4:
            return f"until {draw(simple(looped=looped))}{end}do {draw(inner)}{end}done"  # ends: what runs succeeds
        case 5:
            return f"{{ {draw(inner)}{end}}} {draw(st.sampled_from(('> x', '2>&1', '| p')))}"
        case 6:
            marks = draw(st.lists(st.sampled_from(("E", "'E'", '"E"', "\\E")), min_size=1, max_size=2))
            bodies = [draw(st.sampled_from(("a\nb c\n", "", "it's \"x\n", "\tz\n"))) for _ in marks]
            operator = draw(st.sampled_from(("<<", "<<-")))
            text = "".join(f"{body}E\n" for body in bodies)
            return f"p {' '.join(operator + mark for mark in marks)}\n{text}"
        case _:
            return draw(st.sampled_from(TESTS))


@st.composite
def lines(draw: st.DrawFn, depth: int = 2, *, looped: bool = False) -> str:
    """Several commands with what may stand between them."""
    text = draw(command(depth, looped=looped))
    for _ in range(draw(st.integers(0, 2))):
        following = draw(command(depth, looped=looped))
        text += following if text.endswith("E\n") else draw(st.sampled_from(BETWEEN)) + following
    return text


def refusal(text: str) -> str | None:
    """What bash says against a text that it refuses to read; None if it would run it. Runs nothing."""
    done = subprocess.run(
        [*BASH, "-nc", "--", text], capture_output=True, env=_ENVIRONMENT, timeout=LIMIT_S, check=False, cwd="/"
    )
    said = done.stderr.decode(errors="replace")
    return said or "refused" if done.returncode else None


def received(text: str, directory: Path) -> list[tuple[str, ...]] | None:
    """Run a harmless text: what each program got, its name first; None if it did not end by itself."""
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [*BASH, "-c", "--", text],
            env=_ENVIRONMENT | _printing(writing),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writing,),
            timeout=TOO_LONG_S,
            check=False,
            **WHO,
        )
    except subprocess.TimeoutExpired:
        os.close(reading)
        return None
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        parts = iter(pipe.read().decode().split("\0")[:-1])
    for file in directory.iterdir():
        file.unlink()
    return [tuple(itertools.islice(parts, int(count))) for count in parts]


def possible(parsed: Parsed) -> set[tuple[str, ...]]:
    """All that the programs of a command line could get, for each value of its loop variables."""
    return {argv for simple in parsed.commands for argv in _argvs(simple)}


def _argvs(simple: Simple) -> Iterator[tuple[str, ...]]:
    names = sorted({name for word in simple.words for name in word.variables})
    loops = dict(simple.loops)
    choices = [() if given is None or isinstance(given, Output) else given for given in map(loops.__getitem__, names)]
    for chosen in itertools.product(*choices):
        values = {name: _expanded(word, word.text) for name, word in zip(names, chosen, strict=True)}
        yield tuple(itertools.chain.from_iterable(_given(word, values) for word in simple.words))


def _given(word: Word, values: dict[str, str]) -> list[str]:
    text = word.with_values(values)
    return text.split() if word.splits else [_expanded(word, text)]


def _expanded(word: Word, text: str) -> str:
    return HOME + text[1:] if word.tilde else text


def well_formed(text: str) -> None:
    """Any text is answered, always the same, and what is said of it is about it."""
    found = parse(text)
    assert found == parse(text)
    if isinstance(found, Unparsable):
        assert 0 <= found.at <= len(text)
        return
    assert found.source == text
    assert [simple.start for simple in found.commands] == sorted(simple.start for simple in found.commands)
    for part in (*found.commands, *found.outside):
        assert text[part.start : part.end] == part.text
    for simple in found.commands:
        assert all(text[word.start : word.end] == word.raw for word in simple.words)
        assert found.outside or not any(word.unknown for word in simple.words)


def read_as_bash_reads(text: str) -> None:
    """Bash accepts what is inside the subset, and refuses what is said to be refused by it."""
    found = parse(text)
    if isinstance(found, Parsed):
        assert found.outside or refusal(text) is None, f"bash refuses {text!r}"
    elif "[[" not in text and not any(known in found.reason for known in _OURS):  # of errors in [[ bash says nothing
        assert refusal(text) is not None, f"bash accepts {text!r}, but {found.reason} at {found.at}"


def _looks_up(word: Word, simple: Simple) -> bool:
    """Whether bash looks into the directory for it, in which the line itself may make files."""
    known = [given for _, given in simple.loops if given is not None and not isinstance(given, Output)]
    values = [value.text for given in known for value in given]
    return word.globs or (word.splits and any(set("*?[") & set(text) for text in values))


def agrees_with_bash(text: str, directory: Path) -> None:
    """No program gets other words than were read; where all of them run, each gets its own."""
    found = parse(text)
    if not isinstance(found, Parsed) or found.outside:
        return
    if any(isinstance(given, Output) for simple in found.commands for _, given in simple.loops):
        return  # what is printed is known once it runs
    got = received(text, directory)
    if got is None or any(_looks_up(word, simple) for simple in found.commands for word in simple.words):
        return
    expected = possible(found)
    assert set(got) <= expected, f"of {text!r} bash makes {set(got) - expected}"
    if not _CONDITIONAL.search(text):
        missed = Counter(
            argv for simple in found.commands for argv in _argvs(simple) if argv and argv[0] not in _BUILTIN
        )
        assert missed == Counter(got), f"of {text!r} bash makes {got}"
