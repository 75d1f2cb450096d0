"""Judges a command line: each of its commands is judged, and the worst one decides."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from shellback.exec.core.display import label
from shellback.exec.core.sight.sight import Sight, TooMuch, Unseen
from shellback.exec.policy.classify.arguments import Bound, Looked, bindings, expand
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Asks, Judgement, Segment, Surroundings, Tier
from shellback.exec.policy.classify.options import COUNTED, HOLE, Argument, Call, Pieces
from shellback.exec.policy.classify.outputs import printed
from shellback.exec.policy.classify.paths import Files, Known, seen_from
from shellback.exec.policy.classify.programs import Trust, judge
from shellback.exec.policy.classify.syntax import NUMBER, Parsed, Redirect, Simple, Unparsable
from shellback.exec.policy.classify.tables.wrappers import harmless

_PATH: Final = re.compile(r"[^\s;|&$`<>(){}]*/[^\s;|&$`<>(){}]*|(?:\.{0,2}|~)/[^\n]*|\.\.")
"""A word that looks like a path and not like a script."""
_LOOPS: Final = re.compile(r"\b(for|while|until)\b")


def classify(command: str, around: Surroundings) -> Judgement:
    """Judge a command line from its text and the directories it would run in; starts nothing.

    `read_only`: every command is known to only read allowed files. `deny`: bash would refuse the text, or it cannot be
    shown to a person; the reason has the place. Everything else is `needs_approval`.
    """
    parsed = parse(command)
    if isinstance(parsed, Unparsable):
        return Judgement(verdict="deny", tier=Tier.ADMIN, reason=f"{parsed.reason} (at character {parsed.at})")
    line = _Line(parsed, around)
    segments = tuple(line.segment(simple) for simple in parsed.commands)
    tier = max((segment.tier for segment in segments), default=Tier.READ_ONLY)
    verdict = "needs_approval"
    if parsed.outside:
        tier = max(tier, Tier.READ_WRITE)
        reason = f"{parsed.outside[0].reason} (at character {parsed.outside[0].start})"
    elif not segments:
        reason = "there is nothing in it to run"
    elif tier is Tier.READ_ONLY:
        verdict, reason = "read_only", "every command in it only reads"
    else:
        reason = next(segment.reason for segment in segments if segment.tier is not Tier.READ_ONLY)
    return Judgement(verdict=verdict, tier=tier, reason=reason, segments=segments)


class _Line:
    """The commands of one line, in order, with the directories in which they may run."""

    def __init__(self, parsed: Parsed, around: Surroundings) -> None:
        self.parsed = parsed
        self.around = around
        self.places = Places(parsed.source, around.cwd)
        self.commands = {simple.start: simple for simple in parsed.commands}
        self.trust = Trust(around.search)
        self.known = Known(seen_from(around))
        self._everything = Sight(("/",), held=around.held)
        self.looked: Looked = {}
        self.outputs: dict[tuple[int, Path], list[Pieces]] = {}

    def segment(self, simple: Simple) -> Segment:
        """Judge the next command of the line."""
        self.places.reach(simple)
        words: set[tuple[str, ...]] = set()
        looked: list[Files] = []
        entered: list[Path | None] = []
        tier, reason = Tier.READ_ONLY, "it only reads"
        try:
            for place in self.places.here:
                for given in self._variants(simple, place, looked):
                    words.add(given)
                    entered += [looked[-1].entered] if looked[-1].entered is not None else []
            self._enter(entered)
        except (Asks, TooMuch) as asks:
            tier, reason = (asks.tier, asks.reason) if isinstance(asks, Asks) else (Tier.READ_WRITE, str(asks))
            words = {_plain(simple)}
        named = dict.fromkeys(path for files in looked for path in files.named)
        if tier is not Tier.READ_ONLY:
            named |= dict.fromkeys(self._reads_like(simple))
            self._leads(simple)
        given = words.pop() if len(words) == 1 else ()
        return Segment(
            text=simple.text,
            words=() if any(HOLE in word for word in given) else given,
            tier=tier,
            reason=reason,
            paths=tuple(named),
        )

    def _enter(self, directories: list[Path | None]) -> None:
        """Add directories for the commands that follow. Earlier ones stay: `cd` may fail, or be in a subshell."""
        if directories:
            if _LOOPS.search(self.parsed.source):
                raise Asks("cd in a loop leads to more than one place")
            self.places.move(directories)

    def _leads(self, simple: Simple) -> None:
        """Follow a command that changes the directory and needs an approval."""
        words = list(_plain(simple)) or [*(word.text for word in simple.words[:1]), "-"]
        while words[0] in {"builtin", "command"} and len(words) > 1:
            del words[0]
        name = words[0]
        operands = [word for word in words[1:] if word not in {"-L", "-P", "-n", "--"}]
        known = len(operands) == 1 and operands[0][:1] not in {"-", "+"} and not _LOOPS.search(self.parsed.source)
        if name in MAY_MOVE or (name in {"cd", "pushd"} and not known):
            self.places.move([None])
        elif name in {"cd", "pushd"}:
            there = [place and Path(_joined(place, operands[0])) for place in self.places.here]
            with contextlib.suppress(Asks):
                self.places.move(there)

    def _reads_like(self, simple: Simple) -> Iterator[str]:
        """The paths that a command with an approval names: path-like words, targets of redirections, existing files."""
        targets = [one.target.text for one in simple.redirects if one.target and one.op not in {"<<<", ">&", "<&"}]
        words = [word for word in simple.words[1:] if word.text and not (word.globs or word.variables or word.unknown)]
        for place in self.places.here:
            yield from (_joined(place, target) for target in targets)
            for word in words:
                path = f"{self.around.home}{word.text[1:]}" if word.tilde else _joined(place, word.text)
                if _PATH.fullmatch(word.text) or (place and word.text[0] != "-" and self._stands(path)):
                    yield path

    def _stands(self, path: str) -> bool:
        with contextlib.suppress(OSError, TooMuch, Unseen):
            return self._everything.stands(path)
        return False

    def _variants(self, simple: Simple, place: Path | None, looked: list[Files]) -> Iterator[tuple[str, ...]]:
        """Judge a command in one directory for each value of its variables; `looked` collects the files."""
        if place is None:
            raise Asks("it is known only when it runs in which directory it does")
        around = self.around if place == self.around.cwd else replace(self.around, cwd=place)
        for bound in bindings(simple, Files(around, self.known), self._printed, self.looked):
            files = Files(around, self.known)
            looked.append(files)
            for name, value in simple.assignments if not simple.sets else ():
                _assign(name, expand(value, bound, files), alone=not simple.words)
            for redirect in simple.redirects:
                _redirect(redirect, bound, files)
            call = self._call(simple, bound, files)
            if call is not None:
                name = self.trust.name(call.name)
                judge(replace(call, name=name), by_path="/" in call.name)
            yield () if call is None else tuple(one.text for one in (Argument(call.name), *call.arguments))

    def _call(self, simple: Simple, bound: Bound, files: Files) -> Call | None:
        words = simple.words
        if words and words[0].text == "[[":  # the shell splits nothing in it
            words = tuple(word._replace(splits=False) for word in words)
        arguments = [argument for word in words for argument in expand(word, bound, files)]
        if not arguments:
            return None
        if arguments[0].matched or words[0].variables:
            raise Asks(f"{label(words[0].raw)} is no plain name of a program")
        return Call(
            name=arguments[0].text,
            arguments=tuple(arguments[1:]),
            files=files,
            piped=simple.piped and not any(redirect.feeds for redirect in simple.redirects),
            fed=lambda: self._printed(simple.fed_by, files),
            carry=self._carried,
        )

    def _carried(self, call: Call) -> None:
        judge(replace(call, name=self.trust.name(call.name, builtin=False)), by_path=True)

    def _printed(self, at: int | None, files: Files) -> list[Pieces]:
        """The possible outputs of the command at an offset, in the directory of these files."""
        if at == NUMBER:
            return [(COUNTED,)]
        simple = self.commands.get(at) if at is not None else None
        if simple is None:
            return [None]
        key = (simple.start, files.around.cwd)
        if key not in self.outputs:
            self.outputs[key] = [None]
            self.outputs[key] = self._output(simple, files)
        return self.outputs[key]

    def _output(self, simple: Simple, files: Files) -> list[Pieces]:
        counts = bool(simple.words) and simple.words[0].text == "wc"  # prints a number for any input
        if not all(_only_errors(redirect) or (counts and redirect.feeds) for redirect in simple.redirects):
            return [None]
        try:
            values = bindings(simple, files, self._printed, self.looked)
            calls = [self._call(simple, bound, files) for bound in values]
            return [None if call is None else printed(call, self.trust) for call in calls]
        except Asks:  # the command asks anyway
            return [None]


def _joined(place: Path | None, word: str) -> str:
    """A path as the shell would resolve it, without following symlinks; unchanged if the directory is unknown."""
    return os.path.normpath(os.path.join(place or "", word))


def _plain(simple: Simple) -> tuple[str, ...]:
    """The words of a command if no word needs a lookup; else none."""
    looked_up = any(word.globs or word.variables or word.unknown for word in simple.words)
    return () if looked_up else tuple(word.text for word in simple.words)


def _assign(name: str, values: list[Argument], *, alone: bool) -> None:
    exact = all(value.open is None for value in values)
    if alone or not exact or not harmless(name, " ".join(value.text for value in values)):
        raise Asks(f"{name} is set, which may steer what runs")


def _only_errors(redirect: Redirect) -> bool:
    """Whether a redirection only discards errors."""
    target = redirect.target
    return redirect.fd == 2 and redirect.op in {">", ">>"} and target is not None and target.raw == "/dev/null"


def _redirect(redirect: Redirect, bound: Bound, files: Files) -> None:
    if redirect.fd is not None and redirect.fd > 2:
        raise Asks(f"descriptor {redirect.fd} is redirected")
    if redirect.op in {"<<", "<<-"} and redirect.body is not None:
        return
    if redirect.target is None:
        raise Asks("a redirection is not known")
    if redirect.op == "<<<":
        if redirect.target.unknown:
            raise Asks(f"{label(redirect.target.raw)} is known only when it runs")
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


MOST: Final = 6
"""The most directories in which a command after `cd` may run; it is judged in each."""
MAY_MOVE: Final = frozenset({"popd", "eval", "source", "."})
"""Commands that may change the directory to an unknown one."""

_ONLY_AFTER: Final = re.compile(r"\s*&&\s*")
_SIGNS: Final = re.compile(r"[\s()&|;]*")


class Places:
    """Follows the directory from one command of a line to the next; None is an unknown directory.

    `cd` may fail, run in a subshell, or lead to an unknown directory.
    """

    def __init__(self, source: str, cwd: Path) -> None:
        self.here: tuple[Path | None, ...] = (cwd,)
        self._source = source
        self._any = self.here
        self._outer: list[tuple[Path | None, ...]] = []
        self._end = 0
        self._apart = False
        self._loose = False

    def reach(self, simple: Simple) -> None:
        """Go to the next command; `here` is then where it may run.

        After `&&` the command before has succeeded, unless it was negated or ran in a subshell (a pipe, a
        substitution); after any other operator it may have failed. A reserved word between two commands, or a heredoc
        in the line, leaves open which subshell ends.
        """
        between = self._source[self._end : simple.start]
        inside = simple.start < self._end
        self._end = max(self._end, simple.end)
        self._loose |= any(one.op in {"<<", "<<-"} for one in simple.redirects)
        if self._loose or self._apart or inside or not _ONLY_AFTER.fullmatch(between):
            self.here = self._any
        self._apart = inside or simple.piped or "!" in between
        if self._loose or not _SIGNS.fullmatch(between):
            self._outer.clear()
            return
        for sign in between:
            if sign == "(":
                self._outer.append(self._any)
            elif sign == ")" and self._outer:
                self.here = self._any = self._outer.pop()

    def move(self, to: Iterable[Path | None]) -> None:
        """Note the directories to which the reached command changes unless it fails; Asks if there are too many."""
        self.here = tuple(dict.fromkeys(to))
        self._any = tuple(dict.fromkeys((*self._any, *self.here)))
        if len(self._any) > MOST:
            self.here = self._any = (None,)
            raise Asks("it changes the directory too often to be followed")
