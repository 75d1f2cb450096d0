"""Looks at what commands of profile `work` have made: with each look at the workspace, and once more at their end.

A place is what git may take for a git directory, or for a pointer to one. Which commands may have made one is known by
who ran when it was first seen: those are its writers, and it is examined at every look until the last of them has
ended. What was there before any command ran is the person's and is never touched. A place that was left unexamined is
owed: it is examined even when all its writers have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.inspection.gitdirs import GitDirs, content, reached
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import ExecError, WorkspaceUnusable
from shellback.exec.core.findings import (
    GITLINK,
    HARD_LINK,
    REPOSITORY,
    UNSEEN,
    Finding,
    FindingSink,
    MemoryFindings,
    finding_id,
)
from shellback.exec.core.model import WORK, Session, SessionEnd
from shellback.exec.core.sight.place import Root, opened
from shellback.exec.wire import gitindex, linux
from shellback.exec.wire.descriptors import closing

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How long one look examines; what is left then is owed."""
END_S: Final = 10.0
"""How long the end of a command waits for its look."""
NAMED: Final = 10
ENTRIES: Final = 50_000
COPIED_BYTES: Final = 4 * 1024 * 1024
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1 << 18
_OWED: Final = ""
_UNKNOWN: Final = "?"


@dataclass(slots=True)
class _Known:
    """A place as it was last seen: its inode, who may have made it, and its nested repositories with their stamp."""

    inode: int
    writers: frozenset[str]
    stamp: tuple[int, ...] = ()
    links: frozenset[bytes] = field(default_factory=frozenset[bytes])


def inspector_of(backend: Backend, home: Path, sink: FindingSink | None = None) -> Inspector | None:
    """What inspects the workspace of a backend; None where its commands are held to nothing that could be kept so."""
    protected: object = getattr(backend, "protected", None)
    if not isinstance(protected, Protected):
        return None
    return Inspector(protected, Root(str(backend.workspace), backend.inner), home, sink)


