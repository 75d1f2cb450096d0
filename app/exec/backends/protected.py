"""Finds the paths that stay read-only in a writable workspace, because programs outside run or trust them unasked.

`shellback.exec.backends.trusted` has the names.

Every directory on the way to a protected path is bound onto itself: a mountpoint cannot be renamed, so nothing can be
put in the place of what was protected. Not covered: symlinks below the root, other file systems inside the workspace,
and repositories that commands make themselves, until the next command.

Everything is bounded, and what is beyond a bound is closed as a whole, or the workspace refused: whoever makes a great
many of something takes the protection from nothing by that, also where nobody remembers what was there before.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Final

from shellback.exec.backends.trusted import HEAD, PROTECTED, Rule, Where
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.secrets import named
from shellback.exec.core.sight.place import empty, head
from shellback.exec.supervisor.sandbox.stubs import SOCKET
from shellback.exec.wire.descriptors import closing

PLACES: Final = 50
"""Repositories and worktrees that are protected part by part: each costs five mounts for every command."""
DOTENVS: Final = 300
_TRIES: Final = 3
CLOSED: Final = 50
"""Directories closed for one reason; if there are more, the directories above them are closed."""
DIRECTORIES: Final = 50_000
"""Each costs every command an lstat."""
_CONFIG_BYTES: Final = 65_536
_SETTLED_NS: Final = 20_000_000
"""Longer than a tick of any kernel: a change within one tick of the last need not move the ctime."""
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_WHY: Final = {rule.name: rule.why for rule in PROTECTED}
_HOOKS_PATH: Final = re.compile(r"^\s*(?:\[core\]\s*)?hookspath\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Covers:
    """What to lay over the workspace, in this order: absolute, without symlinks, sorted, so parents come first.

    Nothing of it lies below a path of `readonly`, `stubs` or `placeholders`, but for what is `masked`.
    """

    writable: tuple[str, ...]
    """Directories bound onto themselves, so that they cannot be renamed: all that hold something of what follows."""
    readonly: tuple[str, ...]
    """What exists, bound read-only onto itself; with directories that nobody can look into, and files named `.git`."""
    stubs: tuple[str, ...]
    """Missing, or an empty directory: an empty read-only directory while commands run."""
    placeholders: tuple[tuple[str, bytes], ...]
    """Missing, or exactly this: a read-only file with these bytes while commands run, all of which git takes well; or
    a `SOCKET`, which commands see as nothing.

    It has to be made whole before it is bound onto itself: git outside sees it too, and an empty `commondir` stops it.
    """
    masked: tuple[str, ...]
    """What may be a secret by its name, but for git's configuration; of a symlink what it leads to, in the workspace;
    and directories of which nobody knows what is in them.

    Pipes and sockets too: a mount that is read-only keeps nobody from writing into them.
    """
    closed: tuple[str, ...]
    """What of `readonly` and `masked` is there as a whole, because it cannot be looked into or is beyond a bound."""
    places: tuple[str, ...] = field(default=(), compare=False)
    """No cover: all that git may take for a git directory or a pointer to one, also what is beyond a bound."""


class Protected:
    """Finds what is to be protected in `workspace`, absolute and without symlinks, in at most so many directories.

    `orders` are files in it that Shellback itself obeys: protected as if they stood in its root. `hidden` is what
    something else is mounted on: the way there is pinned, so that nothing of a command's own comes to stand there.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        orders: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        directories: int = DIRECTORIES,
    ) -> None:
        self._root = os.fspath(workspace)
        self._hidden = [os.fspath(path) for path in hidden if path.is_relative_to(workspace)]
        self._orders = [os.fspath(path) for path in orders]
        self._most = directories
        self._lock = RLock()
        self._tree = Tree(self._root, most=directories, marked=_marked, entered=self._entered)
        self._places: dict[str, Where] = {}
        self.seen: Callable[[Covers], bool] = lambda _: False
        """Is given what each look found, in its thread and one at a time; True: it changed that, so look again."""

    def covers(self) -> Covers:
        """What is there to cover right now. Blocks for some microseconds per directory; any thread may call it.

        Raises:
            WorkspaceUnusable: As `_look`.
        """
        with self._lock:
            covers = self._look()
            for _ in range(_TRIES):
                if not self.seen(covers):
                    break
                covers = self._look()
            return covers

    def _look(self) -> Covers:
        """One look.

        What was found before keeps its place when there is more than the bounds allow.

        Raises:
            WorkspaceUnusable: The workspace cannot be read, has more than the bounds allow all over it, or a protected
                path in its root, or in the repository there, is a symlink.
        """
        with self._lock:
            try:
                found = self._tree.look()
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise self._too_many(self._directories) from None
                raise WorkspaceUnusable(
                    f"the workspace {self._root} cannot be read ({error.strerror}); it has to be a directory that "
                    "Shellback can read"
                ) from None
            surplus = self._settle(found)
            draft = _Draft(self._root)
            for rule in PROTECTED:
                if rule.where == "root" and rule is not HEAD:
                    draft.add(self._root, rule)
            if f"{self._root}/.git" in draft.stubs and self._root not in self._places:
                draft.add(self._root, HEAD)
            for place, where in self._places.items():
                draft.place(place, where)
            for path in self._orders:
                draft.cover(path, b"", strict=True)
            draft.pinned.update(path for path in self._hidden if os.path.lexists(path))
            unknown = self._holding((one.path for one in found if one.closed), self._directories)
            if len(surplus) <= CLOSED:
                for place in surplus:
                    draft.whole(place)
            else:
                draft.closed |= self._holding(
                    (one.removesuffix("/.git") for one in surplus), f"it has more than {PLACES} repositories"
                )
            too_long = f"git's configuration there has more than {_CONFIG_BYTES >> 10} KiB"
            draft.closed |= self._holding(draft.unread, too_long)
            secrets = (path for path in self._dotenvs(found) if path not in draft.placeholders)
            covers = draft.covers(unknown, *self._masked(secrets, unknown))
            return replace(covers, places=tuple(dict(self._found(found))))

    def forbids(self, inner: str, path: Path) -> str | None:
        """The reason why a path, as commands see it, may not be written, made or removed; None if it may.

        Commands see the workspace at `inner`. Blocks and raises as `covers`.
        """
        where = os.path.normpath(f"{self._root}/{path.relative_to(inner)}")
        covers = self.covers()
        tops = (*covers.readonly, *covers.stubs, *(path for path, _ in covers.placeholders))
        if (covered := next((one for one in tops if f"{where}/".startswith(f"{one}/")), None)) is not None:
            shown = f"{inner}{covered[len(self._root) :]}"
            if covered in covers.closed:
                return f"{shown} is closed as a whole: it cannot be told what in it is protected"
            why = _WHY.get(os.path.basename(covered), "programs outside trust what stands there")
            return f"{shown} is protected: {why}"
        if where in covers.writable:
            held = next(one for one in tops if one.startswith(f"{where}/"))
            return f"{inner}{held[len(self._root) :]} in it is protected, so it stays where it is"
        return None

    @property
    def _directories(self) -> str:
        return f"it has more than {self._most} directories, or some that cannot be read"

    def _settle(self, found: list[Directory]) -> list[str]:
        """Choose the places that are protected part by part; returns the others."""
        places: dict[str, Where] = dict(sorted(self._found(found), key=lambda one: (one[0].count("/"), one[0])))
        order = dict.fromkeys((f"{self._root}/.git", self._root, *self._places, *places))
        there = [place for place in order if place in places]
        self._places = {place: places[place] for place in there[:PLACES]}
        return there[PLACES:]

    def _masked(self, secrets: Iterable[str], unknown: Collection[str]) -> tuple[set[str], set[str]]:
        """Files and directories that profile `read_only` does not see."""
        files = _outermost(secrets)
        surplus = (path.rpartition("/")[0] for path in files[DOTENVS:])
        folders = self._holding(surplus, f"it has more than {DOTENVS} files that may be secrets, pipes and sockets") | {
            *unknown
        }
        return {path for path in files[:DOTENVS] if folders.isdisjoint(_above(self._root, path))}, folders

    def _holding(self, paths: Iterable[str], why: str) -> set[str]:
        """At most `CLOSED` directories that hold all of these: themselves, or the nearest above the deepest of them.

        Raises:
            WorkspaceUnusable: Only the workspace itself would do.
        """
        levels: defaultdict[int, set[str]] = defaultdict(set)
        for path in paths:
            levels[path.count("/")].add(path)
        while sum(map(len, levels.values())) > CLOSED:
            deepest = max(levels)
            levels[deepest - 1] |= {path.rpartition("/")[0] for path in levels.pop(deepest)}
        found = set[str]().union(*levels.values())
        if self._root in found:
            raise self._too_many(why)
        return found

    def _too_many(self, why: str) -> WorkspaceUnusable:
        return WorkspaceUnusable(
            f"what is protected in the workspace {self._root} cannot be told from the rest: {why}; remove what nobody"
            " needs, or give agents a smaller workspace: WORKSPACE_ROOT"
        )

    def _found(self, found: list[Directory]) -> Iterator[tuple[str, Where]]:
        for directory in found:
            marks = directory.marks
            if not marks:
                continue
            if marks.get(".git") == "d" or (".git" in marks and directory.path != self._root):
                yield f"{directory.path}/.git", "repository"
            if marks.get("HEAD", "d") != "d":
                if marks.get("objects", "f") != "f" and marks.get("refs", "f") != "f":
                    yield directory.path, "repository"
                elif marks.get("commondir", "d") != "d":
                    yield directory.path, "worktree"

    def _dotenvs(self, found: list[Directory]) -> Iterator[str]:
        for directory in found:
            for name, kind in directory.marks.items():
                path = f"{directory.path}/{name}"
                if kind != "s" and not named(f"{path}/." if kind == "d" else path):
                    continue
                if kind == "d" and _is_empty(path):
                    continue  # what stands in for nothing while another command runs
                if kind == "l":
                    path = os.path.realpath(path)
                    if not path.startswith(f"{self._root}/") or not os.path.isfile(path):
                        continue
                yield path

    def _entered(self, directory: Directory, name: str) -> bool:
        below = directory.path[len(self._root) :]
        if below.endswith("/.git"):
            return name in {"modules", "worktrees"}
        if "/.git/" in below and "HEAD" in directory.marks:
            return name not in {"objects", "refs", "logs", "lfs"}
        return True


