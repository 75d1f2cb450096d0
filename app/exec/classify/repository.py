"""Whether a git repository's own configuration runs no program when it is only asked. Starts nothing.

The configuration of the whole machine, `/etc/gitconfig`, is its owner's word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 * 1024
"""Of a configuration file; a longer one is not looked at."""
MOST_LINE: Final = 4096
MOST_INDEX: Final = 16 * 1024 * 1024

_HARMLESS: Final = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|safecrlf|abbrev|quotepath|untrackedcache|preloadindex|compression|loosecompression|bigfilethreshold|whitespace)"
    r"|user\.(name|email)|remote\..+\.(url|pushurl|fetch|push|mirror|tagopt|prune)|branch\..+\.(remote|merge|rebase|pushremote)"
    r"|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote|followtags)|fetch\.prune|merge\.(ff|conflictstyle)"
    r"|color\.[a-z.]+|advice\.[a-z]+|diff\.(algorithm|renames|mnemonicprefix|colormoved|context|noprefix|interhunkcontext)"
    r"|log\.(date|decorate|abbrevcommit|follow)|status\.[a-z]+|rerere\.(enabled|autoupdate)|gc\.auto|commit\.gpgsign"
    r"|tag\.(sort|gpgsign)|branch\.(sort|autosetuprebase|autosetupmerge)|lfs\.repositoryformatversion",
    re.IGNORECASE,
)
"""Keys that make git neither run nor read anything else."""
_RUNS: Final = re.compile(
    r"filter\..+|diff\.(external|.+\.(command|textconv))|core\.(fsmonitor|pager|editor|sshcommand|gitproxy|askpass"
    r"|alternaterefscommand)|alias\..+|pager\..+|gpg\.(.+\.)?program|include\.path|includeif\..+|credential\..+"
    r"|interactive\.difffilter|sequence\.editor|uploadpack\..+|(diff|merge)tool\..+|merge\..+\.driver|trailer\..+",
    re.IGNORECASE,
)
"""Keys by which git runs a program when it is asked, or may take such a key from elsewhere."""
_HEADER: Final = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\["\\])*)")?\][ \t]*')
_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(.*))?")
_HOOKS: Final = ("post-index-change", "fsmonitor-watchman", "query-watchman", "reference-transaction", "pre-auto-gc")
_GITLINK: Final = (0o160000).to_bytes(4, "big")


def objection(cwd: Path, home: Path | None = None) -> str | None:
    """Why asking git in a directory may run a program, in words that follow "because"; None if it does not.

    `home` is HOME where that is a directory that commands may write, so that its configuration is nobody's word.
    """
    try:
        for file in (home / ".gitconfig", home / ".config/git/config") if home else ():
            if (key := _first(file, _strange)) is not None:
                return f"git's configuration in HOME sets {key}"
        return next((reason for found in _candidates(cwd) if (reason := _judge(found)) is not None), None)
    except (OSError, UnicodeDecodeError, ValueError):
        return "the repository's configuration cannot be read"


def running(cwd: Path) -> str | None:
    """The same where a profile holds git to reading: only what plainly names a program.

    Hooks run when something is written, which nothing there can be.
    """
    try:
        configs = [config for found in _candidates(cwd) for config in _configs(found)]
        key = next((key for config in configs if (key := _first(config, _runs)) is not None), None)
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    return None if key is None else f"the repository's configuration sets {key}"


def _candidates(cwd: Path) -> Iterator[Path]:
    """What git may take for its directory: a `.git` that is none is passed over, so each on the way up counts."""
    for directory in (cwd, *cwd.parents):
        if os.path.lexists(directory / ".git"):
            yield directory / ".git"
        if os.path.lexists(directory / "HEAD"):
            yield directory


def _configs(git: Path) -> Iterator[Path]:
    """The files that a repository's configuration is in, through the files that say that it is elsewhere."""
    if git.is_file() and (pointer := _line(git)).startswith("gitdir:"):
        git = git.parent / pointer[len("gitdir:") :].strip()
    yield git / "config"
    yield git / "config.worktree"
    if (git / "commondir").is_file():
        yield git / _line(git / "commondir").strip() / "config"


def _line(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        return opened.readline(MOST_LINE)


def _strange(name: str) -> bool:
    return not _HARMLESS.fullmatch(name)


def _runs(name: str) -> bool:
    return _RUNS.fullmatch(name) is not None


def _judge(git: Path) -> str | None:
    if not git.is_dir() or git.is_symlink() or (git / "commondir").exists() or (git / "config.worktree").exists():
        return "the repository takes its configuration from elsewhere"
    if (git / "modules").exists() or any(git.glob("sharedindex.*")) or _links(git / "index"):
        return "the repository has submodules, or an index that cannot be looked at"
    for hook in _HOOKS:
        if os.path.lexists(git / "hooks" / hook):
            return f"the repository has a hook {hook}"
    key = _first(git / "config", _strange)
    return None if key is None else f"the repository's configuration sets {key}"


def _links(index: Path) -> bool:
    """Whether an index holds another repository, or is too large to know; git would ask that one too."""
    return index.exists() and (index.stat().st_size > MOST_INDEX or _GITLINK in index.read_bytes())


def _first(file: Path, wanted: Callable[[str], bool]) -> str | None:
    """A key of a configuration file that is `wanted`, or what else of it is not understood."""
    if not os.path.lexists(file):
        return None
    with file.open("rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES or not file.is_file():
        return "more than can be looked at"
    section = ""
    for written in content.decode().replace("\r\n", "\n").split("\n"):
        line = written.strip(" \t")
        if header := _HEADER.match(line):
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            line = line[header.end() :]
        if not line or line[0] in "#;":
            continue
        key = _KEY.fullmatch(line)
        if key is None or line.endswith("\\") or not section:
            return f"{line[:40]!r}"
        name = f"{section}.{key[1].lower()}"
        quiet = name == "core.fsmonitor" and (key[2] or "").strip() == "false"
        if not quiet and wanted(name):
            return name
    return None
