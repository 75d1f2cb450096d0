"""The secrets that a command line names, from its text: known only if bash takes the text as it is written."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Generator
from contextlib import suppress
from typing import Final

from shellback.exec.core.sight.sight import TooMuch, Unseen
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.classify.paths import Files

_MAY_DIFFER: Final = re.compile(r"[\\$`*?\[{~]|[!@+]\(|\b(?:cd|pushd|popd)\b|/proc\b|/dev/fd\b")
"""What makes a name another one than it reads: an expansion, an escape, another directory, another root."""
_BETWEEN: Final = re.compile(r"[\s;|&<>()=:,@]+")
_WITHIN: Final = re.compile(r"[;|&<>()=:,@]+")
_OPTIONS: Final = re.compile(r"-[A-Za-z]{1,8}")
_QUOTES: Final = str.maketrans("", "", "\"'")
MOST: Final = 256
"""The words of a line that are looked at."""


def secrets_in(line: str, around: Surroundings) -> list[str] | None:
    """The secrets among all that could be a path in the line; None if it is not known whether it names one.

    What a program reads that its line does not name is not seen: a sandbox hides listed secrets from it.
    """
    if _MAY_DIFFER.search(line) is not None:
        return None
    files = Files(around)
    try:
        words = set(_words(line))
        if len(words) > MOST:
            return None
        return sorted(word for word in words if _secret(word, files))
    except (TooMuch, Unseen, ValueError):
        return None


def _words(line: str) -> Generator[str]:
    """All that could be a path: with the blanks that quotes keep, and without; also in lines that a word carries.

    Raises:
        ValueError: A quote is not closed.
    """
    bare = line.translate(_QUOTES)
    for word in (*bare.split(), *_BETWEEN.split(bare), *_kept(line)):
        yield word
        if options := _OPTIONS.match(word):
            yield from (word[at:] for at in range(2, options.end() + 1))


def _kept(line: str) -> Generator[str]:
    """The words with blanks in them."""
    for word in shlex.split(line):
        if len(word.split()) < 2:
            continue
        yield word
        yield from _WITHIN.split(word)
        if word != line:
            with suppress(ValueError):  # it is text, and no line of a shell
                yield from _kept(word)


def _secret(word: str, files: Files) -> bool:
    """Whether a word is the path of a secret; Unseen if it is a symlink that leads to where nobody looks."""
    if not word:
        return False
    secret, path = files.around.secret, os.path.join(files.around.cwd, word)
    text = os.path.normpath(path)
    if secret.written(text):
        return True
    try:
        return secret.written(files.sight.real(path))
    except Unseen:
        if files.sight.sees(text):
            raise
        return False
    except OSError:  # it is not there, so only the text counts
        return False
