"""The files that a command line would run, from its text alone: programs, scripts, and their operands.

`binding` looks the names up. Too many names are harmless: a name without a file is ignored.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.display import label
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.syntax import Output, Parsed, Simple, Word
from shellback.exec.policy.rules.carriers import SHELLS, Text, carried, name_of, names

DEPTH: Final = 4
"""The depth to which nested command lines are followed."""
VALUES: Final = 64
"""The number of combinations of loop variables that are followed for one command."""


_BUILTINS: Final = names("""
    . : [ [[ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
    enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf
    pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit
    umask unalias unset wait ! { } time coproc function
    """)
_READERS: Final = names("""
    basename cat cksum cmp column comm cut date df diff dirname du egrep expand fgrep file find fmt fold grep head
    hexdump id join less ls lsof md5sum more nl od paste pr ps readlink realpath rev rg seq sha1sum sha256sum sha512sum
    sleep sort stat strings sum tac tail tr tree tsort uname unexpand uniq wc which whoami xxd zcat zgrep jq
    """) | (_BUILTINS - {".", "source", "exec", "eval"})
_WRITERS: Final = names("""
    chgrp chmod chown cp dd git install ln mkdir mkfifo mktemp mv rm rmdir rsync shred split sync tar tee touch truncate
    unlink unzip zip gzip gunzip xz bzip2 zstd patch curl wget scp
    """)
"""Programs that change files and run none of their operands. Other programs may run an operand."""

_VALUED: Final = {
    "python": "-W -X --check-hash-based-pycs",
    "pypy": "-W -X",
    "node": "-r --require --import --loader --experimental-loader -C --conditions --env-file",
    "nodejs": "-r --require --import --loader --experimental-loader -C --conditions --env-file",
    "perl": "",
    "ruby": "-r -I -C -E",
    "php": "-d -c -f -z -B -F -R",
    "lua": "-l",
    "luajit": "-l",
    "tclsh": "",
    "Rscript": "",
    "osascript": "",
    "bun": "-r --preload",
    "deno": "-c --config --import-map",
    "java": "-cp -classpath --class-path -jar -p --module-path -m --module",
    **dict.fromkeys(SHELLS, "-o +o -O +O --rcfile --init-file"),
}
"""Interpreters, with the options that take a value; the value may be a file of code too."""
_INLINE: Final = names("-c -e -E -p --eval --print")
_VERBS: Final = frozenset(["run", "test", "exec"])
_FILE_OPTIONS: Final = names("-f --file --from-file --makefile --script -x")
_IMPLICIT: Final = {
    "make": "GNUmakefile makefile Makefile",
    "gmake": "GNUmakefile makefile Makefile",
    **dict.fromkeys(["npm", "yarn", "pnpm", "npx", "bun"], "package.json"),
    "just": "justfile Justfile .justfile",
    "task": "Taskfile.yml Taskfile.yaml",
    "rake": "Rakefile",
    "ninja": "build.ninja",
    "cmake": "CMakeLists.txt",
    "pytest": "conftest.py pytest.ini pyproject.toml setup.cfg tox.ini",
    "tox": "tox.ini pyproject.toml setup.cfg",
    "nox": "noxfile.py",
    "invoke": "tasks.py",
    "fab": "fabfile.py",
    "cargo": "Cargo.toml build.rs",
    "gradle": "build.gradle settings.gradle build.gradle.kts",
    "mvn": "pom.xml",
    "docker": "Dockerfile docker-compose.yml compose.yaml",
}
"""Files that a program runs although the line does not name them."""
_FINDERS: Final = names("find fd fdfind xargs parallel entr")
_VERSION: Final = re.compile(r"-?[0-9][0-9.]*\Z")
_TOKEN: Final = re.compile(r"[^\s'\"`;&|<>(){}$=,]+")
_MOST_TOKENS: Final = 512
_MOST_SAID: Final = 8


@dataclass(frozen=True, slots=True)
class Operand:
    """A word of the line that may name a file. `runs`: the line runs it, None if unknown. `globs`: it is a pattern."""

    name: str
    runs: bool | None = False
    globs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The names in a command line.

    `programs` are searched in PATH. `files` are relative to the command's directory or to one of `folders`, to which
    the line changes. `written` are files that the line may change. `unknown` has a sentence for each unreadable part.
    """

    programs: tuple[str, ...] = ()
    files: tuple[Operand, ...] = ()
    folders: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@functools.lru_cache(maxsize=256)
def named_in(command: str) -> Line:
    walk = _Walk()
    walk.text(command, 0)
    return walk.line()


class _Walk:
    """Collects the names in the commands of a line, in their order."""

    def __init__(self) -> None:
        self._programs: dict[str, None] = {}
        self._files: dict[str, Operand] = {}
        self._folders: dict[str, None] = {}
        self._written: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        self._read: list[Operand] = []
        self._fed = False

    def line(self) -> Line:
        for operand in self._read if self._fed else ():
            self._file(operand.name, True, globs=operand.globs)
        return Line(
            programs=tuple(self._programs),
            files=tuple(self._files.values()),
            folders=tuple(self._folders),
            written=tuple(self._written),
            unknown=tuple(self._unknown),
        )

    def text(self, command: str, depth: int) -> None:
        if depth > DEPTH:
            self._unknown["a command line within so many others is not looked into"] = None
            return
        parsed = parse(command)
        if not isinstance(parsed, Parsed):
            self._tokens(command)
            return
        for simple in parsed.commands:
            self._simple(simple, depth)
        for part in parsed.outside[:_MOST_SAID]:
            self._unknown[f"{label(part.text)}: {part.reason}; what runs by it is not bound"] = None
        if parsed.outside:
            self._tokens(command)

    def _tokens(self, command: str) -> None:
        """Take every word of unparsable text as a file that may run."""
        for token in itertools.islice(_TOKEN.findall(command), _MOST_TOKENS):
            if token not in self._files:
                self._file(token, None, globs=any(char in token for char in "*?["))
            if _interpreter(token) is not None:
                self._programs[token] = None

    def _simple(self, simple: Simple, depth: int) -> None:
        for name, _ in simple.assignments:
            if name == "PATH":
                self._unknown["PATH is set in the command: which programs run is not bound"] = None
        stdin = False
        for redirect in simple.redirects:
            if redirect.target is not None and redirect.op == "<":
                stdin = True
                self._read.append(Operand(redirect.target.text, globs=redirect.target.globs))
            elif redirect.target is not None and redirect.op.startswith((">", "&>")):
                self._written[redirect.target.text] = None
            stdin |= redirect.op in {"<<", "<<-", "<<<"}
        for words in _variants(simple):
            if words is None:
                self._unknown[f"{label(simple.text)}: what a variable in it stands for is not bound"] = None
                self._tokens(simple.text)
            elif words:
                self._command(words, depth, stdin=stdin or simple.piped)

    def _command(self, words: Sequence[Operand], depth: int, *, stdin: bool) -> None:
        plain = [word.name for word in words]
        name = name_of(plain[0])
        self._program(plain[0])
        carries = list(carried(plain)) if depth < DEPTH else []
        for inner in carries:
            if isinstance(inner, Text):
                self.text(inner.text, depth + 1)
            else:
                patterns = {word.name for word in words if word.globs}
                self._command([Operand(word, globs=word in patterns) for word in inner], depth + 1, stdin=stdin)
        if carries and name in _FINDERS:
            self._unknown[f"{name}: the files that it finds or is given are not bound"] = None
        self._folders |= dict.fromkeys(_folders(name, plain))
        for one in _IMPLICIT.get(name, "").split():
            self._file(one, False)
        if not (carries and _interpreter(name) is None):
            self._arguments(name, words, stdin=stdin)

    def _program(self, word: str) -> None:
        if "/" in word:
            self._file(word, True)
        elif any(char in word for char in "$`*?["):
            self._unknown[f"{label(word)}: which program that is, is not bound"] = None
        elif word not in _BUILTINS:
            self._programs[word] = None

    def _arguments(self, name: str, words: Sequence[Operand], *, stdin: bool) -> None:
        valued = _interpreter(name)
        if valued is not None:
            self._interpreted(words, valued, stdin=stdin)
        elif name in {".", "source"}:
            for operand in words[1:2]:
                self._file(operand.name, True, globs=operand.globs)
        elif name in {"awk", "gawk", "mawk", "nawk", "sed"}:
            self._of_filter(words)
        elif name in _READERS:
            self._read += [word for word in words[1:] if not word.name.startswith("-")]
        else:
            self._others(words[1:], bound=name not in _WRITERS)

    def _interpreted(  # noqa: C901 - one branch for each kind of option
        self, words: Sequence[Operand], valued: frozenset[str], *, stdin: bool
    ) -> None:
        rest = list(words[1:])
        inline = False
        while rest and rest[0].name.startswith(("-", "+")) and len(rest[0].name) > 1:
            option = rest.pop(0).name
            flag, separator, value = option.partition("=")
            if separator:
                self._file(value, True)
            if option == "-m" and rest:
                inline = True
                module = rest.pop(0).name.replace(".", "/")
                for one in (f"{module}.py", f"{module}/__main__.py", f"{module}/__init__.py"):
                    self._file(one, True)
            elif flag in _INLINE or (re.fullmatch(r"-[a-z]*c[a-z]*", flag) and name_of(words[0].name) in SHELLS):
                inline = True
                rest = rest[1:]
            elif flag in valued and not separator and rest:
                inline |= flag in {"-jar", "-f"}
                self._file(rest.pop(0).name, True)
            elif option == "--":
                break
        while rest and not inline and name_of(words[0].name) in {"bun", "deno"} and rest[0].name in _VERBS:
            rest.pop(0)
        if rest and not inline and rest[0].name != "-":
            script = rest.pop(0)
            self._file(script.name, True, globs=script.globs)
        elif not inline:
            self._fed |= stdin
        self._others(rest, bound=True)

    def _of_filter(self, words: Sequence[Operand]) -> None:
        changes = any(word.name.startswith(("-i", "--in-place")) for word in words[1:])
        for word, value in itertools.zip_longest(words[1:], words[2:]):
            flag, separator, given = word.name.partition("=")
            if word.name in _FILE_OPTIONS and value is not None:
                self._file(value.name, True)
            elif separator and flag in _FILE_OPTIONS:
                self._file(given, True)
            elif changes:
                self._written[word.name] = None
            else:
                self._read.append(word)

    def _others(self, words: Sequence[Operand], *, bound: bool) -> None:
        for word, value in itertools.zip_longest(words, words[1:]):
            option = word.name.startswith("-")
            if word.name in _FILE_OPTIONS and value is not None:
                self._file(value.name, False)
            name = word.name.partition("=")[2] if option else word.name
            if name:
                self._written[name] = None
                if bound:
                    self._file(name, False, globs=word.globs)

    def _file(self, name: str, runs: bool | None, *, globs: bool = False) -> None:
        if not name or "\0" in name or len(name) > 4096:
            return
        known = self._files.get(name)
        if known is None or (runs and not known.runs):
            self._files[name] = Operand(name, runs, globs)


def _interpreter(name: str) -> frozenset[str] | None:
    """The options of an interpreter that take a value; None if the program is no interpreter."""
    valued = _VALUED.get(name, _VALUED.get(_VERSION.sub("", name)))
    return None if valued is None else frozenset(valued.split())


def _folders(name: str, words: Sequence[str]) -> Iterator[str]:
    if name in {"cd", "pushd"}:
        yield from [word for word in words[1:] if not word.startswith("-")][:1]
    elif name in {"make", "gmake", "git", "tar", "ninja", "env", "npm", "cmake"}:
        for option, value in itertools.pairwise(words[1:]):
            if option in {"-C", "--directory", "--chdir", "--prefix", "--build"}:
                yield value
        yield from (word[2:] for word in words if word.startswith("-C") and len(word) > 2)


def _variants(simple: Simple) -> Iterator[list[Operand] | None]:
    """The words of a command for each value of its loop variables; None if a variable can have any value."""
    names = sorted({name for word in simple.words for name in word.variables})
    loops = dict(simple.loops)
    values: list[list[Word]] = []
    for name in names:
        known = loops.get(name)
        if known is None or isinstance(known, Output) or any(word.variables for word in known):
            yield None
            return
        values.append(list(known))
    for count, chosen in enumerate(itertools.product(*values)):
        if count == VALUES:
            yield None
            return
        given = {name: word.text for name, word in zip(names, chosen, strict=True)}
        globs = {name: word.globs for name, word in zip(names, chosen, strict=True)}
        yield [
            Operand(word.with_values(given), globs=word.globs or any(globs[name] for name in word.variables))
            for word in simple.words
        ]
