"""From a command line to what it is: each command of it judged, and all of it only as good as the worst."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from app.exec.classify.arguments import bindings, expand
from app.exec.classify.asking import Asks
from app.exec.classify.grammar import parse
from app.exec.classify.model import Judgement, Segment, Surroundings, Tier
from app.exec.classify.options import Call, words
from app.exec.classify.paths import Files, Known
from app.exec.classify.programs import Trust, judge
from app.exec.classify.syntax import Parsed, Redirect, Simple, Unparsable

MOST_PLACES: Final = 6
"""Directories in which a command after `cd` may run; it is judged for each."""
_LOOPS: Final = re.compile(r"\b(for|while|until)\b")
_SAFE_VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(
        ("LANG", "LANGUAGE", *(f"LC_{part}" for part in words("ALL COLLATE CTYPE MESSAGES MONETARY NUMERIC TIME"))),
        re.compile(r"(C|POSIX|[a-z]{2,3}_[A-Z]{2})(\.[A-Za-z0-9-]+)?|"),
    ),
    "TZ": re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Z][A-Za-z0-9_+-]*)*|"),
    "NO_COLOR": re.compile(r"1?"),
    "TERM": re.compile(r"dumb|xterm(-256color)?"),
    "COLUMNS": re.compile(r"[0-9]{1,4}"),
    "LINES": re.compile(r"[0-9]{1,4}"),
    "PAGER": re.compile(r"cat|"),
    "GIT_PAGER": re.compile(r"cat|"),
    "GIT_OPTIONAL_LOCKS": re.compile(r"0"),
    "GIT_TERMINAL_PROMPT": re.compile(r"0"),
}


def classify(command: str, around: Surroundings) -> Judgement:
    """Judge a command line from its text and the directories it would run in; nothing is started, no file is opened.

    `read_only` only where every command in it is known to only read allowed files. What bash would refuse, or cannot
    be shown to a person, is `deny`, with the place in the reason; all else is `needs_approval`.
    """
    parsed = parse(command)
    if isinstance(parsed, Unparsable):
        return Judgement(verdict="deny", tier=Tier.ADMIN, reason=f"{parsed.reason} (at character {parsed.at})")
    segments = _Line(parsed, around).segments()
    tier = max((segment.tier for segment in segments), default=Tier.READ_ONLY)
    if parsed.outside:
        first = parsed.outside[0]
        reason = f"{first.reason} (at character {first.start})"
        return Judgement(
            verdict="needs_approval", tier=max(tier, Tier.READ_WRITE), reason=reason, segments=tuple(segments)
        )
    if not segments:
        return Judgement(verdict="needs_approval", tier=tier, reason="there is nothing in it to run")
    if tier is Tier.READ_ONLY:
        reason = "every command in it only reads"
        return Judgement(verdict="read_only", tier=tier, reason=reason, segments=tuple(segments))
    worst = next(segment for segment in segments if segment.tier is not Tier.READ_ONLY)
    return Judgement(verdict="needs_approval", tier=tier, reason=worst.reason, segments=tuple(segments))


class _Line:
    """The commands of one line, in order, with the directories that they may run in."""

    def __init__(self, parsed: Parsed, around: Surroundings) -> None:
        self.parsed = parsed
        self.around = around
        self.places: list[Path] = [around.cwd]
        self.trust = Trust(around.search)
        self.known = Known()

    def segments(self) -> list[Segment]:
        """Each command, judged."""
        return [self._segment(simple) for simple in self.parsed.commands]

    def _segment(self, simple: Simple) -> Segment:
        words: set[tuple[str, ...]] = set()
        named: dict[str, None] = {}
        tier, reason = Tier.READ_ONLY, "it only reads"
        try:
            for place in list(self.places):
                for given, files in self._variants(simple, place):
                    words.add(given)
                    named.update(dict.fromkeys(files.named))
                    if files.entered is not None:
                        self._enter(files.entered)
        except Asks as asks:
            tier, reason = asks.tier, asks.reason
            words = {_plain(simple)}
        return Segment(
            text=simple.text,
            words=words.pop() if len(words) == 1 else (),
            tier=tier,
            reason=reason,
            paths=tuple(named),
        )

    def _enter(self, directory: Path) -> None:
        """From now on commands run there, or where they ran before: `cd` may fail, or be in a subshell."""
        if _LOOPS.search(self.parsed.source):
            raise Asks("cd in a loop leads to more than one place")
        if directory not in self.places:
            self.places.append(directory)
        if len(self.places) > MOST_PLACES:
            raise Asks("it changes the directory too often to be followed")

    def _variants(self, simple: Simple, place: Path) -> Iterator[tuple[tuple[str, ...], Files]]:
        """Judge a command for one directory and each value of its loop variables."""
        around = self.around if place == self.around.cwd else replace(self.around, cwd=place)
        for bound in bindings(simple, Files(around, self.known)):
            files = Files(around, self.known)
            for name, value in simple.assignments:
                _assign(name, [argument.text for argument in expand(value, bound, files)], alone=not simple.words)
            for redirect in simple.redirects:
                _redirect(redirect, bound, files)
            arguments = [argument for word in simple.words for argument in expand(word, bound, files)]
            if arguments:
                first = arguments[0]
                if first.matched or simple.words[0].variables:
                    raise Asks(f"{simple.words[0].raw} is no plain name of a program")
                name = self.trust.name(first.text)
                call = Call(name=name, arguments=tuple(arguments[1:]), files=files, piped=simple.piped)
                judge(call, by_path="/" in first.text)
            yield tuple(argument.text for argument in arguments), files


def _plain(simple: Simple) -> tuple[str, ...]:
    """The words of a command that need nothing to be looked up; none where one does."""
    looked_up = any(word.globs or word.variables or word.unknown for word in simple.words)
    return () if looked_up else tuple(word.text for word in simple.words)


def _assign(name: str, values: list[str], *, alone: bool) -> None:
    pattern = _SAFE_VALUES.get(name)
    if alone or pattern is None or not pattern.fullmatch(" ".join(values)):
        raise Asks(f"{name} is set, which may steer what runs")


def _redirect(redirect: Redirect, bound: Mapping[str, str], files: Files) -> None:
    if redirect.fd is not None and redirect.fd > 2:
        raise Asks(f"descriptor {redirect.fd} is redirected")
    if redirect.op in {"<<", "<<-"} and redirect.body is not None:
        return
    if redirect.target is None:
        raise Asks("a redirection is not known")
    if redirect.op == "<<<":
        if redirect.target.unknown:
            raise Asks(f"{redirect.target.raw} is known only when it runs")
        return
    targets = expand(redirect.target, bound, files)
    if len(targets) != 1 or targets[0].matched:
        raise Asks("a redirection goes to what a pattern matches")
    target = targets[0].text
    if redirect.op == "<":
        files.read(target)
    elif redirect.op == ">&" and target in {"1", "2"}:
        return
    elif redirect.op not in {">", ">>", ">|", "&>", "&>>", ">&"} or target != "/dev/null":
        tier = Tier.ADMIN if target.startswith("/dev/") else Tier.READ_WRITE
        raise Asks(f"{redirect.op} writes {target}" if ">" in redirect.op else f"{redirect.op} is not known", tier)
