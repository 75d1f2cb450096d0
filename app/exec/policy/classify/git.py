"""git: subcommands that only read, in a repository whose own configuration runs no program.

In the sandbox the profile holds filters and hooks of a repository. On the host they would run with the rights of the
user, so the repository has to be shown harmless first.

git prints the contents of files, also of old versions, so a command that may print a secret asks. The index tells which
secrets a repository tracks. A secret that is in the history and not in the index is not known: see docs/security.md.
"""

from __future__ import annotations

import fnmatch
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.core.secrets import Secrets
from shellback.exec.core.sight.sight import Sight, Unseen
from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Argument, Call, Invocation, Program, table, words
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.repository import MOST_INDEX, MOST_LINE, objection, running
from shellback.exec.wire import gitindex

_ALONE: Final = words("--version -v --html-path --man-path --info-path --exec-path --help -h")
_GLOBAL: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs"})
_READS_FILES: Final = frozenset({"diff", "range-diff", "diff-files", "diff-index", "blame"})
_SHOWS: Final = _READS_FILES | words("show cat-file log whatchanged grep diff-tree rev-list stash reflog")
_PARTED: Final = frozenset({"stash", "reflog", "worktree", "notes", "bisect", "submodule", "remote"})
"""The next word says what they do; an option in its place changes the meaning (`git stash -- list`)."""


def git(call: Call) -> None:
    """Accept an invocation of git that only reads this repository.

    Raises:
        Asks: It may write, run a program, use the network, or read files outside.
    """
    waiting, files = _known(call), call.files
    while waiting and waiting[0].text.startswith("-"):
        option = _plain(waiting.pop(0))
        if option in _ALONE and not waiting:
            return
        if option == "-C" and waiting:
            files = _elsewhere(files, _plain(waiting.pop(0)))
        elif option not in _GLOBAL:
            raise Asks(f"git {option} is not known to only read")
    if not waiting:
        raise Asks("git lacks its subcommand")
    name = _plain(waiting.pop(0))
    known = GIT.get(name)
    if known is None:
        raise Asks(f"git {name} is not known to only read")
    found = match(known, replace(call, name=name, arguments=tuple(waiting), files=files))
    if name in _PARTED and found.operands and waiting[0].text != found.operands[0]:
        raise Asks(f"git {name} has an option where it is told what to do")
    texts = [argument.text for argument in waiting]
    behind = texts[texts.index("--") + 1 :] if "--" in texts else []
    _operands(name, [*found.operands[: len(found.operands) - len(behind)], *wanted(behind)], found, files)
    no_secret(name, found, behind, files)
    call.files.named += files.named if files is not call.files else []
    if name != "version":
        around = files.around
        reason = running(around.cwd, files.sight) if around.sandboxed else objection(around.cwd, around.home)
        if reason is not None:
            raise Asks(reason)


def _known(call: Call) -> list[Argument]:
    if any(argument.open is not None for argument in call.arguments):
        raise Asks("git is given what is known only when it runs")
    return list(call.arguments)


def _plain(argument: Argument) -> str:
    if argument.matched:
        raise Asks("a pattern stands for an option or subcommand of git")
    return argument.text


def _elsewhere(files: Files, directory: str) -> Files:
    files.read(f"{directory}/")
    return files.within(files.resolve(directory))


def _operands(name: str, operands: list[str], found: Invocation, files: Files) -> None:
    """Judge operands: a path outside the repository is read as a file; a revision is no path."""
    for operand in operands:
        outwards = operand.startswith("/") or ".." in operand.split("/")
        exists = files.stands(operand.split("/", maxsplit=1)[0])
        if outwards or (exists and name in _READS_FILES):
            files.read(operand)
        elif name in _SHOWS and any(files.private(os.path.normpath(path)) for path in operand.split(":") if path):
            raise Asks(f"{operand} is a secret")
    addresses = name == "remote" and (found.operands or found.given("-v", "--verbose"))
    if addresses or (name == "config" and operands[0].lower().endswith("url")):
        no_token(files)
    if found.given("--untracked"):
        files.descend(".", follows=False, reads=True)