class Inspector:
    """Inspects the workspace that `protected` looks at, whoever asks it to look; for one worker.

    Configuration and hooks that git must not meet are moved into `home`, which is ours alone; what is known is kept
    there too. `root` is the workspace as commands see it.
    """

    def __init__(self, protected: Protected, root: Root, home: Path, sink: FindingSink | None = None) -> None:
        self._protected = protected
        self.root = self._root = root
        self._quarantine = Quarantine(root, home / "quarantine")
        self._memory = Memory(home / "known")
        self._sink = sink or MemoryFindings()
        self._live: Mapping[str, str] = {}
        self._leaving: dict[str, frozenset[str]] = {}
        self._known: dict[str, _Known] = {}
        self._first = True
        self._changed = False
        self._linked: dict[str, int] = {}
        self._met: deque[Finding] = deque()
        self._untold: dict[str, list[str]] = {}
        self._later: set[asyncio.Task[list[str]]] = set()
        protected.seen = self._seen

    def resume(self, live: Sequence[Session], host_id: str) -> None:
        """Take sessions of this host that were begun by an earlier worker for writers, before any look.

        What they have made since its last look is what it does not remember.
        """
        ours = (one for one in live if (one.host_id, one.profile) == (host_id, WORK))
        self._live = {**{one.id: one.conversation_id for one in ours}, **self._live}

    async def begun(self, session_id: str, conversation_id: str) -> None:
        """Count a command as a writer from now on; to be called before it starts, after the look that it starts with.

        Records what that look has found. Raises nothing.
        """
        self._live = {**self._live, session_id: conversation_id}
        await self._record()

    def untold(self, conversation_id: str) -> tuple[str, ...]:
        """What was found of this conversation's commands since this was asked last, in sentences."""
        told = self._untold.pop(conversation_id, [])
        more = len(told) - NAMED
        return (*told[:NAMED], *((f"{more} more findings: a person sees all of them",) if more > 0 else ()))

    async def ended(self, session_id: str, end: SessionEnd) -> SessionEnd:
        """Look at what there is at the end of a command; returns the end with what is to be told of it. Raises nothing.

        Waits `END_S` seconds at most: a look that takes longer, or fails, is a finding, and the command counts as a
        writer until one has succeeded, and while anything lives that it has left (in a container: for good). Cancelling
        leaves it so too.
        """
        if session_id not in self._live:
            return end
        contained = self._root.inner != self._root.workspace
        self._leaving[session_id] = _spaces(end.survivors, contained=contained)
        return replace(end, findings=await self.look(session_id))

    async def look(self, session_id: str) -> tuple[str, ...]:
        """Look at what there is while a command that has begun runs on; returns what is to be told. As `ended`."""
        conversation_id = self._live.get(session_id, "")
        look = asyncio.ensure_future(asyncio.to_thread(self._inspect))
        self._later.add(look)
        look.add_done_callback(lambda done: self._inspected(session_id, done))
        done, _ = await asyncio.wait({look}, timeout=END_S)
        if not done:
            self._unseen(session_id, f"what it made could not be looked at within {END_S:g} s")
        await self._record()
        return self.untold(conversation_id)

    async def add(self, found: Sequence[Finding], *, told: bool) -> None:
        """Record what was found by another one; the agent hears of it here unless it is `told` otherwise.

        Raises nothing. Saying so again records nothing.
        """
        if (new := await self._recorded(found)) is not None:
            self._note(new, told=told)

    async def _recorded(self, found: Sequence[Finding]) -> Sequence[Finding] | None:
        """What of it is new; None where it could not be recorded."""
        try:
            return await self._sink.found(found)
        except Exception as error:  # noqa: BLE001 - whatever keeps the sink from it, it is told again
            log.warning("findings are not recorded yet: %s", error)
            return None

    def _inspect(self) -> list[str]:
        """Look; whoever had ended by then, with all that it had left running."""
        gone = [one for one, spaces in self._leaving.copy().items() if not _inhabited(spaces)]
        self._protected.covers()
        return gone

    def _inspected(self, session_id: str, look: asyncio.Task[list[str]]) -> None:
        self._later.discard(look)
        if look.cancelled():
            return
        if (error := look.exception()) is not None:
            self._unseen(session_id, f"what it made could not be looked at: {error}")
            if not isinstance(error, WorkspaceUnusable):
                log.error("the workspace was not inspected", exc_info=error)
            return
        gone = look.result()
        self._live = {one: talk for one, talk in self._live.items() if one not in gone}
        self._leaving = {one: left for one, left in self._leaving.items() if one not in gone}

    async def _record(self) -> None:
        met = [self._met.popleft() for _ in range(len(self._met))]
        if not met:
            return
        new = await self._recorded(met)
        if new is None:
            self._met.extendleft(reversed(met))
        self._note(met if new is None else new)

    def _note(self, new: Sequence[Finding], *, told: bool = False) -> None:
        for one in new:
            log.warning("found in the workspace: %s", one.sentence, extra={"session": one.session_id or None})
            untold = self._untold.setdefault(one.conversation_id, [])
            if not told and one.sentence not in untold:
                untold.append(one.sentence)

    # What follows runs in the thread of whoever looks, one look at a time.

    def _seen(self, covers: Covers) -> bool:
        """Inspect what was looked at; whether anything was changed."""
        self._changed = False
        live = self._live  # read after the look: whoever made something that it saw is in it
        until = time.monotonic() + LOOK_S
        workspace = self._root.workspace
        paths = [path[len(workspace) + 1 :] for path in covers.places]
        judged = GitDirs(self._root, set(paths))
        known: dict[str, _Known] = {}
        owed = 0
        for path in paths:
            try:
                inode = os.lstat(f"{workspace}/{path}").st_ino
            except OSError:
                continue
            one = self._known.get(path)
            new = one is None or one.inode != inode
            if one is None or new:
                before = self._first and self._memory.of(path) in {inode, None}
                one = _Known(inode, frozenset() if before else frozenset(live))
            one.writers &= {*live, _OWED}
            known[path] = one
            if one.writers and time.monotonic() < until:
                self._examine(judged, path, self._writer(one.writers, live), live)
                one.writers -= {_OWED}
            elif one.writers:
                one.writers |= {_OWED}
                owed += 1
            self._index(path, one, live, new=new)
        self._known, self._first = known, False
        self._hard_links(covers, live)
        self._memory.note({path: one.inode for path, one in known.items() if not one.writers})
        if owed:
            what = (
                f"{owed} repositories that commands may have made are still to be looked at: the next command does it"
            )
            self._unseen(self._writer(frozenset(), live), what)
        return self._changed

    def _writer(self, writers: frozenset[str], live: Mapping[str, str]) -> str:
        """The last that began, of the writers or else of all."""
        return next((one for one in reversed([*live]) if one in writers or not writers - {_OWED}), "")

    def _examine(self, judged: GitDirs, path: str, writer: str, live: Mapping[str, str]) -> None:
        for problem in judged.problems(path):
            name = finding_id(REPOSITORY, problem.path, problem.status.st_ino, problem.status.st_ctime_ns)
            what = f"{_shown(problem.path)}, made by a command, is {problem.what}, which git would obey"
            kept = None
            try:
                kept = self._quarantine.take(problem.path, name)
                self._changed = True
                done = "it was taken away and is kept for a person"
            except (OSError, ExecError) as error:
                done = f"it could not be taken away ({error}), so do not use git there"
            self._meet(REPOSITORY, problem.path, f"{what}; {done}", writer, live, name=name, kept=kept)

    def _index(self, path: str, one: _Known, live: Mapping[str, str], *, new: bool) -> None:
        """Compare the nested repositories that an index names with those before; of a new place nothing is told."""
        file = f"{path}/index"
        try:
            found = os.lstat(f"{self._root.workspace}/{file}")
        except OSError:
            one.stamp, one.links = (), frozenset()
            return
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if stamp == one.stamp:
            return
        writer = self._writer(frozenset(), live)
        try:
            links = self._gitlinks(path, file)
        except ValueError:
            links = one.links
            if live and not new:
                what = f"{_shown(file)} was changed and cannot be read: it may name nested repositories"
                self._meet(UNSEEN, file, what, writer, live)
        added = sorted(links - one.links) if live and not new else []
        for link in added[:NAMED]:
            nested = f"{_worktree(path)}{os.fsdecode(link)}"
            what = f"a command added {_shown(nested)} to {_shown(file)} as a nested repository: git status asks it too"
            self._meet(GITLINK, nested, what, writer, live, what_else=(found.st_ino, found.st_ctime_ns))
        if len(added) > NAMED:
            what = f"a command added {len(added) - NAMED} more nested repositories to {_shown(file)}"
            self._meet(GITLINK, file, what, writer, live, what_else=(found.st_ino, found.st_ctime_ns))
        one.stamp, one.links = stamp, links

    def _gitlinks(self, path: str, file: str) -> frozenset[bytes]:
        data = content(self._root, file, MOST_BYTES + 1)
        if data is None:
            raise ValueError
        config = content(self._root, f"{path}/config", 4096) or b""
        id_bytes = 32 if b"sha256" in config else 20
        links = gitlinks(data, id_bytes=id_bytes)
        if shared_id := shared(data, id_bytes=id_bytes):
            base = content(self._root, f"{path}/sharedindex.{shared_id}", MOST_BYTES + 1)
            links |= gitlinks(base or b"", id_bytes=id_bytes)
        return links

    def _hard_links(self, covers: Covers, live: Mapping[str, str]) -> None:
        linked: dict[str, int] = {}
        for path in (*covers.readonly, *(path for path, _ in covers.placeholders)):
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if not stat.S_ISREG(found.st_mode) or found.st_nlink == 1:
                continue
            linked[path] = found.st_ino
            if self._linked.get(path) == found.st_ino:
                continue
            relative = path[len(self._root.workspace) + 1 :]
            other = other_name(self._root.workspace, found, path, entries=ENTRIES)
            where = f"{_shown(other[len(self._root.workspace) + 1 :])}" if other else "a name that was not found"
            what = f"{_shown(relative)} is protected, and can be written as {where} (a hard link)"
            done = "; nothing was changed, as no command made it while it was looked at"
            if live:
                try:
                    self._quarantine.unlink_others(relative)
                    self._changed = True
                    done = "; it is a file of its own now, so look at what it holds"
                except (OSError, ExecError) as error:
                    done = f"; that could not be mended ({error})"
            writer = self._writer(frozenset(), live)
            self._meet(HARD_LINK, relative, what + done, writer, live, what_else=(found.st_ino,))
        self._linked = linked

    def _unseen(self, session_id: str, what: str) -> None:
        self._meet(UNSEEN, "", what, session_id, self._live, what_else=(session_id,))

    def _meet(
        self,
        kind: str,
        path: str,
        detail: str,
        writer: str,
        live: Mapping[str, str],
        *,
        name: str | None = None,
        kept: str | None = None,
        what_else: tuple[object, ...] = (),
    ) -> None:
        self._met.append(
            Finding(
                id=name or finding_id(kind, path, *what_else),
                kind=kind,
                path=os.path.join(self._root.workspace, path),
                detail=detail,
                session_id=writer,
                conversation_id=live.get(writer, ""),
                kept=kept,
            )
        )


