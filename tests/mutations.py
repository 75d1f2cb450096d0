"""Ways to write a hostile command otherwise, so that it still does what it did, or nothing.

python -m tests.mutations [COUNT]    every command of the corpus, COUNT mutations each (200)
"""

from __future__ import annotations

import random
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.classify.syntax import Parsed, Simple, Word
from shellback.exec.policy.classify.tables.wrappers import WRAPPERS
from tests.judged import around, hostile, make_tree

_AROUND: Final = (
    "{c} | cat", "cat a.txt | {c}", "{c} |& cat", "({c})", "( {c} )", "{{ {c}; }}", "if {c}; then ls; fi",
    "if ls; then {c}; fi", "if ls; then :; else {c}; fi", "while {c}; do break; done", "until {c}; do break; done",
    "for i in 1; do {c}; done", "for f in *.txt; do {c}; done", "! {c}", "ls && {c}", "ls || {c}", "ls; {c}", "{c}; ls",
    "{c} && ls", "{c} || ls", "ls\n{c}", "{c}\nls", "\n\n{c}", "ls &\n{c}", "{c} &", "{c} > /dev/null 2>&1",
    "{c} 2>/dev/null", "{c} < /dev/null", "2>/dev/null {c}", "[ -f a.txt ] && {c}", "case x in x) {c};; esac",
    "time {c}", "f() {{ {c}; }}; f", "echo $({c})", 'echo "$({c})"', "echo `{c}`", "cat <({c})", "x=$({c})",
    "cd . && {c}", "cd src && cd .. && {c}", "(cd src; cd ..; {c})",
    "ls # no\n{c}", "ls | {{ {c}; }}", "[[ -d src ]] && {c}",
    "true\t&&\t{c}", ": ; {c} ; :", "{c};", "  {c}", "ls;{c}", "ls&&{c}", "ls|{c}", "{c}|cat", "set -e; {c}",
    "test -n x && {{ {c}; }}", "if :; then if :; then {c}; fi; fi", "for i in 1 2; do for j in 3; do {c}; done; done",
    "{{ {{ {c}; }}; }}", "(({c}))", "cat <<'E'\nx\nE\n{c}", "cat <<< x; {c}", "{c}\n# end", "echo a; echo b; {c}",
)  # fmt: skip
_WRAPPERS: Final = (
    "env {c}", "env -i {c}", "env A=b {c}", "nice {c}", "nice -n 5 {c}", "timeout 5 {c}", "nohup {c}", "command {c}",
    "exec {c}", "builtin {c}", "setsid {c}", "stdbuf -o0 {c}", "busybox {c}", "time -p {c}", "xargs {c}", "watch {c}",
    "ionice {c}", "taskset 1 {c}", "flock lockf {c}", "strace {c}", "sudo {c}", "doas {c}", "unshare -r {c}",
    "eval {c}",
)  # fmt: skip
_QUOTED: Final = ("sh -c {q}", "bash -c {q}", "bash -lc {q}", "eval {q}", "su -c {q}", "echo {q} | sh", "bash <<< {q}",
                  "watch {q}", "script -qc {q} /dev/null", "xargs sh -c {q}", "env -S {q}",
     "trap {q} EXIT")  # fmt: skip
_ORDERED: Final = frozenset({"git", "awk", "gawk", "printf", "command", *WRAPPERS})
"""Elsewhere their options are others, or those of another program, or none."""
_PREFIXES: Final = ("A=b {c}", "LC_ALL=C {c}", "PATH=. {c}", "LD_PRELOAD=./x.so {c}", "A= B=c {c}", "TZ=UTC {c}",
                    "GIT_PAGER=cat {c}", "BASH_ENV=./evil.sh {c}", "A=$(ls) {c}")  # fmt: skip


