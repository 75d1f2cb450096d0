"""Which files a command may name, resolved as the kernel would: in an allowed directory, and no secret."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.exec.classify.asking import Asks
from app.exec.classify.model import Surroundings

PUBLIC_TREES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_IN_PUBLIC: Final = tuple(f"{tree}/" for tree in PUBLIC_TREES)
PUBLIC_FILES: Final = frozenset(
    {
        "/dev/null",
        *(f"/etc/{name}" for name in ("os-release", "debian_version", "lsb-release", "issue", "alpine-release")),
        *(f"/etc/{name}" for name in ("redhat-release", "fedora-release", "hostname", "timezone", "shells")),
        *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "version", "uptime", "loadavg", "stat", "filesystems")),
        *(f"/proc/sys/kernel/{name}" for name in ("ostype", "osrelease", "hostname", "version", "pid_max")),
    }
)
_UNSTEADY: Final = frozenset({"/proc", "/dev", "/sys"})
"""What is in there is another thing for each process."""
MOST_LINKS: Final = 40
MOST_SEEN: Final = 5_000
"""Entries of directories that are looked at for one operand; a tree with more asks where it has to be known."""
_PRIVATE: Final = re.compile(
    r"\.(ssh|gnupg|aws|azure|kube|docker|netrc|pgpass|npmrc|pypirc|git-credentials|htpasswd|vault-token|my\.cnf)"
    r"|\.\w*_history|id_(rsa|dsa|ecdsa|ed25519)(\..*)?|.*\.(pem|key|p12|pfx|jks|kdbx|keystore)",
    re.IGNORECASE,
)
"""Names under which credentials are kept, wherever they lie."""


@dataclass(slots=True)
class Known:
    """What has been found out for one command line, so that it is found out once."""

    real: dict[tuple[Path, str], Path] = field(default_factory=dict[tuple[Path, str], Path])
    private: dict[str, bool] = field(default_factory=dict[str, bool])
    allowed: set[str] = field(default_factory=set[str])


class Files:
    """The files that one command names, judged one by one. Reads directories and symlinks, never a file."""

    def __init__(self, around: Surroundings, known: Known | None = None) -> None:
        self.around = around
        self._known = known or Known()
        self.named: list[str] = []
        self.entered: Path | None = None

    def read(self, text: str) -> None:
        """Let a file or directory be read.

        Raises:
            Asks: It is a secret, lies outside, or cannot be resolved now.
        """
        self._allow(text, self.resolve(text))

    def look(self, text: str) -> None:
        """Let facts of a path be told, and a directory's names; see `read`."""
        real = self.resolve(text)
        if real not in self._above():
            self._allow(text, real)

    def link(self, text: str) -> None:
        """Let facts of a path be told, a symlink not followed; see `read`."""
        trimmed = text.rstrip("/")
        if trimmed != text or os.path.basename(text) in {"", ".", ".."}:
            self.look(text)
            return
        directory, last = os.path.split(text)
        self._allow(text, self.resolve(f"{directory}/" if directory else "./") / last)

    def enter(self, text: str) -> None:
        """Let the commands that follow run in a directory that is there; `entered` is that one. See `look`."""
        self.look(f"{text}/")
        real = self.resolve(text)
        if str(real) != os.path.normpath(os.path.join(self.around.cwd, text)):
            raise Asks(f"{text} leads through a symlink")
        self.entered = real

    def descend(self, text: str, *, follows: bool, reads: bool, hidden: bool = True) -> None:
        """Let everything below a directory be told, or with `reads` be read; hidden files only with `hidden`.

        In the sandbox what is hidden there cannot be read; elsewhere the tree must hold no secret. With `follows` it
        must hold no symlink that leads outside.

        Raises:
            Asks: As `read`, or the tree holds such a thing, or is too large to know.
        """
        path = os.path.join(self.around.cwd, text)
        if not follows and os.path.islink(path):
            self.link(text)
            return
        self.read(text)
        real = self.resolve(text)
        if not follows and (self.around.sandboxed or not reads):
            return
        for seen, entry in enumerate(_below(real, hidden=hidden)):
            if seen > MOST_SEEN:
                raise Asks(f"{text} holds too much to know that no secret is in it")
            if follows and entry.is_symlink():
                self._allow(entry.path, self.resolve(entry.path))
            elif reads and not self.around.sandboxed and self.private(entry.path):
                raise Asks(f"{entry.path} is a secret, and {text} would be read with all that is in it")

    def expand(self, pattern: str) -> list[str]:
        """The names that a pattern stands for, or more of them; empty where there are none.

        Raises:
            Asks: They are too many, or lie outside.
        """
        absolute = pattern.startswith("/")
        found = ["/"] if absolute else [""]
        parts = [part for part in pattern.split("/") if part]
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if not _is_glob(part):
                found = [os.path.join(base, part) for base in found]
                continue
            matching = _glob(part)
            grown: list[str] = []
            for base in found:
                names = self._names(base or ".", hidden=part.startswith("."))
                grown += [os.path.join(base, name) for name in names if matching.fullmatch(name)]
                if len(grown) > MOST_SEEN:
                    raise Asks(f"{pattern} stands for too many files")
            found = grown if last else [path for path in grown if os.path.isdir(os.path.join(self.around.cwd, path))]
        if pattern.endswith("/"):
            found = [f"{path}/" for path in found if os.path.isdir(os.path.join(self.around.cwd, path))]
        return sorted(path for path in found if os.path.lexists(os.path.join(self.around.cwd, path)))

    def _names(self, directory: str, *, hidden: bool) -> list[str]:
        self._allow(directory, self.resolve(directory))
        self.named.pop()
        try:
            with os.scandir(os.path.join(self.around.cwd, directory)) as entries:
                names = [entry.name for _, entry in zip(range(MOST_SEEN + 1), entries, strict=False)]
        except OSError:
            return []
        if len(names) > MOST_SEEN:
            raise Asks(f"{directory} holds too many files for a pattern")
        return [name for name in names if name.startswith(".") == hidden]

    def resolve(self, text: str) -> Path:
        """Where a path leads. Its last component may be missing; what is on the way may not.

        Raises:
            Asks: It cannot be told.
        """
        place = (self.around.cwd, text)
        if place not in self._known.real:
            self._known.real[place] = self._resolved(text)
        return self._known.real[place]

    def _resolved(self, text: str) -> Path:
        if "\0" in text or len(text) > 4096:
            raise Asks("a path is no path")
        if os.path.normpath(text) in PUBLIC_FILES:
            return Path(os.path.normpath(text))
        real = "/" if text.startswith("/") else str(self.around.cwd)
        waiting = text.split("/")[::-1]
        links = 0
        while waiting:
            part = waiting.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                _directory(real, text)
                real = os.path.dirname(real)
                continue
            real = os.path.join(real, part)
            if real in _UNSTEADY:
                raise Asks(f"{text} is what it is only while it runs")
            target = _link(real, text, last=not waiting)
            if target is None:
                continue
            links += 1
            if links > MOST_LINKS:
                raise Asks(f"{text} is a loop of symlinks")
            real = "/" if target.startswith("/") else os.path.dirname(real)
            waiting += target.split("/")[::-1]
        if text.endswith("/"):
            _directory(real, text)
        return Path(real)

    def _allow(self, text: str, real: Path) -> None:
        plain = str(real)
        if plain not in self._known.allowed:
            self._judge(text, plain)
            self._known.allowed.add(plain)
        written = os.path.normpath(os.path.join(self.around.cwd, text))
        if written != plain and self.private(written):
            raise Asks(f"{text} is a secret")
        self.named.append(plain)

    def _judge(self, text: str, real: str) -> None:
        if self.private(real):
            raise Asks(f"{text} is a secret")
        if real in PUBLIC_FILES or real in PUBLIC_TREES or real.startswith(_IN_PUBLIC):
            return
        if not any(_inside(real, str(directory)) for directory in self.around.allowed):
            raise Asks(f"{text} is outside the directories that may be read")
        if _special(real):
            raise Asks(f"{text} is no plain file or directory")

    def private(self, path: str) -> bool:
        """Whether it is a secret, listed or by its name."""
        path = os.path.join(self.around.cwd, path)
        if path not in self._known.private:
            parts = path.split("/")
            named = any(_PRIVATE.fullmatch(part) for part in parts) or parts[-2:] == [".git", "config"]
            self._known.private[path] = named or self.around.secret(Path(path))
        return self._known.private[path]

    def _above(self) -> set[Path]:
        """Directories on the way down to the allowed ones; on the host only the root, which is no news."""
        if not self.around.sandboxed:
            return {Path("/")}
        return {parent for directory in self.around.allowed for parent in directory.parents} | {Path("/")}


def _link(path: str, text: str, *, last: bool) -> str | None:
    """Where a symlink leads, None of anything else; only the last part of a path may be missing."""
    try:
        mode = os.lstat(path).st_mode
        return os.readlink(path) if stat.S_ISLNK(mode) else None
    except OSError:
        if not last:
            raise Asks(f"a directory on the way to {text} is not there, so where it leads is not known") from None
        _directory(os.path.dirname(path), text)
        return None


def _directory(path: str, text: str) -> None:
    if not os.path.isdir(path):
        raise Asks(f"a directory on the way to {text} is not there, so where it leads is not known")


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")


def _special(real: str) -> bool:
    try:
        mode = os.stat(real).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _below(top: Path, *, hidden: bool) -> Iterator[os.DirEntry[str]]:
    waiting = [str(top)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(".") and not hidden:
                        continue
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue


def _is_glob(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def _glob(part: str) -> re.Pattern[str]:
    """A pattern of names, as bash has it or wider: a bracket stands for any character. Matches in no long time."""
    # What is in brackets depends on the locale, and an unclosed bracket is plain text: all that it can be.
    return re.compile(".*" if "[" in part else fnmatch.translate(part), re.DOTALL)
