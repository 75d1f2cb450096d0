"""A rule: what it matches, and its decision."""

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
"""The pattern that matches any one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The conditions of a rule; a missing one matches everything.

    `connect` is an entry as `[network]` has them: the rule is about connections to these hosts, not about commands.
    `prefix` are a command's first words, literal except `*` for any one word; with `exact` no word may follow. `tier`
    is the highest tier for an allow, the lowest for an ask or deny. `paths` are absolute globs: an allow needs all
    files of the command to match, the others any. An allow matches after a pipe only with `piped`, because the rule
    does not cover the pipe's contents. `cwd` is a directory without symlinks.
    """

    connect: str | None = None
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
        """Whether it has no condition on the command itself."""
        return not (self.prefix or self.paths or self.tier is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A standing decision. `source` is `file:line`, or `saved` with an `id` by which it is revoked.

    Times are seconds of the database's clock; `expires_at` None means never.
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
        """The whole rule on one line, for people."""
        match = self.match
        # As a person would type it: words quoted, the star for any word unquoted.
        words = " ".join(word if word == ANY else shlex.quote(word) for word in match.prefix)
        whole = f"exactly `{words}`" if match.exact else f"`{words}` and whatever follows"
        what = f"connections to {match.connect}" if match.connect else whole if words else "every command"
        parts = [f"{self.effect} {what}"]
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
            parts.append(time.strftime("until %Y-%m-%d %H:%M %Z", time.localtime(self.expires_at)))
        return ", ".join(parts)


def literal(word: str) -> str:
    """The pattern that matches exactly this word."""
    return f"\\{word}" if word.lstrip("\\") == ANY else word


def fits(pattern: str, word: str) -> bool:
    """Whether a pattern matches a word: `*` matches any word, a backslash before it the star itself."""
    return pattern == ANY or pattern == literal(word)


def absolute_glob(pattern: str, base: Path) -> str:
    """A glob made absolute from `base`; symlinks before its first wildcard are resolved.

    Raises:
        ValueError: It has `..` after a wildcard, `[`, or a `**` that is no whole name.
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
    """Whether an absolute path matches the glob; `dir/**` matches `dir` too."""
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
