"""The files of one workspace, as the commands of its sandbox may use them, without running a command."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Hashable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from shellback.exec.core.errors import CommandDenied, ExecError, InvalidCommand
from shellback.exec.core.sight.place import Names, Place, Root
from shellback.exec.core.threads import CHECK_S, FileThreads, Threads
from shellback.exec.files import contents
from shellback.exec.files.contents import Mode
from shellback.exec.files.entries import Entry, Found, Glob, entry_of, listed
from shellback.exec.files.grep import Grep, Hits
from shellback.exec.files.text import Text, lines_of

TEXT_MOST: Final = 262_144
LINES_MOST: Final = 2000
LOOK_S: Final = 30.0
"""Limit of a read; a thread that hangs in the kernel longer is abandoned."""
T = TypeVar("T")
Check = Callable[[str, int | None], None]
"""Called with a path as commands see it, and a descriptor of what stands there; it raises to prevent what follows."""
_MODES: Final = ("overwrite", "create", "append")


class Files:
    """Reads, writes and searches below `workspace`, which commands see at `inner` (the same path, if not given).

    Paths are taken as commands see them; relative ones begin at the workspace. Symlinks are followed as long as they
    stay in it, and nobody who changes the tree meanwhile gets anything in or out. Files are reached and made as `uid`
    and `gid`, with `umask`: whom commands run as, which without them is an unprivileged user where we are root, and
    else ourselves. Only regular files are opened, so that nothing waits for a pipe or a device.

    `forbidden` is asked in a thread before anything is written, made or removed, with the path as commands see it,
    absolute and without symlinks; it says why not, or None.

    Everything raises, besides what is named there: InvalidCommand for a path that can be none, PathOutsideSandbox for
    one that leaves the workspace, WorkspaceUnusable if that is gone, BackendUnavailable if we may not become `uid`,
    CheckTimedOut where reading takes longer than `LOOK_S`, OSError as Python does, with the path as it was given:
    FileNotFoundError, NotADirectoryError, IsADirectoryError,
    FileExistsError, PermissionError, ELOOP for symlinks that go round in a circle, ENOTSUP for no regular file.

    Cancelled, a change is not begun, or comes to its end before the cancellation goes on; what reads ends at once.
    One of these is enough for a workspace, and writes to one file through it come one after another. Nothing is opened
    and no thread started when it is made.

    Raises:
        ValueError: `uid` is root's.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        inner: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
        umask: int = 0o022,
        forbidden: Callable[[Path], str | None] | None = None,
    ) -> None:
        self.workspace = workspace
        self.inner = str(workspace) if inner is None else inner
        self._forbidden = forbidden
        self._threads = FileThreads(uid, gid, umask)
        mounted = self._threads.identity is not None and self.inner != str(workspace)
        if mounted and forbidden is not None:
            # It looks at the workspace by its path, which the user of commands may not be able to go.
            self._forbidden = partial(self._threads.asked_outside, forbidden)
        held = partial(self._threads.held, str(workspace)) if mounted else None
        self._root = Root(str(workspace), self.inner, held)
        self._searches = Threads(2, "grep")
        self._locks = Locks()

    async def close(self) -> None:
        """Let what was begun come to its end; nothing can be done with it afterwards."""
        await self._threads.close()
        await self._searches.close(0.0)

    async def read_bytes(self, path: str, *, check: Check | None = None) -> bytes:
        """All bytes of a file; `check` is called first, as `inspect` calls `look`, and raises to prevent the reading.

        Raises:
            FileTooLarge: It has more than 64 MiB.
        """

        def read(place: Place) -> bytes:
            if check is None:
                return contents.read(place.again())
            return contents.read(place.again(), partial(check, self._root.shown(place.names)))

        return await self._looked(path, read, locked=True)

    async def read_text(self, path: str, *, offset: int = 0, limit: int = LINES_MOST, most: int = TEXT_MOST) -> Text:
        """At most `limit` lines of a file from line `offset` on (0 is the first), and at most `most` characters.

        Raises:
            InvalidCommand: It holds a NUL in its first 8 KiB, or is not UTF-8.
            FileTooLarge: It has more than 64 MiB.
        """
        if offset < 0 or limit < 1 or most < 1:
            raise InvalidCommand(f"offset is {offset} and limit {limit}; offset is 0 or more, limit 1 or more")

        def read(place: Place) -> Text:
            return lines_of(self._root.shown(place.names), contents.read(place.again()), offset, limit, most)

        return await self._looked(path, read, locked=True)

    async def inspect(self, path: str, look: Callable[[str, int | None], T], *, follow: bool = True) -> T:
        """What `look` returns, called in a thread with a path as commands see it, without symlinks, and a descriptor.

        The descriptor is of what stands there, readable for a file or directory; None for nothing. `follow` says
        whether a symlink at the end is what it leads to. No other write through this object happens meanwhile.
        """

        def work(place: Place) -> T:
            with contents.looked_at(place.again()) as descriptor:
                return look(self._root.shown(place.names), descriptor)

        return await self._looked(path, work, follow=follow, locked=True)

    async def write_bytes(
        self,
        path: str,
        data: bytes,
        *,
        mode: Mode = "overwrite",
        atomic: bool = False,
        check: Check | None = None,
    ) -> Entry:
        """Write a file and make the directories on the way; `create` refuses one that is there, `append` adds to it.

        The file itself is written, also through a symlink, which stays: its inode, owner, mode and hard links are
        kept, and whoever reads meanwhile may see a part. With `atomic` a new file is put on disk beside it and takes
        its place in one step, with its owner, group and mode: at every moment, whatever is killed, the old or the new
        bytes are there. Other hard links then keep the old ones, and extended attributes are gone. A kill may leave
        `.shellback-*.tmp` beside it; an error leaves nothing.

        `check` is called as `inspect` calls `look`, right before, and with None before directories are made; what it
        raises ends the call, and nothing is written.

        Raises:
            CommandDenied: `forbidden` has a reason.
            InvalidCommand: `append` cannot be `atomic`.
            PermissionError: Also where `atomic` could not keep owner and group.
        """
        if mode not in _MODES:
            raise InvalidCommand(f"mode is {mode!r}; it is one of {', '.join(_MODES)}")
        if atomic and mode == "append":
            raise InvalidCommand("append adds to the file that is there, so it cannot be atomic")

        def making(names: Names) -> None:
            self._permit(names)
            if check is not None:
                check(self._root.shown(names), None)

        def write() -> Entry:
            with self._root.place(path, making=making) as place, self._locks.held(place.names):
                self._permit(place.names)
                self._check(place, check)
                (contents.replace if atomic else contents.write)(place.again(), data, mode)
                return entry_of(self._root, path, place.again())

        return await self._run(path, write)

    async def stat(self, path: str) -> Entry:
        """What stands at `path`, symlinks followed."""
        return await self._looked(path, partial(entry_of, self._root, path))

    async def list_dir(self, path: str = ".") -> list[Entry]:
        """The entries of a directory, sorted by name; FileTooLarge if it has more than 100,000."""
        return await self._looked(path, partial(listed, self._root, path))

    async def make_dir(self, path: str) -> bool:
        """Make a directory and those on the way; False if it was there. CommandDenied if `forbidden` has a reason."""

        def make() -> bool:
            with self._root.place(_bare(path), making=self._permit) as place:
                if place.status is None:
                    self._permit(place.names)
                return contents.make(place)

        return await self._run(path, make)

    async def remove(self, path: str, *, check: Check | None = None) -> int:
        """Remove a file, a symlink itself, or a directory with what is in it; how many names.

        It takes at most two minutes. An error in the middle leaves what is not removed by then. `check` is as for
        `write_bytes`, of a symlink itself.

        Raises:
            CommandDenied: `forbidden` has a reason.
            InvalidCommand: It is the workspace; PathOutsideSandbox for what that is in.
        """
        return await self._run(path, lambda: self._remove(path.rstrip("/") or path, check))

    async def exists(self, path: str) -> bool:
        """Whether something stands at `path`, symlinks followed; False for symlinks that lead nowhere."""

        def look() -> bool:
            try:
                with self._root.place(path) as place:
                    return place.status is not None
            except OSError as error:
                if error.errno in contents.NOTHING and not isinstance(error, ExecError):
                    return False
                raise

        return await self._seen(path, look)

    async def realpath(self, path: str) -> str:
        """`path` without symlinks, as commands see it; from where nothing is to be seen it is kept as written."""
        return await self._seen(path, lambda: self._root.shown(self._root.real(path)))

    async def glob(self, pattern: str, *, path: str = ".", limit: int = 1000, seconds: float = 10.0) -> Found:
        """Files and directories below `path` that match: `**`, `*`, `?`, `[...]` and `{a,b}`; dotfiles do too.

        At most 100,000 names are looked at. Symlinks are found and not entered; what is in `scan.IGNORED` is found
        and not entered unless the search begins there.

        Raises:
            InvalidCommand: The pattern or a bound is not acceptable.
        """
        search = Glob(self._root, pattern, path, limit, seconds)
        with _said(path):
            return await self._threads.run(search.run, search.stop, seconds=seconds + LOOK_S)

    async def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        ignore_case: bool = False,
        limit: int = 200,
        seconds: float = 10.0,
        withheld: Callable[[str], bool] | None = None,
    ) -> Hits:
        """Lines in which a regular expression is found, in the file `path` or below it; `glob` picks files.

        It runs in a process of its own, for at most `seconds` and one second in a file. Directories are entered as by
        `glob`; binary files and those over 16 MiB are counted only. Those of which `withheld`, called in a thread with
        a path as commands see it, is true are not searched.

        Raises:
            InvalidCommand: `pattern` is no regular expression, or it or a bound is not acceptable.
        """
        become = self._threads.identity
        search = Grep(self._root, pattern, path, glob, ignore_case, limit, seconds, become, withheld)
        await self.stat(path)
        with _said(path):
            return await self._searches.run(search.run, search.stop)

    async def look(self, work: Callable[[], T]) -> T:
        """What `work`, which changes nothing, returns in a thread; CheckTimedOut after `CHECK_S`."""
        return await self._threads.run(work, seconds=CHECK_S)

    async def _run(self, path: str, work: Callable[[], T], *, seconds: float | None = None) -> T:
        with _said(path):
            return await self._threads.run(work, seconds=seconds)

    async def _seen(self, path: str, work: Callable[[], T]) -> T:
        return await self._run(path, work, seconds=LOOK_S)

    async def _looked(self, path: str, look: Callable[[Place], T], *, follow: bool = True, locked: bool = False) -> T:
        def work() -> T:
            with contextlib.ExitStack() as stack:
                place = stack.enter_context(self._root.place(path, follow=follow))
                if locked:
                    stack.enter_context(self._locks.held(place.names))
                return look(place)

        return await self._seen(path, work)

    async def forbids(self, path: str) -> str | None:
        """Why what stands at `path`, a symlink itself, is not written, made or removed; None where it may be."""

        def look() -> str | None:
            try:
                with self._root.place(path, follow=False) as place:
                    names = place.names
            except FileNotFoundError:
                names = self._root.real(path)
            return None if self._forbidden is None else self._forbidden(Path(self._root.shown(names)))

        return await self._seen(path, look)

    def _check(self, place: Place, check: Check | None) -> None:
        if check is not None:
            with contents.looked_at(place.again()) as descriptor:
                check(self._root.shown(place.names), descriptor)

    def _permit(self, names: Names) -> None:
        reason = None if self._forbidden is None else self._forbidden(Path(self._root.shown(names)))
        if reason is not None:
            raise CommandDenied(reason)

    def _remove(self, path: str, check: Check | None) -> int:
        with self._root.place(path, follow=False) as place:
            if not place.names:
                raise InvalidCommand(f"{self.inner} is the workspace itself, which is not removed; name what is in it")
            if place.name != ".":
                self._permit(place.names)
                with self._locks.held(place.names):
                    self._check(place, check)
                    return contents.remove(place)
        return self._remove(self._root.shown(place.names), check)


@contextlib.contextmanager
def _said(path: str) -> Generator[None]:
    """Errors of the system name the path as it was given."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, ExecError):
            error.filename = path
            del error.filename2
        raise


def _bare(path: str) -> str:
    while path.endswith(("/", "/.")) and path.strip("/."):
        path = path[:-1]
    return path


class Locks:
    """Locks for threads, each there as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._mine = threading.Lock()
        self._locks: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()

    def held(self, name: Hashable) -> threading.Lock:
        """The lock of `name`, to be had for a block."""
        with self._mine:
            return self._locks.setdefault(name, threading.Lock())
