"""Finds git commands that could print the committed content of a file that may be a secret.

The index of a repository lists its tracked files, so most repositories have no secret and ask nothing. A secret that is
only in the history is not recognised (docs/security.md).
"""

from __future__ import annotations

import fnmatch
import os
import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.core.secrets import Secrets
from shellback.exec.core.sight.sight import Sight, Unseen
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Invocation, words
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.repository import MOST_INDEX, MOST_LINE

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
        except (OSError, ValueError, IndexError, struct.error, Unseen):
            raise Asks("it prints what is in files, and which the repository tracks cannot be told") from None


def _place(git: str, sight: Sight) -> str:
    """The directory of a repository, through a `.git` file that names another place."""
    if sight.is_directory(git):
        return git
    pointer = sight.content(git, MOST_LINE).decode().removeprefix("gitdir:").strip()
    return os.path.join(os.path.dirname(git), pointer)


@lru_cache(maxsize=2)
def _secrets(data: bytes, top: str, secret: Secrets) -> tuple[str, ...]:
    return tuple(path for path in _entries(data) if secret.written(f"{top}/{path}"))


_FIXED: Final = 62
"""Bytes before the name of an entry: times, device, inode, mode, user, group, size, 20 of the object's name, flags."""
_EXTENDED: Final = 0x4000
_LENGTH: Final = 0xFFF
_CHECKSUM: Final = 20
_UNREAD: Final = "an index that is not understood"
_ELSEWHERE: Final = (b"link", b"sdir")
"""Extensions that move entries to another file, or let an entry stand for a directory."""


def _entries(data: bytes) -> Iterator[str]:
    """The path of each entry, relative to the top of the working tree; invalid UTF-8 is replaced.

    Format: gitformat-index(5).

    Raises:
        ValueError, IndexError, struct.error: The index is truncated, split, sparse, not SHA-1, or of an unknown
        version.
    """
    end = len(data) - _CHECKSUM
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(_UNREAD)
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", data, at + _FIXED - 2)
        at += _FIXED + (2 if flags & _EXTENDED else 0)
        kept = 0
        if version == 4:
            dropped, at = _number(data, at)
            kept = len(name) - dropped
        stop = data.find(b"\0", at, end)
        if stop < 0 or kept < 0:
            raise ValueError(_UNREAD)
        name = name[:kept] + data[at:stop]
        if min(len(name), _LENGTH) != flags & _LENGTH:
            raise ValueError(_UNREAD)
        at = stop + 1 if version == 4 else start + ((stop - start) // 8 + 1) * 8
        yield name.decode("utf-8", "replace")
    while at < end:
        kind, size = struct.unpack_from(">4sI", data, at)
        if kind in _ELSEWHERE:
            raise ValueError(_UNREAD)
        at += 8 + size
    if at != end:
        raise ValueError(_UNREAD)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number (seven bits a byte, highest first, as offsets in packs), and the offset behind it."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