def _formats(found: Invocation) -> None:
    """Refuse formats that run a program (`%G` checks signatures) or write (showing a merge that is made again)."""
    if any(value.startswith("r") for value in found.values("--diff-merges")):
        raise Asks("the merge is made again, which writes objects")
    for value in found.values("--format", "--pretty", "--group"):
        if re.search(r"%[-+ ]?G|signature", value):
            raise Asks("the format has signatures checked by a program")
        if re.search(r"%\(\*?raw", value):
            raise Asks("the format prints what an object holds")


_FILTERING: Final = words("-l --list --contains --no-contains --merged --no-merged --points-at")


def _branch(found: Invocation) -> None:
    """Refuse a name without `--list` or a condition: it makes a branch."""
    if found.operands and not found.given(*_FILTERING):
        raise Asks(f"git {found.name} with a name makes one")
    _formats(found)


def _remote(found: Invocation) -> None:
    if found.operands and (found.operands[0] != "get-url" or found.given("-v", "--verbose")):
        raise Asks(f"git remote {found.operands[0]} changes remotes, or asks them")


def _symbolic_ref(found: Invocation) -> None:
    if len(found.operands) != 1:
        raise Asks("git symbolic-ref with two names sets one")


_HARMLESS_KEYS: Final = words("""
    user.name user.email init.defaultbranch pull.rebase pull.ff push.default core.autocrlf core.filemode core.bare
    core.ignorecase core.eol core.editor core.quotepath core.repositoryformatversion color.ui remote.origin.fetch
    """)


def _config(found: Invocation) -> None:
    """Accept one key that is no secret. A list may contain a secret, and two operands set a key."""
    keys = [key.lower() for key in found.operands]
    upstream = keys and keys[0].startswith(("branch.", "remote.")) and keys[0].endswith((".remote", ".merge", ".url"))
    if len(keys) != 1 or not (upstream or keys[0] in _HARMLESS_KEYS):
        raise Asks("git config sets keys, or shows what may be a secret")


_FIRST: Final = {
    "reflog": ("", "show", "list", "exists", "HEAD"),
    "stash": ("list", "show"),
    "worktree": ("list",),
    "notes": ("", "list", "show"),
    "bisect": ("log",),
    "submodule": ("", "status", "summary"),
}
"""The allowed first words; the first word may be missing."""


def _first(found: Invocation) -> None:
    if (found.operands or ("",))[0] not in _FIRST[found.name]:
        raise Asks(f"git {found.name} {' '.join(found.operands[:1])} is not known to only read")
    _formats(found)


GIT: Final[Mapping[str, Program]] = table(
    "git.toml",
    {check.__name__[1:]: check for check in (_formats, _branch, _first, _remote, _symbolic_ref, _config)},
    operands="text",
)
"""The subcommands that only read."""


_ALWAYS: Final = words("diff show range-diff grep")
"""Subcommands that print the contents of files, unless an option asks for a summary."""
_TOLD: Final = words("log whatchanged reflog stash diff-tree diff-index diff-files rev-list")
_PATCH: Final = words("""
    -p -u --patch --patch-with-raw --patch-with-stat -U --unified -W --function-context --word-diff
    --word-diff-regex --color-words --binary --check -c --cc -m --diff-merges -S -G -L --ignore-matching-lines
    """)
"""Options that make subcommands print contents, or reveal by the listing whether a text is in a file."""
_SUM: Final = words("""
    --stat --numstat --shortstat --summary --name-only --name-status --raw -s --no-patch --quiet --compact-summary
    --dirstat -X --dirstat-by-file
    """)
_NUMBER: Final = re.compile(r"[0-9a-f]{4,64}", re.IGNORECASE)
_TOKEN: Final = re.compile(rb"://[^/\s@]*:[^/\s@]+@|://[^/\s@:]{20,}@|^\s*url\s*=\s*\"?[\w.-]+:[^/\s@]+@", re.MULTILINE)
"""A URL with a password, or with a user name as long as a token."""
_OF_A_FILE: Final = re.compile(r"[\w./~^@+-]*:(?![/(!^])(?:[0-3]:)?(.*)", re.DOTALL)
"""A revision with a path: only that path is printed."""

_LEFT_OUT: Final = re.compile(r":(/?[!^]|\((top,)?exclude\))")