class _Draft:
    """Collects the covers of one look."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.readonly: set[str] = set()
        self.stubs: set[str] = set()
        self.placeholders: dict[str, bytes] = {}
        self.pinned: set[str] = set()
        self.closed: set[str] = set()
        self.unread: set[str] = set()
        """What has a configuration that is too long to be read."""

    def add(self, place: str, rule: Rule) -> None:
        path = f"{place}/{rule.name}"
        if rule.rare and os.path.isdir(path) and not os.path.islink(path):
            self.readonly.add(path)
        elif not rule.rare or os.path.lexists(path):
            self.cover(path, rule.missing, strict=place in {self._root, f"{self._root}/.git"})

    def place(self, place: str, where: Where) -> None:
        """Cover what a repository or a worktree has; a file named `.git` as a whole."""
        if place in self.stubs:
            return
        try:
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                self.cover(place, None, strict=False)
                return
        except OSError:
            return
        for rule in PROTECTED:
            if rule.where == where and self._wanted(place, rule):
                self.add(place, rule)
        if where == "repository" and place.endswith("/.git"):
            self._named_hooks(place)

    def whole(self, place: str) -> None:
        """Close a repository or worktree, with the hooks that its configuration names."""
        self.closed.add(place)
        if place.endswith("/.git"):
            self._named_hooks(place)

    def covers(self, unknown: set[str], files: set[str], folders: set[str]) -> Covers:
        """All that was put together; `unknown` is closed too, `files` and `folders` are masked."""
        closed = self.closed | unknown
        readonly = self.readonly | closed
        tops = readonly | self.stubs | self.placeholders.keys()
        nested = {path for path in tops if not tops.isdisjoint(_above(self._root, path))}
        pins = tops | {path for path in self.pinned if tops.isdisjoint(_above(self._root, path))}
        return Covers(
            writable=tuple(sorted({above for path in pins - nested for above in _above(self._root, path)})),
            readonly=tuple(sorted(readonly - nested)),
            stubs=tuple(sorted(self.stubs - nested)),
            placeholders=tuple(sorted((p, c) for p, c in self.placeholders.items() if p not in nested)),
            masked=tuple(sorted(files | {path for path in folders if folders.isdisjoint(_above(self._root, path))})),
            closed=tuple(sorted(closed | folders)),
        )

    def _wanted(self, place: str, rule: Rule) -> bool:
        """Whether a file that is missing would mean anything to git, or is there."""
        if rule.name == "config.worktree":
            common = os.path.dirname(os.path.dirname(place)) if rule.where == "worktree" else place
            text = _text(f"{common}/config")
            return (
                "worktreeconfig" in text.lower()
                or len(text) == _CONFIG_BYTES
                or os.path.lexists(f"{place}/{rule.name}")
            )
        return True

    def _named_hooks(self, place: str) -> None:
        top = os.path.dirname(place)
        texts = [_text(f"{place}/{name}", most=_CONFIG_BYTES + 1) for name in ("config", "config.worktree")]
        if max(map(len, texts)) > _CONFIG_BYTES:
            self.unread.add(top)
        for given in _HOOKS_PATH.findall("\n".join(texts)):
            path = os.path.normpath(os.path.join(top, given.strip()))
            if not path.startswith(f"{top}/") or os.path.realpath(path) != path:
                continue
            missing = [above for above in _above(self._root, path) if not os.path.lexists(above)]
            self.cover(missing[-1] if missing else path, None, strict=False)

    def cover(self, path: str, missing: bytes | None, *, strict: bool) -> None:
        """Cover one path; `strict`: a symlink there is refused, else left alone."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            status = None
        except OSError:
            return  # in a directory that nobody can look into, or too long to be named
        # The last: what stood in for nothing a moment ago may have been taken away, with the command that needed it.
        if status is None or _stands_in(path, status, missing) or not os.path.lexists(path):
            if missing is None:
                self.stubs.add(path)
            else:
                self.placeholders[path] = missing
        elif not stat.S_ISLNK(status.st_mode):
            if path != f"{self._root}/.git" or not stat.S_ISDIR(status.st_mode):
                self.readonly.add(path)
        elif strict:
            raise WorkspaceUnusable(
                f"{path} is a symlink to {_target(path)}, so it cannot be kept from commands, and it has to be; "
                "put what it leads to in its place, or remove it"
            )