def mutations(command: str, count: int, seed: int = 0) -> list[str]:
    """Up to `count` different texts, none of which may pass where `command` may not."""
    chance = random.Random(f"{seed} {command}")  # the same for each run
    found = list(dict.fromkeys(_simple_ones(command)))
    chance.shuffle(found)
    for _ in range(count * 3):
        if len(found) >= count:
            break
        once = chance.choice(found)
        again = chance.choice(list(_simple_ones(once)) or [once])
        if again not in found and len(again) < 2_000:
            found.append(again)
    return found[:count]


def _simple_ones(command: str) -> Iterator[str]:
    quoted = shlex.quote(command)
    for form in (*_AROUND, *_WRAPPERS, *_PREFIXES):
        yield form.format(c=command)
    for form in _QUOTED:
        yield form.format(q=quoted)
    parsed = parse(command)
    if isinstance(parsed, Parsed) and parsed.commands:
        for simple in parsed.commands:
            yield from _of_words(command, simple)


def _of_words(command: str, simple: Simple) -> Iterator[str]:
    for number, word in enumerate(simple.words):
        for changed in _spellings(word, first=number == 0):
            yield command[: word.start] + changed + command[word.end :]
        for blank in ("  ", "\t", " \\\n", " \t "):
            yield command[: word.end] + blank + command[word.end :]
    if len(simple.words) < 2:
        return
    yield command[: simple.end] + " --" + command[simple.end :]
    if simple.words[0].text in _ORDERED:
        return
    for option in (word for word in simple.words[1:] if word.text.startswith("-")):
        without = command[: option.start] + command[option.end :]
        shift = option.end - option.start
        yield without[: simple.end - shift] + f" {option.raw}" + without[simple.end - shift :]
        start = simple.words[0].end
        yield without[:start] + f" {option.raw}" + without[start:]


def _spellings(word: Word, *, first: bool) -> Iterator[str]:
    """One word, written otherwise. What quotes would make another word of is left alone."""
    raw, text = word.raw, word.text
    if text.startswith("--") and len(text) > 6 and not text.startswith("--pretty"):
        name, assigned, value = raw.partition("=")
        for less in (1, 2, 3):
            yield name[:-less] + assigned + value
        if assigned:
            yield f"{name} {value}"
    elif text.startswith("-") and len(text) > 3 and text == raw and not text[2].islower():
        yield f"{text[:2]} {text[2:]}"
    if word.globs or word.tilde or word.unknown or word.variables:
        return
    if text == raw and text.isalnum():
        half = len(text) // 2
        yield f"{text[:half]}''{text[half:]}"
        yield f'{text[:half]}""{text[half:]}'
        yield f"{text[:half]}\\{text[half:]}"
        yield f"{text[:half]}'{text[half:]}'"
        yield "$'" + "".join(f"\\x{ord(sign):02x}" for sign in text) + "'"
        yield f'$"{text}"'
        yield f"{text[:half]}${{x}}{text[half:]}"
        yield f"{text[:half]}\\\n{text[half:]}"
        yield f"{{{text},}}"
        yield f"{text}*" if not first else f"/usr/bin/{text[:-1]}?"
        if first:
            yield f"./{text}"
            yield f"/tmp/{text}"
            yield f"~/{text}"
            yield text.upper()
    yield shlex.quote(text) if text == raw else f"''{raw}"
    if "'" not in text and "\\" not in text:
        yield f"'{text}'"


def passing(commands: list[str], count: int, where: Surroundings, seed: int = 0) -> tuple[int, list[str]]:
    """How many mutations were judged, and those that would pass."""
    judged, passed = 0, list[str]()
    for command in commands:
        for mutation in mutations(command, count, seed):
            judged += 1
            if classify(mutation, where).verdict == "read_only":
                passed.append(mutation)
    return judged, passed


def main(say: Callable[[str], object] = print) -> int:
    """Judge the whole set."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as place:
        where = around(make_tree(Path(place)))
        judged, passed = passing(hostile(), count, where)
    for mutation in passed:
        say(repr(mutation))
    say(f"{judged} mutations of {len(hostile())} commands, {len(passed)} would pass")
    return 1 if passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
