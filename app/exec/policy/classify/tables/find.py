"""find, whose arguments are a small program; what it comes upon, it may hand to a command that only reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import HOLE, Argument, Call, Open, is_number, words
from shellback.exec.policy.classify.paths import Below

_ALONE: Final = words("""
    -empty -true -false -readable -writable -executable -nouser -nogroup -daystart -depth -d -mount -xdev -noleaf -prune
    -quit -not -a -and -o -or ! ( ) , -nowarn -warn -ignore_readdir_race -noignore_readdir_race
    """)
_PRINTS: Final = words("-print -print0")
_TELLS: Final = words("-ls -printf")
_TEXT: Final = words("""
    -name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype -size -perm -user -group
    -regextype -printf -fstype -newermt -newerat -newerct
    """)
_NUMBER: Final = words("-uid -gid -mtime -mmin -atime -amin -ctime -cmin -links -inum -maxdepth -mindepth -used")
_LOOK: Final = words("-newer -anewer -cnewer -samefile")
_CHOICES: Final = words("-o -or -not ! ( ) ,")
"""With one of these, a test before an action need not hold for what comes to the action."""
_OPENS: Final = ("-", "(", "!", ")", ",", HOLE)


@dataclass(slots=True)
class _Run:
    """A command of `-exec`; `many` files at once, or one after the other."""

    words: list[str]
    many: bool
    below: Below


@dataclass(slots=True)
class _Expression:
    """What has been read of the arguments."""

    call: Call
    waiting: list[Argument] = field(init=False)
    tops: list[str] = field(default_factory=list[str])
    follows: bool = False
    chooses: bool = False
    names: list[str] = field(default_factory=list[str])
    plain: bool = False
    depth: int | None = None
    runs: list[_Run] = field(default_factory=list[_Run])
    prints: list[Below] = field(default_factory=list[Below])
    tells: bool = False

    def __post_init__(self) -> None:
        self.waiting = waiting = list(reversed(self.call.arguments))
        self.chooses = any(argument.text in _CHOICES for argument in waiting)
        while waiting and re.fullmatch(r"-[HLP]|-O[0-3]", waiting[-1].text):
            self.follows |= self._exact() in {"-H", "-L"}
        while waiting and not waiting[-1].text.startswith(_OPENS):
            if waiting[-1].hidden or waiting[-1].open is not None:
                raise Asks("it is not known where find begins")
            self.tops.append(waiting.pop().text)
        while waiting:
            self._word()

    def _exact(self) -> str:
        argument = self.waiting.pop()
        if argument.matched:
            raise Asks("find takes what a pattern matches, which may be other things when it runs")
        return argument.text

    def _word(self) -> None:
        name = self._exact()
        if name == "-follow":
            self.follows = True
        elif name == "-exec":
            self._exec()
        elif name in _PRINTS:
            self.prints.append(self.below(nul=name == "-print0"))
        elif name in _TELLS | _TEXT | _NUMBER | _LOOK:
            self.tells |= name in _TELLS
            if name != "-ls":
                self._valued(name)
        elif name not in _ALONE:
            raise Asks(f"find {name} is not known to only read")

    def _valued(self, name: str) -> None:
        if not self.waiting:
            raise Asks(f"find {name} lacks its value")
        value = self._pattern() if name in _TEXT else self._exact()
        if name in _NUMBER and not is_number(value):
            raise Asks(f"{value!r} is no number for find {name}")
        if name == "-maxdepth" and value.isdecimal():
            self.depth = max(int(value), self.depth or 0)
        if name in _LOOK:
            self.call.files.read(value)
        if not self.chooses and name in {"-name", "-iname"}:
            self.names.append(value)
        self.plain |= not self.chooses and (name, value) == ("-type", "f")

    def _pattern(self) -> str:
        """A value, which a pattern may stand for of which no match can be a word of find's own: with two, it fails."""
        argument = self.waiting.pop()
        if not argument.pattern:
            self.waiting.append(argument)
            return self._exact()
        if argument.pattern[0] in "-(!),*?[" and "." not in re.sub(r"\[.*", "", argument.pattern):
            raise Asks("a pattern may stand for what find does")
        while self.waiting and self.waiting[-1].pattern == argument.pattern:
            self.waiting.pop()
        return argument.pattern

    def _exec(self) -> None:
        found: list[str] = []
        while self.waiting:
            word = self._exact()
            if word == ";" or (word == "+" and found[-1:] == ["{}"]):
                self.runs.append(_Run(found, word == "+", self.below()))
                return
            found.append(word)
        raise Asks("find -exec is not ended")

    def below(self, *, nul: bool = False) -> Below:
        """What comes to an action that stands here; for any top."""
        return Below(top="", names=tuple(self.names), plain=self.plain, nul=nul)

    def of(self, below: Below, *, many: bool) -> list[Argument]:
        """An argument for each top."""
        return [
            Argument(f"{top}{HOLE}", open=Open(below=replace(below, top=top, depth=self.depth), many=many))
            for top in self.tops or ["."]
        ]

    def judge(self) -> None:
        for top in self.tops or ["."]:
            self.call.files.descend(top, follows=self.follows, reads=False)
        for run in self.runs:
            if self.follows:
                raise Asks("find follows symlinks, and runs a command on what it comes upon")
            files = self.of(run.below, many=run.many)
            for given in [files] if run.many else [[file] for file in files]:
                self.call.run(tuple(argument for word in run.words for argument in _filled(word, given)))


def _filled(word: str, files: list[Argument]) -> list[Argument]:
    if word == "{}":
        return files
    return [Argument(word.replace("{}", HOLE), open=Open()) if "{}" in word else Argument(word)]


def find(call: Call) -> None:
    """Tests and what prints; not what deletes or writes files, nor names from a file. What runs has to only read."""
    _Expression(call).judge()


def found(call: Call) -> list[Argument] | None:
    """The files that an accepted call prints the names of; None where it may print other things."""
    expression = _Expression(call)
    if expression.runs or expression.tells or expression.follows or len(expression.prints) > 1:
        return None
    return expression.of(expression.prints[0] if expression.prints else expression.below(), many=True)
