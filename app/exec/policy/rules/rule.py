"""A rule: what it matches of a parsed command and of where it would run, and what it says to that."""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from shellback.exec.policy.classify.model import Tier

Effect = Literal["allow", "ask", "deny"]
EFFECTS: Final[tuple[Effect, ...]] = ("allow", "ask", "deny")
ANY: Final = "*"
"""The pattern word that stands for any one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a rule holds for; what is not given holds for everything.

    `prefix` are a command's first words, each taken literally but for `*`, any one word; with `exact` nothing may
    follow them. `tier` is the highest that an allow holds for, the lowest that an ask or deny does. `paths` are
    absolute globs: all files that a command names for an allow, any of them for the others. An allow holds behind a
    pipe only with `piped`, because what comes through it is not in the rule. `cwd` is a directory, symlinks resolved.
    """

    prefix: tuple[str, ...] = ()
    exact: bool = False
    tier: Tier | None = None
    paths: tuple[str, ...] = ()
    piped: bool = False
    cwd: str | None = None
    backend: str | None = None
    profile: str | None = None
    conversation_id: str | None = None
    agent: str | None = None

    @property
    def anything(self) -> bool:
        """Whether it asks nothing of the command itself."""
        return not (self.prefix or self.paths or self.tier is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What somebody said beforehand. `source` is `file:line`, or `saved` with an `id` that it is revoked by.

    Times are seconds of the database's clock; `expires_at` None never comes.
    """

    effect: Effect
    match: Match
    id: str = ""
    note: str = ""
    source: str = "saved"
    owner: str = ""
    created_at: float = 0.0
    expires_at: float | None = None
    uses: int = 0
    saved: bool = False

    def described(self) -> str:
        """All of it on one line, for the person who saves or reads it."""
        match = self.match
        # As a person would type it: words quoted, the star that stands for any word bare.
        words = " ".join(word if word == ANY else shlex.quote(word) for word in match.prefix)
        whole = f"exactly `{words}`" if match.exact else f"`{words}` and whatever follows"
        parts = [f"{self.effect} {whole if words else 'every command'}"]
        if match.tier is not None:
            parts.append(f"{'up to' if self.effect == 'allow' else 'from'} tier {match.tier}")
        if match.paths:
            every = "only files of" if self.effect == "allow" else "any file of"
            parts.append(f"{every} {' '.join(map(shlex.quote, match.paths))}")
        if match.piped:
            parts.append("also behind a pipe")
        if match.cwd is not None:
            parts.append(f"in {shlex.quote(match.cwd)}")
        named = {"backend": match.backend, "profile": match.profile, "agent": match.agent}
        parts += [f"{name} {value}" for name, value in named.items() if value is not None]
        parts.append("every conversation" if match.conversation_id is None else f"conversation {match.conversation_id}")
        if self.expires_at is not None:
            parts.append(time.strftime("until %Y-%m-%d %H:%M", time.localtime(self.expires_at)))
        return ", ".join(parts)


def literal(word: str) -> str:
    """The pattern word that stands for exactly this word."""
    return f"\\{word}" if word.lstrip("\\") == ANY else word


def fits(pattern: str, word: str) -> bool:
    """Whether a pattern word stands for this word: `*` for any, a backslash before it for the star itself."""
    return pattern == ANY or pattern == literal(word)


def absolute_glob(pattern: str, base: Path) -> str:
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


def path_fits(pattern: str, path: str) -> bool:
    """Whether an absolute path is one that the glob stands for; `dir/**` stands for `dir` too."""
    return _glob(pattern).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    out: list[str] = []
    for part in pattern.strip("/").split("/"):
        if part == "**":
            out.append(r"(?:/[^/]+)*")
        else:
            out.append("/" + "".join({"*": "[^/]*", "?": "[^/]"}.get(c) or re.escape(c) for c in part))
    return re.compile("".join(out) + "/?", re.DOTALL)