def _worktree(path: str) -> str:
    """The directory of a `.git`, with a slash; of any other git directory its own."""
    return path.removesuffix(".git").removesuffix("/") + "/" if path.removesuffix(".git").rstrip("/") else ""


def _shown(path: str) -> str:
    """A path as it stands in a sentence: what could be misread in it is an escape."""
    return path if path.isascii() and path.isprintable() else ascii(path)


def _spaces(processes: Sequence[int], *, contained: bool) -> frozenset[str]:
    """The PID namespaces of processes that a command has left; what cannot be known of them is `_UNKNOWN`."""
    if contained and processes:
        return frozenset({_UNKNOWN})  # the container's numbers, and its commands share a namespace
    found: set[str] = set()
    for pid in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/pid"))
            except PermissionError:
                found.add(_UNKNOWN)
    return frozenset(found)


def _inhabited(spaces: frozenset[str]) -> bool:
    """Whether a process lives in one of these namespaces."""
    if not spaces or _UNKNOWN in spaces:
        return bool(spaces)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") in spaces:
                    return True
    return False


class Memory:
    """What was noted last, in the file `path`; its directory is made, for us alone. Nothing of it raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: Mapping[str, int] | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            read: Any = json.loads(path.read_text("ascii"))
            self._noted = {str(name): int(inode) for name, inode in read.items()}

    def of(self, place: str) -> int | None:
        """The inode of a place as noted; 0 for one that was not noted, None where nothing ever was."""
        return None if self._noted is None else self._noted.get(place, 0)

    def note(self, places: Mapping[str, int]) -> None:
        """Keep these in place of what was noted; a death in between leaves the one or the other."""
        if places == self._noted:
            return
        self._noted = dict(places)
        aside = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside.write_text(json.dumps(self._noted), "ascii")
            os.replace(aside, self._path)


MOST_BYTES: Final = 16 * 1024 * 1024
_LINK: Final = gitindex.GITLINK.to_bytes(4, "big")


def gitlinks(data: bytes, *, id_bytes: int = 20) -> frozenset[bytes]:
    """The paths of nested repositories in an index; object ids have `id_bytes`.

    Raises:
        ValueError: It is too long, or no index that we can read.
    """
    if len(data) > MOST_BYTES:
        raise ValueError
    if _LINK not in data:
        return frozenset()
    return frozenset(path for mode, path in gitindex.read(data, id_bytes=id_bytes)[0] if mode == gitindex.GITLINK)


def shared(data: bytes, *, id_bytes: int = 20) -> str | None:
    """The id in the name of the index that this one only adds to, if it is split: `sharedindex.<id>`."""
    at = data.rfind(b"link")
    named = data[at + 8 : at + 8 + id_bytes].hex() if at >= 0 else ""
    return named if len(named) == 2 * id_bytes and named.strip("0") else None


class Quarantine:
    """Moves files that git would obey out of the workspace `root` into the directory `home`, which is ours alone."""

    def __init__(self, root: Root, home: Path) -> None:
        self._root = root
        self._home = home

    def take(self, path: str, name: str) -> str:
        """Take what stands at `path` (from the workspace) away and return where it is kept, in a directory `name`.

        First it loses its name, in one step, so that git no longer meets it; then it is moved, or copied within a bound
        where the directory is on another file system. What cannot be moved stays beside its old name under a new one.

        Raises:
            OSError, ExecError: It could not be taken; it is where it was.
        """
        with reached(self._root, path) as place:
            aside = f".shellback-quarantined-{secrets.token_hex(8)}"
            os.rename(place.name, aside, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            kept = self._home / name / os.path.basename(path)
            try:
                self._move(place.directory, aside, kept)
            except OSError:
                return f"{self._root.workspace}/{os.path.dirname(path)}/{aside}"
        return str(kept)

    def _move(self, directory: int, name: str, kept: Path) -> None:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.rename(name, kept, src_dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(directory, name, kept)
            os.unlink(name, dir_fd=directory)
            return
        status = os.lstat(kept)
        if stat.S_ISREG(status.st_mode):
            os.chmod(kept, 0o600, follow_symlinks=False)

    def unlink_others(self, path: str) -> None:
        """Give `path` a file of its own, with the same bytes, mode and owner, so that other names no longer write it.

        Raises:
            OSError, ExecError: It could not be done, or it is longer than `COPIED_BYTES`; nothing has changed.
        """
        with reached(self._root, path) as place, closing(opened(place.name, place.directory)) as source:
            status = os.fstat(source)
            aside = f".shellback-copy-{secrets.token_hex(8)}"
            copy = os.open(aside, _MAKE, 0o600, dir_fd=place.directory)
            try:
                with closing(copy):
                    _copy_bytes(source, copy)
                    with contextlib.suppress(PermissionError):
                        os.fchown(copy, status.st_uid, status.st_gid)
                    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
                os.rename(aside, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(aside, dir_fd=place.directory)
                raise


def other_name(workspace: str, status: os.stat_result, path: str, *, entries: int) -> str | None:
    """Another name of a file in the workspace, looked for among so many entries at most; None if none was met."""
    waiting, left = [workspace], entries
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                left -= 1
                if left < 0:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.inode() == status.st_ino and entry.path != path:
                    return entry.path
    return None


def _copy(directory: int, name: str, kept: Path) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    with closing(os.open(kept, _MAKE, 0o600)) as target:
        if stat.S_ISLNK(status.st_mode):
            os.write(target, os.fsencode(os.readlink(name, dir_fd=directory)))
            return
        with closing(opened(name, directory)) as source:
            _copy_bytes(source, target)


def _copy_bytes(source: int, target: int) -> None:
    left = COPIED_BYTES
    while part := os.read(source, _CHUNK):
        left -= len(part)
        if left < 0:
            raise OSError(errno.EFBIG, "too long to be copied")
        linux.write_all(target, part)