def no_secret(name: str, found: Invocation, behind: Sequence[str], files: Files) -> None:
    """Accept a subcommand that prints no file that may be a secret; `behind` are its operands after `--`.

    Raises:
        Asks: It may print one, or the index cannot be read.
    """
    if any(value == "diff" for value in found.values("--submodule")):
        raise Asks("a submodule's differences are printed, of which nothing is known")
    named = _named(name, found, behind)
    if named is None:
        return
    lines = [value.rpartition(":")[2] for value in found.values("-L")]
    if any(files.private(os.path.normpath(path)) for path in (*lines, *wanted(behind)) if path):
        raise Asks("it prints a secret")
    of_files = [match for operand in named if (match := _OF_A_FILE.fullmatch(operand))]
    if named and len(of_files) == len(named) and not behind:
        # These subcommands take paths from the top of the working tree, in any directory.
        tops = [top for _, top in _repositories(files.around.cwd, files.repositories)]
        if any(files.around.secret.written(f"{top}/{one[1]}") for one in of_files for top in tops):
            raise Asks("it prints a secret")
        return
    numbered = name not in _TOLD and any(_numbered(operand) for operand in named)
    # Git takes the name of an existing file as a path, or refuses it as ambiguous.
    here = [] if name in {"stash", "reflog", "cat-file"} else [one for one in named if files.stands(one)]
    for prefix, secrets in _looked_at(files):
        if secrets and numbered:
            raise Asks(f"it prints an object by its number, and {secrets[0]!r} of the repository may be a secret")
        specs = [_Spec.read(text, prefix) for text in (*behind, *lines, *here)]
        for secret in secrets:
            if _selected(secret, specs):
                raise Asks(
                    f"it prints what is in files, and {secret!r} of the repository may be a secret: name others behind "
                    f"--, or leave it out with ':(top,exclude){secret}'"
                )


def no_token(files: Files) -> None:
    """Accept that the addresses of remotes are printed; Asks if one has a token, or if the configuration is unknown."""
    sight = files.repositories
    for git, _ in _repositories(files.around.cwd, sight):
        try:
            place = _place(git, sight)
            if sight.stands(f"{place}/commondir"):
                place = os.path.join(place, sight.content(f"{place}/commondir", MOST_LINE).decode().strip())
            config = sight.content(f"{place}/config", MOST_INDEX) if sight.stands(f"{place}/config") else b""
        except (OSError, ValueError, Unseen):
            raise Asks("it prints what is in the repository's configuration, which cannot be looked at") from None
        if _TOKEN.search(config):
            raise Asks("it prints addresses of remotes, and there is a token in one")


def _named(name: str, found: Invocation, behind: Sequence[str]) -> list[str] | None:
    """The revisions and files whose contents are printed; None if no contents are printed."""
    named = list(found.operands[: len(found.operands) - len(behind)])
    if name == "cat-file" or (name == "show" and not _prints(name, found)):
        # Other names are commits; an object that is named by its number is printed despite exclusions.
        named = [operand for operand in named if _numbered(operand) or _OF_A_FILE.fullmatch(operand)]
        return None if not named or found.given("-t", "-e", "--batch-check") else named
    if not _prints(name, found):
        return None
    return named[1:] if name == "grep" and not found.given("-e", "-f") else named


def wanted(specs: Sequence[str]) -> list[str]:
    """The pathspecs that exclude nothing."""
    return [spec for spec in specs if not _LEFT_OUT.match(spec)]


def _prints(name: str, found: Invocation) -> bool:
    if name == "status":
        return found.given("-v", "--verbose")
    if name == "stash" and found.given("--include-untracked", "--only-untracked"):
        raise Asks("it prints files that were never committed, of which nothing is known")
    if name in _TOLD and not (name == "stash" and found.operands[:1] == ("show",)):
        return found.given(*_PATCH)
    return name == "stash" or (name in _ALWAYS and (found.given(*_PATCH) or not found.given(*_SUM)))


def _numbered(operand: str) -> bool:
    return any(_NUMBER.fullmatch(part) for part in re.split(r"\.\.+|[\^~@].*", operand))


