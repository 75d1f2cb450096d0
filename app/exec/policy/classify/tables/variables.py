"""Variables that a command may be given: they steer no program to run or read anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.options import words

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


def harmless(name: str, value: str) -> bool:
    """Whether a program may find this in its environment."""
    pattern = _SAFE_VALUES.get(name)
    return pattern is not None and pattern.fullmatch(value) is not None
