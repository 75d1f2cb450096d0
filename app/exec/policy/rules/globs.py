"""Absolute path globs: `*` and `?` within a name, `**` across any number of directories."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path


def absolute(pattern: str, base: Path) -> str:
    """A glob made absolute from `base`, the directory before its first wildcard with symlinks resolved.

    Raises:
        ValueError: It holds `..` behind a wildcard, `[`, or a `**` that is no whole name.
    """
    parts = os.path.join(base, os.path.expanduser(pattern)).split("/")
    plain = next((at for at, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    wild = parts[plain:]
    if ".." in wild:
        raise ValueError("`..` behind a wildcard leads anywhere; write the directory out")
    if "[" in pattern:
        raise ValueError("`[` is not supported; use * ? **")
    if any("**" in part and part != "**" for part in wild):
        raise ValueError("`**` has to be a whole name between slashes, as in build/**")
    start = os.path.realpath("/".join(parts[:plain]) or "/")
    return "/".join([start.rstrip("/"), *(part for part in wild if part)]) or "/"


def fits(pattern: str, path: str) -> bool:
    """Whether an absolute path is one that the glob stands for; `dir/**` stands for `dir` too."""
    return _regex(pattern).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    out: list[str] = []
    for part in pattern.strip("/").split("/"):
        if part == "**":
            out.append(r"(?:/[^/]+)*")
        else:
            out.append("/" + "".join({"*": "[^/]*", "?": "[^/]"}.get(c) or re.escape(c) for c in part))
    return re.compile("".join(out) + "/?", re.DOTALL)