class _Spec(NamedTuple):
    """A pathspec from the top of the working tree: a plain prefix, or a pattern; None covers all files."""

    plain: str = ""
    pattern: re.Pattern[str] | None = None
    excludes: bool = False
    suffix: str = ""

    @classmethod
    def read(cls, text: str, prefix: str) -> _Spec:
        magic = re.match(r":(?:\(((?:top|exclude|,)*)\)|([/!^]*):?(?![(]))", text)
        if text.startswith(":"):
            if magic is None:
                return cls()
            signs, text = f"{magic[1] or ''}{magic[2] or ''}", text[magic.end() :]
            prefix = "" if "top" in signs or "/" in signs else prefix
            excludes = "exclude" in signs or "!" in signs or "^" in signs
        else:
            excludes = False
        if "\\" in text or (excludes and re.search(r"[?\[]|.\*", text)):
            return cls(excludes=excludes, plain="\0" if excludes else "")
        if text.startswith("/"):
            return cls(plain="\0" if excludes else "", excludes=excludes)
        path = os.path.normpath(os.path.join(prefix, text))
        if excludes and text.startswith("*"):
            return cls(plain=prefix, excludes=True, suffix=text[1:])
        if re.search(r"[*?\[]", text):
            return cls(pattern=re.compile(fnmatch.translate(re.sub(r"\[.*", "*", path, flags=re.DOTALL)), re.DOTALL))
        return cls(plain="" if path == "." else path, excludes=excludes)

    def covers(self, path: str) -> bool:
        above = [path, *map(str, Path(path).parents)]
        if self.pattern is not None:
            return any(self.pattern.fullmatch(one) for one in above)
        return (not self.plain or self.plain in above) and path.endswith(self.suffix)


def _selected(secret: str, specs: Sequence[_Spec]) -> bool:
    wanted = [spec for spec in specs if not spec.excludes]
    left_out = any(spec.excludes and spec.covers(secret) for spec in specs)
    return not left_out and (not wanted or any(spec.covers(secret) for spec in wanted))


def _repositories(cwd: Path, sight: Sight) -> Iterator[tuple[str, str]]:
    """Directories that git may use as its repository, each with the top of its working tree."""
    for directory in map(str, (cwd, *cwd.parents)):
        if sight.stands(f"{directory}/.git"):
            yield f"{directory}/.git", directory
        elif sight.stands(f"{directory}/HEAD") and all(
            sight.is_directory(f"{directory}/{name}") for name in ("objects", "refs")
        ):
            yield directory, directory


def _looked_at(files: Files) -> Iterator[tuple[str, tuple[str, ...]]]:
    """For each repository that git may use: the current directory relative to its top, and tracked possible secrets."""
    sight, cwd = files.repositories, files.around.cwd
    for git, top in _repositories(cwd, sight):
        try:
            data = sight.content(f"{_place(git, sight)}/index", MOST_INDEX)  # a truncated index is refused
            prefix = os.path.relpath(cwd, top)
            yield "" if prefix == "." else prefix, _secrets(data, top, files.around.secret)
        except (OSError, ValueError, struct.error, Unseen):
            raise Asks("it prints what is in files, and which the repository tracks cannot be told") from None


def _place(git: str, sight: Sight) -> str:
    """The directory of a repository, through a `.git` file that names another place."""
    if sight.is_directory(git):
        return git
    pointer = sight.content(git, MOST_LINE).decode().removeprefix("gitdir:").strip()
    return os.path.join(os.path.dirname(git), pointer)


@lru_cache(maxsize=2)
def _secrets(data: bytes, top: str, secret: Secrets) -> tuple[str, ...]:
    return tuple(path for path in _tracked(data) if secret.written(f"{top}/{path}"))


_CHECKSUM: Final = 20
_ELSEWHERE: Final = (b"link", b"sdir")
"""Extensions of split and sparse indexes: some entries are in another file, or stand for directories."""


def _tracked(data: bytes) -> list[str]:
    """The path of each entry, relative to the top of the working tree; bytes that are not UTF-8 are replaced.

    Raises:
        ValueError, struct.error: As `gitindex.read`; the index is split or sparse, or its end is not understood.
    """
    entries, at = gitindex.read(data)
    end = len(data) - _CHECKSUM
    while at < end:
        kind, size = struct.unpack_from(">4sI", data, at)
        if kind in _ELSEWHERE:
            raise ValueError("an index with entries elsewhere")
        at += 8 + size
    if at != end:
        raise ValueError("an index that is not understood")
    return [name.decode("utf-8", "replace") for _, name in entries]
