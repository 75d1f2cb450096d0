"""The files that a command may name: in an allowed directory and no secret, after resolution as by the kernel."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from shellback.exec.core.sight.sight import PUBLIC_TREES, Name, Sight, Unseen, expanded
from shellback.exec.policy.classify.model import Asks, Surroundings

_TIDY: Final = re.compile(r"[^\s'\"\\*?\[\]]*")
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
MOST_NAMED: Final = 200
"""The most files that a judgement lists; more are listed as their directory with a slash."""
MOST_SEEN: Final = 5_000
"""The most directory entries that are read for one operand; a larger tree asks if it has to be known."""


@dataclass(slots=True)
class Known:
    """Cache of findings for one command line; `sight` bounds the inspection."""

    sight: Sight
    plain: dict[str, bool] = field(default_factory=dict[str, bool])
    real: dict[tuple[Path, str], Path] = field(default_factory=dict[tuple[Path, str], Path])
    private: dict[str, bool] = field(default_factory=dict[str, bool])
    allowed: set[str] = field(default_factory=set[str])


@dataclass(frozen=True, slots=True)
class Below:
    """Files in a directory tree, including its top: with `plain` only regular files, with `names` only matching ones.

    `depth` limits the descent. `nul`: names are separated by NUL, so any name is safe.
    """

    top: str
    names: tuple[str, ...] = ()
    plain: bool = False
    depth: int | None = None
    nul: bool = False


class Files:
    """Judges the files that one command names. Reads directories and symlinks, never a file's contents."""

    def __init__(self, around: Surroundings, known: Known | None = None) -> None:
        self.around = around
        self._known = known or Known(seen_from(around))
        self.sight = self._known.sight
        self.named: list[str] = []
        self.entered: Path | None = None

    def within(self, directory: Path) -> Files:
        """The same for a command that runs in another directory."""
        return Files(replace(self.around, cwd=directory), self._known)

    @property
    def repositories(self) -> Sight:
        """The sight for repositories: on the host, git also uses repositories above the workspace."""
        return self.sight if self.around.sandboxed else Sight(("/",))

    def read(self, text: str) -> None:
        """Allow reading a file or directory; Asks if it may be a secret, is outside, or cannot be resolved."""
        self._allow(text, self.resolve(text))

    def look(self, text: str) -> None:
        """Allow reading the metadata of a path, and the names in a directory; see `read`."""
        real = self.resolve(text)
        if real in self._above():
            self.named.append(str(real))
        else:
            self._allow(text, real)

    def link(self, text: str) -> None:
        """Allow reading the metadata of a path without following a symlink; see `read`."""
        trimmed = text.rstrip("/")
        if trimmed != text or os.path.basename(text) in {"", ".", ".."}:
            self.look(text)
            return
        directory, last = os.path.split(text)
        self._allow(text, self.resolve(f"{directory}/" if directory else "./") / last)

    def enter(self, text: str) -> None:
        """Allow the commands that follow to run in an existing directory, which becomes `entered`. See `look`."""
        self.look(f"{text}/")
        real = self.resolve(text)
        if str(real) != os.path.normpath(os.path.join(self.around.cwd, text)):
            raise Asks(f"{text} leads through a symlink")
        self.entered = real

    def descend(self, text: str, *, follows: bool, reads: bool, hidden: bool = True) -> None:
        """Allow listing, or with `reads` reading, everything below a directory; hidden files only with `hidden`.

        A sandbox hides secrets; elsewhere the tree must contain none. With `follows`, no symlink may lead outside.

        Raises:
            Asks: As `read`, or the tree contains such a file, or is too large to know.
        """
        path = os.path.join(self.around.cwd, text)
        if not follows and self._is_link(path):
            self.link(text)
            return
        self.read(text)
        real = self.resolve(text)
        if not follows and (self.around.sandboxed or not reads):
            return
        for seen, (inner, entry) in enumerate(self.sight.below(str(real), hidden=hidden)):
            if seen > MOST_SEEN:
                raise Asks(f"{text} holds too much to know that no secret is in it")
            if follows and entry.kind == "l":
                self._allow(inner, self.resolve(inner))
            elif reads and not self.around.sandboxed and self.private(inner):
                raise Asks(f"{inner} is a secret, and {text} would be read with all that is in it")

    def every(self, below: Below, judge: Callable[[str], None]) -> None:
        """Judge each file below a directory; Asks as `judge` does, or if there are too many to know."""
        for name in below.names:
            if name.startswith((".", "[")) or self.private(os.path.join(below.top, name)):
                raise Asks(f"{name} may stand for secrets")
        judge(below.top)
        kept = len(self.named)
        for path in self._under(below):
            judge(path)
        if len(self.named) - kept > MOST_NAMED:
            self.named[kept:] = [f"{self.resolve(below.top)}/"]

    def tidy(self, below: Below) -> bool:
        """Whether no name below a directory has a character at which a shell, or a reader of lists, would split it."""
        top = str(self.resolve(below.top))
        return not below.nul and all(_TIDY.fullmatch(path) for path in (below.top, *self._under(below, above=top)))

    def _under(self, below: Below, above: str = "") -> Iterator[str]:
        patterns = [_like(name) for name in below.names]
        top = str(self.resolve(below.top))
        for seen, (inner, entry) in enumerate(self._entries(top)):
            if seen > MOST_SEEN:
                raise Asks(f"{below.top} holds too much to know all that is in it")
            if below.depth is not None and inner.count("/") - top.rstrip("/").count("/") > below.depth:
                continue
            if (not below.plain or entry.kind == "f") and all(like.fullmatch(entry.name) for like in patterns):
                yield inner.removeprefix(above)

    def _entries(self, top: str) -> Iterator[tuple[str, Name]]:
        try:
            yield from self.sight.below(top)
        except Unseen:
            raise Asks(f"{top} is outside the directories that may be read") from None

    def expand(self, pattern: str) -> list[str]:
        """The names that match a pattern, or a superset; Asks if they are outside, TooMuch if they are too many."""
        return expanded(pattern, self, wide=True)

    def listed(self, path: str, *, hidden: bool) -> list[Name]:
        """The hidden, or the other, names in a directory; see `read`."""
        real = self.resolve(path)
        self._allow(path, real)
        self.named.pop()
        try:
            names = self.sight.names(str(real))
        except (OSError, Unseen):
            return []
        if len(names) > MOST_SEEN:
            raise Asks(f"{path} holds too many files for a pattern")
        return [one for one in names if one.name.startswith(".") == hidden]

    def enters(self, path: str) -> bool:
        """Whether a path leads to a directory, or to a place that may not be inspected but may have one."""
        return self._maybe(path, follow=True, is_one=lambda status: stat.S_ISDIR(status.st_mode))

    def meets(self, path: str) -> bool:
        """Whether a path exists, or leads to a place that may not be inspected."""
        return self._maybe(path, follow=False, is_one=lambda _: True)

    def _maybe(self, path: str, *, follow: bool, is_one: Callable[[os.stat_result], bool]) -> bool:
        try:
            _, found = self.sight.place(os.path.join(self.around.cwd, path), follow=follow)
        except Unseen:
            return True
        except OSError:
            return False
        found.close()
        return found.status is not None and is_one(found.status)

    def stands(self, path: str) -> bool:
        """Whether a path exists that may be inspected; a symlink counts itself."""
        return self.sight.stands(os.path.join(self.around.cwd, path))

    def _is_link(self, path: str) -> bool:
        status = self.sight.status(path, follow=False)
        return status is not None and stat.S_ISLNK(status.st_mode)

    def is_directory(self, path: str) -> bool:
        """Whether a path leads to a directory that may be inspected."""
        return self.sight.is_directory(os.path.join(self.around.cwd, path))

    def resolve(self, text: str) -> Path:
        """The resolved path; only its last component may be missing. Asks if it cannot be resolved."""
        place = (self.around.cwd, text)
        if place not in self._known.real:
            self._known.real[place] = self._resolved(text)
        return self._known.real[place]

    def _resolved(self, text: str) -> Path:
        if "\0" in text or len(text) > 4096:
            raise Asks("a path is no path")
        if os.path.normpath(text) in PUBLIC_FILES:
            return Path(os.path.normpath(text))
        path = text if text.startswith("/") else f"{self.around.cwd}/{text}"
        try:
            real, found = self.sight.place(path)
        except Unseen as unseen:
            if unseen.above:
                return Path(unseen.above)
            self.named.append(os.path.normpath(path))
            raise Asks(f"{text} is outside the directories that may be read") from None
        except OSError as error:
            self.named.append(os.path.normpath(path))
            if error.errno == errno.ELOOP:
                raise Asks(f"{text} is a loop of symlinks") from None
            raise Asks(f"a directory on the way to {text} is not there, so where it leads is not known") from None
        found.close()
        mode = None if found.status is None else found.status.st_mode
        self._known.plain[real] = mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        return Path(real)

    def _allow(self, text: str, real: Path) -> None:
        plain = str(real)
        self.named.append(plain)
        if plain not in self._known.allowed:
            self._judge(text, plain)
            self._known.allowed.add(plain)
        written = os.path.normpath(os.path.join(self.around.cwd, text))
        if written != plain and self.private(written):
            raise Asks(f"{text} is a secret")

    def _judge(self, text: str, real: str) -> None:
        if self.private(real):
            raise Asks(f"{text} is a secret")
        if real in PUBLIC_FILES or real in PUBLIC_TREES or real.startswith(_IN_PUBLIC):
            return
        if not any(_inside(real, str(directory)) for directory in self.around.allowed):
            raise Asks(f"{text} is outside the directories that may be read")
        if not self._known.plain.get(real, True):
            raise Asks(f"{text} is no plain file or directory")

    def private(self, path: str) -> bool:
        """Whether the path may be a secret; see `Secrets`."""
        path = os.path.join(self.around.cwd, path)
        if path not in self._known.private:
            self._known.private[path] = self.around.secret(Path(path))
        return self._known.private[path]

    def _above(self) -> set[Path]:
        """The parents of the allowed directories; on the host only the root."""
        if not self.around.sandboxed:
            return {Path("/")}
        return {parent for directory in self.around.allowed for parent in directory.parents} | {Path("/")}


def seen_from(around: Surroundings) -> Sight:
    """The sight for judging one command line."""
    return Sight((*map(str, around.allowed), *PUBLIC_TREES), held=around.held)


def _like(pattern: str) -> re.Pattern[str]:
    """A pattern of `find`, or a wider one: brackets and backslashes are not interpreted."""
    return re.compile(".*" if set(pattern) & set("[\\") else fnmatch.translate(pattern), re.DOTALL | re.IGNORECASE)


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")