def _is_empty(path: str) -> bool:
    try:
        return empty(path)
    except OSError:
        return False


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without what lies below another of them; the root's first, then environments, for there is a bound."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return sorted(kept, key=lambda path: (path.count("/"), ".env" not in path, path))


def _above(root: str, path: str) -> Iterator[str]:
    """The directories on the way to it, below the root, the nearest first."""
    while len(path := path[: path.rindex("/")]) > len(root):
        yield path


def _marked(name: str) -> bool:
    return name in {".git", "HEAD", "objects", "refs", "commondir"} or name == "config.json" or named(name)


def _stands_in(path: str, status: os.stat_result, missing: bytes | None) -> bool:
    """Whether what is there is what another command, still running, has there in place of nothing."""
    try:
        if missing is None:
            return stat.S_ISDIR(status.st_mode) and empty(path)
        if missing == SOCKET:
            return status.st_size == 0 and (stat.S_ISSOCK(status.st_mode) or stat.S_ISREG(status.st_mode))
        return status.st_size == len(missing) and stat.S_ISREG(status.st_mode) and _text(path) == missing.decode()
    except OSError:
        return False


def _text(path: str, most: int = _CONFIG_BYTES) -> str:
    try:
        return head(path, most).decode(errors="surrogateescape")
    except OSError:
        return ""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "somewhere"


