"""The secrets that a command line names, from its text: known only if bash takes the text as it is written."""

from __future__ import annotations

import os
import re
from typing import Final

from shellback.exec.core.sight.sight import TooMuch
from shellback.exec.policy.classify.model import Asks, Surroundings
from shellback.exec.policy.classify.paths import Files

_MAY_DIFFER: Final = re.compile(r"[\\$`*?\[{~]|[!@+]\(|\b(?:cd|pushd|popd)\b")
"""What makes a name another one than it reads: an expansion, an escape, another directory."""
_BETWEEN: Final = re.compile(r"(?:^|(?<=\s))-[A-Za-z](?=[^\s])|[\s;|&<>()=:,@]+")
_QUOTES: Final = str.maketrans("", "", "\"'")
MOST: Final = 256
"""The words of a line that are looked at."""


def secrets_in(line: str, around: Surroundings) -> list[str] | None:
    """The secrets among all that could be a path in the line; None if it is not known whether it names one.

    What a program reads that its line does not name is not seen: a sandbox hides listed secrets from it.
    """
    text = line.translate(_QUOTES)
    words = {*text.split(), *_BETWEEN.split(text)} - {""}
    if _MAY_DIFFER.search(line) is not None or len(words) > MOST:
        return None
    files = Files(around)
    try:
        return sorted(word for word in words if _secret(word, files))
    except TooMuch:
        return None


def _secret(word: str, files: Files) -> bool:
    secret, text = files.around.secret, os.path.normpath(os.path.join(files.around.cwd, word))
    if secret.written(text):
        return True
    try:
        return secret.written(str(files.resolve(word)))
    except Asks:  # it is out of sight or not there, so only the text counts
        return False
