"""Checks that the configuration of a git repository runs no program when git only reads. Starts nothing.

The machine's configuration, `/etc/gitconfig`, is trusted.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.core.sight.sight import Sight, Unseen
from shellback.exec.wire import gitindex
from shellback.exec.wire.gitconfig import harmless

MOST_BYTES: Final = 64 * 1024
"""The most bytes of a configuration file; a longer one is refused."""
MOST_LINE: Final = 4096
MOST_INDEX: Final = 16 * 1024 * 1024

_RUNS: Final = re.compile(
    r"filter\..+|diff\.(external|.+\.(command|textconv))|core\.(fsmonitor|pager|editor|sshcommand|gitproxy|askpass"
    r"|alternaterefscommand)|alias\..+|pager\..+|gpg\.(.+\.)?program|include\.path|includeif\..+|credential\..+"
    r"|interactive\.difffilter|sequence\.editor|uploadpack\..+|(diff|merge)tool\..+|merge\..+\.driver|trailer\..+",
    re.IGNORECASE,
)
"""Keys by which git runs a program when it reads, or includes another file."""
_SAID: Final = re.compile(
    r"core\.[a-z]+|diff\.external|include\.path|gpg\.program|interactive\.difffilter|sequence\.editor", re.IGNORECASE
)
"""Keys that messages may name in full; of other keys a message names only the section."""
_HEADER: Final = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\["\\])*)")?\][ \t]*')
_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(.*))?")
_HOOKS: Final = ("post-index-change", "fsmonitor-watchman", "query-watchman", "reference-transaction", "pre-auto-gc")
_UNREADABLE: Final = "the repository's configuration cannot be looked at: it is no plain file, or may not be read"
_GITLINK: Final = gitindex.GITLINK.to_bytes(4, "big")


def objection(cwd: Path, home: Path | None = None, sight: Sight | None = None) -> str | None:
    """The reason why git may run a program in a directory, to follow "because"; None if it runs none.

    `home` is HOME if commands can write it, so that its configuration is not trusted. The reason quotes no file.

    Raises:
        TooMuch: The check exceeds the bounds of `sight`.
    """
    look = _Look(sight or Sight(("/",)))
    try:
        for file in (f"{home}/.gitconfig", f"{home}/.config/git/config") if home else ():
            if (key := look.first(file, _strange)) is not None:
                return f"git's configuration in HOME sets {key}"
        return next((reason for found in look.candidates(cwd) if (reason := look.judge(*found)) is not None), None)
    except (OSError, UnicodeDecodeError, Unseen):
        return _UNREADABLE


def running(cwd: Path, sight: Sight | None = None) -> str | None:
    """The same in the profile `read_only`: only keys that name a program. Hooks do not count: they run on writes."""
    look = _Look(sight or Sight(("/",)))
    try:
        configs = [config for found in look.candidates(cwd) for config in look.configs(*found)]
        key = next((key for config in configs if (key := look.first(config, _RUNS.fullmatch)) is not None), None)
    except (OSError, UnicodeDecodeError, Unseen):
        return _UNREADABLE
    return None if key is None else f"the repository's configuration sets {key}"


@dataclass(frozen=True, slots=True)
class _Look:
    """Inspects repositories within a bound; opens regular files only, and no symlink."""

    sight: Sight

    def candidates(self, cwd: Path) -> Iterator[tuple[str, int]]:
        """Paths that git may use as its repository, with their modes, in all parents: git skips an invalid `.git`."""
        for directory in map(str, (cwd, *cwd.parents)):
            if directory != "/" and not self.sight.sees(directory):
                return
            found = self._status(f"{directory}/.git")
            if found is not None:
                yield f"{directory}/.git", found.st_mode
            if self._status(f"{directory}/HEAD") is not None:
                yield directory, stat.S_IFDIR

    def configs(self, git: str, mode: int) -> Iterator[str]:
        """The configuration files of a repository, through `.git` and `commondir` files that name another place."""
        if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
            pointer = self._line(git)
            if pointer.startswith("gitdir:"):
                git = os.path.join(os.path.dirname(git), pointer[len("gitdir:") :].strip())
        yield f"{git}/config"
        yield f"{git}/config.worktree"
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield os.path.join(git, self._line(f"{git}/commondir").strip(), "config")

    def judge(self, git: str, mode: int) -> str | None:
        """The objection to a repository, or None."""
        names = {one.name for one in self.sight.names(git)} if stat.S_ISDIR(mode) else set[str]()
        if not stat.S_ISDIR(mode) or not names.isdisjoint({"commondir", "config.worktree"}):
            return "the repository takes its configuration from elsewhere"
        shared = any(name.startswith("sharedindex.") for name in names)
        if "modules" in names or shared or ("index" in names and self._links(f"{git}/index")):
            return "the repository has submodules, or an index that cannot be looked at"
        hooks = {one.name for one in self.sight.names(f"{git}/hooks")} if "hooks" in names else set[str]()
        if hook := next((name for name in _HOOKS if name in hooks), None):
            return f"the repository has a hook {hook}"
        key = self.first(f"{git}/config", _strange)
        return None if key is None else f"the repository's configuration sets {key}"

    def first(self, file: str, wanted: Callable[[str], object]) -> str | None:
        """The first key of a configuration file that is `wanted`, or an objection if the file is not understood."""
        try:
            content = self.sight.content(file, MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(content) > MOST_BYTES:
            return "more than can be looked at"
        section = ""
        for number, written in enumerate(content.decode().replace("\r\n", "\n").split("\n"), 1):
            line = written.strip(" \t")
            if header := _HEADER.match(line):
                section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
                line = line[header.end() :]
            if not line or line[0] in "#;":
                continue
            key = _KEY.fullmatch(line)
            if key is None or line.endswith("\\") or not section:
                return f"what is not understood (line {number})"
            name = f"{section}.{key[1].lower()}"
            quiet = name == "core.fsmonitor" and (key[2] or "").strip() == "false"
            if not quiet and wanted(name):
                return f"{_said(name)} (line {number})"
        return None

    def _links(self, index: str) -> bool:
        """Whether an index contains a submodule, which git would read too, or is too large to tell."""
        content = self.sight.content(index, MOST_INDEX + 1)
        return len(content) > MOST_INDEX or _GITLINK in content

    def _line(self, file: str) -> str:
        return self.sight.content(file, MOST_LINE).partition(b"\n")[0].decode()

    def _status(self, path: str) -> os.stat_result | None:
        return self.sight.status(path, follow=False)


def _strange(name: str) -> bool:
    return not harmless(name)


def _said(name: str) -> str:
    """The text for a key that is not harmless; it quotes no value."""
    if not _RUNS.fullmatch(name):
        return "what is not known to run nothing"
    return name if _SAID.fullmatch(name) else f"{name.partition('.')[0]}.*"