@dataclass(slots=True, eq=False)
class Directory:
    """One directory: what its names were when it was last read.

    `marks` are the names that matter, each with `d`, `f` or `l` for what it is, and all of pipes, sockets and devices,
    with `s`. `closed`: it is there and nobody knows what is in it, as it cannot be read, or has more directories in it
    than there was room for. `need` is how many it has, at least: all of them are in `children` where it is `whole`.
    """

    path: str
    stamp: tuple[int, int] | None = None
    settled: bool = False
    closed: bool = False
    marks: dict[str, str] = field(default_factory=dict[str, str])
    children: dict[str, Directory] = field(default_factory=dict[str, "Directory"])
    need: int = 0
    whole: bool = False


class Tree:
    """The directories below `root`, which is absolute and without symlinks, at most `most` of them.

    A directory is read again when its inode or ctime has changed; mtime can be set by anybody, ctime cannot. Symlinks
    and other file systems are not entered. Commands may change the tree meanwhile: what is found is what was there at
    some moment of the look, and every directory that was there all the time is in it.

    `marked` says of a name whether it matters, `entered` of a directory and the name of one in it whether to go there.
    Not for several threads at once.
    """

    def __init__(
        self, root: str, *, most: int, marked: Callable[[str], bool], entered: Callable[[Directory, str], bool]
    ) -> None:
        self._root = Directory(root)
        self._most = most
        self._marked = marked
        self._entered = entered
        self._device = 0

    def look(self) -> list[Directory]:
        """Every directory that is there, the root first; of one that is `closed`, none of those in it.

        What was looked at before comes before what is new, so that a flood of new directories closes no old one.

        Raises:
            OSError: The root cannot be read: E2BIG if it has more directories than there is room for.
        """
        self._device = os.lstat(self._root.path).st_dev
        found: list[Directory] = []
        room = self._most - 1
        known, new = deque([self._root]), deque[Directory]()
        while known or new:
            directory = known.popleft() if known else new.popleft()
            if not self._there(directory, room):
                continue
            found.append(directory)
            if directory.closed:
                continue
            room -= len(directory.children)
            for child in directory.children.values():
                (new if child.stamp is None else known).append(child)
        if not found or self._root.closed:
            number = errno.E2BIG if self._root.need else errno.EACCES
            raise OSError(number, "cannot be read", self._root.path)
        return found

    def _there(self, directory: Directory, room: int) -> bool:
        try:
            status = os.lstat(directory.path)
            if directory.settled and directory.stamp == (status.st_ino, status.st_ctime_ns):
                if status.st_dev != self._device:
                    return False
                directory.closed = directory.need > room
                if directory.closed or directory.whole:
                    return True
            if not stat.S_ISDIR(status.st_mode) or status.st_dev != self._device:
                return False
            return self._read(directory, room)
        except OSError as error:
            if error.errno in _GONE:
                return False
        directory.closed, directory.settled, directory.stamp = True, False, (0, 0)
        directory.marks, directory.children, directory.need = {}, {}, 0
        return True

    def _read(self, directory: Directory, room: int) -> bool:
        with closing(os.open(directory.path, _OPEN)) as descriptor:
            if os.readlink(f"/proc/self/fd/{descriptor}") != directory.path:
                return False  # a symlink on the way, put there after the look at its parent
            now = time.time_ns()
            status = os.stat(".", dir_fd=descriptor)  # unlike fstat it fails where the names lead nowhere
            if status.st_dev != self._device:
                return False
            self._take(directory, descriptor, room)
        directory.stamp = (status.st_ino, status.st_ctime_ns)
        directory.settled = now - status.st_ctime_ns > _SETTLED_NS
        directory.closed = directory.need > room
        return True

    def _take(self, directory: Directory, descriptor: int, room: int) -> None:
        before, names = directory.children, list[str]()
        marks: dict[str, str] = {}
        directory.whole = True
        with os.scandir(descriptor) as entries:
            for entry in entries:
                folder = entry.is_dir(follow_symlinks=False)
                if self._marked(entry.name):
                    marks[entry.name] = "d" if folder else "l" if entry.is_symlink() else "f"
                elif not (folder or entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    marks[entry.name] = "s"
                if folder:
                    names.append(entry.name)
                    if len(names) > room:
                        directory.whole = False
                        break
        directory.marks = marks
        directory.children = {
            name: before.get(name) or Directory(f"{directory.path}/{name}")
            for name in sorted(names)
            if directory.whole and self._entered(directory, name)
        }
        directory.need = len(directory.children) if directory.whole else len(names)
